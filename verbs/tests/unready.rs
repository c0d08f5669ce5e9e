//! Sends that reach an RNIC before a receive is posted, and wait for the receive.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::Simulation;
use urnic::*;

/// Connects two ends. A Send to the server waits for a receive for up to `retries` retries; a Send to the client does
/// not wait.
fn patient(retries: u8) -> (Simulation, End, End) {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect_patiently(&mut simulation, &mut server, &mut client, retries);
    (simulation, server, client)
}

fn connect_patiently(simulation: &mut Simulation, server: &mut End, client: &mut End, retries: u8) {
    let param = ConnParam { rnr_retry: retries, ..ConnParam::default() };
    connect_with(simulation, server, client, &param);
}

/// Returns how often the device's queue pairs have begun to wait.
fn waits(device: &Device) -> u64 {
    let attributes = device.attributes().unwrap();
    let counter = attributes.counters.iter().find(|(name, _)| *name == "waited_for_receives");
    counter.expect("a counter").1
}

/// Runs until the queue pairs of a node's device have begun to wait `count` times.
fn until_it_waits(simulation: &mut Simulation, node: usize, count: u64) {
    let device = simulation.device(node);
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || waits(&device) >= count), "nothing waits");
}

fn received(wc: &Wc, wr_id: u64, len: u32) {
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, len), "{wc:?}");
}

/// By default a Send waits without a time limit (DDP-50: a message that finds no buffer may be tried again). Meanwhile
/// the target places the peer's later Writes, answers the peer's later Reads, and can post Reads of its own.
#[test]
fn a_send_waits_and_all_else_is_served() {
    let (mut simulation, server, client) = patient(RNR_WITHOUT_LIMIT);
    let target =
        server.pd.alloc_mr(256, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE).unwrap();
    let sink = client.pd.alloc_mr(256, Access::LOCAL_WRITE).unwrap();
    let source = client.pd.alloc_mr(256, Access::REMOTE_READ | Access::LOCAL_WRITE).unwrap();
    source.write_at(0, &pattern(256, 5)).unwrap();
    client.post(1, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    client.post(2, SendOp::Write { addr: target.addr(), rkey: target.rkey() }, &[Sge::of(&source, 0, 256)]);
    client.post(3, SendOp::Read { addr: target.addr(), rkey: target.rkey() }, &[Sge::of(&sink, 0, 256)]);
    client.post(4, SendOp::Send, &[Sge::of(&source, 100, 50)]);
    for wr_id in 1..=4 {
        assert_eq!(client.next(&mut simulation).wr_id, wr_id);
    }
    assert_eq!(content(&sink), pattern(256, 5), "the Read behind the Send was answered");
    // The target itself also posts a Read before its receives.
    let own = server.pd.alloc_mr(256, Access::LOCAL_WRITE).unwrap();
    server.post(5, SendOp::Read { addr: source.addr(), rkey: source.rkey() }, &[Sge::of(&own, 0, 256)]);
    assert_eq!(server.next(&mut simulation).wr_id, 5);
    simulation.wait(Duration::from_secs(1));
    assert_eq!((server.qp.state(), client.qp.state()), (QpState::Rts, QpState::Rts));
    let inbox = server.pd.alloc_mr(200, Access::LOCAL_WRITE).unwrap();
    server.post_recv(10, &[Sge::of(&inbox, 0, 100)]);
    received(&server.next(&mut simulation), 10, 100);
    server.post_recv(11, &[Sge::of(&inbox, 100, 100)]);
    received(&server.next(&mut simulation), 11, 50);
    assert_eq!(content(&inbox)[..150], pattern(256, 5)[..150]);
    assert_eq!(waits(&simulation.device(0)), 1);
    works(&mut simulation, &server, &client);
}

/// Each end obeys its own number of retries. This test covers the side that connects, another test the side that
/// accepts.
#[test]
fn the_side_that_connects_waits_as_long_as_it_says() {
    for (retries, ends) in [(0, true), (7, false)] {
        let mut simulation = Simulation::new(&options()).unwrap();
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        let listener = server.events.listen(PORT, 1).unwrap();
        let param = ConnParam { rnr_retry: retries, ..ConnParam::default() };
        client.connection = Some(client.events.connect(&client.qp, address(0), &param).unwrap());
        let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!("no request") };
        server.connection = Some(request.accept(&server.qp, &ConnParam::default()).unwrap());
        for end in [&server, &client] {
            assert!(matches!(end.event(&mut simulation), CmEvent::Established { .. }));
        }
        drop(listener);
        let source = server.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
        // MPA-70: the side that connected sends first.
        server.post_recv(1, &[]);
        client.post(2, SendOp::Send, &[]);
        assert_eq!(server.next(&mut simulation).wr_id, 1);
        server.post(3, SendOp::Send, &[Sge::of(&source, 0, 8)]);
        if ends {
            assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateSent);
        } else {
            until_it_waits(&mut simulation, 1, 1);
        }
    }
}

/// A Send waits for at most 100 ms per retry. The limit starts anew for each Send. After this limit, the peer gets a
/// Terminate with the codes of ERR-22 (DDP-49).
#[test]
fn err_22_when_the_retries_are_used_up() {
    let (mut simulation, server, client) = patient(6);
    let inbox = server.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    let source = client.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    for wr_id in 1..=3 {
        client.post(wr_id, SendOp::Send, &[Sge::of(&source, 0, 8)]);
        client.next(&mut simulation);
    }
    until_it_waits(&mut simulation, 0, 1);
    // Two receives are posted, each when most of the time is over.
    for wr_id in 10..12 {
        simulation.wait(Duration::from_millis(400));
        assert_eq!(server.qp.state(), QpState::Rts);
        server.post_recv(wr_id, &[Sge::of(&inbox, 0, 8)]);
        received(&server.next(&mut simulation), wr_id, 8);
    }
    assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateSent);
    let codes = |t: TerminateInfo| (t.layer, t.etype, t.code);
    assert_eq!(codes(server.qp.terminate().unwrap()), (1, 2, 2));
    assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateReceived);
    assert_eq!(codes(client.qp.terminate().unwrap()), (1, 2, 2));
}

/// If the waiting data exceeds a connection's buffer, the window shuts and opens again. Nothing is lost, however large
/// the messages are.
#[test]
fn what_does_not_fit_stays_with_the_peer() {
    for (messages, len) in [(40u64, 10_000usize), (3, 300_000)] {
        let (mut simulation, server, client) = patient(RNR_WITHOUT_LIMIT);
        let source = client.pd.alloc_mr(len, Access::LOCAL_WRITE).unwrap();
        source.write_at(0, &pattern(len, 9)).unwrap();
        for wr_id in 0..messages {
            client.post(wr_id, SendOp::Send, &[Sge::of(&source, 0, len as u32)]);
        }
        until_it_waits(&mut simulation, 0, 1);
        simulation.wait(Duration::from_secs(2));
        assert_eq!((server.qp.state(), client.qp.state()), (QpState::Rts, QpState::Rts));
        let inbox = server.pd.alloc_mr(len, Access::LOCAL_WRITE).unwrap();
        for wr_id in 0..messages {
            server.post_recv(wr_id, &[Sge::of(&inbox, 0, len as u32)]);
            received(&server.next(&mut simulation), wr_id, len as u32);
            assert!(content(&inbox) == pattern(len, 9), "message {wr_id}");
        }
        assert_eq!(client.completions().len() as u64, messages);
        works(&mut simulation, &server, &client);
    }
}

/// Connects `n` pairs of ends, whose servers have the receives of `srq` and let Sends wait for them.
fn sharing(simulation: &mut Simulation, srq: &Srq, n: usize) -> (Vec<End>, Vec<End>) {
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..n {
        let mut server = End::new(&simulation.device(0));
        let init = QpInit {
            send_cq: &server.cq,
            recv_cq: &server.cq,
            max_send_wr: 16,
            max_recv_wr: 0,
            max_send_sge: 1,
            max_recv_sge: 0,
            max_inline: 0,
            signal_all: false,
        };
        server.qp = server.pd.create_qp_with_srq(&init, srq).unwrap();
        let mut client = End::new(&simulation.device(1));
        connect_patiently(simulation, &mut server, &mut client, RNR_WITHOUT_LIMIT);
        servers.push(server);
        clients.push(client);
    }
    (servers, clients)
}

/// Queue pairs that wait for one shared queue are served in the order in which they began to wait, at each engine.
#[test]
fn a_shared_queue_serves_the_oldest_first() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let pd = device.alloc_pd();
    let srq = pd.create_srq(&SrqInit { max_wr: 64, max_sge: 1, limit: 0 }).unwrap();
    let (mut servers, clients) = sharing(&mut simulation, &srq, 4);
    let order = [2, 0, 3, 1];
    // Each client posts two Sends, so that the second one waits behind the first.
    let mut sources = Vec::new();
    for (waits, at) in order.into_iter().enumerate() {
        let memory = clients[at].pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
        for wr_id in 0..2 {
            clients[at].post(wr_id, SendOp::Send, &[Sge::of(&memory, 0, 8)]);
        }
        sources.push(memory);
        until_it_waits(&mut simulation, 0, waits as u64 + 1);
    }
    let inbox = pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    let turn = |simulation: &mut Simulation, wr_id| {
        srq.post_recv(&RecvWr { wr_id, sges: &[Sge::of(&inbox, 0, 8)] }).unwrap();
        let mut who = None;
        let limit = simulation.now() + LIMIT;
        let served = simulation.run(limit, || {
            who = servers.iter().position(|server| !server.completions().is_empty());
            who.is_some()
        });
        assert!(served, "receive {wr_id} is used by nobody");
        who.unwrap()
    };
    // A queue pair keeps its turn until none of its messages waits.
    let turns: Vec<usize> = (0..8).map(|wr_id| turn(&mut simulation, wr_id)).collect();
    if device.attributes().unwrap().engines == 1 {
        assert_eq!(turns, [2, 2, 0, 0, 3, 3, 1, 1]);
    } else {
        // With several engines, only the order within an engine is fixed, but every queue pair gets its turn.
        let mut all = turns;
        all.sort_unstable();
        assert_eq!(all, [0, 0, 1, 1, 2, 2, 3, 3]);
    }
    // A queue pair that is destroyed while it waits does not hinder others: a list of receives serves the queue
    // pair that still waits.
    for at in [1, 2] {
        clients[at].post(9, SendOp::Send, &[]);
    }
    until_it_waits(&mut simulation, 0, 6);
    let gone = servers.remove(1);
    drop(gone);
    let sges = [Sge::of(&inbox, 0, 8)];
    let wrs: Vec<RecvWr<'_>> = (0..2).map(|wr_id| RecvWr { wr_id, sges: &sges }).collect();
    srq.post_recv_list(&wrs).unwrap();
    received(&servers[1].next(&mut simulation), 0, 0);
}

/// A queue pair that waits for a shared queue gets no earlier turn by posting requests of its own, whose doorbell the
/// engine answers before it serves the queue.
#[test]
fn a_request_of_its_own_gives_no_queue_pair_an_earlier_turn() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let pd = device.alloc_pd();
    let srq = pd.create_srq(&SrqInit { max_wr: 64, max_sge: 1, limit: 0 }).unwrap();
    let (servers, clients) = sharing(&mut simulation, &srq, 2);
    for (waits, client) in clients.iter().enumerate() {
        client.post(1, SendOp::Send, &[]);
        until_it_waits(&mut simulation, 0, waits as u64 + 1);
    }
    // The first request is sent at once. The second must wait for a pass of the engine, and so rings the doorbell.
    for wr_id in [2, 3] {
        clients[1].post_recv(wr_id, &[]);
    }
    servers[1].post(2, SendOp::Send, &[]);
    srq.post_recv(&RecvWr { wr_id: 4, sges: &[] }).unwrap();
    servers[1].post(3, SendOp::Send, &[]);
    for wr_id in 1..=3 {
        assert_eq!(clients[1].next(&mut simulation).wr_id, wr_id);
    }
    // Engines take turns, so only the order within an engine is fixed.
    if device.attributes().unwrap().engines == 1 {
        received(&servers[0].next(&mut simulation), 4, 0);
        srq.post_recv(&RecvWr { wr_id: 5, sges: &[] }).unwrap();
        for wr_id in [2, 3] {
            assert_eq!(servers[1].next(&mut simulation).wr_id, wr_id);
        }
        received(&servers[1].next(&mut simulation), 5, 0);
    }
}

/// A disconnect discards the messages that wait. Both ends close without an error, unless the peer has unsent
/// data.
#[test]
fn a_disconnect_discards_what_waits() {
    for full in [false, true] {
        let (mut simulation, server, client) = patient(RNR_WITHOUT_LIMIT);
        let len = if full { 100_000 } else { 100 };
        let source = client.pd.alloc_mr(len, Access::LOCAL_WRITE).unwrap();
        source.write_at(0, &vec![7; len]).unwrap();
        client.post(1, SendOp::Send, &[Sge::of(&source, 0, len as u32)]);
        until_it_waits(&mut simulation, 0, 1);
        server.disconnect();
        // None of the messages takes the receive, although it is there before the connection has ended.
        let inbox = server.pd.alloc_mr(len, Access::LOCAL_WRITE).unwrap();
        server.post_recv(2, &[Sge::of(&inbox, 0, len as u32)]);
        let ends = [client.end(&mut simulation), server.end(&mut simulation)];
        let expected = [DisconnectReason::Peer, DisconnectReason::Local];
        // If `full`, the server's FIN may find the client with unsent data. Nobody will receive this data, so the
        // client sends a Terminate (ERR-46).
        let cut_off = [DisconnectReason::TerminateSent, DisconnectReason::TerminateReceived];
        assert!(ends == expected || full && ends == cut_off, "{ends:?}");
        let told: Vec<_> = server.completions().iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(told, [(2, WcStatus::Flushed)]);
        assert!(content(&inbox) == vec![0; len]);
    }
}

/// If the peer closes after its Sends, its FIN waits behind them.
#[test]
fn the_peers_end_waits_behind_its_sends() {
    let (mut simulation, server, client) = patient(RNR_WITHOUT_LIMIT);
    let source = client.pd.alloc_mr(10_000, Access::LOCAL_WRITE).unwrap();
    source.write_at(0, &pattern(10_000, 2)).unwrap();
    for wr_id in 0..20 {
        client.post(wr_id, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
    }
    until_it_waits(&mut simulation, 0, 1);
    client.disconnect();
    let inbox = server.pd.alloc_mr(10_000, Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..20 {
        simulation.wait(Duration::from_millis(100));
        server.post_recv(wr_id, &[Sge::of(&inbox, 0, 10_000)]);
        received(&server.next(&mut simulation), wr_id, 10_000);
        assert!(content(&inbox) == pattern(10_000, 2), "message {wr_id}");
    }
    assert_eq!(server.end(&mut simulation), DisconnectReason::Peer);
    assert_eq!(client.end(&mut simulation), DisconnectReason::Local);
}

/// The peer's FIN waits behind its Sends only for a limited time. Then the connection ends as truncated, and
/// the Sends use up no receive.
#[test]
fn the_end_of_the_peer_discards_what_waits() {
    let (mut simulation, server, client) = patient(RNR_WITHOUT_LIMIT);
    let source = client.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    client.post(1, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    until_it_waits(&mut simulation, 0, 1);
    client.disconnect();
    assert_eq!(server.end(&mut simulation), DisconnectReason::Truncated);
    server.post_recv(1, &[]);
    let wc = server.next(&mut simulation);
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Flushed));
}

/// A queue pair that ends while its receive window is shut still tells its peer that it ends.
#[test]
fn a_full_room_keeps_no_end_from_the_peer() {
    for destroyed in [false, true] {
        let (mut simulation, server, client) = patient(if destroyed { RNR_WITHOUT_LIMIT } else { 1 });
        let source = client.pd.alloc_mr(300_000, Access::LOCAL_WRITE).unwrap();
        client.post(1, SendOp::Send, &[Sge::of(&source, 0, 300_000)]);
        until_it_waits(&mut simulation, 0, 1);
        if destroyed {
            let End { qp, .. } = server;
            drop(qp);
            let end = client.end(&mut simulation);
            assert!(matches!(end, DisconnectReason::Peer | DisconnectReason::TerminateSent), "{end:?}");
        } else {
            assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateReceived);
            assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateSent);
        }
    }
}

/// Immediate Data that had to wait completes its receive with the length of its Write. A Send with Invalidate that had
/// to wait invalidates its STag, and the peer's next message is delivered too.
#[test]
fn what_waits_is_delivered_as_what_does_not() {
    let (mut simulation, server, client) = patient(RNR_WITHOUT_LIMIT);
    let rights = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
    let target = server.pd.alloc_mr(64, rights).unwrap();
    let granted = server.pd.alloc_mr(64, rights | Access::REMOTE_INVALIDATE).unwrap();
    let source = client.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let (addr, rkey) = (target.addr(), target.rkey());
    client.post(1, SendOp::WriteImm { addr, rkey, imm: 7 }, &[Sge::of(&source, 0, 24)]);
    client.post(2, SendOp::SendInv(granted.rkey()), &[Sge::of(&source, 0, 8)]);
    client.post(3, SendOp::WriteImm { addr, rkey, imm: 8 }, &[Sge::of(&source, 0, 40)]);
    for wr_id in 1..=3 {
        assert_eq!(client.next(&mut simulation).wr_id, wr_id);
    }
    until_it_waits(&mut simulation, 0, 1);
    let inbox = server.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    for wr_id in 1..=3 {
        server.post_recv(wr_id, &[Sge::of(&inbox, 0, 64)]);
    }
    let all: Vec<Wc> = (0..3).map(|_| server.next(&mut simulation)).collect();
    assert_eq!((all[0].opcode, all[0].byte_len), (WcOpcode::RecvRdmaWithImm, 24));
    assert_eq!((all[1].byte_len, all[1].invalidated_rkey), (8, granted.rkey()));
    assert_eq!((all[2].opcode, all[2].byte_len), (WcOpcode::RecvRdmaWithImm, 40));
    assert_eq!([all[0].imm >> 32, all[2].imm >> 32], [7, 8]);
}
