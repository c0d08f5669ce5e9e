//! The two builds of `urnic`. A program that is linked with DPDK starts only if DPDK's libraries are installed. So the
//! `urnic` in the PATH is the build without DPDK. For a subcommand that uses ports, it executes the build with DPDK.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use urnic_bench::perf::Link;

use crate::args::{Command, NodeArgs, PerfCommand};
use crate::failure::Failure;
use crate::places::{DPDK, places};
use crate::settings::Settings;

/// Executes the build with DPDK, if the subcommand needs ports. `urnic run` itself never needs ports: the libraries
/// that it brings into the program choose between their own two builds.
pub fn hand_over(command: &Command) -> Result<(), Failure> {
    if !needs_ports(command)? {
        return Ok(());
    }
    let program = find()?;
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_else(|| "urnic".into());
    let error = process::Command::new(&program).arg0(name).args(arguments).exec();
    Err(Failure::Failed(format!("cannot run {}: {error}", program.display())))
}

fn needs_ports(command: &Command) -> Result<bool, Failure> {
    let port = |node: &NodeArgs| Ok(Settings::of_node(node).load()?.port.spec.is_some());
    match command {
        Command::Relay(_) => Ok(true),
        Command::Info(args) if args.connections => Ok(false),
        Command::Info(args) => port(&args.node),
        Command::Rping(args) => port(&args.node),
        Command::Run(_) | Command::Papers(_) => Ok(false),
        Command::Perf(args) => match &args.command {
            PerfCommand::Pair(args) => Ok(args.port != Link::Kernel),
            PerfCommand::Server(args) => port(&args.node),
            PerfCommand::Client(args) => port(&args.node),
            PerfCommand::Floor(_) => Ok(true),
            PerfCommand::Table => Ok(false),
        },
    }
}

/// Returns the build with DPDK, after checking that it can be loaded.
pub fn find() -> Result<PathBuf, Failure> {
    let own = env::current_exe().map_err(|e| Failure::Failed(format!("cannot find this command: {e}")))?;
    let programs = places(&own).map(|place| place.join(DPDK).join("urnic"));
    let program = programs.into_iter().find(|program| program.is_file()).ok_or_else(Failure::without_dpdk)?;
    loadable(&program)?;
    Ok(program)
}

/// Checks that the libraries that a program needs are installed.
pub fn loadable(program: &Path) -> Result<(), Failure> {
    // With this variable, the dynamic linker lists the libraries that it would load, and does not run the program.
    let listed = process::Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").output();
    let listed = listed
        .map_err(|e| Failure::Failed(format!("cannot list the libraries of {}: {e}", program.display())))?;
    match missing(&String::from_utf8_lossy(&listed.stdout)).as_slice() {
        [] => Ok(()),
        [first, rest @ ..] => Err(Failure::Failed(lacks(first, rest.len()))),
    }
}

/// Returns the libraries that a list of the dynamic linker marks as not found.
fn missing(list: &str) -> Vec<&str> {
    list.lines().filter_map(|line| line.trim().strip_suffix(" => not found")).collect()
}

/// Returns the message that `library` and `others` further libraries are missing.
fn lacks(library: &str, others: usize) -> String {
    let others = match others {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!(
        "ports need {}, whose libraries are not installed ({library}{others}): install them (Debian, Ubuntu: apt install \
         librte-meta-all), or use the kernel's sockets (--port kernel)",
        release(library).map_or("DPDK".to_owned(), |release| format!("DPDK {release}"))
    )
}

/// Returns the release of DPDK that a library belongs to: `librte_eal.so.23` has the ABI of 22.11.
fn release(library: &str) -> Option<String> {
    let abi: u32 = library.strip_prefix("librte_")?.split_once(".so.")?.1.parse().ok()?;
    abi.checked_sub(1).map(|year| format!("{year}.11"))
}

#[cfg(test)]
mod tests;
