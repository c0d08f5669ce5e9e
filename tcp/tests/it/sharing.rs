//! Several flows through one bottleneck, and the effect of marks on its queue.

use crate::harness::{Script, World, ip};
use std::net::SocketAddrV4;
use std::time::Duration;
use urnic_tcp::{Congestion, Ecn};

/// Runs two flows in the same direction. The second one begins two seconds after the first. Returns the octets that
/// each carries from the 20th to the 120th second.
fn two_flows(impairment: &str, congestion: Congestion, ecn: Ecn) -> (World, [f64; 2]) {
    let mut w = World::pair(impairment, |c| {
        c.tcp.congestion = congestion;
        c.tcp.ecn = ecn;
    });
    let endless = Script { records: vec![1448], ..Script::send(u64::MAX / 2) };
    w.hosts[1].app.unchecked = true;
    w.open(endless.clone(), Script::silent());
    w.run(Duration::from_secs(2), |_| false);
    w.hosts[0].connect(w.now, SocketAddrV4::new(ip(2), 7), endless);
    w.run(Duration::from_secs(18), |_| false);
    let received =
        |w: &World| [0, 1].map(|i| w.hosts[1].app.sessions.get(i).map_or(0, |s| s.received) as f64);
    let before = received(&w);
    w.run(Duration::from_secs(100), |_| false);
    let after = received(&w);
    (w, [after[0] - before[0], after[1] - before[1]])
}

#[test]
fn two_flows_share_a_bottleneck() {
    for (congestion, ecn, impairment) in [
        (Congestion::Reno, Ecn::Off, "rate=20mbit,delay=5ms,queue=40,loss=1e-4,seed=5"),
        (Congestion::Cubic, Ecn::Off, "rate=20mbit,delay=5ms,queue=40,loss=1e-4,seed=5"),
        (Congestion::Cubic, Ecn::Offer, "rate=20mbit,delay=5ms,queue=100,ecn=20,seed=5"),
        (Congestion::Dctcp, Ecn::Offer, "rate=20mbit,delay=5ms,queue=100,ecn=20,seed=5"),
    ] {
        let (w, [a, b]) = two_flows(impairment, congestion, ecn);
        let share = a / (a + b);
        let used = (a + b) * 8.0 / 100.0 / 20e6;
        println!(
            "{congestion:?} {ecn:?}: {share:.3} of {used:.3} {:?}",
            w.net.link(0, 1).map(|l| l.statistics())
        );
        assert!((0.45..=0.55).contains(&share), "{congestion:?}: {share}, {}", w.describe());
        assert!(used > 0.85, "{congestion:?}: {used}, {}", w.describe());
    }
}

/// RFC 3168: routers that mark need not drop, and senders that heed the marks keep the queue short.
#[test]
fn marks_replace_losses() {
    for (congestion, most) in [(Congestion::Reno, 60), (Congestion::Cubic, 60), (Congestion::Dctcp, 45)] {
        let mut w = World::pair("rate=100mbit,delay=1ms,queue=1000,ecn=30", |c| {
            c.tcp.congestion = congestion;
            c.tcp.ecn = Ecn::Offer;
        });
        w.hosts[1].app.unchecked = true;
        w.open(Script { records: vec![1448], ..Script::send(u64::MAX / 2) }, Script::silent());
        // After slow start.
        w.run(Duration::from_secs(2), |_| false);
        let before = w.hosts[1].app.sessions[0].received;
        let mut longest = 0;
        w.run(Duration::from_secs(5), |w| {
            longest = longest.max(w.net.link(0, 1).map_or(0, |l| l.len()));
            false
        });
        let rate = (w.hosts[1].app.sessions[0].received - before) as f64 * 8.0 / 5.0;
        let link = w.net.link(0, 1).map(|l| l.statistics()).unwrap_or_default();
        let c = w.hosts[0].stack.counters();
        println!("{congestion:?}: {rate:e}, at most {longest} under way, {link:?}");
        assert!(rate > 0.9e8 * 1448.0 / 1538.0, "{congestion:?}: {rate:e}");
        assert!(link.marked > 0 && link.overflowed == 0 && c.retransmitted_segments == 0, "{link:?} {c:?}");
        // The frames in transit are those in the queue and 8 on the link.
        assert!(longest < most, "{congestion:?}: {longest}");
    }
}

/// With pacing, more gets through a path whose buffer holds only a fraction of a burst.
#[test]
fn pacing_helps_small_buffers() {
    let goodput = |pacing| {
        let mut w = World::pair("rate=100mbit,delay=20ms,queue=30", |c| {
            c.tcp.pacing = pacing;
            c.tcp.congestion = Congestion::Reno;
        });
        w.hosts[1].app.unchecked = true;
        w.open(Script { records: vec![1448], ..Script::send(u64::MAX / 2) }, Script::silent());
        w.run(Duration::from_secs(20), |_| false);
        (w.hosts[1].app.sessions[0].received * 8) as f64 / 20.0
    };
    let (with, without) = (goodput(true), goodput(false));
    println!("paced {with:e}, not paced {without:e}");
    assert!(with > 1.1 * without && with > 0.5e8, "{with:e} {without:e}");
}
