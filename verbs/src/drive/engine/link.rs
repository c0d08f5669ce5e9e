//! The link below an engine: its carrier, and whether the network leaves our address to us.

use super::{CLOCK_EVERY, Clock, Engine};
use crate::drive::port::{Port, Wire};
use crate::drive::shard::EngineOps;
use crate::shared::error::Error;
use crate::shared::events::AsyncEvent;
use std::time::Duration;
use urnic_tcp::{Claim, Time};

/// How often the link is looked at.
const LINK_CHECK_EVERY: Duration = Duration::from_millis(5);
/// A carrier that so many looks in a row (100 ms and more) have not found has not just blinked, as it does while a memory
/// link comes up. Looks, not time: between two of them this thread may have had to wait for a processor.
const PEER_GONE_AFTER: u32 = 20;
/// How often conflicts over our address are told of.
const TELL_EVERY: Duration = Duration::from_secs(1);

impl<P: Port, C: Clock> Engine<P, C> {
    /// Asks the network whether another host has our address, if the port has a carrier; else that is asked when it
    /// comes.
    pub(crate) fn claim_address(&mut self) -> Result<(), Error> {
        const LOOK_EVERY: Duration = Duration::from_micros(200);
        self.claims = true;
        self.pass();
        while self.stack.claim() == Claim::Probing {
            std::thread::sleep(LOOK_EVERY);
            self.idle_passes = CLOCK_EVERY;
            self.pass();
        }
        match self.stack.claim() {
            Claim::Conflict(mac) => Err(self.address_conflict(mac)),
            Claim::Held | Claim::Probing => Ok(()),
        }
    }

    fn address_conflict(&self, [a, b, c, d, e, f]: [u8; 6]) -> Error {
        let ip = self.stack.contested().unwrap_or(self.attributes.main());
        Error::Open(format!(
            "address conflict: the host {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} has the address {ip} already; \
             choose another one"
        ))
    }

    /// Tells of hosts that use our address, now and then; and once of one whose checksums nobody fills.
    pub(super) fn report_trouble(&mut self, now: Time) {
        if self.stack.counters().unfilled_tcp_checksum > 0
            && !std::mem::replace(&mut self.unfilled_told, true)
        {
            tracing::warn!(
                "{}: segments arrive whose checksum the sender has left to its interface, which has not filled it; they \
                 are dropped: run `ethtool -K INTERFACE tx off` at the sender",
                self.attributes.main()
            );
        }
        let seen = self.stack.counters().arp_conflicts + self.stack.counters().nd_conflicts;
        if seen != self.conflicts && now >= self.conflict_told + TELL_EVERY {
            (self.conflicts, self.conflict_told) = (seen, now);
            if let Some(mac) = self.stack.rival() {
                tracing::error!("{}", self.address_conflict(mac));
            }
        }
    }

    /// Looks at the link now and then. Where a lost carrier means that the peer process is gone, so are its
    /// connections: nobody has to wait for time-outs.
    pub(super) fn check_link(&mut self, now: Time) {
        self.link_check = now + LINK_CHECK_EVERY;
        let up = self.port.check_link();
        if up {
            self.carrier_missed = Some(0);
            self.stack.set_gso_max(self.port.gso_max());
        }
        if up && self.link_up != Some(true) {
            self.stack.link_came_up(now);
            if self.claims {
                self.stack.claim_address(now);
            }
        }
        self.report_trouble(now);
        if !up && let Some(looks) = &mut self.carrier_missed {
            *looks += 1;
        }
        let lost = self.carrier_missed.is_some_and(|looks| looks >= PEER_GONE_AFTER);
        if lost && self.port.carrier_is_peer() {
            self.carrier_missed = None;
            // Those with ourselves need no link.
            let own: Vec<_> = self.stack.addresses().iter().map(|own| own.ip).collect();
            let gone = self.core.endpoints.iter().filter(|(_, e)| !own.contains(&e.peer.ip()));
            for conn in gone.filter_map(|(_, e)| e.conn).collect::<Vec<_>>() {
                self.stack.abort(now, conn, &mut Wire(&mut self.port));
            }
        }
        if self.link_up.replace(up).is_some_and(|was| was != up) {
            self.core.async_queue.raise(if up { AsyncEvent::PortActive } else { AsyncEvent::PortError });
        }
    }
}
