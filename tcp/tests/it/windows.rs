//! Receive windows. The peer's window may be zero, small or shrinking; ours never shrinks.

use crate::harness::{Script, World, for_seeds};
use crate::peer::{Bench, Seg};
use std::collections::HashMap;
use std::time::Duration;

fn syn(window: u16) -> Seg {
    Seg { seq: 9000, mss: Some(1000), window, ..Seg::default() }
}

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    // RFC 9293 §3.8.6.1
    let script = Script { records: vec![1000], close_first: false, ..Script::send(5000) };
    let mut b = Bench::listening(|_| {}, script);
    let mut c = b.established(syn(0));
    let probes = b.wait(Duration::from_secs(3));
    assert!((2..=30).contains(&probes.len()), "{} probes in 3 s", probes.len());
    for (_, p) in &probes {
        assert!(p.data.len() <= 1 && !p.fin && !p.rst, "{p:?}");
    }
    // The peer answers but keeps its window shut for an hour: the connection lives, and the probes become rarer but
    // go on.
    let mut rare = 0;
    for _ in 0..60 {
        b.send(&c.seg());
        let n = b.wait(Duration::from_secs(60)).len();
        assert!(n <= 60, "{n} probes in a minute");
        rare += n;
    }
    assert!(rare >= 30, "{rare} probes in an hour");
    assert!(b.host.app.sessions[0].closed.is_none());
    // The window opens, and everything arrives.
    c.base.window = 10_000;
    let mut got = 0;
    let mut sent = b.send(&c.seg());
    for _ in 0..200 {
        for s in &sent {
            if s.seq == c.una {
                got += s.data.len();
                c.una = c.una.wrapping_add(s.data.len() as u32);
            }
        }
        if got == 5000 {
            break;
        }
        sent = b.send(&c.seg());
        sent.extend(b.wait(Duration::from_millis(50)).into_iter().map(|(_, s)| s));
    }
    assert_eq!(got, 5000);
}

#[test]
fn the_stack_never_sends_beyond_the_window() {
    let script = Script { records: vec![700, 1, 3000], close_first: false, ..Script::send(100_000) };
    let mut b = Bench::listening(|_| {}, script);
    let mut c = b.established(syn(1));
    let mut rng = fastrand::Rng::with_seed(3);
    let mut edge = c.una.wrapping_add(1);
    let mut got = 0;
    for _ in 0..20_000 {
        if got == 100_000 {
            break;
        }
        // Some windows shrink; a stack must tolerate this.
        c.base.window = *rng.choice([0u16, 1, 10, 500, 999, 1000, 1001, 2500, 8000].as_slice()).unwrap_or(&0);
        let new_edge = c.una.wrapping_add(u32::from(c.base.window));
        if (new_edge.wrapping_sub(edge) as i32) > 0 {
            edge = new_edge;
        }
        let mut sent = b.send(&c.seg());
        sent.extend(b.wait(Duration::from_millis(rng.u64(..400))).into_iter().map(|(_, s)| s));
        for s in &sent {
            // A window probe may carry one octet beyond the window (RFC 9293 §3.8.6.1). Ours carry none.
            let end = s.seq.wrapping_add(s.data.len() as u32);
            assert!((end.wrapping_sub(edge) as i32) <= 1, "{s:?} beyond {edge}");
            let behind = c.una.wrapping_sub(s.seq);
            if (behind as i32) >= 0 && behind < s.data.len() as u32 {
                let new = s.data.len() as u32 - behind;
                c.una = c.una.wrapping_add(new);
                got += new;
            }
        }
    }
    assert_eq!(got, 100_000, "stuck");
}

#[test]
fn a_record_waits_for_a_window_that_fits_it() {
    // RFC 9293 §3.8.6.2.1: the record is held, then sent as far as it fits.
    let script = Script { records: vec![1000], close_first: false, ..Script::send(2000) };
    let mut b = Bench::listening(|_| {}, script);
    let (mut c, _) = b.open(syn(8000));
    c.base.window = 400;
    assert_eq!(b.send(&c.seg()), [], "held at first");
    let sent = b.wait(Duration::from_millis(150));
    let (at, first) = sent.first().expect("the override time passes");
    assert_eq!(first.data.len(), 400);
    assert!(at.0 - 1_000_000_000 >= 100_000_000, "{at:?}");
    c.una = c.una.wrapping_add(400);
    c.base.window = 8000;
    let sent = b.send(&c.seg());
    // Then segments are aligned with records again: the rest of the record, then the next record as a whole.
    let lens: Vec<_> = sent.iter().map(|s| s.data.len()).collect();
    assert_eq!(lens, [600, 1000]);
}

#[test]
fn a_window_that_never_fits_a_record_is_used_all_the_same() {
    let script = Script { records: vec![1000], close_first: false, ..Script::send(2000) };
    let mut b = Bench::listening(|_| {}, script);
    let (c, _) = b.open(syn(400));
    let sent = b.send(&c.seg());
    assert_eq!(sent.iter().map(|s| s.data.len()).collect::<Vec<_>>(), [400]);
}

/// DDP-63.
#[test]
fn our_right_edge_never_moves_left() {
    // RFC 9293 §3.8.6: our window does not shrink.
    for_seeds(20, |seed| {
        let impairment = format!("delay=200us,jitter=100us,loss=0.03,reorder=0.05,dup=0.02,seed={seed}");
        let mut w = World::pair(&impairment, |c| c.tcp.recv_window = 40_000 << (seed % 4));
        w.trace = Some(Vec::new());
        w.open(Script::send(300_000), Script::send(300_000));
        w.run_to_end(Duration::from_secs(3600));
        let mut scale = HashMap::new();
        let mut edges: HashMap<(usize, u16), u32> = HashMap::new();
        for (at, from, frame) in w.trace.iter().flatten() {
            let Some(s) = Seg::parse(frame) else { continue };
            if s.syn {
                scale.insert(*from, s.scale.unwrap_or(0));
            }
            let (Some(ack), false) = (s.ack, s.rst) else { continue };
            let shift = if s.syn { 0 } else { scale[from] };
            let edge = ack.wrapping_add(u32::from(s.window) << shift);
            let before = edges.entry((*from, s.from)).or_insert(edge);
            // The window in the handshake was not scaled, so it may have been smaller than the real one.
            assert!((edge.wrapping_sub(*before) as i32) >= 0, "at {at:?} host {from} shrinks its window");
            *before = edge;
        }
        assert!(edges.len() >= 2);
    });
}

#[test]
fn pool_pressure_costs_nothing_but_time() {
    for_seeds(10, |seed| {
        let impairment = format!("delay=200us,loss=0.02,reorder=0.05,seed={seed}");
        let mut w = World::pair(&impairment, |_| {});
        w.open(Script::send(500_000), Script::send(500_000));
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..200 {
            let stack = &mut w.hosts[rng.usize(..2)].stack;
            stack.set_pressure(rng.bool());
            if rng.u8(..4) == 0 {
                stack.give_back_held();
            }
            w.run(Duration::from_micros(rng.u64(..2000)), |_| false);
        }
        for h in &mut w.hosts {
            h.stack.set_pressure(false);
        }
        w.run_to_end(Duration::from_secs(3600));
    });
}
