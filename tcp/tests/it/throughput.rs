//! Goodput compared with simple bounds, in virtual time; repair of losses; number of ACKs.

use crate::harness::{Script, World};
use std::net::SocketAddr;
use std::time::Duration;
use urnic_tcp::{Congestion, Counters, StackConfig};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the bits of payload per second of virtual time when `octets` go one way, and the sender's counters.
fn goodput(impairment: &str, octets: u64, tune: impl Fn(&mut StackConfig)) -> (f64, Counters) {
    let mut w = World::pair(impairment, tune);
    let mss = 1448;
    w.open(Script { records: vec![mss], ..Script::send(octets) }, Script::silent());
    // The time counts from the handshake on, because a lost SYN alone costs a second.
    assert!(w.run(HOUR, |w| !w.hosts[1].app.sessions.is_empty()));
    let start = w.now;
    let done = w.run(HOUR, |w| w.hosts[1].app.sessions.first().is_some_and(|s| s.received == octets));
    assert!(done, "{}", w.describe());
    ((octets * 8) as f64 / (w.now - start).as_secs_f64(), *w.hosts[0].stack.counters())
}

#[test]
fn a_clean_link_is_filled() {
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        // 1448 of 1538 octets on the wire are payload.
        let (rate, counters) =
            goodput("rate=1gbit,delay=100us,queue=2000", 30_000_000, |c| c.tcp.congestion = congestion);
        assert!(rate > 0.97 * 1e9 * 1448.0 / 1538.0, "{congestion:?}: {rate:e}");
        assert_eq!(counters.retransmitted_segments, 0);
    }
}

/// Once per round trip, congestion control learns the delivery rate of the path. It also learns whether the program had
/// too little to send for a measurement (`app_limited`).
#[test]
fn the_rate_of_delivery_is_that_of_the_link() {
    for (octets, limited) in [(u64::MAX / 2, false), (1448 * 40, true)] {
        let mut w = World::pair("rate=100mbit,delay=2ms,queue=1000", |_| {});
        w.hosts[1].app.unchecked = true;
        w.open(Script { records: vec![1448], close_first: false, ..Script::send(octets) }, Script::silent());
        w.run(Duration::from_secs(2), |_| false);
        let stack = &w.hosts[0].stack;
        let conn = stack.connections().next().expect("a connection");
        let rate = stack.info(conn).and_then(|info| info.delivery_rate).expect("round trips");
        assert_eq!(rate.app_limited, limited, "{rate:?}");
        let share = rate.octets as f64 * 8.0 / (1e8 * 1448.0 / 1538.0);
        assert!(limited || (0.95..1.05).contains(&share), "{rate:?}");
    }
}

/// On a link without other users, the queue is bounded, and the link is still filled.
#[test]
pub fn a_queue_of_ones_own_stays_short() {
    let last_trip = |delay: Option<Duration>| {
        let mut w = World::pair("rate=100gbit,delay=1us,queue=5000", |c| c.tcp.queue_delay = delay);
        w.hosts[1].app.unchecked = true;
        let stream = || Script { close_first: false, ..Script::send(u64::MAX / 2) };
        w.open(stream(), Script::silent());
        let to = SocketAddr::new(w.hosts[1].address(), 7);
        w.hosts[0].connect(w.now, to, stream());
        w.run(Duration::from_millis(20), |_| false);
        let infos: Vec<_> = w.hosts[0].stack.connections().filter_map(|c| w.hosts[0].stack.info(c)).collect();
        let rate: f64 = infos.iter().filter_map(|i| Some(i.delivery_rate?.octets as f64 * 8.0)).sum();
        (infos.iter().filter_map(|i| i.srtt).max().expect("a round trip"), rate / (100e9 * 1448.0 / 1538.0))
    };
    let (free, share) = last_trip(None);
    assert!(free > Duration::from_micros(100) && share > 0.9, "{free:?}, {share}");
    let (bounded, share) = last_trip(Some(Duration::from_micros(16)));
    assert!(bounded < Duration::from_micros(30) && share > 0.9, "{bounded:?}, {share}");
}

#[test]
fn the_window_bounds_a_long_path() {
    let (rate, _) = goodput("rate=10gbit,delay=5ms,queue=5000", 50_000_000, |c| c.tcp.recv_window = 1 << 20);
    // The bound is one window per round trip.
    let bound = f64::from(1u32 << 20) * 8.0 / 0.010;
    assert!(rate < bound && rate > 0.8 * bound, "{rate:e} of {bound:e}");
}

#[test]
fn a_small_queue_is_shared_with_losses() {
    for (sack, congestion) in [
        (true, Congestion::Cubic),
        (true, Congestion::Reno),
        (false, Congestion::Cubic),
        (false, Congestion::Reno),
    ] {
        // Bandwidth times delay is 25 kB, and the queue holds 32 frames.
        let (rate, counters) = goodput("rate=1gbit,delay=100us,queue=32", 50_000_000, |c| {
            c.tcp.sack = sack;
            c.tcp.congestion = congestion;
            c.tcp.rto_min = Duration::from_millis(10);
        });
        assert!(rate > 0.7e9, "sack {sack} {congestion:?}: {rate:e} {counters:?}");
        assert!(counters.fast_recoveries > 0);
    }
}

#[test]
fn random_loss_keeps_the_reno_rate() {
    for (p, sack) in [(0.001, true), (0.01, true), (0.001, false)] {
        let (rate, counters) = goodput(&format!("loss={p},delay=500us,seed=11"), 20_000_000, |c| {
            c.tcp.sack = sack;
            c.tcp.rto_min = Duration::from_millis(5);
        });
        // Reno reaches MSS/RTT · 1.22/√p; most of that is required (CUBIC is no slower).
        let reno = 1448.0 * 8.0 / 0.001 * 1.22 / f64::sqrt(p);
        assert!(rate > 0.7 * reno, "loss {p} sack {sack}: {rate:e} of {reno:e} {counters:?}");
    }
}

#[test]
fn a_single_loss_is_repaired_without_the_timer() {
    for sack in [true, false] {
        let mut w = World::pair("delay=1ms", |c| c.tcp.sack = sack);
        w.open(Script::send(3_000_000), Script::silent());
        // One frame is lost in the middle of the transfer.
        w.run(HOUR, |w| w.hosts[1].app.sessions.first().is_some_and(|s| s.received > 300_000));
        let link = w.net.link_mut(0, 1).expect("exists");
        let whole = *link.impairment();
        link.set_impairment(&urnic_sim::Impairment { loss: 0.02, seed: 1, ..whole });
        w.run(HOUR, |w| w.net.link(0, 1).is_some_and(|l| l.statistics().lost > 0));
        w.net.link_mut(0, 1).expect("exists").set_impairment(&whole);
        w.run_to_end(HOUR);
        let c = w.hosts[0].stack.counters();
        assert!(c.rto_recoveries == 0 && c.fast_recoveries == 1, "sack {sack}: {c:?}");
        let lost = w.net.link(0, 1).map_or(0, |l| l.statistics().lost);
        if sack {
            assert!(c.retransmitted_segments <= lost + 1, "{lost} lost: {c:?}");
        }
    }
}

#[test]
fn one_ack_for_a_burst() {
    let mut w = World::pair("delay=100us", |_| {});
    w.open(Script::send(4_000_000), Script::silent());
    w.run_to_end(HOUR);
    let (data, acks) = (w.hosts[0].stack.counters().segments_out, w.hosts[1].stack.counters().segments_out);
    assert!(acks * 4 < data, "{acks} ACKs for {data} segments");
}

#[test]
fn records_stay_whole_and_share_segments() {
    let mut w = World::pair("delay=100us", |_| {});
    w.trace = Some(Vec::new());
    // 100 octets per record: up to 8 share a segment, and none is split.
    w.open(Script { records: vec![100], ..Script::send(100_000) }, Script::silent());
    w.run_to_end(HOUR);
    let mut shared = 0;
    for (_, from, frame) in w.trace.iter().flatten() {
        let Some(s) = crate::peer::Seg::parse(frame) else { continue };
        if *from == 0 {
            assert_eq!(s.data.len() % 100, 0, "a record was split");
            shared += usize::from(s.data.len() > 100);
        }
    }
    assert!(shared > 50, "{shared} shared segments");
}
