//! The link below a stack: its carrier, and whether the network leaves our addresses to us.

use super::{OverPort, StreamRange, Wire};
use crate::drive::port::Port;
use crate::drive::transport::Events;
use crate::shared::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use urnic_tcp::Time;

/// How often the link is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A carrier that so many looks in a row (100 ms and more) have not found has not just blinked, as it does while a memory
/// link comes up. Looks, not time: between two of them this thread may have had to wait for a processor.
const PEER_GONE_AFTER: u32 = 20;
/// How often conflicts over our address are told of.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is known of the link.
#[derive(Default)]
pub(super) struct Link {
    /// `None`: nobody has looked yet.
    up: Option<bool>,
    /// How many looks have not found its carrier since it was last there; `None` before it first was, and once its
    /// connections were given up.
    missed: Option<u32>,
    /// The network is asked for our addresses when it comes up.
    pub(super) claims: bool,
    /// Conflicts over our addresses when they were last told of, and when that was.
    conflicts: u64,
    conflict_told: Time,
    unfilled_told: bool,
}

impl Link {
    /// A frame has come: who sends is there, whatever the port says, which is looked at only now and then.
    #[inline]
    pub(super) fn heard(&mut self) {
        self.missed = Some(0);
    }

    pub(super) fn is_up(&self) -> bool {
        self.up == Some(true)
    }

    /// There is no carrier, and connections need not wait for one.
    pub(super) fn is_lost(&self) -> bool {
        self.missed.is_none()
    }
}

impl<P: Port> OverPort<P> {
    /// The main one of the configured addresses.
    fn main(&self) -> IpAddr {
        self.stack.config().addresses.first().map_or(IpAddr::from([0; 4]), |main| main.ip)
    }

    pub(super) fn conflict(&self, [a, b, c, d, e, f]: [u8; 6]) -> Error {
        let ip = self.stack.contested().unwrap_or(self.main());
        Error::Open(format!(
            "address conflict: the host {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} has the address {ip} already; \
             choose another one"
        ))
    }

    /// Tells of hosts that use our addresses, now and then; and once of one whose checksums nobody fills.
    fn report_trouble(&mut self, now: Time) {
        let counters = self.stack.counters();
        if counters.unfilled_tcp_checksum > 0 && !std::mem::replace(&mut self.link.unfilled_told, true) {
            tracing::warn!(
                "{}: segments arrive whose checksum the sender has left to its interface, which has not filled it; they \
                 are dropped: run `ethtool -K INTERFACE tx off` at the sender",
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

    /// Looks at the link, and says when to look again. Where a lost carrier means that the peer process is gone, so are its
    /// connections: nobody has to wait for time-outs.
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
            *looks += 1;
        }
        let lost = self.link.missed.is_some_and(|looks| looks >= PEER_GONE_AFTER);
        if lost && self.port.carrier_is_peer() {
            self.link.missed = None;
            // Those with ourselves need no link.
            let own: Vec<_> = self.stack.addresses().iter().map(|own| own.ip).collect();
            let is_gone = |peer: SocketAddr| !own.contains(&peer.ip());
            let gone: Vec<_> =
                self.stack.connections().filter(|c| self.stack.peer_addr(*c).is_some_and(is_gone)).collect();
            for conn in gone {
                self.stack.abort(now, conn, &mut Wire(&mut self.port));
            }
        }
        if self.link.up.replace(up).is_some_and(|was| was != up) {
            events.link(up);
        }
        now + LOOK_EVERY
    }
}
