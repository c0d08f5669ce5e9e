//! The rules of RFC 5042 against malicious peers: what a peer can guess, reach, take away or use up.

mod common;

use common::pages::Pages;
use common::raw::{self, Raw};
use common::*;
use fastrand::Rng;
use std::cell::RefCell;
use std::rc::Rc;
use urnic::simulation::{Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::{CloseReason, ConnId};

const LEN: usize = 4096;
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A server with an honest client, and a third node that attacks. The attacker has connections of its own, and
/// knows all STags.
struct Scene {
    simulation: Simulation,
    server: End,
    client: End,
    source: Mr,
}

impl Scene {
    fn new() -> Scene {
        let mut simulation = Simulation::new(&Options { devices: 3, ..options() }).unwrap();
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        connect(&mut simulation, &mut server, &mut client);
        let source = simulation.device(2).alloc_pd().alloc_mr(LEN, ALL).unwrap();
        Scene { simulation, server, client, source }
    }

    /// Connects the attacker to a queue pair of `pd`, and lets it try `op`. Returns the codes of the Terminate; `None`
    /// if the operation succeeds.
    fn attack(&mut self, pd: &Pd, op: SendOp, len: u32) -> Option<(u8, u8, u8)> {
        let own = self.server.sibling(&self.simulation.device(0));
        let cq = self.simulation.device(0).create_cq(16, None).unwrap();
        let mut victim = End { qp: create_qp(pd, &cq), pd: pd.clone(), cq, ..own };
        let mut attacker = End::new(&self.simulation.device(2));
        connect(&mut self.simulation, &mut victim, &mut attacker);
        let tool = attacker.pd.alloc_mr(len.max(1) as usize, ALL).unwrap();
        tool.write_at(0, &vec![0x66; len.max(1) as usize]).unwrap();
        victim.post_recv(1, &[]);
        attacker.post(1, op, &[Sge::of(&tool, 0, len)]);
        attacker.post(2, SendOp::Read { addr: 0, rkey: 1 }, &[]);
        let mut done = 0;
        while done < 2 {
            let wc = attacker.next(&mut self.simulation);
            done += 1;
            if wc.status != WcStatus::Success {
                assert_eq!(attacker.end(&mut self.simulation), DisconnectReason::TerminateReceived);
                let t = attacker.qp.terminate().unwrap();
                // The attacker got no octet of the victim's memory.
                assert!(content(&tool).iter().all(|octet| *octet == 0x66), "{op:?}");
                return Some((t.layer, t.etype, t.code));
            }
        }
        None
    }

    /// Checks that the honest client can still read `mr`, and reads `expected`.
    fn usable(&mut self, mr: &Mr, expected: &[u8]) {
        let sink = self.client.pd.alloc_mr(expected.len(), Access::LOCAL_WRITE).unwrap();
        let op = SendOp::Read { addr: mr.addr(), rkey: mr.rkey() };
        self.client.post(7, op, &[Sge::of(&sink, 0, expected.len() as u32)]);
        assert_eq!(self.client.next(&mut self.simulation).status, WcStatus::Success);
        assert!(content(&sink) == expected);
    }
}

/// SEC-1, SEC-3: with a domain for each stream, streams cannot reach each other's memory, whatever they know.
/// DDP-58, 66.
#[test]
fn an_stag_is_of_no_use_in_another_domain() {
    let mut scene = Scene::new();
    let mr = scene.server.pd.alloc_mr(LEN, ALL | Access::REMOTE_INVALIDATE).unwrap();
    mr.write_at(0, &pattern(LEN, 4)).unwrap();
    let (addr, rkey) = (mr.addr(), mr.rkey());
    let elsewhere = scene.simulation.device(0).alloc_pd();
    for (op, len, codes) in [
        (SendOp::Write { addr, rkey }, 8, (1, 1, 2)),
        (SendOp::Read { addr, rkey }, 8, (0, 1, 3)),
        (SendOp::FetchAdd { addr, rkey, add: 1 }, 8, (0, 1, 3)),
        (SendOp::SendInv(rkey), 0, (0, 1, 9)),
    ] {
        assert_eq!(scene.attack(&elsewhere, op, len), Some(codes), "{op:?}");
        scene.usable(&mr, &pattern(LEN, 4));
    }
    // In the region's own domain, the same Read succeeds.
    let own = scene.server.pd.clone();
    assert_eq!(scene.attack(&own, SendOp::Read { addr, rkey }, 8), None);
}

/// SEC-8: one of several peers cannot invalidate a region that others use, unless the program allows it.
#[test]
fn a_peer_cannot_invalidate_what_others_use() {
    let mut scene = Scene::new();
    let own = scene.server.pd.clone();
    let shared = own.alloc_mr(LEN, ALL).unwrap();
    shared.write_at(0, &pattern(LEN, 4)).unwrap();
    assert_eq!(scene.attack(&own, SendOp::SendInv(shared.rkey()), 0), Some((0, 1, 9)));
    scene.usable(&shared, &pattern(LEN, 4));
    // Also protected: a region with a bound window, a window for all queue pairs, and a window of another stream.
    let bound = own.alloc_mr(LEN, ALL | Access::REMOTE_INVALIDATE).unwrap();
    let windows = [MwKind::One, MwKind::Two].map(|kind| own.alloc_mw(kind).unwrap());
    for window in &windows {
        let (rkey, lkey, addr) = (window.fresh_rkey(), bound.lkey(), bound.addr());
        let access = Access::REMOTE_READ;
        scene.server.post(5, SendOp::BindMw { rkey, lkey, addr, len: 8, access }, &[]);
        assert_eq!(scene.server.next(&mut scene.simulation).status, WcStatus::Success);
    }
    for rkey in [bound.rkey(), windows[0].rkey(), windows[1].rkey()] {
        assert_eq!(scene.attack(&own, SendOp::SendInv(rkey), 0), Some((0, 1, 9)));
    }
    scene.usable(&bound, &[0; 8]);
    drop(windows);
    assert_eq!(scene.attack(&own, SendOp::SendInv(bound.rkey()), 0), None);
}

/// SEC-4: access is exact to the octet, at both ends of a region, for Writes and for Reads. Guard octets around the
/// region stay unchanged, and are not disclosed.
#[test]
fn access_ends_at_the_last_octet() {
    let mut scene = Scene::new();
    let own = scene.server.pd.clone();
    let pages = Pages::new(3 * LEN);
    // Neither end of the region is at the border of a page, a cache line or a word.
    let (first, len) = (LEN + 13, 1001u64);
    let secret = pattern(3 * LEN, 9);
    pages.fill(&secret);
    // SAFETY: within the mapping, which outlives the region; there are no references to it.
    let mr = unsafe { own.reg_mr(pages.base().wrapping_add(first), len as usize, ALL) }.unwrap();
    let (at, rkey) = (mr.addr(), mr.rkey());
    let all = len as u32;
    for (addr, n, fault) in [
        (at, all, None),
        (at + len - 1, 1, None),
        (at - 1, 1, Some(1)),
        (at - 1, 2, Some(1)),
        (at - 1, all + 2, Some(1)),
        (at, all + 1, Some(1)),
        (at + len - 1, 2, Some(1)),
        (at + len, 1, Some(1)),
        (0, 1, Some(1)),
        (at.wrapping_sub(1 << 32), 1, Some(1)),
        (at + (1 << 32), 1, Some(1)),
        (u64::MAX - 3, 4, Some(4)),
        (u64::MAX, 2, Some(4)),
    ] {
        for write in [true, false] {
            pages.fill(&secret);
            let op = if write { SendOp::Write { addr, rkey } } else { SendOp::Read { addr, rkey } };
            // A tagged segment whose offset wraps has another code than a Read Request whose source wraps.
            let codes =
                fault.map(|code| if write { (1, 1, if code == 4 { 3 } else { code }) } else { (0, 1, code) });
            assert_eq!(scene.attack(&own, op, n), codes, "{op:x?} {n}");
            let mut expected = secret.clone();
            if write && fault.is_none() {
                let from = first + (addr - at) as usize;
                expected[from..from + n as usize].fill(0x66);
            }
            assert!(pages.content() == expected, "{op:x?} {n}");
        }
    }
}

/// SEC-9, SEC-37: a wrong guess of an STag costs the connection. The attacker guesses STags near known STags, random
/// STags, and former STags.
#[test]
fn stags_are_not_guessed() {
    let mut scene = Scene::new();
    let own = scene.server.pd.clone();
    let rng = &mut Rng::with_seed(11);
    let held: Vec<Mr> = (0..200).map(|_| own.alloc_mr(64, ALL).unwrap()).collect();
    let past: Vec<u32> = (0..40).map(|_| own.alloc_mr(64, ALL).unwrap().rkey()).collect();
    let known = held[7].rkey();
    let mut guesses: Vec<u32> = [1, 2, 0x100, 0x200, 0x1_0000, 0x100_0000, 0x8000_0000]
        .iter()
        .flat_map(|by| [known.wrapping_add(*by), known.wrapping_sub(*by), known ^ by])
        .chain([0, 1, u32::MAX])
        .collect();
    guesses.extend(past);
    guesses.extend((0..100).map(|_| rng.u32(..)));
    for rkey in guesses {
        assert!(held.iter().all(|mr| mr.rkey() != rkey), "{rkey:08x} was guessed");
        let addr = held[rng.usize(..held.len())].addr();
        assert_eq!(scene.attack(&own, SendOp::Write { addr, rkey }, 8), Some((1, 1, 0)));
    }
    assert!(held.iter().all(|mr| content(mr) == [0; 64]));
}

/// SEC-9: a peer that has kept an old STag cannot use it when other memory has got the slot of this STag.
#[test]
fn an_old_stag_is_of_no_use_when_its_slot_comes_back() {
    let mut scene = Scene::new();
    let own = scene.server.pd.clone();
    let rights = ALL | Access::REMOTE_INVALIDATE;
    let old = own.alloc_mr(64, rights).unwrap().rkey();
    let mr = (0..5000)
        .map(|_| own.alloc_mr(64, rights).unwrap())
        .find(|mr| mr.rkey() >> 8 == old >> 8)
        .expect("the slot comes back");
    mr.write_at(0, &pattern(64, 4)).unwrap();
    let addr = mr.addr();
    for (op, len, codes) in [
        (SendOp::Write { addr, rkey: old }, 8, (1, 1, 0)),
        (SendOp::Read { addr, rkey: old }, 8, (0, 1, 0)),
        (SendOp::FetchAdd { addr, rkey: old, add: 1 }, 8, (0, 1, 0)),
        (SendOp::SendInv(old), 0, (0, 1, 9)),
    ] {
        assert_eq!(scene.attack(&own, op, len), Some(codes), "{op:?}");
        scene.usable(&mr, &pattern(64, 4));
    }
}

/// SEC-11: a completion queue that overflows ends its own queue pairs. Transfers of other queue pairs go on.
#[test]
fn an_overflow_concerns_its_own_streams_only() {
    let mut scene = Scene::new();
    let (mut victim, mut flooder) =
        (End::new(&scene.simulation.device(0)), End::new(&scene.simulation.device(2)));
    victim.cq = scene.simulation.device(0).create_cq(2, None).unwrap();
    victim.qp = create_qp(&victim.pd, &victim.cq);
    connect(&mut scene.simulation, &mut victim, &mut flooder);
    let target = scene.server.pd.alloc_mr(1 << 20, ALL).unwrap();
    let big = scene.client.pd.alloc_mr(1 << 20, Access::empty()).unwrap();
    big.write_at(0, &pattern(1 << 20, 3)).unwrap();
    let op = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
    scene.client.post(1, op, &[Sge::of(&big, 0, 1 << 20)]);
    for i in 0..10 {
        victim.post_recv(i, &[]);
    }
    for i in 0..10 {
        flooder.post(i, SendOp::Send, &[]);
    }
    assert_eq!(victim.end(&mut scene.simulation), DisconnectReason::TerminateSent);
    assert!(victim.cq.overflowed() && !scene.server.cq.overflowed());
    assert_eq!(scene.client.next(&mut scene.simulation).status, WcStatus::Success);
    works(&mut scene.simulation, &scene.server, &scene.client);
    assert!(content(&target) == pattern(1 << 20, 3));
}

/// Connects a raw node to `victim` by MPA. IRD and ORD are `offered` at the raw node, and `own` at the victim.
fn raw_peer(
    simulation: &mut Simulation,
    raw: &Rc<RefCell<Raw>>,
    victim: &End,
    offered: u16,
    own: u16,
) -> ConnId {
    let _listener = victim.events.listen(PORT, 1).unwrap();
    let conn = raw.borrow_mut().connect(address(0));
    assert!(simulation.run(LIMIT, || raw.borrow().seen.connected.contains(&conn)));
    let offer = Offer { rev: 2, crc: true, ird: offered, ord: offered, ..Offer::default() };
    raw.borrow_mut().send(conn, &Initiator::new(&offer).unwrap().1);
    let CmEvent::ConnectRequest(request) = victim.event(simulation) else { panic!("no request") };
    request.accept(&victim.qp, &ConnParam { ird: own, ord: own, ..ConnParam::default() }).unwrap();
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().heard(conn).len() >= 24));
    match victim.event(simulation) {
        // SEC-21: the peer's IRD and ORD allocate nothing here. Only the local program's numbers do.
        CmEvent::Established { ird, .. } => assert!(ird <= own, "{ird}"),
        other => panic!("{other:?}"),
    }
    conn
}

/// Makes the FPDU of Read Request number `msn`.
fn read_request(msn: u32, mr: &Mr, len: u32) -> Vec<u8> {
    let mut fpdu = 46u16.to_be_bytes().to_vec();
    fpdu.extend([0x41, 0x41]); // DDP: untagged, last; RDMAP: Read Request
    fpdu.extend([0; 4]);
    fpdu.extend(1u32.to_be_bytes()); // queue
    fpdu.extend(msn.to_be_bytes());
    fpdu.extend(0u32.to_be_bytes()); // MO
    fpdu.extend(5u32.to_be_bytes()); // sink
    fpdu.extend(0u64.to_be_bytes());
    fpdu.extend(len.to_be_bytes());
    fpdu.extend(mr.rkey().to_be_bytes());
    fpdu.extend(mr.addr().to_be_bytes());
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &fpdu));
    fpdu.extend(crc.to_le_bytes());
    fpdu
}

/// SEC-12, SEC-20, SEC-21, SEC-34: a peer has at most as many Reads outstanding as were agreed on, in its own queue. A
/// full queue delays no other peer, and one more Read ends the peer's own stream.
#[test]
fn a_peer_fills_no_read_queue_but_its_own() {
    let (raw, host) = raw::node(2);
    let network = "delay=5us,rate=1gbit".parse().unwrap();
    let options = Options { devices: 2, network, ..options() };
    let mut simulation = Simulation::with_hosts(&options, vec![host]).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut server, &mut client);
    let victim = server.sibling(&simulation.device(0));
    let big = server.pd.alloc_mr(8 << 20, Access::REMOTE_READ).unwrap();
    let conn = raw_peer(&mut simulation, &raw, &victim, 10_000, 2);
    for msn in [1, 2] {
        raw.borrow_mut().send(conn, &read_request(msn, &big, 8 << 20));
    }
    // Runs until the first answer is under way, and far from complete.
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().heard(conn).len() > 100_000));
    let sink = client.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    let op = SendOp::Read { addr: big.addr(), rkey: big.rkey() };
    for i in 0..20 {
        client.post(i, op, &[Sge::of(&sink, 0, 8)]);
        assert_eq!(client.next(&mut simulation).status, WcStatus::Success);
    }
    assert!(raw.borrow().heard(conn).len() < 8 << 20, "the others did not wait");
    for msn in [3, 4] {
        raw.borrow_mut().send(conn, &read_request(msn, &big, 1));
    }
    assert_eq!(victim.end(&mut simulation), DisconnectReason::TerminateSent);
    let t = victim.qp.terminate().unwrap();
    assert_eq!((t.layer, t.etype, t.code), (1, 2, 2), "{t}");
    works(&mut simulation, &server, &client);
}

/// SEC-28: a completion queue of the recommended size takes all completions of the two queue pairs that share
/// it. For comparison, one of half the size overflows.
#[test]
fn a_completion_queue_that_is_deep_enough_does_not_overflow() {
    let depth = Cq::depth_for(&[5, 9, 5, 9]);
    assert!(fill_completion_queue(depth));
    assert!(!fill_completion_queue(depth / 2));
}

/// Lets two queue pairs, with 5 sends and 9 receives each, complete all that they can have outstanding to one
/// completion queue of this depth. Returns whether the queue has taken all completions.
fn fill_completion_queue(depth: u32) -> bool {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    let device = simulation.device(0);
    server.cq = device.create_cq(depth, None).unwrap();
    let make = || {
        let init = QpInit {
            send_cq: &server.cq,
            recv_cq: &server.cq,
            max_send_wr: 5,
            max_recv_wr: 9,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        server.pd.create_qp(&init).unwrap()
    };
    let (qp, other) = (make(), make());
    server.qp = qp;
    connect(&mut simulation, &mut server, &mut client);
    for qp in [&server.qp, &other] {
        while qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).is_ok() {}
    }
    for i in 0..server.qp.max_recv_wr() {
        client.post(i.into(), SendOp::Send, &[]);
    }
    let limit = simulation.now() + std::time::Duration::from_secs(1);
    simulation.run(limit, || false);
    for qp in [&server.qp, &other] {
        let wr = SendWr { wr_id: 2, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
        // Posts a fixed number of requests, because a loop until the queue is full would post more: messages
        // that are sent at once leave the queue.
        for _ in 0..qp.max_send_wr() {
            qp.post_send(&wr).unwrap();
        }
        qp.to_error();
    }
    let all = 2 * (server.qp.max_send_wr() + server.qp.max_recv_wr());
    let complete = server.completions().len() == all as usize;
    assert_eq!(complete, !server.cq.overflowed());
    complete
}

/// SEC-30: this node can end an idle stream without help of the peer. The stream's resources are free again.
#[test]
fn an_idle_stream_is_reclaimed() {
    let (raw, host) = raw::node(2);
    let mut simulation = Simulation::with_hosts(&Options { devices: 1, ..options() }, vec![host]).unwrap();
    let victim = End::new(&simulation.device(0));
    let conn = raw_peer(&mut simulation, &raw, &victim, 1, 1);
    let limit = simulation.now() + std::time::Duration::from_secs(30);
    simulation.run(limit, || false);
    assert_eq!(victim.qp.state(), QpState::Rts, "nobody has ended it");
    victim.post_recv(4, &[]);
    victim.qp.to_error();
    let closed = |raw: &Raw| raw.seen.closed.iter().find(|(c, _)| *c == conn).map(|(_, why)| *why);
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || closed(&raw.borrow()).is_some()));
    assert_eq!(closed(&raw.borrow()), Some(CloseReason::Reset));
    let flushed: Vec<_> = victim.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(flushed, [(4, WcStatus::Flushed)]);
}

/// SEC-29: the device counts events that are expensive for it, so that the program can act on them while the stream
/// goes on.
#[test]
fn slow_paths_are_counted() {
    let network = "delay=5us,loss=0.05,reorder=0.2,seed=3".parse().unwrap();
    let (mut simulation, server, client) = connected(&Options { network, ..Options::default() });
    let counter = |simulation: &Simulation, name: &str| {
        let counters = simulation.device(0).attributes().unwrap().counters;
        counters.iter().find(|(n, _)| *n == name).map(|(_, value)| *value).unwrap()
    };
    let names = ["tcp_out_of_order", "tcp_retransmitted"];
    assert_eq!(names.map(|name| counter(&simulation, name) < 10), [true; 2]);
    let target = server.pd.alloc_mr(1 << 20, ALL).unwrap();
    let local = client.pd.alloc_mr(1 << 20, ALL).unwrap();
    let (addr, rkey) = (target.addr(), target.rkey());
    for op in [SendOp::Write { addr, rkey }, SendOp::Read { addr, rkey }] {
        client.post(1, op, &[Sge::of(&local, 0, 1 << 20)]);
        assert_eq!(client.next(&mut simulation).status, WcStatus::Success);
    }
    // The connection has its own counters.
    let connections = simulation.device(0).connections().unwrap();
    let [c] = &connections[..] else { panic!("one connection: {connections:?}") };
    assert_eq!(c.qpn, Some(server.qp.qpn()));
    assert!(
        c.tcp.state == TcpState::Established && c.tcp.retransmits > 0 && c.tcp.delivered > 1 << 20,
        "{c:?}"
    );
    assert_eq!(names.map(|name| counter(&simulation, name) > 10), [true; 2]);
    server.qp.to_error();
    assert_eq!(server.qp.state(), QpState::Error);
}

/// SEC-26, SEC-27, SEC-39: the recommended behaviour of a server works. The server grants a window to one stream, over
/// memory without former content, and takes the window back before it reads the memory. The data does not change while
/// the server reads it.
#[test]
fn a_server_takes_back_what_it_granted_before_it_looks() {
    let mut scene = Scene::new();
    let buffer = scene.server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    buffer.write_at(0, &[0xaa; LEN]).unwrap();
    drop(buffer);
    let buffer = scene.server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    assert!(content(&buffer) == [0; LEN], "nothing stale");
    let window = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
    let (rkey, lkey, addr) = (window.fresh_rkey(), buffer.lkey(), buffer.addr() + 1000);
    let grant = SendOp::BindMw { rkey, lkey, addr, len: 100, access: Access::REMOTE_WRITE };
    scene.server.post(1, grant, &[]);
    assert_eq!(scene.server.next(&mut scene.simulation).status, WcStatus::Success);
    // A peer on another stream of the domain gets no access by this window.
    let own = scene.server.pd.clone();
    let write = SendOp::Write { addr, rkey };
    assert_eq!(scene.attack(&own, write, 8), Some((1, 1, 2)));
    let local = scene.client.pd.alloc_mr(100, ALL).unwrap();
    local.write_at(0, &[0x11; 100]).unwrap();
    scene.server.post_recv(2, &[]);
    scene.client.post(3, write, &[Sge::of(&local, 0, 100)]);
    scene.client.post(4, SendOp::Send, &[]);
    assert_eq!(scene.server.next(&mut scene.simulation).wr_id, 2);
    // The client continues to write, although it has said that it is done.
    local.write_at(0, &[0x22; 100]).unwrap();
    scene.client.post(5, write, &[Sge::of(&local, 0, 100)]);
    scene.server.post(6, SendOp::LocalInv(rkey), &[]);
    assert_eq!(scene.server.next(&mut scene.simulation).wr_id, 6);
    let looked = content(&buffer);
    let limit = scene.simulation.now() + std::time::Duration::from_secs(1);
    scene.simulation.run(limit, || false);
    assert!(content(&buffer) == looked && looked[1000..1100] == [0x11; 100]);
    assert!(looked[..1000].iter().chain(&looked[1100..]).all(|octet| *octet == 0));
    assert_eq!(scene.server.qp.terminate().map(|t| (t.layer, t.etype, t.code)), Some((1, 1, 0)));
    let _ = &scene.source;
}
