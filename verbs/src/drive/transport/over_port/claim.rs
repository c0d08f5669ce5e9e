//! Claims the device's addresses: checks, before they are used, that no other host has them.

use super::OverPort;
use crate::drive::clock::Clock;
use crate::drive::port::Port;
use crate::drive::transport::{Data, Events, Transport};
use crate::shared::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use urnic_tcp::{BindId, Claim, CloseReason, ConnId, Time};

impl<P: Port> OverPort<P> {
    /// Asks the network whether another host has one of the device's addresses, and waits for the outcome.
    /// `all` contains the transports of all engines of the device. If the port has no carrier, the engines ask
    /// later, when the carrier comes up. Must be called before there are connections, and before any thread
    /// drives the engines, because an answer may reach any of the engines.
    ///
    /// # Errors
    /// [`Error::Open`] if another host has one of the addresses.
    pub(crate) fn claim_addresses(all: &mut [Self], clock: &impl Clock) -> Result<(), Error> {
        const NAP: Duration = Duration::from_micros(200);
        all.iter_mut().for_each(|one| one.link.claims = true);
        let mut check_at = Time::ZERO;
        loop {
            let now = clock.now();
            let checks = now >= check_at;
            for one in &mut *all {
                if checks {
                    check_at = one.check_link(now, &mut Nobody);
                }
                one.advance(now, &mut Nobody);
                one.flush();
                one.receive(now, &mut Nobody);
            }
            let claims = || all.iter().map(|one| (one, one.stack.claim()));
            for (one, claim) in claims() {
                if let Claim::Conflict(mac) = claim {
                    return Err(Error::Open(one.conflict(mac)));
                }
            }
            if claims().all(|(_, claim)| claim == Claim::Held) {
                return Ok(());
            }
            std::thread::sleep(NAP);
        }
    }
}

/// Ignores events, because there are no connections.
struct Nobody;

impl<D: Data> Events<D> for Nobody {
    fn incoming(&mut self, _: BindId, _: ConnId, _: SocketAddr) -> u64 {
        0
    }
    fn connected(&mut self, _: ConnId, _: u64) {}
    fn data(&mut self, _: ConnId, _: u64, _: D) -> Option<D> {
        None
    }
    fn acked(&mut self, _: ConnId, _: u64, _: u64) {}
    fn finished(&mut self, _: ConnId, _: u64) {}
    fn closed(&mut self, _: ConnId, _: u64, _: CloseReason) {}
    fn pinnable(&mut self, _: usize) {}
    fn link(&mut self, _: bool) {}
}
