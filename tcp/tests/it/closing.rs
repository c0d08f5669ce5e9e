//! All ways in which a connection opens and ends.

use crate::harness::{Script, World, ip};
use crate::peer::{Bench, Seg};
use std::net::SocketAddrV4;
use std::time::Duration;
use urnic_sim::Impairment;
use urnic_tcp::{CloseReason, Keepalive, StackConfig};

const HOUR: Duration = Duration::from_secs(3600);

fn syn() -> Seg {
    Seg { seq: 5000, mss: Some(1460), ..Seg::default() }
}

/// Runs the same connection many times. Each run loses one frame: first each frame of node 0 in turn, then each
/// frame of node 1.
fn lose_each_frame_in_turn(client: Script, server: Script) {
    for from in 0..2 {
        let mut lost = 0;
        loop {
            let mut w = World::pair("delay=100us", |_| {});
            w.to_lose = Some((from, lost));
            w.open(client.clone(), server.clone());
            w.run_to_end(HOUR);
            if w.to_lose.is_some() {
                break;
            }
            lost += 1;
        }
        // At least four: a question or an answer about the neighbour, a SYN, a FIN, and the ACK of the peer's FIN.
        assert!((4..24).contains(&lost), "host {from} sends {lost} frames");
    }
}

#[test]
fn any_one_loss_is_repaired_when_the_client_closes() {
    lose_each_frame_in_turn(Script::send(3000), Script { close_first: false, ..Script::send(2000) });
}

#[test]
fn any_one_loss_is_repaired_when_the_server_closes() {
    lose_each_frame_in_turn(Script { close_first: false, ..Script::send(3000) }, Script::send(2000));
}

#[test]
fn any_one_loss_is_repaired_when_both_close() {
    lose_each_frame_in_turn(Script::send(0), Script::send(0));
}

#[test]
fn a_half_closed_connection_goes_on_receiving() {
    let mut w = World::pair("delay=100us", |_| {});
    // The client finishes at once. After that, the server sends a lot of data.
    w.open(Script::send(1), Script { close_first: false, ..Script::send(3_000_000) });
    w.run_to_end(HOUR);
}

#[test]
fn refused() {
    let mut w = World::pair("delay=100us", |_| {});
    w.hosts[0].connect(w.now, SocketAddrV4::new(ip(2), 7), Script::silent());
    assert!(w.run(HOUR, |w| w.hosts[0].done()));
    assert_eq!(w.hosts[0].app.sessions[0].closed, Some(CloseReason::Refused));
}

#[test]
fn nobody_there() {
    let mut w = World::pair("delay=100us", |_| {});
    w.hosts[0].connect(w.now, SocketAddrV4::new(ip(77), 7), Script::silent());
    assert!(w.run(HOUR, |w| w.hosts[0].done()), "{}", w.describe());
    let reason = w.hosts[0].app.sessions[0].closed;
    assert!(matches!(reason, Some(CloseReason::Unreachable | CloseReason::TimedOut)), "{reason:?}");
    assert!(w.next().is_none_or(|t| t > w.now + Duration::from_secs(1)), "something still retries");
}

#[test]
fn a_peer_that_never_answers_times_out() {
    let mut b = Bench::new(|_| {});
    b.connect(Script::silent());
    let sent = b.wait(HOUR);
    assert!(sent.iter().all(|(_, s)| s.syn));
    assert!((3..=10).contains(&sent.len()), "{} repetitions", sent.len());
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::TimedOut));
}

#[test]
fn abort_resets_the_peer() {
    let mut w = World::pair("delay=100us", |_| {});
    w.open(Script { close_first: false, ..Script::send(100_000) }, Script::silent());
    w.run(Duration::from_millis(3), |_| false);
    let conn = w.hosts[0].app.sessions[0].conn;
    let (now, host) = (w.now, &mut w.hosts[0]);
    host.stack.abort(now, conn, &mut host.out);
    // The id is no longer valid. Calls with it do nothing.
    host.stack.close(now, conn, &mut host.out);
    host.stack.abort(now, conn, &mut host.out);
    assert_eq!((host.stack.room(conn), host.stack.unacked(conn)), (0, 0));
    assert!(w.run(HOUR, |w| w.hosts.iter().all(|h| h.done())), "{}", w.describe());
    assert_eq!(w.hosts[0].app.sessions[0].closed, Some(CloseReason::Aborted));
    assert_eq!(w.hosts[1].app.sessions[0].closed, Some(CloseReason::Reset));
}

#[test]
fn simultaneous_open() {
    // RFC 9293 §3.5, figure 7
    let mut b = Bench::new(|_| {});
    let out = b.connect(Script::silent());
    let reply =
        b.send(&Seg { from: 9, to: out.from, syn: true, seq: 300, mss: Some(1000), ..Seg::default() });
    let [synack] = &reply[..] else { panic!("{reply:?}") };
    assert!(synack.syn && synack.seq == out.seq && synack.ack == Some(301), "{synack:?}");
    assert!(!b.host.app.sessions[0].established);
    b.send(&Seg { from: 9, to: out.from, seq: 301, ack: Some(out.seq.wrapping_add(1)), ..Seg::default() });
    assert!(b.host.app.sessions[0].established);
    b.send(&Seg {
        from: 9,
        to: out.from,
        seq: 301,
        ack: Some(out.seq.wrapping_add(1)),
        data: vec![1; 50],
        ..Seg::default()
    });
    assert_eq!(b.host.app.sessions[0].received, 50);
}

#[test]
fn simultaneous_close() {
    // RFC 9293 §3.6, figure 13
    let mut b = Bench::listening(|_| {}, Script::send(0));
    let mut c = b.open(syn()).0;
    let sent = b.send(&c.seg());
    let [fin] = &sent[..] else { panic!("{sent:?}") };
    assert!(fin.fin && fin.seq == c.una);
    // The peer's own FIN, sent before it saw ours: CLOSING.
    let reply = b.send(&Seg { fin: true, ..c.seg() });
    c.nxt = c.nxt.wrapping_add(1);
    assert!(reply.iter().any(|s| s.ack == Some(c.nxt)), "{reply:?}");
    assert!(b.host.app.sessions[0].closed.is_none());
    c.una = c.una.wrapping_add(1);
    b.send(&c.seg());
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::Graceful));
}

#[test]
fn time_wait_answers_a_repeated_fin_and_lets_a_new_connection_in() {
    let mut b = Bench::listening(|_| {}, Script::send(0));
    let mut c = b.open(syn()).0;
    b.send(&c.seg());
    c.una = c.una.wrapping_add(1);
    let fin = Seg { fin: true, ..c.seg() };
    let first = b.send(&fin);
    assert!(first.len() == 1 && first[0].ack == Some(c.nxt.wrapping_add(1)));
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::Graceful));
    // RFC 9293 §3.10.7.4: the ACK was lost, and the FIN comes again.
    let again = b.send(&fin);
    assert!(again.len() == 1 && again[0].ack == Some(c.nxt.wrapping_add(1)), "{again:?}");
    // RFC 1337: a RST does not end TIME-WAIT; RFC 9293 §3.6.1: a SYN with a higher sequence number does.
    b.send(&Seg { rst: true, seq: c.nxt.wrapping_add(1), ..Seg::default() });
    let again = b.send(&fin);
    assert_eq!(again.len(), 1, "still in TIME-WAIT");
    b.established(Seg { seq: c.nxt.wrapping_add(100_000), ..syn() });
    assert_eq!(b.host.app.accepted, 2);
}

/// DDP-44.
#[test]
fn data_after_our_close_is_delivered_and_after_the_fin_is_not() {
    let mut b = Bench::listening(|_| {}, Script::send(0));
    let mut c = b.open(syn()).0;
    b.send(&c.seg());
    // FIN-WAIT-1 and FIN-WAIT-2 receive data.
    b.send(&c.data(0, 10));
    c.nxt = c.nxt.wrapping_add(10);
    c.una = c.una.wrapping_add(1);
    b.send(&c.data(0, 10));
    c.nxt = c.nxt.wrapping_add(10);
    assert_eq!(b.host.app.sessions[0].received, 20);
    // The FIN overtakes the last data.
    b.send(&Seg { fin: true, ..c.data(10, 10) });
    assert!(!b.host.app.sessions[0].peer_finished);
    b.send(&c.data(0, 10));
    let s = &b.host.app.sessions[0];
    assert!(s.peer_finished && s.received == 40 && s.closed == Some(CloseReason::Graceful), "{s:?}");
}

#[test]
fn keepalive_finds_a_dead_peer_and_spares_a_live_one() {
    let tune = |c: &mut StackConfig| {
        c.tcp.keepalive =
            Some(Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), count: 3 });
    };
    let mut w = World::pair("delay=100us", tune);
    w.open(Script::silent(), Script::silent());
    assert!(
        !w.run(Duration::from_secs(300), |w| w.hosts.iter().any(|h| !h.app.sessions.is_empty() && h.done())),
        "alive: {}",
        w.describe()
    );
    assert!(w.hosts[0].stack.counters().keepalive_probes > 0);
    let cut = Impairment { loss: 1.0, ..Impairment::default() };
    for (a, b) in [(0, 1), (1, 0)] {
        w.net.link_mut(a, b).expect("exists").set_impairment(&cut);
    }
    assert!(w.run(Duration::from_secs(20), |w| w.hosts[0].done() && w.hosts[1].done()), "{}", w.describe());
    assert_eq!(w.hosts[0].app.sessions[0].closed, Some(CloseReason::TimedOut));
}

#[test]
fn the_user_timeout_ends_a_connection_whose_data_is_not_acked() {
    // RFC 5482
    let tune = |c: &mut StackConfig| c.tcp.user_timeout = Some(Duration::from_secs(7));
    let mut b = Bench::listening(tune, Script { close_first: false, ..Script::send(10_000) });
    let c = b.open(syn()).0;
    b.send(&c.seg());
    b.wait(Duration::from_secs(6));
    assert!(b.host.app.sessions[0].closed.is_none());
    b.wait(Duration::from_secs(3));
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::TimedOut));
}

#[test]
fn data_that_is_never_acked_ends_the_connection() {
    // RFC 9293 §3.8.3, R2
    let mut b = Bench::listening(|_| {}, Script::send(10_000));
    let c = b.open(syn()).0;
    b.send(&c.seg());
    let sent = b.wait(HOUR);
    assert_eq!(b.host.app.sessions[0].closed, Some(CloseReason::TimedOut));
    // RFC 6298 (5.5): the intervals between repetitions double.
    let at: Vec<u64> = sent.iter().filter(|(_, s)| s.seq == c.una && !s.rst).map(|(t, _)| t.0).collect();
    let gaps: Vec<u64> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.len() >= 6, "{gaps:?}");
    assert!(gaps.windows(2).all(|g| g[1] > g[0] * 19 / 10 || g[1] >= 59_000_000_000), "{gaps:?}");
}

#[test]
fn nothing_keeps_ticking_afterwards() {
    let mut w = World::pair("delay=100us,loss=0.05,seed=5", |c| c.tcp.time_wait = Duration::from_secs(1));
    w.open(Script::send(200_000), Script::send(200_000));
    w.run_to_end(HOUR);
    assert!(!w.run(HOUR, |_| false));
    let idle = w.next().is_none_or(|t| t > w.now + Duration::from_secs(10));
    assert!(idle, "wakes at {:?}, {:?}", w.next(), w.now);
}

/// RFC 9293 §3.6.1, MAY-2 (1): the addresses of a connection that sent much in little time are used again. The
/// sequence numbers of the new connection begin above those of the old one, although the clock of initial sequence
/// numbers has hardly moved.
#[test]
fn numbers_begin_above_those_of_the_connection_before() {
    let mut b =
        Bench::listening(|c| c.tcp.timestamps = false, Script { close_first: true, ..Script::send(400_000) });
    let (mut c, _) = b.open(Seg { seq: 1000, mss: Some(1460), ..Seg::default() });
    let mut sent = b.send(&c.seg());
    let last = loop {
        let end = sent.last().expect("more");
        if end.fin {
            break end.seq.wrapping_add(end.data.len() as u32 + 1);
        }
        c.una = end.seq.wrapping_add(end.data.len() as u32);
        sent = b.send(&c.seg());
    };
    c.una = last;
    b.send(&Seg { fin: true, ..c.seg() });
    assert_eq!(b.host.stack.census(), (0, 0, 1));
    let (_, synack) = b.open(Seg { seq: c.nxt.wrapping_add(100_000), mss: Some(1460), ..Seg::default() });
    let ahead = synack.seq.wrapping_sub(last);
    assert!((1..1 << 20).contains(&ahead), "{ahead} ahead of the old connection");
}
