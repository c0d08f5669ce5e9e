//! A connection that has ended is removed within five seconds, unless its peer is alive and has not yet taken
//! all data. Requests whose data the peer has acknowledged by then have succeeded.

mod common;
#[path = "common/peer.rs"]
mod peer;

use common::raw::{self, closed, finished, until, with_raw};
use common::*;
use peer::support::{fpdu, tagged, untagged};
use peer::*;
use std::time::Duration;
use urnic::simulation::{Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::CloseReason;

/// The time in which a connection must close.
const WITHIN: Duration = Duration::from_secs(5);
/// Time for a round trip of the network, and for the passes of an engine.
const SOON: Duration = Duration::from_millis(1);

fn connections(simulation: &Simulation) -> usize {
    simulation.device(0).connections().unwrap().len()
}

/// Checks that the connection exists until [`WITHIN`] is over, and is removed then.
#[track_caller]
fn gone_in_time(what: &str, simulation: &mut Simulation) {
    let before = simulation.now();
    assert_eq!(connections(simulation), 1, "{what}");
    let device = simulation.device(0);
    let gone = simulation.run(before + LIMIT, || device.connections().unwrap().is_empty());
    let took = simulation.now() - before;
    assert!(gone && took >= WITHIN - SOON && took <= WITHIN + SOON, "{what}: {gone} after {took:?}");
}

/// The peer's behaviour after the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Peer {
    /// Receives nothing.
    Deaf,
    /// Acknowledges data, but does not close its half.
    Open,
}

/// Ends a connection in RDMA mode. Returns the memory that the connection still uses, if any.
type Ends = fn(&mut Scene) -> Option<Mr>;

/// More octets than TCP takes at once.
const LONG: usize = 4 << 20;

fn post_long(s: &Scene) -> Mr {
    let source = s.end.pd.alloc_mr(LONG, Access::empty()).unwrap();
    s.end.post(1, SendOp::Send, &[Sge::of(&source, 0, LONG as u32)]);
    source
}

#[test]
fn an_end_takes_five_seconds_at_most() {
    const WRONG: fn(&Scene) -> Vec<u8> = |s| tagged(0xC1, 0x40, s.all.rkey() ^ 1, s.all.addr(), &[7; 4]);
    const TERMINATE: fn() -> Vec<u8> = || untagged(0x41, 0x47, 2, 1, 0, &[0x02, 0x07, 0, 0]);
    let cases: [(&str, &[Peer], Ends); 9] = [
        ("disconnect", &[Peer::Deaf, Peer::Open], |s| {
            s.end.disconnect();
            None
        }),
        // The FIN waits behind data that the peer does not take.
        ("disconnect behind a long message", &[Peer::Deaf], |s| {
            let source = post_long(s);
            s.simulation.wait(Duration::from_micros(100));
            s.end.disconnect();
            Some(source)
        }),
        ("drain", &[Peer::Deaf, Peer::Open], |s| {
            s.end.qp.drain().unwrap();
            None
        }),
        ("a Terminate of the peer", &[Peer::Deaf, Peer::Open], |s| {
            s.say(&[TERMINATE()]);
            None
        }),
        ("a Terminate of ours", &[Peer::Deaf, Peer::Open], |s| {
            s.say(&[WRONG(s)]);
            None
        }),
        // The Terminate waits behind data that the peer does not take.
        ("a Terminate behind a long message", &[Peer::Deaf], |s| {
            let source = post_long(s);
            s.simulation.wait(Duration::from_micros(100));
            s.say(&[WRONG(s)]);
            Some(source)
        }),
        ("the peer's FIN", &[Peer::Deaf], |s| {
            s.raw.borrow_mut().close(s.conn);
            None
        }),
        ("the peer's FIN before an answer", &[Peer::Deaf], |s| {
            s.end.post(1, SendOp::Read { addr: 0x1000, rkey: 7 }, &[Sge::of(&s.inbox, 0, 8)]);
            s.raw.borrow_mut().close(s.conn);
            None
        }),
        ("the queue pair is destroyed", &[Peer::Deaf, Peer::Open], |s| {
            s.end.qp = create_qp(&s.end.pd, &s.end.cq);
            None
        }),
    ];
    for (what, peers, ends) in cases {
        for peer in peers {
            let mut s = scene();
            s.simulation.wait(Duration::from_secs(1));
            s.raw.borrow_mut().deaf = *peer == Peer::Deaf;
            let _memory = ends(&mut s);
            gone_in_time(&format!("{what}, {peer:?}"), &mut s.simulation);
            assert_eq!(s.end.qp.state() == QpState::Idle, what.ends_with("destroyed"));
            s.raw.borrow_mut().deaf = false;
            let (raw, conn) = (s.raw.clone(), s.conn);
            if *peer == Peer::Open {
                until(&mut s.simulation, "RST", || closed(&raw, conn) == Some(CloseReason::Reset));
            }
        }
    }
}

/// A peer keeps its window shut, but answers probes. A reset would destroy data of requests that have already
/// completed, so the device waits for up to five minutes. If the peer takes all data by then, the connection ends
/// without an error (DDP-43).
#[test]
fn an_end_waits_for_a_peer_whose_window_is_shut() {
    for stall in [Duration::from_secs(7), Duration::from_secs(60), Duration::from_secs(250)] {
        for destroyed in [false, true] {
            let what = format!("{stall:?}, {destroyed}");
            let mut s = scene();
            s.raw.borrow_mut().fill(s.conn, true);
            let said = s.heard().len();
            let source = s.end.pd.alloc_mr(LONG, Access::empty()).unwrap();
            source.write_at(0, &pattern(LONG, 3)).unwrap();
            const EACH: u32 = 4096;
            let mut done = 0;
            let mut posted = 0;
            loop {
                while posted < done + 8 {
                    let sges = [Sge::of(&source, (posted * u64::from(EACH)) % LONG as u64, EACH)];
                    s.end.post(posted, SendOp::Write { addr: 0, rkey: 7 }, &sges);
                    posted += 1;
                }
                let limit = s.simulation.now() + Duration::from_secs(1);
                let mut wc = [Wc::default()];
                if !s.simulation.run(limit, || s.end.cq.poll(&mut wc) > 0) {
                    break;
                }
                assert_eq!((wc[0].wr_id, wc[0].status), (done, WcStatus::Success), "{what}");
                done += 1;
            }
            assert!(done > 0, "{what}");
            if destroyed {
                s.end.qp = create_qp(&s.end.pd, &s.end.cq);
            } else {
                s.end.disconnect();
            }
            s.simulation.wait(stall);
            assert_eq!(connections(&s.simulation), 1, "{what}");
            s.raw.borrow_mut().fill(s.conn, false);
            let (raw, conn) = (s.raw.clone(), s.conn);
            until(&mut s.simulation, "FIN", || finished(&raw, conn));
            let heard = s.heard().len() - said;
            let least = if destroyed { done } else { posted } as usize * EACH as usize;
            assert!(heard > least, "{what}: {heard} octets of {least}");
            raw.borrow_mut().close(conn);
            until(&mut s.simulation, "the end", || closed(&raw, conn) == Some(CloseReason::Graceful));
        }
    }
}

/// The device finally resets a peer that never takes the data, and a peer that takes all data and does not close.
#[test]
fn an_end_does_not_wait_for_ever() {
    for takes in [false, true] {
        let mut s = scene();
        s.raw.borrow_mut().fill(s.conn, true);
        let source = post_long(&s);
        s.simulation.wait(Duration::from_secs(1));
        s.end.disconnect();
        s.simulation.wait(Duration::from_secs(30));
        assert_eq!(connections(&s.simulation), 1);
        if takes {
            s.raw.borrow_mut().fill(s.conn, false);
            let (raw, conn) = (s.raw.clone(), s.conn);
            until(&mut s.simulation, "FIN", || finished(&raw, conn));
        }
        let limit = s.simulation.now() + if takes { 2 * WITHIN + SOON } else { Duration::from_secs(300) };
        let device = s.simulation.device(0);
        assert!(s.simulation.run(limit, || device.connections().unwrap().is_empty()), "{takes}");
        drop(source);
    }
}

/// The limit of five seconds also holds before the device may send anything, and during the start-up.
#[test]
fn an_end_at_the_start_takes_five_seconds_at_most() {
    for peer in [Peer::Deaf, Peer::Open] {
        // No Terminate reports this fault (MPA-92).
        let mut s = silent_scene();
        s.raw.borrow_mut().deaf = peer == Peer::Deaf;
        s.end.post(1, SendOp::LocalInv(s.foreign.rkey()), &[]);
        gone_in_time("silent fault", &mut s.simulation);

        // The device refuses a Request.
        let (mut simulation, end, raw) = with_raw(&options());
        let _listener = end.events.listen(PORT, 1).unwrap();
        let conn = raw::raw_connection(&mut simulation, &raw);
        raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
        let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
        raw.borrow_mut().deaf = peer == Peer::Deaf;
        request.reject(b"no").unwrap();
        gone_in_time("refused", &mut simulation);

        // The peer sends a Reply with unacceptable terms (MPAE-17), a Reply for a queue pair that has failed (MPAE-31),
        // or garbage.
        for way in ["terms", "failed", "garbage"] {
            let (mut simulation, end, raw) = with_raw(&options());
            raw.borrow_mut().listen(PORT, 4);
            let param = ConnParam { ird: 4, ord: 4, ..ConnParam::default() };
            end.events.connect(&end.qp, address(1), &param).unwrap();
            until(&mut simulation, "a Request", || {
                let raw = raw.borrow();
                raw.seen.accepted.first().is_some_and(|conn| raw.heard(*conn).len() >= 24)
            });
            let conn = raw.borrow().seen.accepted[0];
            if way == "failed" {
                end.qp.to_error();
            }
            raw.borrow_mut().deaf = peer == Peer::Deaf;
            let word = if way == "terms" { 0x0004_0005_u32 } else { 0x0004_0004 };
            let reply = [&b"MPA ID Rep Frame"[..], &[0x50, 2, 0, 4], &word.to_be_bytes()].concat();
            raw.borrow_mut().send(conn, if way == "garbage" { &[b'x'; 40] } else { &reply });
            gone_in_time(way, &mut simulation);
            assert!(matches!(end.event(&mut simulation), CmEvent::ConnectError { .. }), "{way}");
        }
    }
}

/// MPA-70, MPA-92: before the peer has sent a correct FPDU, the device sends no Terminate and reports none. This holds
/// for a request that cannot be carried out, and for a first FPDU that is wrong.
#[test]
fn no_terminate_is_told_of_that_was_not_sent() {
    for (wrong, status) in [(false, WcStatus::MemoryManagement), (true, WcStatus::Flushed)] {
        let mut s = silent_scene();
        s.post_receive(10);
        if wrong {
            s.end.post(1, SendOp::Send, &[]);
            let ulpdu = tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[7; 4]);
            let mut octets = fpdu(&ulpdu);
            octets[20] ^= 1;
            s.raw.borrow_mut().send(s.conn, &octets);
        } else {
            s.end.post(1, SendOp::LocalInv(s.foreign.rkey()), &[]);
        }
        assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::Aborted);
        assert_eq!((s.end.qp.state(), s.end.qp.terminate()), (QpState::Error, None));
        let (raw, conn) = (s.raw.clone(), s.conn);
        until(&mut s.simulation, "FIN", || finished(&raw, conn));
        assert_eq!((s.heard(), s.statuses()), (vec![], vec![(1, status), flushed(10)]));
    }
}

/// TCP sends straight from the requests' memory until the peer acknowledges the data. If the peer's last segment
/// acknowledges it, the requests succeed before the FIN (ERR-46) or the Terminate of that segment takes effect.
#[test]
fn what_the_last_segment_acknowledges_is_complete() {
    const LEN: usize = 6000;
    for terminates in [false, true] {
        let mut s = scene_with(&Options { lends_from: 1000, ..options() });
        let source = s.end.pd.alloc_mr(2 * LEN, Access::empty()).unwrap();
        s.simulation.wait(Duration::from_millis(1));
        s.raw.borrow_mut().keeps_acks = true;
        for wr_id in [1, 2] {
            s.end.post(wr_id, SendOp::Send, &[Sge::of(&source, (wr_id - 1) * LEN as u64, LEN as u32)]);
        }
        s.post_receive(10);
        // All data arrives, but this side does not know that, because the peer holds back its acknowledgements.
        s.hears(2 * LEN);
        s.simulation.wait(Duration::from_millis(1));
        assert_eq!(s.statuses(), []);
        let heard = s.heard();
        let reason = if terminates {
            // The FIN is in the segment of the Terminate.
            let terminate = fpdu(&untagged(0x41, 0x47, 2, 1, 0, &[0x02, 0x07, 0, 0]));
            s.raw.borrow_mut().send_last(s.conn, &terminate);
            DisconnectReason::TerminateReceived
        } else {
            s.raw.borrow_mut().close(s.conn);
            DisconnectReason::Peer
        };
        assert_eq!(s.end.end(&mut s.simulation), reason);
        let success = |wr_id| (wr_id, WcStatus::Success);
        assert_eq!(s.statuses(), [success(1), success(2), flushed(10)], "{reason:?}");
        let (raw, conn) = (s.raw.clone(), s.conn);
        until(&mut s.simulation, "FIN", || finished(&raw, conn));
        assert_eq!(s.heard().len(), heard.len(), "nothing but a FIN is said");
    }
}

/// Octets of an incomplete message are useless once the queue pair has ended. The device frees their memory, even if
/// the connection takes long to close.
#[test]
fn the_memory_of_an_incomplete_message_comes_back_at_the_end() {
    let mut s = scene();
    let held = |s: &Scene| {
        let counters = s.simulation.device(0).attributes().unwrap().counters;
        counters.iter().find(|(name, _)| *name == "incomplete_octets").unwrap().1
    };
    let long = fpdu(&tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[0; 60_000]));
    s.raw.borrow_mut().send(s.conn, &long[..50_000]);
    s.simulation.wait(Duration::from_millis(10));
    assert!(held(&s) > 50_000, "{}", held(&s));
    s.end.post(1, SendOp::Send, &[Sge::of(&s.foreign, 0, 8)]);
    s.simulation.wait(Duration::from_millis(10));
    assert_eq!((connections(&s.simulation), held(&s)), (1, 0));
}

/// The connection of a destroyed queue pair has no effect on other queue pairs.
#[test]
fn a_connection_outlives_its_queue_pair_without_effect() {
    let (mut simulation, server, client) = connected(&options());
    let End { qp, connection, .. } = client;
    drop(qp);
    let mut next = End::new(&simulation.device(1));
    let mut peer = server.sibling(&simulation.device(0));
    connect(&mut simulation, &mut peer, &mut next);
    let old = connection.unwrap();
    assert!(old.disconnect().is_err() && old.set_patience(None).is_err());
    works(&mut simulation, &peer, &next);
}
