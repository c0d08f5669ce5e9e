//! Answers other processes that ask about the connections of this process: `urnic info --connections`.
//!
//! Each device has a Unix socket with the abstract name `urnic/PID/N`, unless it is simulated or runs on a
//! transport of the program. PID is the process, and N counts its devices from 0. The socket leaves no file
//! behind, and is visible in the process's network namespace. If the device has a port, the device's configured
//! addresses are appended to the name, each after a `/`, as far as they fit. From the name, other processes
//! (`neighbours`) learn which process has an address.
//!
//! A process of the same user, or of root, that connects gets lines of text, and then the end of the stream: `counter
//! NAME VALUE` for each of [`DeviceAttr::counters`](crate::DeviceAttr::counters), then `engine NUMBER NAME=VALUE ...`
//! for each of [`DeviceAttr::per_engine`](crate::DeviceAttr::per_engine), then `connection NAME=VALUE ...` for each
//! connection. The answering thread sleeps while no process asks, and calls the engines as any verb does.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use urnic_config::Cidr;

use crate::drive::shard::{Shards, WeakShards, with_signals_blocked};
use crate::shared::connection::ConnectionAttr;
use crate::shared::figures::{EngineFigures, FRAMES_HANDED_OVER, FRAMES_TAKEN_OVER};
use crate::shared::quiet::forked;

#[cfg(test)]
mod tests;

/// Prefix of the sockets' names.
pub(super) const PREFIX: &str = "urnic/";
/// Longest abstract name, in octets (`sun_path` of unix(7), without the leading zero octet).
const LONGEST_NAME: usize = 107;
/// How long a write of the answer may wait for the client to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The answering thread and its socket. Dropping this ends both.
pub(crate) struct Inspector {
    name: UnixAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Inspector {
    /// Starts to answer. `own` are the device's addresses that the host's kernel does not have. Returns `None`
    /// if the socket or the thread cannot be made; the device works without an inspector.
    pub(crate) fn start(shards: &Shards, own: &[Cidr]) -> Option<Self> {
        static DEVICES: AtomicU32 = AtomicU32::new(0);
        let n = DEVICES.fetch_add(1, Ordering::Relaxed);
        let mut name = format!("{PREFIX}{}/{n}", std::process::id());
        for own in own.iter().map(|own| own.address.to_string()) {
            if name.len() + 1 + own.len() <= LONGEST_NAME {
                name.extend(["/", &own]);
            }
        }
        let name = UnixAddr::from_abstract_name(name).ok()?;
        let listener = UnixListener::bind_addr(&name).ok()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let (end, shards) = (stopping.clone(), shards.downgrade());
        let thread = with_signals_blocked(|| {
            thread::Builder::new().name("urnic-inspect".into()).spawn(move || serve(&listener, &end, &shards))
        });
        Some(Self { name, stopping, thread: Some(thread.ok()?) })
    }
}

impl Drop for Inspector {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if forked() {
            // In a forked child, the thread does not exist.
            std::mem::forget(thread);
            return;
        }
        self.stopping.store(true, Ordering::Relaxed);
        // The connection wakes the thread, which then sees `stopping`.
        if UnixStream::connect_addr(&self.name).is_ok() {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, stopping: &AtomicBool, shards: &WeakShards) {
    for stream in listener.incoming() {
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else {
            thread::sleep(Duration::from_millis(100)); // possibly out of file descriptors
            continue;
        };
        let Some(shards) = shards.upgrade() else { return };
        if !may_ask(&stream) || stream.set_write_timeout(Some(PATIENCE)).is_err() {
            continue;
        }
        let told = shards.figures().and_then(|engines| Ok((engines, shards.connections()?)));
        drop(shards);
        if let Ok((engines, connections)) = told {
            let _ = stream.write_all(text(&engines, &connections).as_bytes());
        }
    }
}

/// Returns whether the client runs as the same user, or as root.
fn may_ask(stream: &UnixStream) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    getsockopt(stream, PeerCredentials).is_ok_and(|c| c.uid() == own || c.uid() == 0)
}

/// Counters that are also shown for each engine. They count what the engines of a device hand to each other.
const OF_ENGINES: [&str; 2] = [FRAMES_HANDED_OVER, FRAMES_TAKEN_OVER];

fn text(engines: &[EngineFigures], connections: &[ConnectionAttr]) -> String {
    let mut text = String::new();
    for (name, value) in EngineFigures::sum(engines) {
        let _ = writeln!(text, "counter {name} {value}");
    }
    for e in engines {
        let _ = write!(text, "engine {}", e.number);
        if let Some(core) = e.core {
            let _ = write!(text, " core={core}");
        }
        let _ = write!(text, " passes={} busy_passes={}", e.passes, e.busy_passes);
        let _ = write!(text, " queue_pairs={} connections={}", e.queue_pairs, e.connections);
        for (name, value) in e.counters.iter().filter(|(name, _)| OF_ENGINES.contains(name)) {
            let _ = write!(text, " {name}={value}");
        }
        text.push('\n');
    }
    for c in connections {
        let t = &c.tcp;
        let us = |d: Duration| d.as_nanos() as f64 / 1e3;
        let _ = write!(text, "connection local={} peer={}", c.local, c.peer);
        if let Some(qpn) = c.qpn {
            let _ = write!(text, " qpn={qpn}");
        }
        let _ = write!(text, " state={:?} recovery={:?}", t.state, t.recovery);
        if let Some(srtt) = t.srtt {
            let _ = write!(text, " rtt_us={:.1} rttvar_us={:.1}", us(srtt), us(t.rttvar));
            let _ = write!(text, " min_rtt_us={:.1}", us(t.min_rtt));
        }
        let _ = write!(text, " rto_us={:.0} retries={} probes={}", us(t.rto), t.retries, t.probes);
        let _ = write!(text, " snd_mss={} cwnd={} ssthresh={}", t.snd_mss, t.cwnd, t.ssthresh);
        let _ = write!(text, " snd_wnd={} rcv_wnd={}", t.snd_wnd, t.rcv_wnd);
        let _ = write!(text, " snd_wscale={} rcv_wscale={}", t.wscale.0, t.wscale.1);
        let _ = write!(text, " in_flight={} sacked={} lost={}", t.in_flight, t.sacked, t.lost);
        let _ = write!(text, " not_sent={} delivered={}", t.not_sent, t.delivered);
        let _ = write!(text, " received={} retransmits={}", t.received, t.retransmits);
        if let Some(rate) = t.pacing_rate {
            let _ = write!(text, " pacing_rate={rate}");
        }
        if let Some(rate) = t.delivery_rate {
            let _ = write!(text, " delivery_rate={} app_limited={}", rate.octets, rate.app_limited);
        }
        for (name, yes) in
            [("reordering", t.reordering), ("sack", t.sack), ("timestamps", t.timestamps), ("ecn", t.ecn)]
        {
            let _ = write!(text, " {name}={yes}");
        }
        text.push('\n');
    }
    text
}
