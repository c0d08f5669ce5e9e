//! A server and its clients: many queue pairs in many threads. At the server, they share one completion queue
//! for receives, one shared receive queue and one region.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::ends::*;
use urnic::*;

/// Octets of a slice: the memory at the server that one queue pair of the clients writes and reads. A slice is longer
/// than a segment, and longer than what an engine reads from one socket at a time while other sockets are ready.
const SLICE: usize = 150_000;
const ROUNDS: usize = 12;
const THREADS: usize = 4;
const QPS_PER_THREAD: usize = 3;
const CLIENTS: usize = THREADS * QPS_PER_THREAD;
/// Octets of a note: a Send with a client's number and its round.
const NOTE: usize = 16;

/// The objects that all threads of a server share.
struct Server {
    cq: Cq,
    srq: Srq,
    region: Mr,
    notes: Mr,
    qps: Mutex<HashMap<u32, Qp>>,
    done: AtomicBool,
    /// Number of notes that the server has answered.
    answered: AtomicUsize,
}

impl Server {
    fn new(device: &Device) -> Self {
        let pd = device.alloc_pd();
        let srq = pd.create_srq(&SrqInit { max_wr: 256, max_sge: 1, limit: 0 }).unwrap();
        let notes = pd.alloc_mr(256 * NOTE, Access::LOCAL_WRITE).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.alloc_mr(CLIENTS * SLICE, access).unwrap();
        let server = Self {
            cq: queue(device, 0),
            srq,
            region,
            notes,
            qps: Mutex::default(),
            done: AtomicBool::new(false),
            answered: AtomicUsize::new(0),
        };
        (0..128).for_each(|slot| server.post(slot));
        server
    }

    fn post(&self, slot: u64) {
        let sge = Sge::of(&self.notes, slot * NOTE as u64, NOTE as u32);
        self.srq.post_recv(&RecvWr { wr_id: slot, sges: &[sge] }).unwrap();
    }

    /// Accepts all clients, and tells each the location of its slice. The queue pairs of successive clients belong to
    /// different engines.
    fn accept(&self, device: &Device, events: &EventChannel) {
        let pd = self.srq.pd();
        let mut accepted = 0;
        let mut established = 0;
        while established < CLIENTS {
            match event(events, "the clients' requests") {
                CmEvent::ConnectRequest(request) => {
                    // All receives complete to one queue; requests complete to a queue of their own engine.
                    let sends = queue(device, accepted);
                    let init = QpInit { send_cq: &sends, recv_cq: &self.cq, ..init(&sends) };
                    let qp = pd.create_qp_with_srq(&init, &self.srq).unwrap();
                    let place = self.region.addr() + (accepted * SLICE) as u64;
                    let private_data =
                        [place.to_be_bytes(), u64::from(self.region.rkey()).to_be_bytes()].concat();
                    // Locks before accepting, because the first note may arrive before this thread continues.
                    let mut qps = self.qps.lock().unwrap();
                    request.accept(&qp, &ConnParam { private_data, ..ConnParam::default() }).unwrap();
                    qps.insert(qp.qpn(), qp);
                    accepted += 1;
                }
                CmEvent::Established { .. } => established += 1,
                // A thread whose rounds are done leaves, even while another thread still connects.
                CmEvent::Disconnected { reason: DisconnectReason::Peer, .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Answers each note by a Send with the same octets.
    fn serve(&self, limit: &Limit) {
        let mut wc = [Wc::default(); 8];
        while !self.done.load(Ordering::Relaxed) {
            limit.check("the end of the clients");
            let taken = self.cq.poll(&mut wc);
            for wc in &wc[..taken] {
                if wc.status == WcStatus::Flushed {
                    continue; // the clients have gone
                }
                assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Recv), "{wc:?}");
                assert_eq!(wc.byte_len as usize, NOTE);
                let mut note = [0; NOTE];
                self.notes.read_at(wc.wr_id * NOTE as u64, &mut note).unwrap();
                self.post(wc.wr_id);
                let qps = self.qps.lock().unwrap();
                let answer = SendWr { wr_id: 1, op: SendOp::Send, sges: &[], flags: SendFlags::INLINE };
                qps[&wc.qpn].post_send_inline(&answer, &note).unwrap();
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A queue pair of a client.
struct Client {
    number: usize,
    qp: Qp,
    /// The channel that gets the event for the end of the connection.
    _events: EventChannel,
    buffer: Mr,
    /// The client's slice at the server.
    addr: u64,
    rkey: u32,
}

impl Client {
    fn connected(device: &Device, pd: &Pd, cq: &Cq, number: usize, to: SocketAddr) -> Self {
        let events = device.create_event_channel().unwrap();
        let qp = pd.create_qp(&init(cq)).unwrap();
        let buffer = pd.alloc_mr(2 * SLICE + NOTE, Access::LOCAL_WRITE).unwrap();
        let param = ConnParam { rtr: Some(RtrChoice::Any), ..ConnParam::default() };
        events.connect(&qp, to, &param).unwrap();
        match event(&events, "the connection") {
            CmEvent::Established { private_data, .. } => {
                let word = |at: usize| u64::from_be_bytes(private_data[at..at + 8].try_into().unwrap());
                Self { number, qp, _events: events, buffer, addr: word(0), rkey: word(8) as u32 }
            }
            other => panic!("{other:?}"),
        }
    }

    fn post(&self, wr_id: u64, op: SendOp, sge: Sge) {
        self.qp.post_send(&SendWr { wr_id, op, sges: &[sge], flags: SendFlags::SIGNALED }).unwrap();
    }

    /// Begins a round: posts a Write, a note, and a Read. The Read must return the written octets.
    fn begin(&self, round: usize) {
        let answer = Sge::of(&self.buffer, 2 * SLICE as u64, NOTE as u32);
        self.qp.post_recv(&RecvWr { wr_id: 9, sges: &[answer] }).unwrap();
        self.buffer.write_at(0, &bytes(self.number * 100 + round, SLICE)).unwrap();
        let whole = Sge::of(&self.buffer, 0, SLICE as u32);
        self.post(1, SendOp::Write { addr: self.addr, rkey: self.rkey }, whole);
        let note = [self.number.to_be_bytes(), round.to_be_bytes()].concat();
        let send = SendWr { wr_id: 2, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
        self.qp.post_send_inline(&send, &note).unwrap();
        let back = Sge::of(&self.buffer, SLICE as u64, SLICE as u32);
        self.post(3, SendOp::Read { addr: self.addr, rkey: self.rkey }, back);
    }

    fn check(&self, round: usize) {
        let (mut back, mut note) = (vec![0; SLICE], [0; NOTE]);
        self.buffer.read_at(SLICE as u64, &mut back).unwrap();
        assert!(back == bytes(self.number * 100 + round, SLICE), "client {} in round {round}", self.number);
        self.buffer.read_at(2 * SLICE as u64, &mut note).unwrap();
        assert_eq!(note[..8], self.number.to_be_bytes());
        assert_eq!(note[8..], round.to_be_bytes());
    }
}

fn client_thread(device: &Device, thread: usize, to: SocketAddr, limit: &Limit) {
    let (pd, cq) = (device.alloc_pd(), queue(device, thread));
    let first = thread * QPS_PER_THREAD;
    let clients: Vec<_> =
        (first..first + QPS_PER_THREAD).map(|n| Client::connected(device, &pd, &cq, n, to)).collect();
    for round in 0..ROUNDS {
        clients.iter().for_each(|client| client.begin(round));
        // The requests of each queue pair complete in order. The answer to the note may arrive at any time.
        let mut sent: HashMap<u32, u64> = HashMap::new();
        for _ in 0..4 * QPS_PER_THREAD {
            let wc = next(&cq, limit, "a round");
            if wc.wr_id == 9 {
                assert_eq!(wc.opcode, WcOpcode::Recv);
            } else {
                let last = sent.insert(wc.qpn, wc.wr_id).unwrap_or(0);
                assert_eq!(wc.wr_id, last + 1, "queue pair {}", wc.qpn);
            }
        }
        clients.iter().for_each(|client| client.check(round));
    }
}

/// Runs the clients against the server that listens at `to`.
pub(crate) fn visit(here: &Device, to: SocketAddr, limit: &Limit) {
    thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || client_thread(here, number, to, limit));
        }
    });
}

/// Runs `visits` in its own thread, and serves all clients of a listener until `visits` returns.
pub(crate) fn serve(there: &Device, events: &EventChannel, limit: &Limit, visits: impl FnOnce() + Send) {
    let server = Server::new(there);
    thread::scope(|scope| {
        let pollers = [(); 2].map(|()| scope.spawn(|| server.serve(limit)));
        let accepts = scope.spawn(|| server.accept(there, events));
        let ended = scope.spawn(visits).join();
        server.done.store(true, Ordering::Relaxed);
        assert!(ended.is_ok());
        accepts.join().unwrap();
        for poller in pollers {
            poller.join().unwrap();
        }
    });
    assert_eq!(server.answered.load(Ordering::Relaxed), CLIENTS * ROUNDS);
}
