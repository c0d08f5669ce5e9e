//! A thousand peers each send an FPDU of 64 KiB, whose first octets arrive one by one. These peers neither hold up
//! other peers nor fill the memory.

#[path = "common/allocated.rs"]
mod allocated;
mod common;

use common::crowd::{Crowd, crowd, send_fpdu};
use common::raw::{self, Raw};
use common::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::ConnId;

const PEERS: usize = 1000;
/// Number of octets that arrive one by one. The other octets arrive in full segments, except for the last octet.
const DRIBBLED: usize = 200;
/// Octets of a Send whose FPDU is as long as an FPDU can be.
const PAYLOAD: usize = 65_535 - 18;

struct Scene {
    simulation: Simulation,
    raw: Rc<RefCell<Raw>>,
    conns: Vec<ConnId>,
    qps: Vec<Qp>,
    cq: Cq,
    inbox: Mr,
    server: End,
    client: End,
}

/// Makes device 0 with a connection to device 1, and a thousand connections to the raw node 2.
fn scene() -> Scene {
    let (raw, host) = raw::node(2);
    let mut simulation = Simulation::with_hosts(&Options { devices: 2, ..options() }, vec![host]).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut server, &mut client);
    let Crowd { conns, qps, cq, inbox } = crowd(&mut simulation, &raw, PEERS, PAYLOAD);
    Scene { simulation, raw, conns, qps, cq, inbox, server, client }
}

impl Scene {
    /// Sends `octets` on every connection, and waits until all of them are acknowledged.
    fn all_send(&mut self, octets: &[u8]) {
        for conn in &self.conns {
            self.raw.borrow_mut().send(*conn, octets);
        }
        let Scene { simulation, raw, conns, .. } = self;
        let limit = simulation.now() + LIMIT;
        let all = simulation.run(limit, || {
            let raw = raw.borrow();
            conns.iter().all(|conn| raw.stack.unacked(*conn) == 0)
        });
        assert!(all, "not acknowledged");
    }

    /// Checks that the other connection works without a delay.
    fn another_works(&mut self) {
        let before = self.simulation.now();
        works(&mut self.simulation, &self.server, &self.client);
        let took = self.simulation.now() - before;
        assert!(took < Duration::from_millis(1), "{took:?}");
    }
}

#[test]
fn a_thousand_dribbling_peers_stop_nobody() {
    let mut scene = scene();
    let payload = pattern(PAYLOAD, 8);
    let fpdu = send_fpdu(&payload);
    assert!(fpdu.len() > 65_535);
    let idle = allocated::live();
    for octet in &fpdu[..DRIBBLED] {
        for conn in &scene.conns {
            scene.raw.borrow_mut().send(*conn, &[*octet]);
        }
        // The frames of the thousand connections are under way during this check.
        scene.another_works();
        scene.all_send(&[]);
    }
    let dribbled = (allocated::live() - idle) / PEERS as isize;
    assert!(dribbled < 4 << 10, "{dribbled} octets each for {DRIBBLED} octets");

    let (rest, last) = fpdu[DRIBBLED..].split_at(fpdu.len() - DRIBBLED - 1);
    for segment in rest.chunks(8 * 1448) {
        scene.all_send(segment);
        scene.another_works();
    }
    let full = (allocated::live() - idle) / PEERS as isize;
    assert!(full < 80 << 10, "{full} octets each for a FPDU of {}", fpdu.len());
    assert_eq!(scene.cq.poll(&mut [Wc::default()]), 0, "complete before the last octet");

    scene.all_send(last);
    let mut done = Vec::new();
    let limit = scene.simulation.now() + LIMIT;
    let all = scene.simulation.run(limit, || {
        let mut wc = [Wc::default(); 64];
        let n = scene.cq.poll(&mut wc);
        done.extend_from_slice(&wc[..n]);
        done.len() == PEERS
    });
    assert!(all, "{} of {PEERS} are complete", done.len());
    for wc in &done {
        assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, PAYLOAD));
    }
    assert!(content(&scene.inbox) == payload);
    let after = (allocated::live() - idle) / PEERS as isize;
    assert!(after < 4 << 10, "{after} octets each are kept");
    assert!(scene.qps.iter().all(|qp| qp.state() == QpState::Rts));
    scene.another_works();
}

/// One peer sends a whole FPDU octet by octet.
#[test]
fn an_fpdu_may_come_octet_by_octet() {
    let (raw, host) = raw::node(1);
    let mut simulation = Simulation::with_hosts(&Options { devices: 1, ..options() }, vec![host]).unwrap();
    let end = End::new(&simulation.device(0));
    let _listener = end.events.listen(PORT, 1).unwrap();
    let inbox = end.pd.alloc_mr(PAYLOAD, Access::LOCAL_WRITE).unwrap();
    end.post_recv(1, &[Sge::of(&inbox, 0, PAYLOAD as u32)]);
    let offer = Offer { rev: 1, crc: true, ird: 4, ord: 4, ..Offer::default() };
    let request = Initiator::new(&offer).unwrap().1;
    let conn = raw.borrow_mut().connect(address(0));
    assert!(simulation.run(LIMIT, || raw.borrow().seen.connected.contains(&conn)));
    raw.borrow_mut().send(conn, &request);
    let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    let payload = pattern(PAYLOAD, 8);
    for octet in send_fpdu(&payload) {
        assert_eq!(end.cq.poll(&mut [Wc::default()]), 0);
        raw.borrow_mut().send(conn, &[octet]);
        let limit = simulation.now() + LIMIT;
        assert!(simulation.run(limit, || raw.borrow().stack.unacked(conn) == 0));
    }
    let wc = end.next(&mut simulation);
    assert_eq!((wc.status, wc.byte_len as usize), (WcStatus::Success, PAYLOAD));
    assert!(content(&inbox) == payload);
}
