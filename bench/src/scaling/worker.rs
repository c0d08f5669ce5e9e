//! A process that makes one measurement.

use std::{
    io::{BufRead, Write, stdin, stdout},
    mem, panic,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    Done, Shape, Task,
    station::{Ends, Served, Station},
};
use crate::perf::PerfError;

/// Time for which the threads work before they are measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// Turns between two readings of the clock.
const CLOCK_EVERY: u32 = 16;

/// Synchronises the threads of a process, without a lock.
struct Meeting {
    threads: usize,
    ready: AtomicUsize,
    /// 1 once the measurement begins; the thread that talks to the parent sets it.
    begun: AtomicUsize,
    finished: AtomicUsize,
    failed: AtomicBool,
}

impl Meeting {
    /// Returns `result`. If it is an error, tells the other threads that this one has failed.
    fn note<R>(&self, result: Result<R, PerfError>) -> Result<R, PerfError> {
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }

    fn check(&self) -> Result<(), PerfError> {
        if self.failed.load(Ordering::Acquire) { Err(PerfError::OtherThread) } else { Ok(()) }
    }
}

/// Makes the connections of `task`, writes `ready` on standard output, waits for a line on standard input, and
/// measures.
///
/// # Errors
/// [`PerfError`].
pub fn run(task: &Task) -> Result<Done, PerfError> {
    let threads = task.cores.len();
    let ends = Ends::open(task)?;
    let shared = match task.shape {
        Shape::All => Some(Served::new(&ends.server, task, 0, threads)?),
        Shape::Own => None,
    };
    // Only one thread connects at a time, because a connecting thread drives all engines.
    let turn = Mutex::new(());
    let meeting = Meeting {
        threads,
        ready: AtomicUsize::new(0),
        begun: AtomicUsize::new(0),
        finished: AtomicUsize::new(0),
        failed: AtomicBool::new(false),
    };
    let one = |number: usize, core: usize| -> Result<Rate, PerfError> {
        urnic_dataplane::pin_current_thread(core)?;
        let own;
        let mut station = {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let served = match &shared {
                Some(served) => served,
                None => {
                    own = Served::new(&ends.server, task, number, 1)?;
                    &own
                }
            };
            Station::new(&ends, served, task, number)?
        };
        meeting.ready.fetch_add(1, Ordering::AcqRel);
        while meeting.begun.load(Ordering::Acquire) == 0 {
            meeting.check()?;
            thread::sleep(Duration::from_millis(1));
        }
        let rate = measure(&mut station, task.seconds, &meeting)?;
        while !station.drain()? {
            meeting.check()?;
        }
        meeting.finished.fetch_add(1, Ordering::AcqRel);
        // This thread goes on driving its engines, because other threads may need them.
        while meeting.finished.load(Ordering::Acquire) < meeting.threads {
            meeting.check()?;
            station.drain()?;
        }
        Ok(rate)
    };
    let mut handed_over = 0;
    let rates: Result<Vec<Rate>, PerfError> = thread::scope(|scope| {
        let (one, meeting) = (&one, &meeting);
        let begin = |(number, &core): (usize, &usize)| scope.spawn(move || meeting.note(one(number, core)));
        let running: Vec<_> = task.cores.iter().enumerate().map(begin).collect();
        let failed = || running.iter().any(thread::ScopedJoinHandle::is_finished);
        while meeting.ready.load(Ordering::Acquire) < threads && !failed() {
            thread::sleep(Duration::from_millis(1));
        }
        if !failed() {
            handed_over = ends.handed_over()?;
            let _ = writeln!(stdout(), "ready").and_then(|()| stdout().flush());
            let mut word = String::new();
            let _ = stdin().lock().read_line(&mut word);
        }
        meeting.begun.store(1, Ordering::Release);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
        };
        let all: Vec<_> = running.into_iter().map(join).collect();
        let why = |error: &PerfError| !matches!(error, PerfError::OtherThread);
        // If several threads failed, the result is an error that was not caused by another thread's failure.
        match all.iter().position(|one| one.as_ref().is_err_and(why)) {
            Some(first) => all.into_iter().skip(first).take(1).collect(),
            None => all.into_iter().collect(),
        }
    });
    let rates = rates?;
    drop(shared);
    let handed_over = ends.handed_over()? - handed_over;
    // Dropping one end first would take the peer away from the other end. When the process exits, both close
    // together.
    mem::forget(ends);
    Ok(Done {
        mmsg_s: rates.iter().map(|rate| rate.mmsg_s).collect(),
        mmsg_cpu_s: rates.iter().map(|rate| rate.mmsg_cpu_s).collect(),
        handed_over,
    })
}

/// The rate of a thread.
struct Rate {
    /// Million messages per second.
    mmsg_s: f64,
    /// Million messages per second of the thread's processor time.
    mmsg_cpu_s: f64,
}

fn processor_time() -> Result<Duration, PerfError> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    let now =
        now.map_err(|errno| PerfError::Os { doing: "reading the thread's clock", source: errno.into() })?;
    Ok(Duration::from(now))
}

fn measure(station: &mut Station<'_>, seconds: f64, meeting: &Meeting) -> Result<Rate, PerfError> {
    let mut work_for = |time: Duration| -> Result<Rate, PerfError> {
        let (start, processor) = (Instant::now(), processor_time()?);
        let mut messages = 0;
        loop {
            for _ in 0..CLOCK_EVERY {
                messages += station.turn()?;
            }
            let passed = start.elapsed();
            if passed >= time {
                let used = processor_time()? - processor;
                let per = |time: Duration| messages as f64 / time.as_secs_f64() / 1e6;
                return Ok(Rate { mmsg_s: per(passed), mmsg_cpu_s: per(used) });
            }
            meeting.check()?;
        }
    };
    work_for(WARM_UP)?;
    work_for(Duration::from_secs_f64(seconds))
}
