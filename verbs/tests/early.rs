//! Long messages, whose first records leave while the engine builds the others.

mod common;

use common::medium::{self, SEGMENT, sent_early};
use common::{End, connect, connected, options};
use urnic::simulation::{Options, Simulation};
use urnic::*;

/// Number of the device that connects.
const CLIENT: usize = 1;
const LONG: u32 = 60_000;
/// Segments that leave together.
const TOGETHER: usize = 12;

fn streams() -> Options {
    Options { carrier: Some(medium::device), ..options() }
}

/// Posts a request of `LONG` octets for the peer's memory.
fn post(end: &End, op: fn(u64, u32) -> SendOp, local: &Mr, remote: &Mr) {
    end.post(1, op(remote.addr(), remote.rkey()), &[Sge::of(local, 0, LONG)]);
}

fn memory(end: &End) -> Mr {
    end.pd.alloc_mr(LONG as usize, Access::all()).unwrap()
}

fn write(addr: u64, rkey: u32) -> SendOp {
    SendOp::Write { addr, rkey }
}

fn read(addr: u64, rkey: u32) -> SendOp {
    SendOp::Read { addr, rkey }
}

fn done(simulation: &mut Simulation, end: &End) {
    assert_eq!(end.next(simulation).status, WcStatus::Success);
}

/// Checks that a long message has left as it was built, some segments at a time.
fn the_first_segments(early: &[usize]) {
    assert_eq!(early.len(), LONG as usize / (TOGETHER * SEGMENT));
    let of = |segments: usize| segments * (SEGMENT - 8)..=segments * SEGMENT;
    assert!((1..).zip(early).all(|(n, octets)| of(n * TOGETHER).contains(octets)), "{early:?}");
}

#[test]
fn a_peer_with_nothing_to_do_gets_the_first_segments_at_once() {
    let (mut simulation, server, client) = connected(&streams());
    let (local, remote) = (memory(&client), memory(&server));
    for _ in 0..2 {
        post(&client, write, &local, &remote);
        done(&mut simulation, &client);
        the_first_segments(&sent_early(CLIENT));
        assert!(sent_early(1 - CLIENT).is_empty());
        post(&client, read, &local, &remote);
        done(&mut simulation, &client);
        the_first_segments(&sent_early(1 - CLIENT));
        assert!(sent_early(CLIENT).is_empty());
    }
}

/// Posts a Write of `len` octets and one of `LONG` while no time passes, and returns what has left early.
fn two_writes(len: u32) -> Vec<usize> {
    let (mut simulation, server, client) = connected(&streams());
    let (local, remote) = (memory(&client), memory(&server));
    let mut done = 0;
    for len in [len, LONG] {
        client.post(1, write(remote.addr(), remote.rkey()), &[Sge::of(&local, 0, len)]);
        done += client.completions().len();
    }
    let early = sent_early(CLIENT);
    for _ in done..2 {
        assert_eq!(client.next(&mut simulation).status, WcStatus::Success);
    }
    early
}

#[test]
fn octets_on_their_way_keep_the_peer_busy() {
    assert_eq!(two_writes(5_000), []);
    assert_eq!(two_writes(100).len(), LONG as usize / (TOGETHER * SEGMENT));
}

#[test]
fn nothing_leaves_early_while_another_queue_pair_waits() {
    let (mut simulation, server, client) = connected(&streams());
    let mut peer = server.sibling(&simulation.device(1 - CLIENT));
    let mut other = client.sibling(&simulation.device(CLIENT));
    connect(&mut simulation, &mut peer, &mut other);
    let (local, remote) = (memory(&client), memory(&server));
    // After the start-up, `other` has a turn to come, so both requests wait for the next pass.
    for end in [&client, &other] {
        post(end, write, &local, &remote);
    }
    for end in [&client, &other] {
        done(&mut simulation, end);
    }
    // Only while the last of the two was built, no other waited.
    the_first_segments(&sent_early(CLIENT));
}
