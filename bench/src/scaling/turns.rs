//! The work of several cores, done by one thread: the cores' turns alternate. [`crate::crossings`] traces the memory
//! accesses, assigns each to the core whose turn it is, and so counts which cache lines would move between cores.

use std::{
    io::{Write, stdout},
    mem,
    sync::atomic::{AtomicU64, Ordering},
};

use nix::sys::{
    ptrace,
    signal::{Signal, raise},
};

use super::{
    Shape, Task,
    station::{Ends, Served, Station},
};
use crate::perf::PerfError;

/// Turns of each core before the measured turns.
const WARM_UP: u32 = 200;
/// Minimum number of turns of each core that are traced before the measured turns, so that each slot of a queue
/// has been used. There are as many of them as measured turns, if that is more.
const TRACED_WARM_UP: u32 = 4;
/// Maximum number of cores.
const CORES: usize = 8;
/// Words that mark points of a trace: a store to a word tells the tracer which point the program has reached.
static MARKS: [AtomicU64; 2 + CORES] = [const { AtomicU64::new(0) }; 2 + CORES];

/// A point of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The measurement begins.
    Begin,
    /// The measurement ends.
    End,
    /// A turn of this core begins.
    Turn(usize),
}

impl Mark {
    /// Returns the mark whose word is `offset` bytes behind the first word.
    pub fn at(offset: u64) -> Option<Self> {
        match usize::try_from(offset / 8).ok()? {
            _ if !offset.is_multiple_of(8) => None,
            0 => Some(Self::Begin),
            1 => Some(Self::End),
            number => (number < MARKS.len()).then(|| Self::Turn(number - 2)),
        }
    }

    fn reach(self) {
        let index = match self {
            Self::Begin => 0,
            Self::End => 1,
            Self::Turn(core) => 2 + core,
        };
        MARKS.iter().skip(index).take(1).for_each(|word| word.store(1, Ordering::Relaxed));
    }
}

/// Runs `turns` turns of each core of `task` as a traced child. After a warm-up, writes the addresses of the
/// marks' words and of this function to standard output: they tell the tracer where the program was loaded.
/// Then stops this process, until the tracer lets it go on. Returns the number of messages that have completed
/// in the measured turns.
///
/// # Errors
/// [`PerfError`].
pub fn turns(task: &Task, turns: u32) -> Result<u64, PerfError> {
    let cores = task.cores.len();
    if cores > CORES {
        return Err(PerfError::Usage(format!("at most {CORES} cores")));
    }
    let ends = Ends::open(task)?;
    let served: Vec<_> = match task.shape {
        Shape::All => vec![Served::new(&ends.server, task, 0, cores)?],
        Shape::Own => {
            (0..cores).map(|core| Served::new(&ends.server, task, core, 1)).collect::<Result<_, _>>()?
        }
    };
    let mut stations = Vec::new();
    for (core, served) in (0..cores).zip(served.iter().cycle()) {
        stations.push(Station::new(&ends, served, task, core)?);
    }
    let mut round = || -> Result<u64, PerfError> {
        let mut messages = 0;
        for (core, station) in stations.iter_mut().enumerate() {
            Mark::Turn(core).reach();
            messages += station.turn()?;
        }
        Ok(messages)
    };
    for _ in 0..WARM_UP {
        round()?;
    }
    println!("{:p} {:p}", &raw const MARKS, self::turns as *const ());
    let _ = stdout().flush();
    let refused =
        |errno: nix::Error| PerfError::Os { doing: "stopping for the tracer", source: errno.into() };
    ptrace::traceme().and_then(|()| raise(Signal::SIGSTOP)).map_err(refused)?;
    // The first turns only tell the tracer which core has which lines.
    for _ in 0..turns.max(TRACED_WARM_UP) {
        round()?;
    }
    Mark::Begin.reach();
    let mut messages = 0;
    for _ in 0..turns {
        messages += round()?;
    }
    Mark::End.reach();
    // Dropping one end first would take the peer away from the other end.
    mem::forget(stations);
    mem::forget((served, ends));
    Ok(messages)
}
