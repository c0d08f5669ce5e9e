//! Operations that must be refused. The tests check what each side is told, what happens to its queues, and that
//! everything else continues.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::Simulation;
use urnic::*;

/// The memory of the accessed side.
struct Memory {
    all: Mr,
    readable: Mr,
    writable: Mr,
    elsewhere: Mr,
}

/// An operation, and its expected outcome.
struct Case {
    name: &'static str,
    op: fn(&Memory) -> SendOp,
    /// Octets of the message.
    len: u32,
    /// Layer, error type and code of the Terminate.
    codes: (u8, u8, u8),
    /// Status of the first receive. `Flushed`: the operation took no receive.
    receive: WcStatus,
    /// Possible statuses of the operation at the side that posted it.
    outcomes: &'static [WcStatus],
}

/// A Write completes successfully when TCP has taken it, unless the Terminate arrives first.
const HANDED_OVER: &[WcStatus] = &[WcStatus::Success, WcStatus::RemoteAccess];

fn write(addr: u64, rkey: u32) -> SendOp {
    SendOp::Write { addr, rkey }
}

fn read(addr: u64, rkey: u32) -> SendOp {
    SendOp::Read { addr, rkey }
}

fn unknown(memory: &Memory) -> u32 {
    (0..)
        .find(|k| {
            [&memory.all, &memory.readable, &memory.writable, &memory.elsewhere]
                .iter()
                .all(|m| m.rkey() != *k)
        })
        .unwrap()
}

fn cases() -> Vec<Case> {
    let write = |name, op, codes| Case {
        name,
        op,
        len: 16,
        codes,
        receive: WcStatus::Flushed,
        outcomes: HANDED_OVER,
    };
    let read = |name, op, codes| Case { outcomes: &[WcStatus::RemoteAccess], ..write(name, op, codes) };
    let send =
        |name, op, len, codes, receive, outcomes| Case { len, receive, outcomes, ..write(name, op, codes) };
    vec![
        write("Write to an unknown STag", |m| self::write(m.all.addr(), unknown(m)), (1, 1, 0)),
        write("Write beyond the end", |m| self::write(m.all.addr() + 1000 - 15, m.all.rkey()), (1, 1, 1)),
        write("Write before the start", |m| self::write(m.all.addr() - 1, m.all.rkey()), (1, 1, 1)),
        write("Write that wraps around", |m| self::write(u64::MAX - 7, m.all.rkey()), (1, 1, 3)),
        write("Write without the right", |m| self::write(m.readable.addr(), m.readable.rkey()), (1, 1, 0)),
        write("Write to another domain", |m| self::write(m.elsewhere.addr(), m.elsewhere.rkey()), (1, 1, 2)),
        read("Read of an unknown STag", |m| self::read(m.all.addr(), unknown(m)), (0, 1, 0)),
        read("Read beyond the end", |m| self::read(m.all.addr() + 1000 - 15, m.all.rkey()), (0, 1, 1)),
        read("Read that wraps around", |m| self::read(u64::MAX - 7, m.all.rkey()), (0, 1, 4)),
        read("Read without the right", |m| self::read(m.writable.addr(), m.writable.rkey()), (0, 1, 2)),
        read("Read of another domain", |m| self::read(m.elsewhere.addr(), m.elsewhere.rkey()), (0, 1, 3)),
        send(
            "Send that invalidates an unknown STag",
            |m| SendOp::SendInv(unknown(m)),
            16,
            (0, 1, 9),
            WcStatus::Invalidation,
            HANDED_OVER,
        ),
        send(
            "Send that invalidates a region of another domain",
            |m| SendOp::SendInv(m.elsewhere.rkey()),
            16,
            (0, 1, 9),
            WcStatus::Invalidation,
            HANDED_OVER,
        ),
        send(
            "Send that is too long",
            |_| SendOp::Send,
            101,
            (1, 2, 5),
            WcStatus::LocalLength,
            &[WcStatus::Success, WcStatus::RemoteInvalidRequest],
        ),
    ]
}

/// Devices with two connections: one for the error, and one that must go on.
struct Scene {
    simulation: Simulation,
    server: End,
    client: End,
    other_server: End,
    other_client: End,
    memory: Memory,
    inbox: Mr,
    local: Mr,
}

impl Scene {
    fn new() -> Scene {
        let (mut simulation, server, client) = connected(&options());
        let (mut other_server, mut other_client) =
            (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        connect(&mut simulation, &mut other_server, &mut other_client);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let writable = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let memory = Memory {
            all: server.pd.alloc_mr(1000, access).unwrap(),
            readable: server.pd.alloc_mr(1000, Access::REMOTE_READ).unwrap(),
            writable: server.pd.alloc_mr(1000, writable).unwrap(),
            elsewhere: simulation.device(0).alloc_pd().alloc_mr(1000, access).unwrap(),
        };
        let inbox = server.pd.alloc_mr(300, Access::LOCAL_WRITE).unwrap();
        let local = client.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
        local.write_at(0, &pattern(4096, 1)).unwrap();
        Scene { simulation, server, client, other_server, other_client, memory, inbox, local }
    }

    /// Posts 3 receives of 100 octets at the server (ids 10 to 12), and 2 without memory at the client (ids 20
    /// and 21).
    fn post_receives(&self) {
        for i in 0..3 {
            self.server.post_recv(10 + i, &[Sge::of(&self.inbox, i * 100, 100)]);
        }
        for i in 0..2 {
            self.client.post_recv(20 + i, &[]);
        }
    }

    /// Waits until both ends report the end of the connection, and checks their reasons and Terminates.
    fn ends(&mut self, name: &str, sent_by_server: bool, codes: (u8, u8, u8)) {
        use DisconnectReason::{TerminateReceived, TerminateSent};
        let reasons = [self.server.end(&mut self.simulation), self.client.end(&mut self.simulation)];
        let expected = if sent_by_server {
            [TerminateSent, TerminateReceived]
        } else {
            [TerminateReceived, TerminateSent]
        };
        assert_eq!(reasons, expected, "{name}");
        for (end, sent) in [(&self.server, sent_by_server), (&self.client, !sent_by_server)] {
            let t = end.qp.terminate().unwrap_or_else(|| panic!("{name}: no Terminate"));
            assert_eq!((t.sent, (t.layer, t.etype, t.code)), (sent, codes), "{name}: {t}");
            assert_ne!(t.meaning, "unknown error", "{name}");
            // The error state follows when the connection is gone.
            assert!(matches!(end.qp.state(), QpState::Terminate | QpState::Error), "{name}");
        }
    }

    /// Checks that no further event happens, that the other connection works, and that new connections can be made.
    fn all_else_goes_on(&mut self, name: &str) {
        works(&mut self.simulation, &self.other_server, &self.other_client);
        // Runs until the connection's TIME-WAIT is over.
        let limit = self.simulation.now() + LIMIT;
        assert!(!self.simulation.run(limit, || false));
        assert_eq!(self.server.completions(), [], "{name}");
        assert_eq!(self.client.completions(), [], "{name}");
        assert!(self.server.events.poll().is_none() && self.client.events.poll().is_none(), "{name}");
        let (mut server, mut client) =
            (End::new(&self.simulation.device(0)), End::new(&self.simulation.device(1)));
        connect(&mut self.simulation, &mut server, &mut client);
        works(&mut self.simulation, &server, &client);
    }
}

fn flushed(wr_id: u64) -> (u64, WcStatus) {
    (wr_id, WcStatus::Flushed)
}

fn brief(all: &[Wc]) -> Vec<(u64, WcStatus)> {
    all.iter().map(|wc| (wc.wr_id, wc.status)).collect()
}

/// DDP-51; RDMAP-5, 81: a refused operation.
#[test]
fn what_the_peer_refuses_ends_the_connection_and_nothing_else() {
    for case in cases() {
        let name = case.name;
        let mut scene = Scene::new();
        scene.post_receives();
        let before =
            [&scene.memory.all, &scene.memory.readable, &scene.memory.writable, &scene.memory.elsewhere]
                .map(content);
        let sge = |len| [Sge::of(&scene.local, 0, len)];
        let all = &scene.memory.all;
        scene.client.post(1, write(all.addr() + 500, all.rkey()), &sge(16));
        scene.client.post(2, (case.op)(&scene.memory), &sge(case.len));
        // These messages follow the error, and must not be placed.
        scene.client.post(3, write(all.addr() + 600, all.rkey()), &sge(16));
        scene.client.post(4, SendOp::Send, &sge(16));
        scene.ends(name, true, case.codes);

        let took_receive = case.receive != WcStatus::Flushed;
        let first = if took_receive { (10, case.receive) } else { flushed(10) };
        assert_eq!(brief(&scene.server.completions()), [first, flushed(11), flushed(12)], "{name}");
        let ours = brief(&scene.client.completions());
        let (sends, receives): (Vec<_>, Vec<_>) = ours.into_iter().partition(|(wr_id, _)| *wr_id < 10);
        assert_eq!(receives, [flushed(20), flushed(21)], "{name}");
        assert_eq!(sends.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>(), [1, 2, 3, 4], "{name}");
        assert_eq!(sends[0].1, WcStatus::Success, "{name}");
        assert!(case.outcomes.contains(&sends[1].1), "{name}: {:?}", sends[1]);

        let mut expected = before;
        expected[0][500..516].copy_from_slice(&pattern(16, 1));
        let now =
            [&scene.memory.all, &scene.memory.readable, &scene.memory.writable, &scene.memory.elsewhere]
                .map(content);
        assert!(now == expected, "{name}: memory was written");
        scene.all_else_goes_on(name);
    }
}

/// RFC 5041 §7.2, code 1 2 02: no buffer for the message.
#[test]
fn a_send_without_a_receive_ends_the_connection() {
    let mut scene = Scene::new();
    scene.client.post(1, SendOp::Send, &[Sge::of(&scene.local, 0, 16)]);
    scene.ends("no receive", true, (1, 2, 2));
    assert_eq!(scene.server.completions(), []);
    assert_eq!(scene.client.next(&mut scene.simulation).wr_id, 1);
    scene.all_else_goes_on("no receive");
}

/// An unusable scatter list is the receiver's own error, and a Terminate tells the peer.
#[test]
fn a_receive_into_memory_that_is_not_there_fails_at_the_receiver() {
    let mut scene = Scene::new();
    let readable = Sge::of(&scene.memory.readable, 0, 100);
    scene.server.post_recv(10, &[readable]);
    scene.server.post_recv(11, &[]);
    let before = content(&scene.memory.readable);
    scene.client.post(1, SendOp::Send, &[Sge::of(&scene.local, 0, 16)]);
    scene.ends("receive", true, (0, 2, 7));
    assert_eq!(brief(&scene.server.completions()), [(10, WcStatus::LocalProtection), flushed(11)]);
    assert!(content(&scene.memory.readable) == before);
    assert_eq!(scene.client.completions().len(), 1);
    scene.all_else_goes_on("receive");
}

/// A request with unusable local memory fails at the side that posted it. The peer gets a Terminate with layer 0, type
/// 0 and code 0.
#[test]
fn a_request_with_a_wrong_local_key_fails_at_the_sender() {
    for (name, op) in [("Send", SendOp::Send), ("Write", SendOp::Write { addr: 0, rkey: 0 })] {
        let mut scene = Scene::new();
        scene.post_receives();
        let op = match op {
            SendOp::Write { .. } => write(scene.memory.all.addr(), scene.memory.all.rkey()),
            other => other,
        };
        let before = content(&scene.memory.all);
        let elsewhere = scene.simulation.device(1).alloc_pd().alloc_mr(100, Access::LOCAL_WRITE).unwrap();
        scene.client.post(1, SendOp::Send, &[Sge::of(&scene.local, 0, 5)]);
        scene.client.post(2, op, &[Sge::of(&elsewhere, 0, 16)]);
        scene.client.post(3, SendOp::Send, &[Sge::of(&scene.local, 0, 5)]);
        scene.ends(name, false, (0, 0, 0));
        let got = brief(&scene.client.completions());
        let expected =
            [(1, WcStatus::Success), (2, WcStatus::LocalProtection), flushed(3), flushed(20), flushed(21)];
        assert_eq!(got, expected, "{name}");
        let got = brief(&scene.server.completions());
        assert_eq!(got, [(10, WcStatus::Success), flushed(11), flushed(12)], "{name}");
        assert!(content(&scene.memory.all) == before, "{name}");
        scene.all_else_goes_on(name);
    }
}

/// The reader detects the unusable sink of its Read, at the latest when the response arrives. Nothing is placed.
#[test]
fn a_read_into_memory_that_is_not_there_fails_at_the_reader() {
    let mut scene = Scene::new();
    let elsewhere = scene.simulation.device(1).alloc_pd().alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    let all = &scene.memory.all;
    scene.client.post(1, read(all.addr(), all.rkey()), &[Sge::of(&elsewhere, 0, 16)]);
    let reason = scene.client.end(&mut scene.simulation);
    assert_eq!(reason, DisconnectReason::TerminateSent);
    assert_eq!(scene.server.end(&mut scene.simulation), DisconnectReason::TerminateReceived);
    let got = brief(&scene.client.completions());
    assert!(matches!(got[..], [(1, WcStatus::LocalProtection)]), "{got:?}");
    assert!(content(&elsewhere) == [0; 100]);
    scene.all_else_goes_on("read");
}

/// With ORD 0, a Read cannot be executed at all.
/// RDMAP-68.
#[test]
fn a_read_that_was_not_negotiated_is_refused() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    let _listener = server.events.listen(PORT, 4).unwrap();
    let param = ConnParam { ird: 0, ord: 0, ..ConnParam::default() };
    client.events.connect(&client.qp, address(0), &param).unwrap();
    let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!("no request") };
    request.accept(&server.qp, &param).unwrap();
    for end in [&server, &client] {
        let event = end.event(&mut simulation);
        assert!(matches!(event, CmEvent::Established { ird: 0, ord: 0, .. }), "{event:?}");
    }
    let mr = client.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    client.post(1, SendOp::Send, &[]);
    client.post(2, read(mr.addr(), mr.rkey()), &[Sge::of(&mr, 0, 1)]);
    client.post(3, SendOp::Send, &[]);
    server.post_recv(10, &[]);
    assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateSent);
    assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateReceived);
    let got = brief(&client.completions());
    assert_eq!(got, [(1, WcStatus::Success), (2, WcStatus::LocalQpOp), flushed(3)]);
    assert_eq!(brief(&server.completions()), [(10, WcStatus::Success)]);
}

/// Work posted after the end is flushed, each request once.
#[test]
fn work_posted_in_the_error_state_is_flushed() {
    let mut scene = Scene::new();
    scene.client.qp.to_error();
    assert_eq!(scene.client.end(&mut scene.simulation), DisconnectReason::Aborted);
    assert_eq!(scene.server.end(&mut scene.simulation), DisconnectReason::Reset);
    for end in [&scene.server, &scene.client] {
        assert_eq!((end.qp.state(), end.qp.terminate()), (QpState::Error, None));
        for i in 0..200 {
            end.post_recv(2 * i, &[]);
            end.post(2 * i + 1, SendOp::Send, &[]);
            let mut got = brief(&end.completions());
            got.sort_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(got, [flushed(2 * i), flushed(2 * i + 1)]);
        }
    }
    scene.all_else_goes_on("to_error");
}

/// RFC 5040 §5.3: the peer can no longer use the invalidated region. All other regions remain. RDMAP-4, 46.
#[test]
fn an_invalidated_region_is_gone() {
    let mut scene = Scene::new();
    scene.post_receives();
    let (all, window) = (&scene.memory.all, &scene.memory.writable);
    let rkey = window.rkey();
    let sge = [Sge::of(&scene.local, 0, 16)];
    scene.client.post(1, write(window.addr(), window.rkey()), &sge);
    scene.client.post(2, SendOp::SendInv(window.rkey()), &sge);
    scene.client.post(3, write(all.addr(), all.rkey()), &sge);
    scene.client.post(4, write(window.addr() + 500, window.rkey()), &sge);
    scene.ends("invalidated", true, (1, 1, 0));
    let got = scene.server.completions();
    assert_eq!((got[0].flags, got[0].invalidated_rkey), (WcFlags::WITH_INV, rkey));
    assert_eq!(content(&scene.memory.all)[..16], pattern(16, 1));
    let window = content(&scene.memory.writable);
    assert_eq!(window[..16], pattern(16, 1));
    assert!(window[16..] == [0; 984]);
}

/// A full completion queue ends its queue pairs instead of losing completions silently.
#[test]
fn a_completion_queue_that_overflows_ends_the_connection() {
    let (mut simulation, mut server, mut client) = {
        let mut simulation = Simulation::new(&options()).unwrap();
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        server.cq = simulation.device(0).create_cq(4, None).unwrap();
        server.qp = create_qp(&server.pd, &server.cq);
        connect(&mut simulation, &mut server, &mut client);
        (simulation, server, client)
    };
    for i in 0..8 {
        server.post_recv(i, &[]);
    }
    for i in 0..8 {
        client.post(i, SendOp::Send, &[]);
    }
    assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateSent);
    assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateReceived);
    assert!(server.cq.overflowed());
    assert_eq!(server.qp.state(), QpState::Terminate);
    assert_eq!(brief(&server.completions()), (0..4).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
    (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut server, &mut client);
    works(&mut simulation, &server, &client);
}

/// Requests whose completions overflow the queue: the completions in the queue are in order, and the connection
/// ends with a Terminate.
#[test]
fn completions_of_requests_that_overflow_end_the_connection() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    client.cq = simulation.device(1).create_cq(4, None).unwrap();
    client.qp = create_qp(&client.pd, &client.cq);
    connect(&mut simulation, &mut server, &mut client);
    for i in 0..20 {
        client.post(i, SendOp::Write { addr: 0, rkey: 0 }, &[]);
    }
    let before = simulation.now();
    assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateSent);
    assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateReceived);
    assert!(simulation.now() - before < Duration::from_secs(1));
    assert!(client.cq.overflowed());
    assert_eq!(brief(&client.completions()), (0..4).map(|i| (i, WcStatus::Success)).collect::<Vec<_>>());
}

/// Regions may be dropped while operations write to them, read them or send from them. At any stage of the
/// operation, the connection then ends with a Terminate.
#[test]
fn memory_may_go_while_it_is_used() {
    const LEN: usize = 4 << 20;
    for (victim, steps) in (0..4).flat_map(|v| [1, 5, 20, 60].map(|s| (v, s))) {
        let (mut simulation, server, client) = connected(&options());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut remote = Some(server.pd.alloc_mr(LEN, access).unwrap());
        let mut local = Some(client.pd.alloc_mr(LEN, access).unwrap());
        let (addr, rkey) = remote.as_ref().map(|mr| (mr.addr(), mr.rkey())).unwrap();
        let op = if victim < 2 { write(addr, rkey) } else { read(addr, rkey) };
        client.post(1, op, &[Sge::of(local.as_ref().unwrap(), 0, LEN as u32)]);
        for _ in 0..steps {
            simulation.step(LIMIT);
        }
        // Dropped memory is unmapped: an access would end the process.
        let codes = match victim {
            0 => (1, 1, 0), // the Write's target
            1 => (0, 0, 0), // the Write's source
            2 => (0, 1, 0), // the Read's source
            _ => (1, 1, 0), // the Read's sink
        };
        let at_client = victim == 1 || victim == 3;
        drop(if at_client { local.take() } else { remote.take() });
        let reasons = [client.end(&mut simulation), server.end(&mut simulation)];
        let place = format!("victim {victim} after {steps} steps: {reasons:?}");
        let finder = if at_client { &client } else { &server };
        let t = finder.qp.terminate().unwrap_or_else(|| panic!("{place}"));
        assert_eq!((t.sent, (t.layer, t.etype, t.code)), (true, codes), "{place}");
        let got = brief(&client.completions());
        assert_eq!(got.len(), 1, "{place}: {got:?}");
        let expected: &[WcStatus] = match victim {
            0 => &[WcStatus::Success, WcStatus::RemoteAccess],
            2 => &[WcStatus::RemoteAccess],
            _ => &[WcStatus::LocalProtection],
        };
        assert!(expected.contains(&got[0].1), "{place}: {got:?}");
    }
}
