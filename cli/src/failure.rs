//! How commands fail, and how they print.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use urnic_bench::perf::PerfError;
use urnic_config::ConfigError;

/// Why a command failed. The message says what happened and what to do.
#[derive(Debug)]
pub enum Failure {
    /// Bad usage or configuration.
    Usage(String),
    /// Any other failure.
    Failed(String),
}

impl Failure {
    /// Returns the failure of a command that needs ports, if the build with DPDK is not installed.
    #[cfg(not(feature = "dpdk"))]
    pub fn without_dpdk() -> Self {
        Failure::Failed(
            "a port needs the build of urnic with DPDK, which is not installed beside this one: build urnic with the feature \
             dpdk, or use the kernel's sockets (--port kernel)"
                .to_owned(),
        )
    }

    /// Returns 2 for wrong usage, else 1.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Failed(_) => ExitCode::from(1),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Usage(message) | Failure::Failed(message)) = self;
        f.write_str(message)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(error.to_string())
    }
}

impl From<PerfError> for Failure {
    fn from(error: PerfError) -> Self {
        match error.is_usage() {
            true => Failure::Usage(error.to_string()),
            false => Failure::Failed(error.to_string()),
        }
    }
}

impl From<urnic::Error> for Failure {
    fn from(error: urnic::Error) -> Self {
        Failure::Failed(error.to_string())
    }
}

/// Prints one or more lines on stdout. A closed pipe is not a failure: `urnic info | head` must work.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}
