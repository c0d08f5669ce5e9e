//! A relay between two ports: forwards frames both ways, and applies an [`Impairment`] to each direction.
//!
//! The impairment model is that of the simulator `urnic-sim`; here it runs in real time.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use arrayvec::ArrayVec;
use indicatif::{ProgressBar, ProgressStyle};
use urnic_config::{Config, PortSpec};
use urnic_dataplane::{
    BURST, Clock, Eal, EalConfig, EalError, Mbuf, PinError, Port, PortError, PortOptions, TxQueue,
    fill_checksum,
};
use urnic_sim::{Impairment, Link};

mod report;

pub use report::{DirectionReport, RelayReport};

/// The ports to join, and the impairments between them.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The two ports, A and B.
    pub ports: [PortSpec; 2],
    /// The impairments from A to B, and from B to A.
    pub impairments: [Impairment; 2],
}

/// Why a relay could not start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// DPDK did not start.
    #[error(transparent)]
    Eal(#[from] EalError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The thread cannot run on the core.
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// Interval in ns at which the relay checks the links of its ports, and asks its caller whether to go on.
const LOOK_EVERY: u64 = 2_000_000;
/// Time in ns without frames after which the relay naps.
const SPIN: u64 = 50_000;
const SHORTEST_NAP: u64 = 50_000;
const LONGEST_NAP: u64 = 1_000_000;

/// A port, and the frames that wait to be sent there.
struct Side {
    port: Port,
    queue: TxQueue,
    up: bool,
}

/// Counters of a direction, in addition to those of its link.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    /// Number of frames dropped because the destination port had no link or no buffer.
    undeliverable: u64,
}

/// Two ports, joined.
pub struct Relay {
    sides: [Side; 2],
    links: [Link<Vec<u8>>; 2],
    counted: [Counted; 2],
    clock: Clock,
    started: u64,
    stopped: Option<u64>,
}

impl Relay {
    /// Opens the ports, without waiting for their peers. MTU, memory and hugepages come from `config`.
    ///
    /// # Errors
    /// [`RelayError`], if EAL or a port refuses.
    pub fn open(config: &Config, options: &RelayOptions) -> Result<Self, RelayError> {
        let eal = EalConfig {
            memory_mb: config.memory_mb(),
            hugepages: config.memory.hugepages,
            ..EalConfig::default()
        };
        let eal = Eal::start(&eal)?;
        // Trains (several segments as one frame) are off, because impairments apply to single segments, and any port
        // can carry single segments.
        let ports = PortOptions { mtu: config.port.mtu, trains: false, ..PortOptions::default() };
        let side = |spec: &PortSpec| -> Result<Side, PortError> {
            Ok(Side { port: Port::open(&eal, spec, &ports)?, queue: TxQueue::new(), up: false })
        };
        let [a, b] = &options.ports;
        let clock = Clock::calibrate();
        let mut relay = Self {
            sides: [side(a)?, side(b)?],
            links: options.impairments.each_ref().map(Link::new),
            counted: [Counted::default(); 2],
            started: clock.now(),
            stopped: None,
            clock,
        };
        relay.look();
        Ok(relay)
    }

    /// Checks whether both ports have their peers. The relay drops frames for a port without a peer, as a wire with an
    /// open end does.
    pub fn look(&mut self) {
        for side in &mut self.sides {
            side.up = side.port.link_up();
        }
    }

    /// Takes at most [`BURST`] arrived frames from each port, and sends the frames that are due at `now`. `now`
    /// is in nanoseconds, and must not decrease. Returns whether a port received or sent a frame; dropping a
    /// frame does not count.
    pub fn pass(&mut self, now: u64) -> bool {
        let [a, b] = &mut self.sides;
        let [there, back] = &mut self.links;
        let [counted_there, counted_back] = &mut self.counted;
        let worked = forward(now, a, b, there, counted_there);
        forward(now, b, a, back, counted_back) || worked
    }

    /// Relays on the calling thread until `go_on` returns `false`; calls `go_on` every few milliseconds. If `bar` is
    /// set and stderr is a terminal, shows the progress.
    ///
    /// # Errors
    /// [`RelayError::Pin`] if the thread cannot run on the first core of `config`.
    pub fn run(
        &mut self,
        config: &Config,
        bar: bool,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<(), RelayError> {
        if let Some(&core) = config.engine.cores.first() {
            urnic_dataplane::pin_current_thread(core)?;
        }
        // Best effort: without this setting, naps are about 50 us longer.
        let _ = nix::sys::prctl::set_timerslack(1000);
        let bar = (bar && io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(
                ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("a valid template"),
            );
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        let (mut busy, mut looked, mut nap) = (self.clock.now(), 0, SHORTEST_NAP);
        loop {
            let now = self.clock.now();
            if now.saturating_sub(looked) >= LOOK_EVERY {
                looked = now;
                self.look();
                if let Some(bar) = &bar {
                    let [there, back] = self.counted.map(|c| c.sent);
                    bar.set_message(format!("frames A to B: {there}, B to A: {back}"));
                }
                if !go_on() {
                    break;
                }
            }
            if self.pass(now) {
                (busy, nap) = (now, SHORTEST_NAP);
                continue;
            }
            let idle = now.saturating_sub(busy);
            let due = self.links.iter().filter_map(Link::next_arrival).min();
            let due = due.map_or(u64::MAX, |at| at.saturating_sub(now));
            if idle < SPIN || due < 2 * SHORTEST_NAP {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_nanos(nap.min(due - SHORTEST_NAP)));
                nap = (nap * 2).min(LONGEST_NAP);
            }
        }
        self.stopped = Some(self.clock.now());
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        Ok(())
    }
}

/// Forwards frames in one direction.
fn forward(
    now: u64,
    from: &mut Side,
    to: &mut Side,
    link: &mut Link<Vec<u8>>,
    counted: &mut Counted,
) -> bool {
    let mut frames = ArrayVec::<Mbuf, BURST>::new();
    let received = from.port.rx_burst(&mut frames);
    for mut frame in frames {
        // The checksum is filled in before the frame may be corrupted, so that the receiver can detect the corruption.
        if frame.checksum_trusted() {
            fill_checksum(frame.data_mut());
        }
        counted.received_bytes += frame.len() as u64;
        link.push(now, frame.data().to_vec());
    }
    while (to.queue.room() > 0 || !to.up)
        && let Some(frame) = link.pop(now)
    {
        let made = if to.up { to.port.frame(&frame, &[], false) } else { None };
        if made.is_some_and(|made| to.queue.push(made).is_ok()) {
            counted.sent += 1;
            counted.sent_bytes += frame.len() as u64;
        } else {
            counted.undeliverable += 1;
        }
    }
    let sent = to.port.tx_burst(&mut to.queue);
    received + sent > 0
}
