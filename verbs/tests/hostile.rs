//! A peer that sends random segments, with or without a correct CRC. It reaches only the memory that it was granted,
//! and harms no other peer.

mod common;

use common::raw::{self, Raw};
use common::*;
use fastrand::Rng;
use std::cell::RefCell;
use std::rc::Rc;
use urnic::simulation::{Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::ConnId;

const SEEDS: u64 = 2000;
/// Octets of a receive, and octets of the guard behind it.
const SLOT: usize = 256;
const RECEIVES: usize = 4;

struct Scene {
    simulation: Simulation,
    raw: Rc<RefCell<Raw>>,
    conn: ConnId,
    victim: End,
    /// Writable and readable by the peer.
    granted: Mr,
    /// For each receive, [`SLOT`] octets for messages, and then [`SLOT`] octets that must not change.
    inbox: Mr,
    /// Regions that the peer must not reach: one without rights, and one of another domain.
    private: [Mr; 2],
    server: End,
    client: End,
}

fn scene() -> Scene {
    let (raw, host) = raw::node(2);
    let mut simulation = Simulation::with_hosts(&Options { devices: 2, ..options() }, vec![host]).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    connect(&mut simulation, &mut server, &mut client);
    let victim = End::new(&simulation.device(0));
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let granted = victim.pd.alloc_mr(4096, all).unwrap();
    let inbox = victim.pd.alloc_mr(RECEIVES * 2 * SLOT, Access::LOCAL_WRITE).unwrap();
    let private = [
        victim.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap(),
        simulation.device(0).alloc_pd().alloc_mr(4096, all).unwrap(),
    ];
    for mr in private.iter().chain([&inbox]) {
        mr.write_at(0, &pattern(mr.len() as usize, 1)).unwrap();
    }
    for i in 0..RECEIVES {
        victim.post_recv(i as u64, &[Sge::of(&inbox, (i * 2 * SLOT) as u64, SLOT as u32)]);
    }
    let _listener = victim.events.listen(PORT, 1).unwrap();
    let conn = raw.borrow_mut().connect(address(0));
    assert!(simulation.run(LIMIT, || raw.borrow().seen.connected.contains(&conn)));
    let offer = Offer { rev: 1, crc: true, ird: 4, ord: 4, ..Offer::default() };
    raw.borrow_mut().send(conn, &Initiator::new(&offer).unwrap().1);
    let CmEvent::ConnectRequest(request) = victim.event(&mut simulation) else { panic!("no request") };
    request.accept(&victim.qp, &ConnParam { ird: 2, ord: 2, ..ConnParam::default() }).unwrap();
    assert!(simulation.run(LIMIT, || raw.borrow().heard(conn).len() == 20));
    assert!(matches!(victim.event(&mut simulation), CmEvent::Established { .. }));
    Scene { simulation, raw, conn, victim, granted, inbox, private, server, client }
}

impl Scene {
    /// Makes a DDP segment that is correct except for the fields that `rng` makes strange.
    fn segment(&self, rng: &mut Rng, send_msn: &mut u32, read_msn: &mut u32) -> Vec<u8> {
        let mut payload: Vec<u8> = (0..rng.usize(..SLOT)).map(|_| rng.u8(..)).collect();
        let mr = if rng.u8(..6) == 0 { &self.private[rng.usize(..2)] } else { &self.granted };
        let mut at = mr.addr() + rng.u64(..4096 - SLOT as u64);
        let mut stag = mr.rkey();
        match rng.u8(..12) {
            0 => at = mr.addr() + 4096 - rng.u64(..SLOT as u64),
            1 => at = mr.addr() - rng.u64(..SLOT as u64),
            2 => at = rng.u64(..),
            3 => stag = rng.u32(..),
            _ => {}
        }
        let last = rng.u8(..6) > 0;
        let ddp = |tagged: bool| 1 | if tagged { 0x80 } else { 0 } | if last { 0x40 } else { 0 };
        let mut segment;
        if rng.bool() {
            let opcode = if rng.u8(..6) == 0 { 2 } else { 0 }; // Read Response, Write
            segment = vec![ddp(true), 0x40 | opcode];
            segment.extend(stag.to_be_bytes());
            segment.extend(at.to_be_bytes());
        } else {
            let read = rng.u8(..3) == 0;
            let opcode = if read { 1 } else { [3, 4, 5, 6][rng.usize(..4)] };
            let msn = if read { &mut *read_msn } else { &mut *send_msn };
            segment = vec![ddp(false), 0x40 | opcode];
            segment.extend(stag.to_be_bytes());
            segment.extend(u32::from(read).to_be_bytes());
            segment.extend(msn.to_be_bytes());
            segment.extend(if rng.u8(..8) == 0 { rng.u32(..400) } else { 0 }.to_be_bytes());
            *msn += u32::from(last);
            if read {
                payload.clear();
                payload.extend(rng.u32(..).to_be_bytes());
                payload.extend(rng.u64(..).to_be_bytes());
                payload.extend(rng.u32(..5000).to_be_bytes());
                payload.extend(stag.to_be_bytes());
                payload.extend(at.to_be_bytes());
            }
        }
        segment.extend(payload);
        if rng.u8(..6) == 0 {
            let end = segment.len().min(32);
            segment[rng.usize(..end)] = rng.u8(..);
        }
        if rng.u8(..12) == 0 {
            segment.truncate(rng.usize(..segment.len()));
        }
        segment
    }

    /// Returns whether all memory that must not change is unchanged.
    fn untouched(&self) -> bool {
        let inbox = content(&self.inbox);
        let same = pattern(inbox.len(), 1);
        self.private.iter().all(|mr| content(mr) == pattern(4096, 1))
            && (0..RECEIVES).all(|i| {
                let guard = (2 * i + 1) * SLOT..(2 * i + 2) * SLOT;
                inbox[guard.clone()] == same[guard]
            })
    }
}

fn fpdu(segment: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut fpdu = (segment.len() as u16).to_be_bytes().to_vec();
    fpdu.extend(segment);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &fpdu));
    fpdu.extend(crc.to_le_bytes());
    if rng.u8(..30) == 0 {
        let at = rng.usize(..fpdu.len());
        fpdu[at] ^= 1 << rng.u8(..8);
    }
    fpdu
}

/// SEC-4, SEC-15: no action of one stream affects the memory or the streams of others.
#[test]
fn a_hostile_peer_reaches_nothing_that_it_was_not_granted() {
    let (mut refused, mut received) = (0, 0);
    for seed in 0..SEEDS {
        let rng = &mut Rng::with_seed(seed);
        let mut scene = scene();
        let (mut send_msn, mut read_msn) = (1, 1);
        let mut stream = Vec::new();
        for _ in 0..rng.usize(1..40) {
            let segment = scene.segment(rng, &mut send_msn, &mut read_msn);
            stream.extend(fpdu(&segment, rng));
        }
        if rng.u8(..4) == 0 {
            stream.truncate(rng.usize(1..=stream.len()));
        }
        let mut rest = &stream[..];
        while !rest.is_empty() && !scene.raw.borrow().seen.closed.iter().any(|(conn, _)| *conn == scene.conn)
        {
            let (now, later) = rest.split_at(rng.usize(1..=rest.len().min(2000)));
            rest = later;
            scene.raw.borrow_mut().send(scene.conn, now);
            for _ in 0..rng.usize(..6) {
                scene.simulation.step(LIMIT);
            }
            assert!(scene.untouched(), "seed {seed}");
        }
        if rng.bool() {
            scene.raw.borrow_mut().abort(scene.conn);
        } else {
            scene.raw.borrow_mut().close(scene.conn);
        }
        let reason = scene.victim.end(&mut scene.simulation);
        assert!(scene.untouched(), "seed {seed}: {reason:?}");
        let over = matches!(scene.victim.qp.state(), QpState::Terminate | QpState::Error);
        assert!(over, "seed {seed}");
        let done = scene.victim.completions();
        let ids: Vec<u64> = done.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3], "seed {seed}: {done:?}");
        refused += u32::from(reason == DisconnectReason::TerminateSent);
        received += done.iter().filter(|wc| wc.status == WcStatus::Success).count();
        works(&mut scene.simulation, &scene.server, &scene.client);
    }
    assert!(refused > 700 && received > 200, "{refused} refused, {received} received");
}
