//! Random networks, settings and applications: every octet arrives intact, once and in order, and every connection
//! ends as it should.

use crate::broken::Rule;
use crate::harness::{Host, MOST_SEEDS, Script, World, for_seeds, only_v6, solicitation};
use crate::paths::Path;
use crate::peer::arp;
use fastrand::Rng;
use smoltcp::wire::ArpOperation;
use std::net::SocketAddr;
use std::time::Duration;
use urnic_sim::Impairment;
use urnic_tcp::{CloseReason, Congestion, Ecn, StackConfig, Time};

/// Returns a random script: octet counts and record sizes of every magnitude.
pub fn script(rng: &mut Rng, mtu: usize) -> Script {
    let send = match rng.u8(..8) {
        0 => 0,
        1 => rng.u64(1..100),
        2..=5 => rng.u64(1..60_000),
        _ => rng.u64(1..1_000_000),
    };
    let largest = *rng.choice([20, 200, mtu, 4 * mtu, 40_000].as_slice()).unwrap_or(&1);
    let least = 1 + (send / 2000) as usize;
    Script {
        send,
        records: (0..rng.usize(1..8)).map(|_| rng.usize(1..=largest).max(least)).collect(),
        close_first: rng.bool(),
    }
}

pub fn impairment(rng: &mut Rng) -> Impairment {
    let rarely = |rng: &mut Rng, most: f64| if rng.u8(..3) == 0 { rng.f64() * most } else { 0.0 };
    Impairment {
        loss: rarely(rng, 0.15),
        burst: rarely(rng, 0.02),
        burst_len: rng.usize(1..6),
        mark: rarely(rng, 0.2),
        dup: rarely(rng, 0.1),
        reorder: rarely(rng, 0.3),
        corrupt: rarely(rng, 0.05),
        delay: rng.u64(..2_000_000) * u64::from(rng.bool()),
        jitter: rng.u64(..500_000) * u64::from(rng.bool()),
        rate: rng.bool().then(|| rng.u64(10_000_000..20_000_000_000)),
        // Queues from shallow to very deep.
        queue: if rng.u8(..4) == 0 { rng.usize(500..20_000) } else { rng.usize(5..500) },
        ecn: rng.bool().then(|| rng.usize(1..100)),
        seed: rng.u64(..),
        ..Impairment::default()
    }
}

pub fn settings(rng: &mut Rng) -> impl Fn(&mut StackConfig) + use<> {
    let mtu = *rng.choice([576, 700, 1500, 9000, 9000].as_slice()).unwrap_or(&1500);
    let (sack, timestamps, window_scale) = (rng.bool(), rng.bool(), rng.bool());
    let congestion = *rng
        .choice([Congestion::Reno, Congestion::Cubic, Congestion::Dctcp].as_slice())
        .unwrap_or(&Congestion::Reno);
    let ecn = *rng.choice([Ecn::Off, Ecn::Accept, Ecn::Offer].as_slice()).unwrap_or(&Ecn::Off);
    let pacing = rng.u8(..4) == 0;
    let recv_window = 1 << rng.u32(13..23);
    let initial_window = rng.u32(1..=10);
    let rto_min = Duration::from_micros(rng.u64(1000..200_000));
    move |c| {
        c.mtu = mtu;
        c.tcp.sack = sack;
        c.tcp.timestamps = timestamps;
        c.tcp.window_scale = window_scale;
        c.tcp.congestion = congestion;
        c.tcp.ecn = ecn;
        c.tcp.pacing = pacing;
        c.tcp.recv_window = recv_window;
        c.tcp.initial_window = initial_window;
        c.tcp.rto_min = rto_min;
        c.tcp.time_wait = Duration::from_secs(600);
        c.tcp.fin_wait = Duration::from_secs(7200);
        c.tcp.data_retries = 30;
        c.tcp.syn_retries = 20;
        c.tcp.rto_max = Duration::from_secs(60);
    }
}

fn world(rng: &mut Rng) -> World {
    let impairment = impairment(rng);
    // Each end has its own settings.
    let (a, b) = (settings(rng), settings(rng));
    let v6 = rng.bool();
    let host = |n: u8, tune: &dyn Fn(&mut StackConfig)| {
        Host::new(n, |c| {
            tune(c);
            if v6 {
                only_v6(n, c);
            }
        })
    };
    let mut w = World::new(&impairment, vec![host(1, &a), host(2, &b)]);
    if rng.u8(..3) == 0 {
        // The way back has other impairments.
        let back = self::impairment(rng);
        w.net.link_mut(1, 0).expect("exists").set_impairment(&back);
    }
    // The hosts know each other's MAC addresses. Otherwise a network that loses many frames would make some hosts
    // unreachable.
    for (i, host) in w.hosts.iter_mut().enumerate() {
        let (me, other) = (1 + i as u8, 2 - i as u8);
        host.inbox.push_back(if v6 {
            solicitation(other, me)
        } else {
            arp(ArpOperation::Request, other, me)
        });
        host.pass(Time::ZERO);
        host.out.frames.clear();
    }
    w
}

/// Runs one connection with `seed`.
pub fn one(seed: u64) {
    one_with(seed, None);
}

/// Like [`one`], but between stacks that break `rule`.
pub fn one_with(seed: u64, rule: Option<Rule>) {
    let mut rng = Rng::with_seed(seed);
    let mut w = world(&mut rng);
    for (i, host) in w.hosts.iter_mut().enumerate() {
        (host.broken, host.answers_first) = (rule, seed >> i & 1 == 1);
    }
    let (mut client, server) = (script(&mut rng, 1500), script(&mut rng, 1500));
    // One end must close.
    client.close_first |= !server.close_first;
    w.open(client, server);
    w.run_to_end(Duration::from_secs(7200));
}

#[test]
fn one_connection() {
    for_seeds(MOST_SEEDS, one);
}

/// Runs one connection between applications that may take arrived data at any time. Windows shut and reopen,
/// nothing is lost or delivered twice, and no octet is sent beyond a right edge (RFC 9293 §3.8.6).
pub fn moody(seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0x300d);
    let mut w = world(&mut rng);
    for host in &mut w.hosts {
        host.app.moody = rng.bool().then(|| rng.fork());
        host.answers_first = seed & 1 == 1;
    }
    let (mut client, server) = (script(&mut rng, 1500), script(&mut rng, 1500));
    client.close_first |= !server.close_first;
    w.open(client, server);
    w.run_to_end(Duration::from_secs(7200));
}

#[test]
fn moody_applications() {
    for_seeds(MOST_SEEDS / 2, moody);
}

#[test]
fn many_connections_in_both_directions() {
    for_seeds(30, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0xabcd);
        let mut w = world(&mut rng);
        for host in &mut w.hosts {
            host.app.on_accept = Some(Script { close_first: true, ..script(&mut rng, 1500) });
            host.stack.listen_on(7, 64).expect("listen");
        }
        for _ in 0..rng.usize(1..20) {
            let (from, to) = if rng.bool() { (0, 1) } else { (1, 0) };
            let to = SocketAddr::new(w.hosts[to].address(), 7);
            let s = script(&mut rng, 9000);
            w.hosts[from].connect(w.now, to, Script { send: s.send / 8, ..s });
        }
        let opened: usize = w.hosts.iter().map(|h| h.app.sessions.len()).sum();
        let all = |w: &World| {
            let n: usize = w.hosts.iter().map(|h| h.app.sessions.len()).sum();
            n == 2 * opened && w.hosts.iter().all(|h| h.done())
        };
        assert!(w.run(Duration::from_secs(7200), all), "not finished: {}", w.describe());
        for (i, h) in w.hosts.iter().enumerate() {
            for s in &h.app.sessions {
                let peer =
                    w.hosts[1 - i].app.sessions.iter().find(|p| p.who == s.peer_who && p.peer_who == s.who);
                let peer = peer.unwrap_or_else(|| panic!("no peer of {s:?}"));
                assert_eq!(s.received, peer.script.send, "{s:?}");
                assert_eq!(s.acked, s.script.send, "{s:?}");
            }
        }
    });
}

#[test]
fn a_host_talks_to_itself() {
    for_seeds(20, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0x10);
        let mut w = world(&mut rng);
        w.hosts[0].app.on_accept = Some(Script { close_first: true, ..script(&mut rng, 1500) });
        w.hosts[0].stack.listen_on(7, 64).expect("listen");
        let s = script(&mut rng, 1500);
        let to = SocketAddr::new(w.hosts[0].address(), 7);
        w.hosts[0].connect(w.now, to, s);
        let done =
            w.run(Duration::from_secs(60), |w| w.hosts[0].app.sessions.len() == 2 && w.hosts[0].done());
        assert!(done, "{}", w.describe());
        let [a, b] = &w.hosts[0].app.sessions[..] else { panic!("two sessions") };
        assert_eq!((a.received, b.received), (b.script.send, a.script.send));
    });
}

/// A network that fails for a while: everything goes on afterwards.
#[test]
fn an_outage_is_survived() {
    for_seeds(20, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0x77);
        let mut w = world(&mut rng);
        w.open(Script::send(400_000), Script::send(400_000));
        // The outage begins after the handshake, because an open fails if no host answers for long, while an open
        // connection keeps trying.
        let connected = |w: &World| w.hosts.iter().all(|h| h.app.sessions.iter().any(|s| s.established));
        assert!(w.run(Duration::from_secs(600), connected), "not connected: {}", w.describe());
        w.run(Duration::from_millis(rng.u64(..50)), |_| false);
        outage(&mut w, Duration::from_secs(rng.u64(1..20)));
        w.run_to_end(Duration::from_secs(7200));
    });
}

/// Lets nothing pass for a while.
fn outage(w: &mut World, span: Duration) {
    let cut = Impairment { loss: 1.0, ..Impairment::default() };
    let ways = [(0, 1), (1, 0)];
    let before = ways.map(|(a, b)| {
        let link = w.net.link_mut(a, b).expect("exists");
        let before = *link.impairment();
        link.set_impairment(&cut);
        before
    });
    w.run(span, |_| false);
    for ((a, b), i) in ways.into_iter().zip(&before) {
        w.net.link_mut(a, b).expect("exists").set_impairment(i);
    }
}

/// A network that fails while a connection is being opened. If it comes back while SYNs are repeated, the open
/// does not time out. If no host has ever answered for the address, the open may end as unreachable.
#[test]
fn an_outage_while_opening() {
    for_seeds(60, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0x0b);
        let v6 = rng.bool();
        let mut w = World::pair("delay=1ms", |c| {
            // SYNs after 0, 1, 3, 7 and 15 s; the end after 31 s.
            c.tcp.syn_retries = 4;
            if v6 {
                let n = c.mac[5];
                only_v6(n, c);
            }
        });
        let known = rng.bool();
        w.open(Script::send(1000), Script::send(1000));
        if known {
            w.run_to_end(Duration::from_secs(10));
            let to = SocketAddr::new(w.hosts[1].address(), 7);
            w.hosts[0].connect(w.now, to, Script::send(1000));
        }
        w.run(Duration::from_micros(rng.u64(..7000)), |_| false);
        let in_time = rng.bool();
        let span = if in_time { rng.u64(100..14_000) } else { rng.u64(33_000..40_000) };
        outage(&mut w, Duration::from_millis(span));
        // The outage may lose the last request for the address, so the address may turn out unreachable only after
        // the outage.
        let decided =
            |w: &World| w.hosts[0].app.sessions.last().is_some_and(|s| s.established || s.closed.is_some());
        w.run(Duration::from_secs(60), decided);
        let s = w.hosts[0].app.sessions.last().expect("somebody opens");
        match s.closed.filter(|_| !s.established) {
            Some(CloseReason::TimedOut) => assert!(!in_time, "{}", w.describe()),
            Some(reason) => assert!(reason == CloseReason::Unreachable && !known, "{}", w.describe()),
            None if in_time => w.run_to_end(Duration::from_secs(120)),
            None => assert!(s.established, "opening for ever: {}", w.describe()),
        }
    });
}

/// Long bursts of losses in the middle of a transfer.
#[test]
fn bursts_of_losses_are_repaired() {
    for_seeds(30, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0xb0);
        let mut w = world(&mut rng);
        w.open(Script::send(600_000), Script::send(300_000));
        w.run(Duration::from_secs(600), |w| {
            w.hosts[1].app.sessions.first().is_some_and(|s| s.received > 50_000)
        });
        for (a, b) in [(0, 1), (1, 0)] {
            let link = w.net.link_mut(a, b).expect("exists");
            let bursts = Impairment { burst: 0.005, burst_len: rng.usize(5..100), ..*link.impairment() };
            link.set_impairment(&bursts);
        }
        w.run(Duration::from_millis(rng.u64(1..3000)), |_| false);
        for (a, b) in [(0, 1), (1, 0)] {
            let link = w.net.link_mut(a, b).expect("exists");
            let quiet = Impairment { burst: 0.0, ..*link.impairment() };
            link.set_impairment(&quiet);
        }
        w.run_to_end(Duration::from_secs(7200));
    });
}

/// From the start, or after some time, the path carries only packets that are smaller than the links allow. Later this
/// limit changes again. Routers report packets above the limit, or drop them silently. No limit is below the minimum
/// that every host may rely on.
#[test]
fn path_mtus_change() {
    for_seeds(60, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0x9a7b);
        let mut w = world(&mut rng);
        let v6 = w.hosts[0].address().is_ipv6();
        let least = if v6 { 1280 } else { 576 };
        let path = |rng: &mut Rng| {
            let mtu: usize = *rng.choice([576, 1000, 1280, 1400, 1500, 4000].as_slice()).unwrap_or(&1500);
            Path { mtu: mtu.max(least), tells: rng.bool() }
        };
        if rng.bool() {
            w.path = path(&mut rng);
        }
        w.open(Script::send(rng.u64(1..600_000)), Script::send(rng.u64(1..600_000)));
        for _ in 0..rng.usize(1..5) {
            w.run(Duration::from_micros(rng.u64(..2_000_000) >> rng.u32(..12)), |_| false);
            w.path = if rng.u8(..4) == 0 { Path::OPEN } else { path(&mut rng) };
        }
        w.run_to_end(Duration::from_secs(7200));
    });
}
