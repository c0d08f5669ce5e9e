//! The ends of a pair as processes.
//!
//! Each end is this same program, started with the same arguments, so that both ends have exactly the settings of the
//! program that started them. Two environment variables contain the name of the end and the pair's directory.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
};

use nix::sys::{prctl, signal::Signal};
use serde::{Serialize, de::DeserializeOwned};

use super::error::{Doing, PerfError};

/// Environment variables that contain the name of a process's end, and the pair's directory. They do not begin with
/// `URNIC_`, because variables with this prefix are settings.
const END: &str = "_URNIC_PERF_END";
/// See [`END`].
const DIR: &str = "_URNIC_PERF_DIR";

/// One end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Server,
    Client,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Returns which end this process is, and the pair's directory; `None` if the process was not started as an end.
pub(super) fn own_end() -> Option<(End, PathBuf)> {
    let (end, dir) = (env::var(END).ok()?, env::var_os(DIR)?);
    let end = [End::Server, End::Client].into_iter().find(|e| e.name() == end)?;
    Some((end, dir.into()))
}

/// Returns the path of an end's result.
fn result_path(dir: &Path, end: End) -> PathBuf {
    dir.join(format!("{}.json", end.name()))
}

/// Ends this process, which is one end of a pair, after writing its result for the process that started it.
pub(super) fn leave<T: Serialize>(end: End, dir: &Path, result: Result<T, PerfError>) -> ! {
    let result = result.map_err(|error| error.to_string());
    let text = serde_json::to_string(&result).unwrap_or_default();
    let written = fs::write(result_path(dir, end), text).is_ok();
    process::exit(i32::from(result.is_err() || !written));
}

/// Lets the kernel kill `command` when the thread that starts it ends, even if that thread is killed, so that no
/// polling process is left behind.
pub(crate) fn die_with_us(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
    }
}

/// A process of this pair; killed on drop if it still runs.
pub(super) struct Process {
    end: End,
    child: Child,
}

impl Process {
    pub(super) fn start(end: End, dir: &Path) -> Result<Self, PerfError> {
        let program = env::current_exe().doing("finding this program")?;
        let mut command = Command::new(program);
        command.args(env::args_os().skip(1)).env(END, end.name()).env(DIR, dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        die_with_us(&mut command);
        let child = command.spawn().doing("starting an end of the pair")?;
        Ok(Self { end, child })
    }

    /// Returns the result that the process wrote; `None` if the process still runs.
    pub(super) fn result<T: DeserializeOwned>(&mut self, dir: &Path) -> Result<Option<T>, PerfError> {
        let Some(status) = self.child.try_wait().doing("waiting for an end of the pair")? else {
            return Ok(None);
        };
        let end = self.end.name();
        let text = fs::read_to_string(result_path(dir, self.end)).unwrap_or_default();
        match serde_json::from_str::<Result<T, String>>(&text) {
            Ok(Ok(report)) if status.success() => Ok(Some(report)),
            Ok(Err(message)) => Err(PerfError::End { end, message }),
            _ => Err(PerfError::Died { end, status }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls are harmless if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
