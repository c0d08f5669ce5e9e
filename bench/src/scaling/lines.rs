//! One thread that does in turn what several would do at the same time, each step between two stores that a trace of memory shows:
//! what `scripts/scaling --lines` counts the cache lines of that more than one engine's thread would touch.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{
    Shape, Task,
    station::{Ends, Served, Station},
};
use crate::perf::PerfError;

/// Threads that can be told apart.
const THREADS: usize = 8;

/// A word on a cache line of its own, which says by being stored to whose turn it is.
#[repr(align(128))]
struct Mark(AtomicU64);

static MARKS: [Mark; THREADS] = [const { Mark(AtomicU64::new(0)) }; THREADS];

/// Steps before the trace is looked at.
const WARM_UP: u64 = 8;

/// Prints where the marks are, and gives each of the threads of `task` its turn `steps` times. Returns the messages that
/// were complete by then, warming up not counted.
///
/// # Errors
/// [`PerfError`].
pub fn run(task: &Task, steps: u64) -> Result<u64, PerfError> {
    let threads = task.cores.len().min(THREADS);
    let ends = Ends::open(task)?;
    let served = match task.shape {
        Shape::All => vec![Served::new(&ends.server, task, 0, threads)?],
        Shape::Own => {
            (0..threads).map(|thread| Served::new(&ends.server, task, thread, 1)).collect::<Result<_, _>>()?
        }
    };
    let of = |thread: usize| served.get(thread).or(served.first());
    let station = |thread| Some(Station::new(&ends, of(thread)?, task, thread));
    let mut stations = (0..threads).filter_map(station).collect::<Result<Vec<_>, _>>()?;
    let mut messages = 0;
    for step in 0..WARM_UP + steps {
        if step == WARM_UP {
            messages = 0;
            let marks = MARKS.iter().take(threads).map(|mark| format!("{:x}", (&raw const mark.0).addr()));
            eprintln!("marks {}", marks.collect::<Vec<_>>().join(" "));
        }
        for (station, mark) in stations.iter_mut().zip(&MARKS) {
            mark.0.store(step + 1, Ordering::SeqCst);
            messages += station.turn()?;
        }
    }
    std::mem::forget(stations);
    std::mem::forget(served);
    std::mem::forget(ends);
    Ok(messages)
}
