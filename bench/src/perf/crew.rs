//! The threads of one end. They share its device, and each has its own session.

use std::{
    panic,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{
    end::{End, PATIENCE},
    error::{Doing, PerfError},
};

/// Time that a thread waits until the others are ready: each of them may wait once for its server, and then once for
/// its queue pairs.
const OTHERS_READY: Duration = PATIENCE.saturating_mul(2);

/// State that the threads of an end share.
pub(super) struct Crew {
    threads: u32,
    ready: AtomicU32,
    failed: AtomicBool,
}

impl Crew {
    /// Runs `first` on the calling thread, and `other` on each of the other threads, which are numbered from 1. Thread
    /// `i` is pinned to core `i` of `cores`; if there are more threads than cores, the cores are used again from the
    /// first. If `cores` is empty, the threads are not pinned. Returns the results of all threads, by number.
    ///
    /// # Errors
    /// The error of a thread. If several threads failed, an error that was not caused by another thread's failure.
    pub(super) fn run<R: Send>(
        threads: u32,
        cores: &[usize],
        first: impl FnOnce(&Self) -> Result<R, PerfError>,
        other: impl Fn(&Self, u32) -> Result<R, PerfError> + Sync,
    ) -> Result<Vec<R>, PerfError> {
        let crew = Self { threads, ready: AtomicU32::new(0), failed: AtomicBool::new(false) };
        let pinned = |thread: u32| {
            let core = cores.get(thread as usize % cores.len().max(1));
            core.map_or(Ok(()), |&core| Ok(urnic_dataplane::pin_current_thread(core)?))
        };
        let (crew, pinned, other) = (&crew, &pinned, &other);
        let all: Vec<Result<R, PerfError>> = thread::scope(|scope| {
            let spawn = |number: u32| {
                let builder = thread::Builder::new().name(format!("perf-{number}"));
                let run = move || crew.note(pinned(number).and_then(|()| other(crew, number)));
                crew.note(builder.spawn_scoped(scope, run).doing("starting a thread"))
            };
            let others: Vec<_> = (1..threads).map(spawn).collect();
            let first = crew.note(pinned(0).and_then(|()| first(crew)));
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
            };
            let others = others.into_iter().map(|thread| thread.and_then(join));
            [first].into_iter().chain(others).collect()
        });
        let mut made = Vec::new();
        let mut why = None;
        for one in all {
            match one {
                Ok(one) => made.push(one),
                Err(error) if matches!(why, None | Some(PerfError::OtherThread)) => why = Some(error),
                Err(_) => {}
            }
        }
        why.map_or(Ok(made), Err)
    }

    /// Returns `result`. If it is an error, tells the other threads that this one has failed.
    fn note<R>(&self, result: Result<R, PerfError>) -> Result<R, PerfError> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    /// Fails if another thread has failed.
    pub(super) fn check(&self) -> Result<(), PerfError> {
        if self.failed.load(Ordering::Acquire) { Err(PerfError::OtherThread) } else { Ok(()) }
    }

    /// Waits until all threads have called this function, and drives the caller's end meanwhile.
    pub(super) fn await_all(&self, end: &mut End) -> Result<(), PerfError> {
        self.ready.fetch_add(1, Ordering::AcqRel);
        let deadline = Instant::now() + OTHERS_READY;
        while self.ready.load(Ordering::Acquire) < self.threads {
            self.check()?;
            if Instant::now() > deadline {
                return Err(PerfError::Stalled {
                    what: "the other threads",
                    seconds: OTHERS_READY.as_secs(),
                });
            }
            end.attend()?;
            thread::yield_now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
