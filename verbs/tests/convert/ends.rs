//! Code that the tests share: ends of TCP connections, devices, and golden octets.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use urnic::*;

/// Time limit of a step, which only a stopped machine exceeds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the parameters of a start-up without a ready-to-receive indication, with four Reads each way.
pub fn plain() -> ConnParam {
    ConnParam { ird: 4, ord: 4, rtr: Some(RtrChoice::Off), ..ConnParam::default() }
}

pub fn impatient() -> ConnParam {
    ConnParam { timeout: Duration::from_millis(50), ..plain() }
}

/// Start-up frames (RFC 5044 §7.1.1, RFC 6581 §6), with CRC and enhanced: a Request without private data for four
/// Reads each way, the Reply to it, a rejecting Reply, and a peer-to-peer Request with "hi" for 16 and 8 Reads.
pub const REQUEST: &[u8] = b"MPA ID Req Frame\x50\x02\x00\x04\x00\x04\x00\x04";
pub const REPLY: &[u8] = b"MPA ID Rep Frame\x50\x02\x00\x04\x00\x04\x00\x04";
pub const REJECTION: &[u8] = b"MPA ID Rep Frame\x70\x02\x00\x06\x00\x00\x00\x00no";
pub const REQUEST_P2P: &[u8] = b"MPA ID Req Frame\x50\x02\x00\x06\xc0\x10\xc0\x08hi";
/// FPDUs of a zero-length Write and a zero-length Send.
pub const WRITE: &[u8] = b"\x00\x0e\xc1\x40\0\0\0\0\0\0\0\0\0\0\0\0\xa3\x05\x72\xab";
pub const SEND: &[u8] = b"\x00\x12\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\x58\x7b\xe8\xc4";

/// A device, and a program's objects on it.
pub struct Node {
    pub device: Device,
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub events: EventChannel,
}

impl Node {
    pub fn new() -> Self {
        Self::of(&Device::open(&Config::default()).unwrap())
    }

    pub fn of(device: &Device) -> Self {
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
        let qp = qp(&pd, &cq);
        let events = device.create_event_channel().unwrap();
        Self { device: device.clone(), pd, cq, qp, events }
    }

    pub fn convert(
        &self,
        socket: TcpStream,
        role: Role,
        already_read: &[u8],
        param: &ConnParam,
    ) -> Connection {
        self.events.convert(&self.qp, socket, role, already_read, param).unwrap()
    }

    pub fn event(&self) -> CmEvent {
        self.events.wait(PATIENCE).expect("an event")
    }

    /// Waits until the connection is established. Returns the private data of the peer.
    pub fn established(&self) -> Vec<u8> {
        match self.event() {
            CmEvent::Established { qpn, private_data, .. } if qpn == self.qp.qpn() => private_data,
            other => panic!("{other:?}"),
        }
    }

    pub fn failure(&self) -> ConnectFailure {
        match self.event() {
            CmEvent::ConnectError { qpn, reason } if qpn == self.qp.qpn() => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Posts a zero-length Send.
    pub fn send_nothing(&self) {
        let wr = SendWr { wr_id: 1, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
        self.qp.post_send(&wr).unwrap();
    }

    pub fn completion(&self) -> Wc {
        let mut wc = [Wc::default()];
        let start = Instant::now();
        while self.cq.poll(&mut wc) == 0 {
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
        assert_eq!(wc[0].status, WcStatus::Success);
        wc[0]
    }
}

pub fn qp(pd: &Pd, cq: &Cq) -> Qp {
    pd.create_qp(&QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
    })
    .unwrap()
}

/// Makes two ends of a TCP connection over the loopback.
pub fn wire() -> (TcpStream, TcpStream) {
    wire_at((Ipv4Addr::LOCALHOST, 0).into())
}

pub fn wire_at(at: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(at).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    for end in [&one, &other] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (one, other)
}

/// Returns the next `n` octets that a plain peer receives.
pub fn heard(peer: &mut TcpStream, n: usize) -> Vec<u8> {
    let mut octets = vec![0; n];
    peer.read_exact(&mut octets).unwrap();
    octets
}

/// Returns how the connection ends for a plain peer: `None` by a FIN, else the error. The peer must receive no octets
/// before the end.
pub fn end(peer: &mut TcpStream) -> Option<ErrorKind> {
    let mut octets = Vec::new();
    let end = peer.read_to_end(&mut octets);
    assert!(octets.is_empty(), "{octets:02x?}");
    end.err().map(|e| e.kind())
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Checks a Write and a Read, both longer than a segment or record of any carrier.
pub fn works(here: &Node, there: &Node) {
    const LEN: usize = 300_003;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let [from, to] = [here, there].map(|node| node.pd.alloc_mr(LEN, access).unwrap());
    let post = |op| {
        let sges = [Sge::of(&from, 0, LEN as u32)];
        here.qp.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::empty() }).unwrap();
        here.completion();
    };
    from.write_at(0, &pattern(LEN)).unwrap();
    post(SendOp::Write { addr: to.addr(), rkey: to.rkey() });
    from.write_at(0, &[0; LEN]).unwrap();
    post(SendOp::Read { addr: to.addr(), rkey: to.rkey() });
    let mut found = vec![0; LEN];
    from.read_at(0, &mut found).unwrap();
    assert!(found == pattern(LEN), "what was written is read");
}
