//! One of the two ends: a stack with one connection, and an application that knows which events it must get.

use crate::host::{Bytes, Host};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::rc::Rc;
use std::sync::OnceLock;
use urnic_tcp::{BindId, CloseReason, ConnId, Frame, Handler, Numbers, StackConfig, Time};

/// Period of the streams in octets: longer than any segment or record.
const PERIOD: usize = 65_521;
/// The maximum number of octets in a record.
pub const RECORD: usize = 30_000;

/// Returns one period of the streams' octets, and as many octets of the next as a record may need.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut rng = fastrand::Rng::with_seed(1);
        let period: Vec<u8> = (0..PERIOD).map(|_| rng.u8(..)).collect();
        period.iter().copied().cycle().take(PERIOD + 2 * RECORD).collect()
    })
}

/// Returns the octets, from `position` on, of the stream that end `who` sends.
fn octets(who: usize, position: u64, len: usize) -> &'static [u8] {
    let at = ((position + 7919 * who as u64) % PERIOD as u64) as usize;
    &pattern()[at..at + len]
}

/// The events that the application of an end got, and its actions.
#[derive(Debug)]
pub struct App {
    who: usize,
    pub conn: Option<ConnId>,
    pub established: bool,
    pub queued: u64,
    pub acked: u64,
    pub received: u64,
    /// Whether the peer's FIN has arrived.
    pub finished: bool,
    pub close_called: bool,
    pub closed: Option<CloseReason>,
    /// Whether received data may be forged.
    pub forged: Rc<Cell<bool>>,
}

impl Handler<Bytes> for App {
    fn accepted(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        assert!(self.conn.is_none(), "accepted twice");
        (self.conn, self.established) = (Some(conn), true);
        0
    }

    fn connected(&mut self, conn: ConnId, _: u64) {
        assert!(self.conn == Some(conn) && !self.established, "connected twice");
        self.established = true;
    }

    fn data(
        &mut self,
        conn: ConnId,
        _: u64,
        frame: Bytes,
        range: Range<usize>,
    ) -> Option<(Bytes, Range<usize>)> {
        assert!(self.conn == Some(conn) && self.established && !self.finished && self.closed.is_none());
        let data = &frame.bytes()[range];
        assert!(!data.is_empty());
        if !self.forged.get() {
            let right = octets(1 - self.who, self.received, data.len());
            assert!(data == right, "wrong octets from {} on", self.received);
        }
        self.received += data.len() as u64;
        None
    }

    fn acked(&mut self, conn: ConnId, _: u64, bytes: u64) {
        assert_eq!(self.conn, Some(conn));
        self.acked += bytes;
        assert!(self.acked <= self.queued, "more ACKed than sent");
    }

    fn finished(&mut self, conn: ConnId, _: u64) {
        assert!(self.conn == Some(conn) && !self.finished, "finished twice");
        self.finished = true;
    }

    fn closed(&mut self, conn: ConnId, _: u64, reason: CloseReason) {
        assert!(self.conn == Some(conn) && self.closed.is_none(), "closed twice");
        self.closed = Some(reason);
    }
}

pub type End = Host<App>;

pub fn mac(who: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, who as u8 + 1]
}

pub fn address(who: usize, v6: bool) -> IpAddr {
    let n = who as u8 + 1;
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n.into()).into()
    } else {
        Ipv4Addr::new(10, 0, 0, n).into()
    }
}

pub fn new(who: usize, config: StackConfig, forged: Rc<Cell<bool>>) -> End {
    let app = App {
        who,
        conn: None,
        established: false,
        queued: 0,
        acked: 0,
        received: 0,
        finished: false,
        close_called: false,
        closed: None,
        forged,
    };
    End::new(config, app).expect("a valid configuration")
}

impl End {
    /// Returns the connection, while there is one.
    pub fn live(&self) -> Option<ConnId> {
        self.app.conn.filter(|_| self.app.closed.is_none())
    }

    pub fn numbers(&self) -> Option<Numbers> {
        self.stack.numbers(self.live()?)
    }

    /// Queues a record of `len` octets if there is room.
    pub fn write(&mut self, len: usize) {
        let Some(conn) = self.live() else { return };
        let record = octets(self.app.who, self.app.queued, len.min(RECORD));
        if self.stack.room(conn) > 0 && self.stack.send(conn, record.into()).is_ok() {
            self.app.queued += record.len() as u64;
        }
    }

    pub fn output(&mut self, now: Time) {
        if let Some(conn) = self.live() {
            self.stack.output(now, conn, &mut self.out);
        }
    }

    pub fn close(&mut self, now: Time) {
        if let Some(conn) = self.live() {
            self.app.close_called = true;
            self.stack.close(now, conn, &mut self.out);
        }
    }

    pub fn abort(&mut self, now: Time) {
        if let Some(conn) = self.live() {
            self.stack.abort(now, conn, &mut self.out);
        }
    }
}
