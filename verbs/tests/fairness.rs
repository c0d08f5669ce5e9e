//! Queue pairs take turns: a long message on one does not make short ones on another wait for its end.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::{Options, TcpConfig};
use urnic::*;

const LONG: usize = 8 << 20;

/// 1 Gbit/s: 8 MiB take 70 ms at least. No connection has more than 64 KiB in flight, which takes 0.5 ms, so that the
/// network loses nothing and the queue pairs' turns alone decide.
fn slow() -> Options {
    let tcp = TcpConfig { recv_window: 64 << 10, ..TcpConfig::default() };
    Options { network: "delay=10us,rate=1gbit,queue=1000".parse().unwrap(), tcp, ..Options::default() }
}

#[test]
fn short_writes_pass_a_long_one() {
    let (mut simulation, server, client) = connected(&slow());
    let (mut other_server, mut other_client) =
        (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut other_server, &mut other_client);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let (long, short) =
        (server.pd.alloc_mr(LONG, access).unwrap(), other_server.pd.alloc_mr(8, access).unwrap());
    let source = client.pd.alloc_mr(LONG, Access::empty()).unwrap();
    source.write_at(0, &pattern(LONG, 5)).unwrap();
    source.store_u8(LONG as u64 - 1, 0xA5).unwrap();
    let word = other_client.pd.alloc_mr(8, Access::empty()).unwrap();

    let start = simulation.now();
    client.post(
        1,
        SendOp::Write { addr: long.addr(), rkey: long.rkey() },
        &[Sge::of(&source, 0, LONG as u32)],
    );
    let is_done = || long.load_u8(LONG as u64 - 1).unwrap() == 0xA5;
    let mut latencies = Vec::new();
    for i in 1..=u64::MAX {
        if is_done() {
            break;
        }
        let value = i.to_be_bytes();
        word.write_at(0, &value).unwrap();
        let before = simulation.now();
        let op = SendOp::Write { addr: short.addr(), rkey: short.rkey() };
        other_client.post(i, op, &[Sge::of(&word, 0, 8)]);
        let arrived = simulation.run(LIMIT, || content(&short) == value);
        assert!(arrived, "Write {i} does not arrive");
        latencies.push(simulation.now() - before);
        other_client.completions();
    }
    let took = simulation.now() - start;
    latencies.sort();
    let median = latencies[latencies.len() / 2];
    assert!(latencies.len() > 50, "only {} short Writes in {took:?}", latencies.len());
    assert!(median < Duration::from_millis(1), "median {median:?}");
    assert!(took < Duration::from_millis(400), "the long Write takes {took:?}");
}

/// The peer's Reads and our own requests take turns too.
#[test]
fn short_writes_pass_reads_of_the_peer() {
    let (mut simulation, server, client) = connected(&slow());
    let long = server.pd.alloc_mr(64 << 10, Access::REMOTE_READ).unwrap();
    let sink = client.pd.alloc_mr(64 << 10, Access::LOCAL_WRITE).unwrap();
    let target = client.pd.alloc_mr(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let word = server.pd.alloc_mr(8, Access::empty()).unwrap();
    word.write_at(0, &[7; 8]).unwrap();
    for i in 0..60 {
        let op = SendOp::Read { addr: long.addr(), rkey: long.rkey() };
        client.post(i, op, &[Sge::of(&sink, 0, 64 << 10)]);
    }
    // The first answer shows that the others wait.
    assert_eq!(client.next(&mut simulation).wr_id, 0);
    let before = simulation.now();
    server.post(1, SendOp::Write { addr: target.addr(), rkey: target.rkey() }, &[Sge::of(&word, 0, 8)]);
    assert!(simulation.run(LIMIT, || content(&target) == [7; 8]));
    let took = simulation.now() - before;
    // All 60 take 31 ms.
    assert!(took < Duration::from_millis(8), "{took:?}");
}

/// Queue pairs of the same kind get about the same.
/// SEC-19: nobody has more than a fair share of the engine.
#[test]
fn equal_streams_progress_equally() {
    const STREAMS: usize = 8;
    const EACH: usize = 1 << 20;
    let (mut simulation, first_server, first_client) = connected(&slow());
    let mut pairs = vec![(first_server, first_client)];
    while pairs.len() < STREAMS {
        let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        connect(&mut simulation, &mut server, &mut client);
        pairs.push((server, client));
    }
    let memory: Vec<(Mr, Mr)> = pairs
        .iter()
        .map(|(server, client)| {
            let target = server.pd.alloc_mr(EACH, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
            let source = client.pd.alloc_mr(EACH, Access::empty()).unwrap();
            source.write_at(0, &[0xFF; EACH]).unwrap();
            client.post(
                1,
                SendOp::Write { addr: target.addr(), rkey: target.rkey() },
                &[Sge::of(&source, 0, EACH as u32)],
            );
            (target, source)
        })
        .collect();
    let done = |target: &Mr| target.load_u8(EACH as u64 - 1).unwrap() == 0xFF;
    assert!(simulation.run(LIMIT, || memory.iter().any(|(target, _)| done(target))));
    let placed: Vec<usize> =
        memory.iter().map(|(target, _)| content(target).iter().filter(|b| **b == 0xFF).count()).collect();
    let least = placed.iter().min().unwrap();
    assert!(*least > EACH / 8, "when the first is done: {placed:?}");
    assert!(simulation.run(LIMIT, || memory.iter().all(|(target, _)| done(target))));
}
