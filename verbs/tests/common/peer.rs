//! A peer that sends to an RNIC the segments that the test chooses, and records what it receives.
#![allow(dead_code)]

#[path = "../../../iwarp/tests/support/mod.rs"]
pub mod support;

use crate::common::raw::{self, Raw};
use crate::common::*;
use std::cell::RefCell;
use std::rc::Rc;
use support::{fpdu, tagged, untagged};
use urnic::simulation::{Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::{CloseReason, ConnId};

/// Number of Reads and Atomics that the RNIC serves at once.
pub const IRD: u16 = 2;
/// Octets of a start-up frame.
pub const REPLY: usize = 20;

/// An RNIC, and a peer that has connected to it and sent its first FPDU.
pub struct Scene {
    pub simulation: Simulation,
    pub raw: Rc<RefCell<Raw>>,
    pub conn: ConnId,
    pub end: End,
    /// The shared receive queue of the queue pair; `None`: the queue pair has its own receive queue.
    pub srq: Option<Srq>,
    /// A region with all rights except [`Access::REMOTE_INVALIDATE`].
    pub all: Mr,
    pub readable: Mr,
    pub foreign: Mr,
    pub inbox: Mr,
}

pub fn scene() -> Scene {
    scene_with(&options())
}

pub fn scene_with(options: &Options) -> Scene {
    scene_of(options, |end| (end, None), true)
}

/// Makes a scene in which the peer has sent nothing yet, so that the RNIC must be silent (MPA-70).
pub fn silent_scene() -> Scene {
    scene_of(&options(), |end| (end, None), false)
}

/// Makes a scene with a queue pair that uses a shared receive queue.
pub fn scene_with_shared_queue() -> Scene {
    let shared = |mut end: End| {
        let srq = end.pd.create_srq(&SrqInit { max_wr: 64, max_sge: 1, limit: 0 }).unwrap();
        let init = QpInit {
            send_cq: &end.cq,
            recv_cq: &end.cq,
            max_send_wr: 64,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline: 0,
            signal_all: false,
        };
        end.qp = end.pd.create_qp_with_srq(&init, &srq).unwrap();
        (end, Some(srq))
    };
    scene_of(&options(), shared, true)
}

fn scene_of(options: &Options, queues: impl FnOnce(End) -> (End, Option<Srq>), speaks: bool) -> Scene {
    let (mut simulation, end, raw) = raw::with_raw(options);
    let (mut end, srq) = queues(end);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let all = end.pd.alloc_mr(1024, rights).unwrap();
    let readable = end.pd.alloc_mr(1024, Access::REMOTE_READ | Access::LOCAL_WRITE).unwrap();
    let foreign = simulation.device(0).alloc_pd().alloc_mr(1024, rights).unwrap();
    let inbox = end.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let conn = start_up(&mut simulation, &raw, &mut end);
    if speaks {
        raw.borrow_mut().send(conn, &first_words());
    }
    Scene { simulation, raw, conn, end, srq, all, readable, foreign, inbox }
}

/// Connects the raw node to `end`, and sends the raw node's first FPDU.
pub fn establish(simulation: &mut Simulation, raw: &Rc<RefCell<Raw>>, end: &mut End) -> ConnId {
    let conn = start_up(simulation, raw, end);
    raw.borrow_mut().send(conn, &first_words());
    conn
}

/// Returns a zero-length Write.
fn first_words() -> Vec<u8> {
    fpdu(&tagged(0xC1, 0x40, 0, 0, &[]))
}

/// Connects the raw node to `end`. Afterwards `end` is in RDMA mode.
fn start_up(simulation: &mut Simulation, raw: &Rc<RefCell<Raw>>, end: &mut End) -> ConnId {
    let _listener = end.events.listen(PORT, 1).unwrap();
    let conn = raw.borrow_mut().connect(address(0));
    assert!(simulation.run(LIMIT, || raw.borrow().seen.connected.contains(&conn)));
    let offer = Offer { rev: 1, crc: true, ird: 4, ord: 4, ..Offer::default() };
    raw.borrow_mut().send(conn, &Initiator::new(&offer).unwrap().1);
    let CmEvent::ConnectRequest(request) = end.event(simulation) else { panic!("no request") };
    let connection = request.accept(&end.qp, &ConnParam { ird: IRD, ord: 2, ..strict() }).unwrap();
    end.connection = Some(connection);
    assert!(simulation.run(LIMIT, || raw.borrow().heard(conn).len() == REPLY));
    assert!(matches!(end.event(simulation), CmEvent::Established { .. }));
    conn
}

impl Scene {
    /// Sends these segments as the peer, in correct FPDUs.
    pub fn say(&mut self, ulpdus: &[Vec<u8>]) {
        let octets: Vec<u8> = ulpdus.iter().flat_map(|u| fpdu(u)).collect();
        self.raw.borrow_mut().send(self.conn, &octets);
    }

    pub fn post_receive(&self, wr_id: u64) {
        let sges = [Sge::of(&self.inbox, 0, 32)];
        match &self.srq {
            Some(srq) => srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap(),
            None => self.end.post_recv(wr_id, &sges),
        }
    }

    /// Returns what the peer has received after the Reply.
    pub fn heard(&self) -> Vec<u8> {
        self.raw.borrow().heard(self.conn)[REPLY..].to_vec()
    }

    /// Runs until the peer has received at least `octets` octets after the Reply. Returns all octets after the
    /// Reply.
    pub fn hears(&mut self, octets: usize) -> Vec<u8> {
        let limit = self.simulation.now() + LIMIT;
        let Scene { simulation, raw, conn, .. } = self;
        let found = simulation.run(limit, || raw.borrow().heard(*conn).len() >= REPLY + octets);
        assert!(found, "heard {:02x?}", self.heard());
        self.heard()
    }

    /// Checks that the RNIC has sent exactly `said`, and ends the connection by a FIN, not an RST. Then the peer closes
    /// too, and the RNIC sends nothing else (DDP-8, RDMAP-51, 67, 74, 85).
    #[track_caller]
    pub fn ends(&mut self, said: &[u8], reason: DisconnectReason) {
        let limit = self.simulation.now() + LIMIT;
        let Scene { simulation, raw, conn, .. } = self;
        let finished = simulation.run(limit, || raw.borrow().seen.finished.contains(conn));
        assert!(finished, "no FIN: {:?}", raw.borrow().seen.closed);
        assert_eq!(self.heard(), said, "{:02x?}", self.heard());
        // The peer's half is still open. The RNIC acknowledges what the peer sends, and ignores it.
        self.say(&[untagged(0x41, 0x43, 0, 1, 0, &[9; 8])]);
        let soon = self.simulation.now() + std::time::Duration::from_millis(50);
        assert!(!self.simulation.run(soon, || false));
        self.raw.borrow_mut().close(self.conn);
        assert_eq!(self.end.end(&mut self.simulation), reason);
        let Scene { simulation, raw, conn, .. } = self;
        let closed = |raw: &Raw| raw.seen.closed.iter().find(|c| c.0 == *conn).map(|c| c.1);
        assert!(simulation.run(limit + LIMIT, || closed(&raw.borrow()).is_some()));
        assert_eq!(closed(&raw.borrow()), Some(CloseReason::Graceful));
        assert_eq!(self.heard(), said);
        assert_eq!(self.end.qp.state(), QpState::Error);
        assert!(self.end.events.poll().is_none(), "told once");
    }

    /// Returns the status of every request, in order of completion.
    pub fn statuses(&self) -> Vec<(u64, WcStatus)> {
        self.end.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

/// Returns the FPDU of a Terminate with the error `codes`, which contains the header fields of `ulpdu` that these codes
/// require.
pub fn terminate(codes: [u8; 3], ulpdu: &[u8]) -> Vec<u8> {
    let mut content = vec![codes[0], codes[1], codes[2], 0];
    if codes[2] & 0x40 != 0 {
        content.extend((ulpdu.len() as u16).to_be_bytes());
        content.extend(&ulpdu[..if ulpdu[0] & 0x80 != 0 { 14 } else { 18 }]);
    }
    if codes[2] & 0x20 != 0 {
        content.extend(&ulpdu[18..46]);
    }
    fpdu(&untagged(0x41, 0x47, 2, 1, 0, &content))
}

pub fn flushed(wr_id: u64) -> (u64, WcStatus) {
    (wr_id, WcStatus::Flushed)
}

/// Returns the ULPDUs of a stream of FPDUs.
pub fn ulpdus(octets: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = octets;
    let mut all = Vec::new();
    while let &[a, b, ..] = rest {
        let len = usize::from(u16::from_be_bytes([a, b]));
        let size = (2 + len).next_multiple_of(4) + 4;
        assert_eq!(rest[..size], fpdu(&rest[2..2 + len]), "not an FPDU with a correct CRC");
        all.push(rest[2..2 + len].to_vec());
        rest = &rest[size..];
    }
    all
}
