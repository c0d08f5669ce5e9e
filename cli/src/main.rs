//! The `urnic` command.
//!
//! Exit codes: 0: done and, where asked for, verified; 1: failed, and a message on stderr says what happened and what
//! to do; 2: bad usage or configuration.

mod args;
#[cfg(not(feature = "dpdk"))]
mod builds;
mod connections;
mod failure;
mod host;
mod info;
mod papers;
mod perf;
mod places;
#[cfg(feature = "dpdk")]
mod relay;
mod rping;
mod run;
mod settings;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command};

fn main() -> ExitCode {
    // Prints help and exits with 0, or reports wrong arguments and exits with 2.
    let cli = Cli::parse();
    log(matches!(&cli.command, Command::Rping(args) if args.debug));
    #[cfg(not(feature = "dpdk"))]
    if let Err(failure) = builds::hand_over(&cli.command) {
        return report(&failure);
    }
    let done = match &cli.command {
        Command::Info(args) => info::run(args),
        Command::Perf(args) => perf::run(args),
        Command::Rping(args) => rping::run(args),
        Command::Run(args) => run::run(args),
        Command::Papers(args) => papers::run(args),
        #[cfg(feature = "dpdk")]
        Command::Relay(args) => relay::run(args),
        #[cfg(not(feature = "dpdk"))]
        Command::Relay(_) => Err(failure::Failure::without_dpdk()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

fn report(failure: &failure::Failure) -> ExitCode {
    eprintln!("urnic: {failure}");
    failure.exit_code()
}

/// Logs to stderr as `URNIC_LOG` asks. By default DPDK's messages are left out, because some appear whenever a link
/// goes down. If starting DPDK or opening a port fails, urnic's error message quotes the last errors that DPDK logged.
///
/// `debug`: without `URNIC_LOG`, also log the debug messages of all parts of urnic, whose targets begin with
/// `urnic`.
fn log(debug: bool) {
    let usual = match debug {
        true => "warn,urnic_dataplane::dpdk=error,urnic=debug",
        false => "warn,urnic_dataplane::dpdk=error",
    };
    let filter = EnvFilter::try_from_env("URNIC_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .without_time()
        .init();
}
