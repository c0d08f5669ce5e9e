//! The turns of several threads, one thread for each core. [`crate::crossings`] lets one thread at a time run, traces
//! its memory accesses, and so counts which cache lines would move between the cores.

use std::{
    io::{Write, stdout},
    mem,
    sync::{
        Barrier, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use nix::{
    sys::{
        ptrace,
        signal::{Signal, raise},
    },
    unistd::{Pid, gettid},
};

use super::{
    Shape, Task,
    station::{Ends, Served, Station},
};
use crate::perf::PerfError;

/// Turns of each thread before the measured turns, without the tracer.
const WARM_UP: u32 = 200;
/// Least number of turns of each thread that are traced before the measured turns, so that each slot of a queue has
/// been used.
const TRACED_WARM_UP: u32 = 4;
/// Maximum number of threads.
const THREADS: usize = 8;
/// Bytes of a thread's stack.
pub(crate) const STACK: usize = 4 << 20;
/// A store to this word tells the tracer that the storing thread begins a turn, or has ended its last turn.
static TURN: AtomicU64 = AtomicU64::new(0);

/// Returns the number of traced turns of each thread before `turns` measured ones.
pub(crate) fn traced_warm_up(turns: u32) -> u32 {
    turns.max(TRACED_WARM_UP)
}

/// Runs the threads of `task` as a traced child, with `turns` measured turns of each thread. After a warm-up, writes a
/// line to standard output: the address of the word that marks turns, the address of this function (so that the tracer
/// knows where the program was loaded), and the number of each thread. Each thread stops itself until the tracer
/// continues it. Returns the number of messages that have completed in the measured turns.
///
/// # Errors
/// [`PerfError`].
pub fn turns(task: &Task, turns: u32) -> Result<u64, PerfError> {
    let threads = task.cores.len();
    if threads > THREADS {
        return Err(PerfError::Usage(format!("at most {THREADS} cores")));
    }
    let ends = Ends::open(task)?;
    let served: Vec<_> = match task.shape {
        Shape::All => vec![Served::new(&ends.server, task, 0, threads)?],
        Shape::Own => {
            (0..threads).map(|thread| Served::new(&ends.server, task, thread, 1)).collect::<Result<_, _>>()?
        }
    };
    let mut stations = Vec::new();
    for (thread, served) in (0..threads).zip(served.iter().cycle()) {
        stations.push(Station::new(&ends, served, task, thread)?);
    }
    let numbers = Mutex::new(vec![Pid::from_raw(0); threads]);
    let (warm, told) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let one = |thread: usize, mut station: Station<'_>| -> Result<u64, PerfError> {
        let warmed = (0..WARM_UP).try_for_each(|_| station.turn().map(drop));
        let refused =
            |errno: nix::Error| PerfError::Os { doing: "stopping for the tracer", source: errno.into() };
        // The tracer may only wait for a thread that has asked to be traced.
        let asked = ptrace::traceme();
        let mut all = numbers.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter_mut().skip(thread).take(1).for_each(|number| *number = gettid());
        drop(all);
        warm.wait();
        told.wait();
        warmed?;
        asked.and_then(|()| raise(Signal::SIGSTOP)).map_err(refused)?;
        let mut turn = || -> Result<u64, PerfError> {
            TURN.store(1, Ordering::Relaxed);
            station.turn()
        };
        // The first turns only tell the tracer which core has which lines.
        for _ in 0..traced_warm_up(turns) {
            turn()?;
        }
        let messages = (0..turns).try_fold(0, |sum, _| turn().map(|messages| sum + messages));
        TURN.store(1, Ordering::Relaxed);
        // Dropping the queue pairs of one thread first would end what the others still do.
        mem::forget(station);
        messages
    };
    let messages = thread::scope(|scope| {
        let one = &one;
        let spawn = |(number, station)| {
            let builder = thread::Builder::new().stack_size(STACK);
            builder.spawn_scoped(scope, move || one(number, station))
        };
        let spawned: Result<Vec<_>, _> = stations.into_iter().enumerate().map(spawn).collect();
        let running = spawned.map_err(|source| PerfError::Os { doing: "starting a thread", source })?;
        warm.wait();
        print!("{:p} {:p}", &raw const TURN, self::turns as *const ());
        numbers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|number| print!(" {number}"));
        println!();
        let _ = stdout().flush();
        told.wait();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<u64, PerfError>>| {
            thread.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))
        };
        running.into_iter().map(join).sum()
    });
    // Dropping one end first would take the peer away from the other end.
    mem::forget((served, ends));
    messages
}
