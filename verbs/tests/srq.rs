//! Shared receive queues, over whole RNICs.

mod common;

use common::*;
use std::collections::HashMap;
use urnic::simulation::{Options, Simulation};
use urnic::*;

const LEN: u32 = 3000;

/// A server with a shared queue, and clients that are connected to it.
struct Setting {
    simulation: Simulation,
    srq: Srq,
    pd: Pd,
    servers: Vec<End>,
    clients: Vec<End>,
}

fn init<'a>(send_cq: &'a Cq, recv_cq: &'a Cq) -> QpInit<'a> {
    QpInit {
        send_cq,
        recv_cq,
        max_send_wr: 16,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 0,
        max_inline: 0,
        signal_all: false,
    }
}

fn setting(options: &Options, count: usize) -> Setting {
    let mut simulation = Simulation::new(options).unwrap();
    let device = simulation.device(0);
    let pd = device.alloc_pd();
    let srq = pd.create_srq(&SrqInit { max_wr: 256, max_sge: 2, limit: 0 }).unwrap();
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for _ in 0..count {
        // The queue pair has its own protection domain. The receives' memory belongs to the domain of the shared queue.
        let mut server = End::new(&device);
        server.qp = server.pd.create_qp_with_srq(&init(&server.cq, &server.cq), &srq).unwrap();
        let mut client = End::new(&simulation.device(1));
        connect(&mut simulation, &mut server, &mut client);
        servers.push(server);
        clients.push(client);
    }
    Setting { simulation, srq, pd, servers, clients }
}

fn drain(events: &AsyncEvents) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| events.poll()).collect()
}

/// Many queue pairs on several completion queues share the receives. Each queue pair gets its own messages, whole and
/// in order, and each receive is used once, whatever the network does.
#[test]
fn many_queue_pairs_share_receives() {
    const PAIRS: usize = 5;
    const EACH: u64 = 12;
    for seed in 0..10 {
        let network = format!("delay=20us,loss=0.02,reorder=0.1,seed={seed}").parse().unwrap();
        let Setting { mut simulation, srq, pd, servers, clients } =
            setting(&Options { network, ..options() }, PAIRS);
        let all = PAIRS as u64 * EACH;
        let inbox = pd.alloc_mr((all * u64::from(LEN)) as usize, Access::LOCAL_WRITE).unwrap();
        for i in 0..all {
            // Each receive consists of two pieces.
            let at = i * u64::from(LEN);
            let sges = [Sge::of(&inbox, at, 1000), Sge::of(&inbox, at + 1000, LEN - 1000)];
            srq.post_recv(&RecvWr { wr_id: i, sges: &sges }).unwrap();
        }
        let message = |pair: usize, i: u64| pattern(LEN as usize, pair * 1000 + i as usize);
        let mut sources = Vec::new();
        for i in 0..EACH {
            for (pair, client) in clients.iter().enumerate() {
                let source = client.pd.alloc_mr(LEN as usize, Access::empty()).unwrap();
                source.write_at(0, &message(pair, i)).unwrap();
                client.post(i, SendOp::Send, &[Sge::of(&source, 0, LEN)]);
                sources.push(source);
            }
        }
        let mut used = HashMap::new();
        for (pair, server) in servers.iter().enumerate() {
            for i in 0..EACH {
                let wc = server.next(&mut simulation);
                assert_eq!((wc.status, wc.qpn, wc.byte_len), (WcStatus::Success, server.qp.qpn(), LEN));
                assert_eq!(used.insert(wc.wr_id, pair), None, "seed {seed}");
                let mut got = vec![0; LEN as usize];
                inbox.read_at(wc.wr_id * u64::from(LEN), &mut got).unwrap();
                assert!(got == message(pair, i), "seed {seed}, pair {pair}, message {i}");
            }
        }
        assert_eq!(used.len() as u64, all);
    }
}

/// Runs until the first octet of a message has been placed in `inbox`.
fn until_begun(simulation: &mut Simulation, inbox: &Mr) {
    let limit = simulation.now() + std::time::Duration::from_secs(1);
    assert!(simulation.run(limit, || inbox.load_u8(0).unwrap() != 0));
}

/// A message takes its receive when it begins, and keeps it, while receives of other queue pairs complete earlier.
#[test]
fn receives_are_taken_when_messages_begin() {
    let network = "delay=5us,rate=1gbit,queue=1000".parse().unwrap();
    let Setting { mut simulation, srq, pd, servers, clients } = setting(&Options { network, ..options() }, 2);
    let long = 2 << 20;
    let inbox = pd.alloc_mr(long + 2, Access::LOCAL_WRITE).unwrap();
    srq.post_recv(&RecvWr { wr_id: 1, sges: &[Sge::of(&inbox, 0, long as u32)] }).unwrap();
    for i in 0..2 {
        srq.post_recv(&RecvWr { wr_id: 2 + i, sges: &[Sge::of(&inbox, long as u64 + i, 1)] }).unwrap();
    }
    let source = clients[0].pd.alloc_mr(long, Access::empty()).unwrap();
    source.write_at(0, b"!").unwrap();
    clients[0].post(1, SendOp::Send, &[Sge::of(&source, 0, long as u32)]);
    until_begun(&mut simulation, &inbox);
    for _ in 0..2 {
        let small = clients[1].pd.alloc_mr(1, Access::empty()).unwrap();
        clients[1].post(2, SendOp::Send, &[Sge::of(&small, 0, 1)]);
        let wc = clients[1].next(&mut simulation);
        assert_eq!(wc.status, WcStatus::Success);
    }
    let ids = [0; 2].map(|_| servers[1].next(&mut simulation).wr_id);
    assert_eq!(ids, [2, 3]);
    assert!(servers[0].completions().is_empty(), "the long one is still under way");
    let wc = servers[0].next(&mut simulation);
    assert_eq!((wc.wr_id, wc.byte_len), (1, long as u32));
}

/// RFC 5041 §7.2: a message for which there is no receive ends its stream with the error 12 02. Other queue pairs go
/// on.
#[test]
fn an_empty_queue_ends_the_stream_that_needs_it() {
    let Setting { mut simulation, srq, servers, clients, .. } = setting(&options(), 2);
    clients[0].post(1, SendOp::Send, &[]);
    assert_eq!(servers[0].end(&mut simulation), DisconnectReason::TerminateSent);
    let t = servers[0].qp.terminate().unwrap();
    assert_eq!((t.sent, t.layer, t.etype, t.code), (true, 1, 2, 2));
    let told = drain(&simulation.device(0).async_events());
    let [AsyncEvent::LastWqeReached { qpn }, AsyncEvent::QpRequestError(fault)] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*qpn, fault.qpn), (servers[0].qp.qpn(), servers[0].qp.qpn()));
    srq.post_recv(&RecvWr { wr_id: 7, sges: &[] }).unwrap();
    clients[1].post(2, SendOp::Send, &[]);
    assert_eq!(servers[1].next(&mut simulation).wr_id, 7);
}

/// Receives that wait in the shared queue are not flushed. A receive that a message had taken is flushed. With or
/// without such a receive, the queue pair reports once that it takes no more receives.
#[test]
fn only_what_was_taken_is_flushed() {
    for taken in [false, true] {
        let Setting { mut simulation, srq, pd, servers, clients } = setting(&options(), 2);
        let inbox = pd.alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
        for i in 0..4 {
            srq.post_recv(&RecvWr { wr_id: i, sges: &[Sge::of(&inbox, 0, 1 << 20)] }).unwrap();
        }
        let source = clients[0].pd.alloc_mr(1 << 20, Access::empty()).unwrap();
        source.write_at(0, b"!").unwrap();
        if taken {
            clients[0].post(1, SendOp::Send, &[Sge::of(&source, 0, 1 << 20)]);
            until_begun(&mut simulation, &inbox);
        }
        let events = simulation.device(0).async_events();
        assert_eq!(drain(&events), []);
        servers[0].qp.to_error();
        assert_eq!(drain(&events), [AsyncEvent::LastWqeReached { qpn: servers[0].qp.qpn() }]);
        servers[0].qp.to_error();
        assert_eq!(drain(&events), [], "once");
        let flushed: Vec<_> =
            servers[0].completions().iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
        let expected = (0, WcStatus::Flushed, WcOpcode::Recv);
        assert_eq!(flushed, if taken { vec![expected] } else { vec![] });
        clients[1].post(2, SendOp::Send, &[]);
        assert_eq!(servers[1].next(&mut simulation).wr_id, u64::from(taken));
    }
}

/// A receive of the shared queue with unusable memory fails when a message arrives for it, like any other receive.
#[test]
fn the_memory_is_that_of_the_queues_domain() {
    let Setting { mut simulation, srq, servers, clients, .. } = setting(&options(), 1);
    // This memory is registered, but in the domain of the queue pair.
    let inbox = servers[0].pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    srq.post_recv(&RecvWr { wr_id: 5, sges: &[Sge::of(&inbox, 0, 100)] }).unwrap();
    let source = clients[0].pd.alloc_mr(100, Access::empty()).unwrap();
    clients[0].post(1, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    let wc = servers[0].next(&mut simulation);
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LocalProtection));
}

/// The limit event comes early enough: if the program then posts some receives, no message is lost. The event also
/// shows the program that peers use more than their share (SEC-22).
#[test]
fn the_limit_tells_in_time() {
    let Setting { mut simulation, srq, servers, clients, .. } = setting(&options(), 3);
    let events = simulation.device(0).async_events();
    let limit = AsyncEvent::SrqLimitReached { srqn: srq.srqn() };
    let refill = || {
        srq.post_recv_list(&[RecvWr { wr_id: 9, sges: &[] }; 8]).unwrap();
        srq.set_limit(4).unwrap();
    };
    refill();
    let mut refills = 0;
    for round in 0..30 {
        let pair = round % clients.len();
        clients[pair].post(1, SendOp::Send, &[]);
        assert_eq!(servers[pair].next(&mut simulation).status, WcStatus::Success);
        for event in drain(&events) {
            assert_eq!(event, limit);
            refill();
            refills += 1;
        }
    }
    assert_eq!(refills, 4);
}

/// SEC-22: the limit event shows that few receives are left. The completions of receives name the queue pair, and so
/// show which queue pair has used them up. The program ends this greedy queue pair, which then gets no more receives,
/// and the others get the receives that they need.
#[test]
fn the_program_finds_the_peer_that_takes_too_much() {
    for greedy in 0..3 {
        let Setting { mut simulation, srq, pd, servers, clients } = setting(&options(), 3);
        let events = simulation.device(0).async_events();
        let inbox = pd.alloc_mr(LEN as usize, Access::LOCAL_WRITE).unwrap();
        let post = |wr_id| srq.post_recv(&RecvWr { wr_id, sges: &[Sge::of(&inbox, 0, LEN)] }).unwrap();
        (0..16).for_each(post);
        srq.set_limit(4).unwrap();
        let mut taken: HashMap<u32, usize> = HashMap::new();
        let count = |servers: &[End], taken: &mut HashMap<u32, usize>| {
            for wc in servers.iter().flat_map(End::completions) {
                assert_eq!(wc.status, WcStatus::Success);
                *taken.entry(wc.qpn).or_default() += 1;
            }
        };
        // Each client sends one message. The greedy client sends until the limit event comes.
        for client in &clients {
            client.post(1, SendOp::Send, &[]);
        }
        let low = AsyncEvent::SrqLimitReached { srqn: srq.srqn() };
        let mut told = Vec::new();
        for _ in 0..13 {
            let limit = simulation.now() + std::time::Duration::from_millis(1);
            simulation.run(limit, || false);
            told.extend(drain(&events));
            count(&servers, &mut taken);
            if told.is_empty() {
                clients[greedy].post(2, SendOp::Send, &[]);
            }
        }
        assert_eq!(told, [low], "once");
        let (&most, &share) = taken.iter().max_by_key(|(_, n)| **n).unwrap();
        assert_eq!((most, share), (servers[greedy].qp.qpn(), 11), "{taken:?}");
        let culprit = servers.iter().find(|server| server.qp.qpn() == most).unwrap();
        culprit.qp.to_error();
        (16..24).for_each(post);
        clients[greedy].post(4, SendOp::Send, &[]);
        for (i, (client, server)) in clients.iter().zip(&servers).enumerate() {
            if i != greedy {
                client.post(5, SendOp::Send, &[]);
                let wc = server.next(&mut simulation);
                assert_eq!((wc.status, wc.qpn), (WcStatus::Success, server.qp.qpn()));
            }
        }
        assert_eq!(culprit.completions(), []);
    }
}

/// The program may drop the handle of the shared queue before the queue pairs.
#[test]
fn queue_pairs_outlive_the_handle() {
    let Setting { mut simulation, srq, servers, clients, .. } = setting(&options(), 1);
    srq.post_recv(&RecvWr { wr_id: 3, sges: &[] }).unwrap();
    drop(srq);
    clients[0].post(1, SendOp::Send, &[]);
    assert_eq!(servers[0].next(&mut simulation).wr_id, 3);
    drop(servers);
}
