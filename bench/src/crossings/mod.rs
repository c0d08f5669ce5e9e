//! Counts which cache lines would move between cores.
//!
//! One thread of a traced process does the work of several cores in turns ([`crate::scaling::turns`]). The tracer makes
//! this thread execute one instruction at a time, decodes each instruction, and assigns its memory accesses to the core
//! whose turn it is. So the counts are exact. They contain no contention, because no two cores run at the same time, and
//! nothing that a kernel or a NIC does.

mod caches;
mod step;

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read},
    ops::Range,
    path::Path,
    process::{Child, Command, Stdio},
};

use caches::Caches;
pub use caches::Move;
use nix::{
    sys::{
        ptrace,
        signal::Signal,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use step::{Access, Decoder};

use crate::{
    perf::PerfError,
    scaling::{Task, turns::Mark},
};

/// Bytes on either side of the thread pointer that hold thread-local variables.
const THREAD_LOCAL: u64 = 8192;
/// Bytes by which the stack may grow.
const STACK_GROWTH: u64 = 8 << 20;

/// Result of [`trace`].
#[derive(Debug, Default)]
pub struct Traced {
    /// Completed messages.
    pub messages: u64,
    /// Instructions of all cores, both ends of the connections.
    pub instructions: u64,
    /// Number of lines that moved, by address of the accessing instruction and kind of movement.
    pub moves: HashMap<(u64, Move), u64>,
    /// The address of [`crate::scaling::turns::turns`] in the traced process.
    pub anchor: u64,
}

impl Traced {
    /// Returns the number of lines that moved in this way.
    pub fn count(&self, kind: Move) -> u64 {
        self.moves.iter().filter(|((_, of), _)| *of == kind).map(|(_, count)| count).sum()
    }
}

fn os(doing: &'static str) -> impl Fn(nix::Error) -> PerfError {
    move |errno| PerfError::Os { doing, source: errno.into() }
}

fn silent() -> PerfError {
    PerfError::Gone("the traced process ended without a result".to_owned())
}

/// Runs `program turns TASK TURNS`, where `program` is `bench/examples/scaling.rs`, and traces the measured turns.
///
/// # Errors
/// [`PerfError::Os`] if the program cannot be started or traced; [`PerfError::Pin`] if this thread cannot run on
/// the task's first core; [`PerfError::Gone`] if the program fails.
pub fn trace(program: &Path, task: &Task, turns: u32) -> Result<Traced, PerfError> {
    // On one core the two processes take turns without waking another core, which makes a step much shorter.
    if let Some(core) = task.cores.first() {
        urnic_dataplane::pin_current_thread(*core)?;
    }
    let task = serde_json::to_string(task).expect("plain data serialises");
    let spawned =
        Command::new(program).args(["turns", &task, &turns.to_string()]).stdout(Stdio::piped()).spawn();
    let mut child =
        spawned.map_err(|source| PerfError::Os { doing: "starting the traced process", source })?;
    let traced = follow(&mut child);
    if traced.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    traced
}

fn follow(child: &mut Child) -> Result<Traced, PerfError> {
    let mut words = BufReader::new(child.stdout.take().ok_or_else(silent)?);
    let mut line = String::new();
    let read = |source| PerfError::Os { doing: "reading from the traced process", source };
    words.read_line(&mut line).map_err(read)?;
    let mut addresses =
        line.split_whitespace().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
    let (Some(Ok(marks)), Some(Ok(anchor))) = (addresses.next(), addresses.next()) else {
        return Err(silent());
    };
    let mut traced = Traced { anchor, ..Traced::default() };
    step_through(Pid::from_raw(child.id() as i32), marks, &mut traced)?;
    let mut rest = String::new();
    words.read_to_string(&mut rest).map_err(read)?;
    traced.messages = rest.trim().parse().map_err(|_| silent())?;
    Ok(traced)
}

/// Returns the addresses of the main thread's stack.
fn stack_of(pid: Pid) -> Result<Range<u64>, PerfError> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
    let maps =
        maps.map_err(|source| PerfError::Os { doing: "reading the mappings of the traced process", source })?;
    let line = maps.lines().find(|line| line.ends_with("[stack]")).ok_or_else(silent)?;
    let mut ends = line.split([' ', '-']).map_while(|word| u64::from_str_radix(word, 16).ok());
    let (Some(start), Some(end)) = (ends.next(), ends.next()) else { return Err(silent()) };
    // The stack may grow while the process is traced.
    Ok(start.saturating_sub(STACK_GROWTH)..end)
}

/// Steps through the instructions of the process from its first stop to the mark that ends the measurement.
fn step_through(pid: Pid, marks: u64, traced: &mut Traced) -> Result<(), PerfError> {
    let wait =
        || match waitpid(pid, Some(WaitPidFlag::__WALL)).map_err(os("waiting for the traced process"))? {
            WaitStatus::Stopped(_, signal) => Ok(signal),
            _ => Err(silent()),
        };
    if wait()? != Signal::SIGSTOP {
        return Err(silent());
    }
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"));
    let memory = memory
        .map_err(|source| PerfError::Os { doing: "opening the memory of the traced process", source })?;
    let stack = stack_of(pid)?;
    let (mut decoder, mut caches) = (Decoder::new(memory), Caches::default());
    let (mut core, mut counts) = (None, false);
    loop {
        let registers = ptrace::getregs(pid).map_err(os("reading the registers of the traced process"))?;
        traced.instructions += u64::from(counts);
        let mut mark = None;
        for Access { address, size, writes } in decoder.accesses(&registers)? {
            mark = mark.or_else(|| address.checked_sub(marks).and_then(Mark::at).filter(|_| writes));
            // Each core would have a thread with a stack and thread-local variables of its own.
            let local = registers.fs_base.wrapping_sub(THREAD_LOCAL)..registers.fs_base + THREAD_LOCAL;
            if stack.contains(&address) || local.contains(&address) {
                continue;
            }
            if let (Some(core), None) = (core, mark) {
                for kind in caches.access(core, address, size, writes) {
                    if counts {
                        *traced.moves.entry((registers.rip, kind)).or_default() += 1;
                    }
                }
            }
        }
        match mark {
            Some(Mark::Begin) => counts = true,
            Some(Mark::End) => return ptrace::detach(pid, None).map_err(os("releasing the traced process")),
            Some(Mark::Turn(number)) => core = Some(number),
            None => {}
        }
        ptrace::step(pid, None).map_err(os("stepping the traced process"))?;
        match wait()? {
            Signal::SIGTRAP => {}
            other => return Err(PerfError::Gone(format!("the traced process got {other}"))),
        }
    }
}
