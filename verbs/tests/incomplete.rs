//! The limit on memory for incomplete FPDUs. No source can keep all of this memory, and no peer stalls for lack of it.

mod common;

use common::crowd::{Crowd, crowd, numbered_fpdu, send_fpdu};
use common::raw::{self, Raw};
use common::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{MpaConfig, Options, Simulation};
use urnic::*;

/// Octets of a Send whose FPDU is as long as an FPDU can be.
const PAYLOAD: usize = 65_535 - 18;

/// Limits the memory for incomplete FPDUs to sixteen FPDUs of the maximum length.
fn sixteen(mpa: &mut MpaConfig) {
    mpa.incomplete_max = 1 << 20;
}

fn counter(simulation: &Simulation, name: &str) -> u64 {
    let counters = simulation.device(0).attributes().unwrap().counters;
    counters.iter().find(|(n, _)| *n == name).unwrap().1
}

fn nodes(options: Options, hosts: usize) -> (Simulation, Vec<Rc<RefCell<Raw>>>) {
    let (raws, hosts) = (0..hosts).map(|i| raw::node(options.devices + i)).unzip();
    (Simulation::with_hosts(&options, hosts).unwrap(), raws)
}

/// Waits until `count` Sends have been received, all of them correct.
fn received(simulation: &mut Simulation, crowd: &Crowd, count: usize, within: Duration) {
    let mut done = Vec::new();
    let limit = simulation.now() + within;
    let all = simulation.run(limit, || {
        let mut wc = [Wc::default(); 64];
        let n = crowd.cq.poll(&mut wc);
        done.extend_from_slice(&wc[..n]);
        done.len() >= count
    });
    assert!(all, "{} of {count} within {within:?}", done.len());
    for wc in &done {
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, PAYLOAD));
    }
}

/// A host leaves many FPDUs unfinished, and so uses all the memory. When another host needs memory, the device ends the
/// oldest connections of the greedy host. Small messages never wait.
#[test]
fn the_source_that_has_most_gives_way() {
    let options = Options { devices: 2, exceptions: vec![(0, sixteen)], ..options() };
    let (mut simulation, raws) = nodes(options, 2);
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut server, &mut client);
    let hogs = crowd(&mut simulation, &raws[0], 100, PAYLOAD);
    let honest = crowd(&mut simulation, &raws[1], 1, PAYLOAD);
    let payload = pattern(PAYLOAD, 3);
    let fpdu = send_fpdu(&payload);
    for conn in &hogs.conns {
        raws[0].borrow_mut().send(*conn, &fpdu[..60_000]);
    }
    let before = simulation.now();
    works(&mut simulation, &server, &client);
    assert!(simulation.now() - before < Duration::from_millis(1));
    // The network delivers the frames, and the connections of the greedy host stay.
    let end = simulation.now() + Duration::from_millis(50);
    simulation.run(end, || false);
    let reserved = counter(&simulation, "incomplete_octets");
    assert!(reserved > 15 << 16 && reserved <= 1 << 20, "{reserved}");
    assert_eq!(counter(&simulation, "incomplete_displaced"), 0, "those were young");

    raws[1].borrow_mut().send(honest.conns[0], &fpdu);
    received(&mut simulation, &honest, 1, Duration::from_millis(150));
    assert!(content(&honest.inbox) == payload);
    assert!(counter(&simulation, "incomplete_displaced") > 0);
    let fell = hogs.qps.iter().filter(|qp| qp.state() != QpState::Rts).count();
    assert!((1..100).contains(&fell), "{fell} of 100 fell");
    assert!(counter(&simulation, "incomplete_octets") <= 1 << 20);
    let before = simulation.now();
    works(&mut simulation, &server, &client);
    assert!(simulation.now() - before < Duration::from_millis(1));
}

/// If the FPDUs of honest peers together need more memory than the limit, the peers wait for each other, and everything
/// arrives.
#[test]
fn honest_peers_wait_for_each_other() {
    const PEERS: usize = 200;
    let options = Options { devices: 1, exceptions: vec![(0, sixteen)], ..options() };
    let (mut simulation, raws) = nodes(options, 1);
    let crowd = crowd(&mut simulation, &raws[0], PEERS, PAYLOAD);
    let payload = pattern(PAYLOAD, 3);
    for msn in 1..=3 {
        if msn > 1 {
            for (i, qp) in crowd.qps.iter().enumerate() {
                let sge = [Sge::of(&crowd.inbox, 0, PAYLOAD as u32)];
                qp.post_recv(&RecvWr { wr_id: i as u64, sges: &sge }).unwrap();
            }
        }
        let fpdu = numbered_fpdu(msn, &payload);
        for conn in &crowd.conns {
            raws[0].borrow_mut().send(*conn, &fpdu);
        }
        received(&mut simulation, &crowd, PEERS, Duration::from_secs(5));
    }
    assert!(content(&crowd.inbox) == payload);
    assert_eq!(counter(&simulation, "incomplete_displaced"), 0);
    assert_eq!(counter(&simulation, "incomplete_octets"), 0);
    assert!(crowd.qps.iter().all(|qp| qp.state() == QpState::Rts));
}

/// A connection that has ended in any way has given back its memory.
#[test]
fn room_comes_back_when_connections_end() {
    let options = Options { devices: 1, exceptions: vec![(0, sixteen)], ..options() };
    let (mut simulation, raws) = nodes(options, 1);
    let mut crowd = crowd(&mut simulation, &raws[0], 12, PAYLOAD);
    let fpdu = send_fpdu(&pattern(PAYLOAD, 3));
    for conn in &crowd.conns {
        raws[0].borrow_mut().send(*conn, &fpdu[..60_000]);
    }
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || crowd.conns.iter().all(|c| raws[0].borrow().stack.unacked(*c) == 0)));
    let all = counter(&simulation, "incomplete_octets");
    assert!(all > 12 * 65_000, "{all}");
    raws[0].borrow_mut().abort(crowd.conns[0]);
    raws[0].borrow_mut().close(crowd.conns[1]);
    crowd.qps[2].to_error();
    drop(crowd.qps.remove(3));
    let end = simulation.now() + Duration::from_secs(10);
    simulation.run(end, || false);
    assert_eq!(counter(&simulation, "incomplete_octets"), all / 12 * 8);
}
