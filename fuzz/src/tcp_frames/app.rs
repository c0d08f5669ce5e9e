//! The application above the fuzzed stack, which checks that the events it gets make sense.

use crate::host::Bytes;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;
use urnic_tcp::{BindId, CloseReason, ConnId, Frame, Handler};

#[derive(Default)]
struct Conn {
    established: bool,
    finished: bool,
    queued: u64,
    acked: u64,
}

/// The live connections.
#[derive(Default)]
pub struct App {
    conns: HashMap<ConnId, Conn>,
    order: Vec<ConnId>,
}

impl App {
    pub fn opened(&mut self, conn: ConnId) {
        assert!(self.conns.insert(conn, Conn::default()).is_none(), "an id that is in use");
        self.order.push(conn);
    }

    pub fn queued(&mut self, conn: ConnId, n: u64) {
        self.of(conn).queued += n;
    }

    pub fn nth(&self, n: usize) -> Option<ConnId> {
        if self.order.is_empty() { None } else { self.order.get(n % self.order.len()).copied() }
    }

    pub fn all(&self) -> Vec<ConnId> {
        self.order.clone()
    }

    fn forget(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        self.order.retain(|c| *c != conn);
    }

    fn of(&mut self, conn: ConnId) -> &mut Conn {
        self.conns.get_mut(&conn).expect("a connection that lives")
    }
}

impl Handler<Bytes> for App {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        self.opened(conn);
        self.of(conn).established = true;
        0
    }

    fn connected(&mut self, conn: ConnId, tag: u64) {
        assert_eq!(tag, 5);
        let c = self.of(conn);
        assert!(!c.established);
        c.established = true;
    }

    fn data(
        &mut self,
        conn: ConnId,
        _: u64,
        frame: Bytes,
        range: Range<usize>,
    ) -> Option<(Bytes, Range<usize>)> {
        let c = self.of(conn);
        assert!(c.established && !c.finished, "data before the handshake or after the FIN");
        assert!(!range.is_empty() && frame.bytes().get(range).is_some(), "a range outside of the frame");
        None
    }

    fn acked(&mut self, conn: ConnId, _: u64, bytes: u64) {
        let c = self.of(conn);
        c.acked += bytes;
        assert!(c.acked <= c.queued, "more ACKed than sent");
    }

    fn finished(&mut self, conn: ConnId, _: u64) {
        let c = self.of(conn);
        assert!(!c.finished);
        c.finished = true;
    }

    fn closed(&mut self, conn: ConnId, _: u64, _: CloseReason) {
        assert!(self.conns.contains_key(&conn), "closed twice");
        self.forget(conn);
    }
}
