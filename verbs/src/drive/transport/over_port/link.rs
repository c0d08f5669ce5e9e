//! The link below a TCP stack: the state of its carrier, and conflicts over the device's addresses.

use super::{OverPort, StreamRange, Wire};
use crate::drive::port::Port;
use crate::drive::transport::Events;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use urnic_tcp::Time;

/// How often the link state is read.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Number of consecutive reads without a carrier after which the carrier counts as lost. A shorter interruption
/// (below 100 ms) may occur while a memory link comes up. This counts reads, not time, because this thread may wait
/// long for a processor between two reads.
const PEER_GONE_AFTER: u32 = 20;
/// How often conflicts over the device's addresses are logged.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// This engine's knowledge of the link.
#[derive(Default)]
pub(super) struct Link {
    /// Whether the link had a carrier at the last read; `None`: it has not been read yet.
    up: Option<bool>,
    /// Number of reads without a carrier since a carrier was last seen or a frame last arrived; `None`: neither has
    /// happened yet, or the loss of the carrier has ended the connections.
    missed: Option<u32>,
    /// Whether the stack must claim the device's addresses when the link comes up.
    pub(super) claims: bool,
    /// Number of conflicts over the device's addresses when they were last logged (`conflicts`), and the time of that
    /// (`conflict_told`).
    conflicts: u64,
    conflict_told: Time,
    unfilled_told: bool,
}

impl Link {
    /// Notes that a frame has arrived: a sending peer is up, whatever the rarely read link state says.
    #[inline]
    pub(super) fn heard(&mut self) {
        self.missed = Some(0);
    }

    pub(super) fn is_up(&self) -> bool {
        self.up == Some(true)
    }

    /// Returns whether no peer is known at the other end of the link: no carrier and no frame was seen yet, or
    /// the loss of the carrier has ended the connections.
    pub(super) fn is_lost(&self) -> bool {
        self.missed.is_none()
    }
}

impl<P: Port> OverPort<P> {
    /// Returns the first of the configured addresses, which is the main one.
    fn main(&self) -> IpAddr {
        self.stack.config().addresses.first().map_or(IpAddr::from([0; 4]), |main| main.ip)
    }

    /// Returns the message that the host with this MAC address has one of the device's addresses too.
    pub(super) fn conflict(&self, [a, b, c, d, e, f]: [u8; 6]) -> String {
        let ip = self.stack.contested().unwrap_or(self.main());
        format!(
            "address conflict: the host {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} has the address {ip} already; \
             choose another address"
        )
    }

    /// Logs conflicts with hosts that use the device's addresses, at most once in [`TELL_EVERY`]. Also logs, only
    /// once, that segments arrive without a checksum.
    fn report_trouble(&mut self, now: Time) {
        let counters = self.stack.counters();
        if counters.unfilled_tcp_checksum > 0 && !std::mem::replace(&mut self.link.unfilled_told, true) {
            tracing::warn!(
                "{}: segments without a TCP checksum arrive and are dropped: the sender left the checksum to its \
                 interface, and the interface did not compute it; run `ethtool -K INTERFACE tx off` at the sender",
                self.main()
            );
        }
        let seen = counters.arp_conflicts + counters.nd_conflicts;
        if seen != self.link.conflicts && now >= self.link.conflict_told + TELL_EVERY {
            (self.link.conflicts, self.link.conflict_told) = (seen, now);
            if let Some(mac) = self.stack.rival() {
                tracing::error!("{}", self.conflict(mac));
            }
        }
    }

    /// Reads the link state and returns when to read it again. If the carrier is lost, and this means that the peer
    /// process has ended, ends the connections to that peer, so that they need not time out.
    pub(super) fn check_link(&mut self, now: Time, events: &mut impl Events<StreamRange<P::Frame>>) -> Time {
        let up = self.port.check_link();
        if up {
            self.link.heard();
            self.stack.set_gso_max(self.port.gso_max());
        }
        if up && !self.link.is_up() {
            self.stack.link_came_up(now);
            if self.link.claims {
                self.stack.claim_address(now);
            }
        }
        self.report_trouble(now);
        if !up && let Some(looks) = &mut self.link.missed {
            *looks = looks.saturating_add(1);
        }
        let lost = self.link.missed.is_some_and(|looks| looks >= PEER_GONE_AFTER);
        if lost && self.port.carrier_is_peer() {
            self.link.missed = None;
            // Connections to this host itself need no link.
            let own: Vec<_> = self.stack.addresses().iter().map(|own| own.ip).collect();
            let is_gone = |peer: SocketAddr| !own.contains(&peer.ip());
            let gone: Vec<_> =
                self.stack.connections().filter(|c| self.stack.peer_addr(*c).is_some_and(is_gone)).collect();
            for conn in gone {
                self.stack.abort(now, conn, &mut Wire::of(&mut self.port));
            }
        }
        if self.link.up.replace(up).is_some_and(|was| was != up) {
            events.link(up);
        }
        now + LOOK_EVERY
    }
}
