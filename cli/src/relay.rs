//! `urnic relay`: an impaired link between two ports.

use std::time::Instant;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use urnic::simulation::Impairment;
use urnic_bench::relay::{Relay, RelayOptions};
use urnic_config::PortSpec;

use crate::args::RelayArgs;
use crate::failure::{Failure, print};
use crate::settings::Settings;

pub fn run(args: &RelayArgs) -> Result<(), Failure> {
    let config = Settings::new(args.config.as_deref())
        .set("--mtu", "port.mtu", args.mtu.as_deref())
        .set("--cores", "engine.cores", args.cores.as_deref())
        .load()?;
    for port in [&args.a, &args.b] {
        if let PortSpec::Ring { .. } = port {
            return Err(Failure::Usage(format!(
                "{port}: a ring joins devices of one process, and the relay is a process of its own; use another \
                 kind"
            )));
        }
    }
    // This must precede the start of any thread, because a new thread inherits the blocked signals.
    let signals = stop_signals()?;
    let options = RelayOptions { ports: [args.a.clone(), args.b.clone()], impairments: impairments(args) };
    let mut relay = Relay::open(&config, &options).map_err(failed)?;
    let end = args.duration.and_then(|d| Instant::now().checked_add(d));
    let go_on =
        || !matches!(signals.read_signal(), Ok(Some(_))) && end.is_none_or(|end| Instant::now() < end);
    relay.run(&config, !args.json, go_on).map_err(failed)?;
    let report = relay.report();
    print(&if args.json { report.to_json() } else { report.table() })
}

/// Returns the impairments from A to B, and from B to A.
fn impairments(args: &RelayArgs) -> [Impairment; 2] {
    let there = args.fault.unwrap_or_default();
    // With the same seed, both directions would get the same decisions.
    let back = Impairment { seed: there.seed.wrapping_add(1), ..there };
    [args.fault_ab.unwrap_or(there), args.fault_ba.unwrap_or(back)]
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

/// Blocks SIGINT and SIGTERM, and returns a descriptor that reports them.
fn stop_signals() -> Result<SignalFd, Failure> {
    let mut set = SigSet::empty();
    set.add(Signal::SIGINT);
    set.add(Signal::SIGTERM);
    let fd = set
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC));
    fd.map_err(|e| Failure::Failed(format!("cannot wait for signals: {e}")))
}
