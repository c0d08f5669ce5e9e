//! Counts which cache lines would move between cores.
//!
//! A traced process has one thread for each core ([`crate::scaling::turns`]). The tracer lets the threads take turns,
//! makes the running thread execute one instruction at a time, decodes each instruction, and assigns its memory
//! accesses to the thread's core. So the counts are exact. They leave out what a kernel or a NIC does. They also leave
//! out contention, because no two threads run at the same time.

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
    libc::user_regs_struct,
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
    scaling::{
        Task,
        turns::{STACK, traced_warm_up},
    },
};

/// Bytes from the thread pointer upwards that belong to the thread.
const CONTROL_BLOCK: u64 = 4096;

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
    PerfError::Failed("the traced process ended without a result".to_owned())
}

/// Runs `program turns TASK TURNS`, where `program` is `bench/examples/scaling.rs`, and traces the measured turns.
///
/// # Errors
/// [`PerfError::Os`] if the program cannot be started or traced; [`PerfError::Pin`] if this thread cannot run on
/// the task's first core; [`PerfError::Failed`] if the program fails.
pub fn trace(program: &Path, task: &Task, turns: u32) -> Result<Traced, PerfError> {
    // On one core, a step takes much less time, because the tracer and the traced process need not wake another core.
    if let Some(core) = task.cores.first() {
        urnic_dataplane::pin_current_thread(*core)?;
    }
    let task = serde_json::to_string(task).expect("plain data serialises");
    let spawned =
        Command::new(program).args(["turns", &task, &turns.to_string()]).stdout(Stdio::piped()).spawn();
    let mut child =
        spawned.map_err(|source| PerfError::Os { doing: "starting the traced process", source })?;
    let traced = follow(&mut child, turns);
    if traced.is_err() {
        let _ = child.kill();
    }
    let _ = child.wait();
    traced
}

fn follow(child: &mut Child, turns: u32) -> Result<Traced, PerfError> {
    let mut words = BufReader::new(child.stdout.take().ok_or_else(silent)?);
    let mut line = String::new();
    let read = |source| PerfError::Os { doing: "reading from the traced process", source };
    words.read_line(&mut line).map_err(read)?;
    let mut line = line.split_whitespace();
    let mut address = || u64::from_str_radix(line.next()?.trim_start_matches("0x"), 16).ok();
    let (Some(mark), Some(anchor)) = (address(), address()) else { return Err(silent()) };
    let threads: Option<Vec<Pid>> = line.map(|word| word.parse().ok().map(Pid::from_raw)).collect();
    let memory = std::fs::File::open(format!("/proc/{}/mem", child.id()));
    let memory = memory
        .map_err(|source| PerfError::Os { doing: "opening the memory of the traced process", source })?;
    let mut tracer = Tracer {
        mark,
        decoder: Decoder::new(memory),
        caches: Caches::default(),
        counts: false,
        traced: Traced { anchor, ..Traced::default() },
    };
    let threads: Result<Vec<Thread>, PerfError> = threads
        .ok_or_else(silent)?
        .into_iter()
        .enumerate()
        .map(|(core, id)| Thread::stopped(core, id))
        .collect();
    tracer.run(&threads?, turns)?;
    let mut rest = String::new();
    words.read_to_string(&mut rest).map_err(read)?;
    tracer.traced.messages = rest.trim().parse().map_err(|_| silent())?;
    Ok(tracer.traced)
}

/// Waits until the thread has stopped, and returns the signal that stopped it.
fn wait(thread: Pid) -> Result<Signal, PerfError> {
    match waitpid(thread, Some(WaitPidFlag::__WALL)).map_err(os("waiting for the traced process"))? {
        WaitStatus::Stopped(_, signal) => Ok(signal),
        _ => Err(silent()),
    }
}

fn registers(thread: Pid) -> Result<user_regs_struct, PerfError> {
    ptrace::getregs(thread).map_err(os("reading the registers of the traced process"))
}

/// A stopped thread of the traced process.
struct Thread {
    core: usize,
    id: Pid,
    /// The addresses of the thread's stack and thread-local variables. No other thread uses them.
    local: Range<u64>,
}

impl Thread {
    /// Waits until the thread has stopped itself.
    fn stopped(core: usize, id: Pid) -> Result<Self, PerfError> {
        if wait(id)? != Signal::SIGSTOP {
            return Err(silent());
        }
        let registers = registers(id)?;
        // The thread pointer is at the upper end of the stack, above the thread-local variables.
        let local = registers.fs_base - STACK as u64 / 2..registers.fs_base + CONTROL_BLOCK;
        Ok(Self { core, id, local })
    }
}

struct Tracer {
    /// The address of the word that threads write at the beginning of each turn.
    mark: u64,
    decoder: Decoder,
    caches: Caches,
    /// Whether the measured turns have begun.
    counts: bool,
    traced: Traced,
}

impl Tracer {
    /// Lets the threads take turns until `turns` turns of each thread have been measured, then releases them.
    fn run(&mut self, threads: &[Thread], turns: u32) -> Result<(), PerfError> {
        let all = || threads.iter();
        all().try_for_each(|thread| self.step_to_mark(thread))?;
        for _ in 0..traced_warm_up(turns) {
            all().try_for_each(|thread| self.step_to_mark(thread))?;
        }
        self.counts = true;
        for _ in 0..turns {
            all().try_for_each(|thread| self.step_to_mark(thread))?;
        }
        all()
            .try_for_each(|thread| ptrace::detach(thread.id, None))
            .map_err(os("releasing the traced process"))
    }

    /// Steps through a thread's instructions until the thread has written the mark.
    fn step_to_mark(&mut self, thread: &Thread) -> Result<(), PerfError> {
        loop {
            let registers = registers(thread.id)?;
            self.traced.instructions += u64::from(self.counts);
            let mut at_mark = false;
            for Access { address, size, writes } in self.decoder.accesses(&registers)? {
                if address == self.mark {
                    at_mark = true;
                } else if !thread.local.contains(&address) {
                    for kind in self.caches.access(thread.core, address, size, writes) {
                        if self.counts {
                            *self.traced.moves.entry((registers.rip, kind)).or_default() += 1;
                        }
                    }
                }
            }
            ptrace::step(thread.id, None).map_err(os("stepping the traced process"))?;
            match wait(thread.id)? {
                Signal::SIGTRAP => {}
                other => return Err(PerfError::Failed(format!("the traced process got {other}"))),
            }
            if at_mark {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
