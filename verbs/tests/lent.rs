//! Payload that is lent to TCP instead of being copied.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::Options;
use urnic::*;

const LEN: usize = 20_000;
const SENDS: u64 = 4;

fn lending(network: &str) -> Options {
    Options { network: network.parse().unwrap(), lends_from: 1000, ..Options::default() }
}

/// Posts receives at `to` and Sends from `from`, whose payload is in `source`.
fn post_sends(from: &End, to: &End, source: &Mr) -> Mr {
    let inbox = to.pd.alloc_mr(LEN * SENDS as usize, Access::LOCAL_WRITE).unwrap();
    for i in 0..SENDS {
        to.post_recv(i, &[Sge::of(&inbox, i * LEN as u64, LEN as u32)]);
        from.post(i, SendOp::Send, &[Sge::of(source, i * LEN as u64, LEN as u32)]);
    }
    inbox
}

/// A request completes when the peer has acknowledged the lent payload, not when TCP has taken it. A request
/// whose payload is too small to be lent completes at once.
#[test]
fn requests_complete_when_the_peer_has_acknowledged() {
    let (mut simulation, server, client) = connected(&lending("delay=1ms"));
    let source = client.pd.alloc_mr(LEN * SENDS as usize, Access::empty()).unwrap();
    source.write_at(0, &pattern(LEN * SENDS as usize, 9)).unwrap();
    // This message fits into the initial congestion window, so all of it leaves at once.
    let inbox = server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    server.post_recv(7, &[Sge::of(&inbox, 0, 10_000)]);
    client.post(7, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
    simulation.wait(Duration::from_micros(1900));
    assert_eq!(server.completions().len(), 1, "all of it has arrived");
    assert_eq!(client.completions().len(), 0, "the peer's acknowledgement has not");
    simulation.wait(Duration::from_micros(200));
    assert_eq!(client.completions().len(), 1);
    // A request whose payload is too small to be lent needs no acknowledgement, but does not complete before earlier
    // requests.
    let inboxes = post_sends(&client, &server, &source);
    server.post_recv(8, &[Sge::of(&inbox, 0, 100)]);
    client.post(8, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    for wr_id in (0..SENDS).chain([8]) {
        assert_eq!(client.next(&mut simulation).wr_id, wr_id);
    }
    simulation.wait(Duration::from_millis(2));
    assert!(content(&inboxes) == content(&source));
    server.post_recv(9, &[Sge::of(&inbox, 0, 100)]);
    client.post(9, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    simulation.wait(Duration::from_micros(10));
    assert_eq!(client.completions().len(), 1, "copied");
}

/// The same after so many octets that TCP's first sequence number seems to lie ahead.
#[test]
fn so_they_do_after_two_gibibytes() {
    const CHUNK: usize = 32 << 20;
    let options = Options { mtu: 9000, gso_max: 62_000, crc: false, ..lending("delay=1ms") };
    let (mut simulation, server, client) = connected(&options);
    let source = client.pd.alloc_mr(CHUNK, Access::empty()).unwrap();
    let target = server.pd.alloc_mr(CHUNK, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let write = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
    for octets in (0..(1 << 31) + (1 << 28)).step_by(CHUNK) {
        client.post(octets, write, &[Sge::of(&source, 0, CHUNK as u32)]);
        assert_eq!(client.next(&mut simulation).wr_id, octets);
    }
    client.post(7, write, &[Sge::of(&source, 0, 200_000)]);
    simulation.wait(Duration::from_micros(1900));
    assert_eq!(client.completions().len(), 0, "the peer's acknowledgement has not arrived");
    simulation.wait(Duration::from_micros(200));
    assert_eq!(client.completions().len(), 1);
}

/// The test drops the queue pair, deregisters the region, and reuses its memory, at many moments before the
/// peer has acknowledged all payload. TCP's retransmissions still contain the octets that were lent.
#[test]
fn memory_that_is_given_back_early_is_copied_first() {
    let mut retransmitted = 0;
    for seed in 0..40 {
        let (mut simulation, server, client) =
            connected(&lending(&format!("delay=50us,loss=0.1,seed={seed}")));
        let mut memory = pattern(LEN * SENDS as usize, 9);
        // SAFETY: the vector lives until the region is gone, and no other code writes to it.
        let source = unsafe { client.pd.reg_mr(memory.as_mut_ptr(), memory.len(), Access::empty()) }.unwrap();
        let inbox = post_sends(&client, &server, &source);
        if seed % 4 == 3 {
            // This request fails in the same turn in which TCP is lent the other payloads.
            client.post(99, SendOp::Send, &[Sge { addr: 0x1000, len: 5000, lkey: 0 }]);
        }
        simulation.wait(Duration::from_micros(seed * 10));
        let End { pd, cq, qp, events, connection } = client;
        match seed % 3 {
            // Drops the queue pair first, without a disconnect.
            0 => drop(qp),
            // The region is dropped first, so that data that has not been sent yet has no memory.
            1 => {}
            // Takes back the memory first; the region stays.
            _ => source.revoke().unwrap(),
        }
        if seed % 3 == 2 {
            memory.fill(0xEE);
            drop(source);
        } else {
            drop(source);
            memory.fill(0xEE);
        }
        simulation.wait(Duration::from_secs(20));
        let received: Vec<Wc> =
            server.completions().into_iter().filter(|wc| wc.status == WcStatus::Success).collect();
        let (got, want) = (content(&inbox), pattern(LEN * SENDS as usize, 9));
        for wc in &received {
            let range = wc.wr_id as usize * LEN..(wc.wr_id as usize + 1) * LEN;
            assert!(got[range.clone()] == want[range], "seed {seed}: message {}", wc.wr_id);
        }
        assert!(got.iter().zip(&want).all(|(got, want)| got == want || *got == 0), "seed {seed}");
        let blamed = server.qp.terminate().filter(|t| t.sent);
        assert!(blamed.is_none(), "seed {seed}: {blamed:?}");
        let counters = simulation.device(1).attributes().unwrap().counters;
        retransmitted += counters.iter().find(|(name, _)| *name == "tcp_retransmitted").map_or(0, |c| c.1);
        drop((pd, cq, events, connection));
    }
    assert!(retransmitted > 100, "{retransmitted}");
}

/// If a port can send only from the device's own memory, the device copies payload from all other memory, and a request
/// with copied payload completes at once.
#[test]
fn memory_that_the_port_cannot_send_from_is_copied() {
    let options = Options { lends_own_only: true, ..lending("delay=1ms") };
    for own in [true, false] {
        let (mut simulation, server, client) = connected(&options);
        let mut memory = pattern(10_000, 9);
        let source = match own {
            true => client.pd.alloc_mr(memory.len(), Access::empty()).unwrap(),
            // SAFETY: the vector lives until the region is gone, and no other code writes to it.
            false => unsafe { client.pd.reg_mr(memory.as_mut_ptr(), memory.len(), Access::empty()) }.unwrap(),
        };
        source.write_at(0, &pattern(10_000, 9)).unwrap();
        let inbox = server.pd.alloc_mr(10_000, Access::LOCAL_WRITE).unwrap();
        server.post_recv(1, &[Sge::of(&inbox, 0, 10_000)]);
        client.post(1, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
        simulation.wait(Duration::from_micros(10));
        assert_eq!(client.completions().len(), usize::from(!own), "copied unless it is its own: {own}");
        simulation.wait(Duration::from_millis(5));
        assert_eq!(server.completions().len(), 1);
        assert!(content(&inbox) == content(&source));
        drop(source);
    }
}

/// If lent payload cannot be copied, the device ends the connection, and reports that it has done so itself.
#[test]
fn memory_that_cannot_be_copied_ends_the_connection() {
    let (mut simulation, server, client) = connected(&Options { copies_lent: false, ..lending("delay=1ms") });
    let source = client.pd.alloc_mr(LEN, Access::empty()).unwrap();
    let inbox = server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    server.post_recv(1, &[Sge::of(&inbox, 0, 10_000)]);
    // This message fits into the initial congestion window, so all of it leaves at once.
    client.post(1, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
    simulation.wait(Duration::from_micros(500));
    assert!(client.completions().is_empty(), "the payload is lent");
    source.revoke().unwrap();
    assert_eq!(client.end(&mut simulation), DisconnectReason::Aborted);
    assert_eq!(client.next(&mut simulation).status, WcStatus::Flushed);
}
