//! Whether our addresses are ours, before anybody uses them.

use super::OverPort;
use crate::drive::clock::Clock;
use crate::drive::port::Port;
use crate::drive::transport::{Data, Events, Transport};
use crate::shared::error::Error;
use std::net::SocketAddr;
use std::time::Duration;
use urnic_tcp::{BindId, Claim, CloseReason, ConnId, Time};

impl<P: Port> OverPort<P> {
    /// Asks the network whether another host has our addresses, if the port has a carrier; else that is asked when it
    /// comes. To be called before there are connections.
    pub(crate) fn claim_addresses(&mut self, clock: &impl Clock) -> Result<(), Error> {
        const NAP: Duration = Duration::from_micros(200);
        self.link.claims = true;
        let mut check_at = Time::ZERO;
        loop {
            let now = clock.now();
            if now >= check_at {
                check_at = self.check_link(now, &mut Nobody);
            }
            self.advance(now, &mut Nobody);
            self.flush();
            self.receive(now, &mut Nobody);
            match self.stack.claim() {
                Claim::Probing => std::thread::sleep(NAP),
                Claim::Conflict(mac) => return Err(self.conflict(mac)),
                Claim::Held => return Ok(()),
            }
        }
    }
}

/// Hears what there is while there are no connections.
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
