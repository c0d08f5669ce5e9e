//! Regions and windows, as peers use them: which access they grant, how it is revoked, and in which order.

mod common;

use common::pages::Pages;
use common::*;
use urnic::simulation::Simulation;
use urnic::*;

const LEN: usize = 4096;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// A connection with memory at both ends.
struct Scene {
    simulation: Simulation,
    server: End,
    client: End,
    remote: Mr,
    local: Mr,
}

impl Scene {
    fn new(access: Access) -> Scene {
        let (simulation, server, client) = connected(&options());
        let remote = server.pd.alloc_mr(LEN, access).unwrap();
        let local = client.pd.alloc_mr(LEN, ALL).unwrap();
        remote.write_at(0, &pattern(LEN, 1)).unwrap();
        local.write_at(0, &pattern(LEN, 2)).unwrap();
        Scene { simulation, server, client, remote, local }
    }

    /// Writes `len` octets as the client to `addr` by `rkey`. A zero-length Read follows, whose completion shows that
    /// the octets have arrived.
    fn write(&mut self, addr: u64, rkey: u32, len: u32) -> WcStatus {
        self.client.post(1, SendOp::Write { addr, rkey }, &[Sge::of(&self.local, 0, len)]);
        self.client.post(2, SendOp::Read { addr: 0, rkey: 1 }, &[]);
        let first = self.client.next(&mut self.simulation);
        match first.status {
            WcStatus::Success => self.client.next(&mut self.simulation).status,
            other => other,
        }
    }

    fn read(&mut self, addr: u64, rkey: u32, len: u32) -> WcStatus {
        self.client.post(1, SendOp::Read { addr, rkey }, &[Sge::of(&self.local, 0, len)]);
        self.client.next(&mut self.simulation).status
    }

    /// Runs a request at the server to its end.
    fn run(&mut self, op: SendOp) -> WcStatus {
        self.server.post(9, op, &[]);
        let wc = self.server.next(&mut self.simulation);
        assert_eq!(wc.wr_id, 9);
        wc.status
    }

    /// Checks that a Terminate with these codes came from the server.
    fn refused(&mut self, codes: (u8, u8, u8)) {
        assert_eq!(self.client.end(&mut self.simulation), DisconnectReason::TerminateReceived);
        let t = self.client.qp.terminate().unwrap();
        assert_eq!((t.layer, t.etype, t.code), codes, "{t}");
    }

    /// Checks that the server's own request fails. First lets the server receive a message, because it must not send
    /// before.
    fn fails(&mut self, op: SendOp) {
        assert_eq!(self.read(0, 1, 0), WcStatus::Success);
        assert_eq!(self.run(op), WcStatus::MemoryManagement, "{op:?}");
        self.refused((0, 0, 0));
        assert_eq!(self.server.end(&mut self.simulation), DisconnectReason::TerminateSent);
    }

    /// Lets some time pass.
    fn settle(&mut self) {
        let limit = self.simulation.now() + std::time::Duration::from_millis(10);
        self.simulation.run(limit, || false);
    }
}

/// The program chooses the key of a window of type 2. The window lives from its binding until the peer invalidates it,
/// and can then be bound again.
#[test]
fn a_window_of_type_2_lives_until_it_is_invalidated() {
    let mut scene = Scene::new(Access::LOCAL_WRITE);
    let mw = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
    let addr = scene.remote.addr() + 100;
    let bind = |rkey, access| SendOp::BindMw { rkey, lkey: scene.remote.lkey(), addr, len: 50, access };
    let (rkey, next) = (mw.rkey() & !0xff | 0x42, mw.rkey() & !0xff | 0x43);
    let (first, second) = (
        bind(rkey, Access::REMOTE_WRITE | Access::REMOTE_READ),
        bind(next, Access::REMOTE_READ | Access::ZERO_BASED),
    );
    assert_eq!(scene.run(first), WcStatus::Success);
    assert_eq!(scene.write(addr, rkey, 50), WcStatus::Success);
    assert_eq!(scene.read(addr + 49, rkey, 1), WcStatus::Success);
    let inbox = scene.server.pd.alloc_mr(16, Access::LOCAL_WRITE).unwrap();
    scene.server.post_recv(3, &[Sge::of(&inbox, 0, 16)]);
    scene.client.post(4, SendOp::SendInv(rkey), &[Sge::of(&scene.local, 0, 16)]);
    let wc = scene.server.next(&mut scene.simulation);
    assert_eq!((wc.wr_id, wc.flags, wc.invalidated_rkey), (3, WcFlags::WITH_INV, rkey));
    assert_eq!(scene.client.next(&mut scene.simulation).status, WcStatus::Success);
    assert_eq!(scene.run(second), WcStatus::Success);
    assert_eq!(scene.read(0, next, 50), WcStatus::Success);
    assert_eq!(scene.run(SendOp::LocalInv(next)), WcStatus::Success);
    let before = content(&scene.remote);
    assert_eq!(scene.read(0, next, 50), WcStatus::RemoteAccess);
    scene.refused((0, 1, 0));
    assert!(content(&scene.remote) == before);
    assert_eq!(before[100..150], pattern(LEN, 2)[..50]);
    assert_eq!((&before[..100], &before[150..]), (&pattern(LEN, 1)[..100], &pattern(LEN, 1)[150..]));
}

/// A window of type 1 can be bound by a verbs call again and again. Each binding makes the former STag invalid.
#[test]
fn a_window_of_type_1_is_bound_again_and_again() {
    let mut scene = Scene::new(Access::LOCAL_WRITE);
    let mw = scene.server.pd.alloc_mw(MwKind::One).unwrap();
    let mut keys = Vec::new();
    for i in 0..4 {
        let bind = MwBind { mr: &scene.remote, offset: i * 1000, len: 10, access: Access::REMOTE_WRITE };
        let rkey = mw.bind(&scene.server.qp, i, SendFlags::SIGNALED, &bind).unwrap();
        assert_eq!(rkey, mw.rkey());
        let wc = scene.server.next(&mut scene.simulation);
        assert_eq!((wc.wr_id, wc.opcode, wc.status), (i, WcOpcode::BindMw, WcStatus::Success));
        assert_eq!(scene.write(scene.remote.addr() + i * 1000, rkey, 10), WcStatus::Success);
        assert!(!keys.contains(&rkey));
        keys.push(rkey);
    }
    let now = content(&scene.remote);
    for i in 0..4 {
        assert_eq!(now[i * 1000..][..10], pattern(LEN, 2)[..10]);
    }
    assert_eq!(scene.read(scene.remote.addr(), keys[3], 1), WcStatus::RemoteAccess, "no right to read");
    scene.refused((0, 1, 2));

    let mut scene = Scene::new(Access::LOCAL_WRITE);
    let mw = scene.server.pd.alloc_mw(MwKind::One).unwrap();
    let bind = MwBind { mr: &scene.remote, offset: 0, len: 10, access: Access::REMOTE_WRITE };
    let old = mw.bind(&scene.server.qp, 0, SendFlags::empty(), &bind).unwrap();
    let unbind = MwBind { len: 0, ..bind };
    mw.bind(&scene.server.qp, 1, SendFlags::SIGNALED, &unbind).unwrap();
    assert_eq!(scene.server.next(&mut scene.simulation).wr_id, 1);
    scene.remote.deregister().expect("nothing is bound");
    scene.remote = scene.server.pd.alloc_mr(LEN, ALL).unwrap();
    scene.write(scene.remote.addr(), old, 1);
    scene.refused((1, 1, 0));
}

/// SEC-2, SEC-3: an STag that is limited to one queue pair is of no use to other queue pairs of the same domain: their
/// peers cannot use it, and it cannot be their local memory. DDP-58.
#[test]
fn an_stag_of_one_stream_is_of_no_use_to_another() {
    for windowed in [true, false] {
        let mut scene = Scene::new(ALL);
        let mut other = scene.client.sibling(&scene.simulation.device(1));
        let mut other_server = scene.server.sibling(&scene.simulation.device(0));
        connect(&mut scene.simulation, &mut other_server, &mut other);
        let mw = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
        let (addr, len) = (scene.remote.addr(), LEN as u64);
        let rkey = if windowed {
            let (rkey, lkey) = (mw.fresh_rkey(), scene.remote.lkey());
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            assert_eq!(scene.run(SendOp::BindMw { rkey, lkey, addr, len, access }), WcStatus::Success);
            rkey
        } else {
            scene.remote.restrict_to(&scene.server.qp).unwrap();
            scene.remote.rkey()
        };
        assert_eq!(scene.write(addr, rkey, 1), WcStatus::Success);
        let before = content(&scene.remote);
        for (op, codes) in [
            (SendOp::Write { addr: addr + 1, rkey }, (1, 1, 2)),
            (SendOp::Read { addr, rkey }, (0, 1, 3)),
            (SendOp::SendInv(rkey), (0, 1, 9)),
        ] {
            other_server.post_recv(1, &[]);
            let len = if matches!(op, SendOp::SendInv(_)) { 0 } else { 1 };
            other.post(1, op, &[Sge::of(&scene.local, 0, len)]);
            assert_eq!(other.end(&mut scene.simulation), DisconnectReason::TerminateReceived);
            let t = other.qp.terminate().unwrap();
            assert_eq!((t.layer, t.etype, t.code), codes, "{op:?}");
            assert_eq!(other_server.end(&mut scene.simulation), DisconnectReason::TerminateSent);
            (other, other_server) = (
                scene.client.sibling(&scene.simulation.device(1)),
                scene.server.sibling(&scene.simulation.device(0)),
            );
            connect(&mut scene.simulation, &mut other_server, &mut other);
        }
        assert!(content(&scene.remote) == before);
        assert_eq!(scene.read(addr, rkey, 1), WcStatus::Success, "its own stream can use it");
        if !windowed {
            other.post_recv(1, &[]);
            other.post(2, SendOp::Send, &[]); // the responder waits for the first FPDU
            other_server.post_recv(2, &[]);
            assert_eq!(other_server.next(&mut scene.simulation).wr_id, 2);
            other_server.post(3, SendOp::Send, &[Sge::of(&scene.remote, 0, 1)]);
            assert_eq!(other_server.next(&mut scene.simulation).status, WcStatus::LocalProtection);
        }
    }
}

/// A window is unbound when its queue pair is destroyed. Until then, its region cannot be deregistered.
#[test]
fn a_region_with_windows_is_not_deregistered() {
    let mut scene = Scene::new(Access::LOCAL_WRITE);
    let mw = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
    let (rkey, lkey, addr) = (mw.fresh_rkey(), scene.remote.lkey(), scene.remote.addr());
    let bind = SendOp::BindMw { rkey, lkey, addr, len: 1, access: Access::REMOTE_READ };
    assert_eq!(scene.run(bind), WcStatus::Success);
    assert!(matches!(scene.remote.revoke(), Err(Error::WindowsBound(1))));
    // SAFETY: there are no references to the memory.
    let changed = unsafe { scene.remote.rereg(&Rereg { access: Some(ALL), ..Rereg::default() }) };
    assert!(matches!(changed, Err(Error::WindowsBound(1))));
    let (remote, error) = scene.remote.deregister().unwrap_err();
    assert!(matches!(error, Error::WindowsBound(1)));
    drop(scene.server.qp);
    remote.deregister().expect("the window is gone with its queue pair");
}

/// The next peer of a queue pair gets none of the last peer's grants: reusing the queue pair revokes its windows and
/// limited regions.
#[test]
fn the_next_peer_inherits_nothing() {
    let mut scene = Scene::new(ALL);
    let mw = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
    let limited = scene.server.pd.alloc_mr(LEN, ALL).unwrap();
    limited.restrict_to(&scene.server.qp).unwrap();
    let (rkey, lkey, addr) = (mw.fresh_rkey(), scene.remote.lkey(), scene.remote.addr());
    let access = Access::REMOTE_READ;
    assert_eq!(scene.run(SendOp::BindMw { rkey, lkey, addr, len: 8, access }), WcStatus::Success);
    assert_eq!(scene.read(addr, rkey, 8), WcStatus::Success);
    assert_eq!(scene.read(limited.addr(), limited.rkey(), 8), WcStatus::Success);
    scene.server.qp.to_error();
    scene.client.end(&mut scene.simulation);
    for (addr, rkey, code) in [(addr, rkey, 0), (limited.addr(), limited.rkey(), 3)] {
        scene.server.qp.to_error();
        scene.server.qp.to_idle().unwrap();
        scene.settle();
        while scene.server.events.poll().is_some() {}
        let mut next = scene.client.sibling(&scene.simulation.device(1));
        connect(&mut scene.simulation, &mut scene.server, &mut next);
        next.post(1, SendOp::Read { addr, rkey }, &[Sge::of(&scene.local, 0, 8)]);
        assert_eq!(next.next(&mut scene.simulation).status, WcStatus::RemoteAccess);
        assert_eq!(next.qp.terminate().map(|t| (t.layer, t.etype, t.code)), Some((0, 1, code)));
        scene.settle();
    }
    scene.server.qp.to_error();
    scene.server.qp.to_idle().unwrap();
    scene.settle();
    while scene.server.events.poll().is_some() {}
    let mut next = scene.client.sibling(&scene.simulation.device(1));
    connect(&mut scene.simulation, &mut scene.server, &mut next);
    limited.restrict_to(&scene.server.qp).unwrap();
    next.post(1, SendOp::Read { addr: limited.addr(), rkey: limited.rkey() }, &[Sge::of(&scene.local, 0, 8)]);
    assert_eq!(next.next(&mut scene.simulation).status, WcStatus::Success);
}

/// Each faulty request that concerns memory ends the connection to which it was posted.
#[test]
fn bindings_and_registrations_are_checked() {
    let access = Access::REMOTE_WRITE;
    let bad: &[fn(&Scene, &Mw) -> SendOp] = &[
        |s, _| SendOp::LocalInv(s.remote.lkey() ^ 1),
        |s, _| SendOp::LocalInv(s.client.pd.alloc_mr(1, Access::empty()).unwrap().lkey()),
        |s, mw| SendOp::BindMw {
            rkey: mw.rkey(),
            lkey: s.remote.lkey() ^ 1,
            addr: s.remote.addr(),
            len: 1,
            access: Access::REMOTE_READ,
        },
        |s, mw| SendOp::BindMw {
            rkey: mw.rkey(),
            lkey: s.remote.lkey(),
            addr: s.remote.addr() + LEN as u64,
            len: 1,
            access: Access::REMOTE_READ,
        },
        |s, mw| SendOp::BindMw {
            rkey: mw.rkey(),
            lkey: s.remote.lkey(),
            addr: s.remote.addr(),
            len: 1,
            access: Access::REMOTE_WRITE,
        },
        |s, _| SendOp::RegMr {
            key: s.remote.lkey(),
            addr: s.remote.addr(),
            len: 1,
            access: Access::REMOTE_READ,
        },
    ];
    for op in bad {
        // This region lacks `LOCAL_WRITE`, so the device refuses windows for writing.
        let mut scene = Scene::new(Access::REMOTE_READ);
        let mw = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
        let op = op(&scene, &mw);
        scene.fails(op);
    }
    let scene = Scene::new(ALL);
    let sges = [Sge::of(&scene.remote, 0, 1)];
    let op = SendOp::BindMw { rkey: 0, lkey: 0, addr: 0, len: 0, access };
    let wr = SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::empty() };
    assert_eq!(scene.server.qp.post_send(&wr), Err(PostError::TooManySges));
    assert!(scene.remote.restrict_to(&scene.client.qp).is_err());
}

/// Requests that concern memory take effect in order: earlier requests still move their data, and later requests find
/// the new state. With a fence, an invalidation waits for Reads. Without a fence, the Read fails.
#[test]
fn invalidations_take_their_turn() {
    let mut scene = Scene::new(ALL);
    let sink = scene.client.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let (addr, rkey) = (scene.remote.addr(), scene.remote.rkey());
    let all = [Sge::of(&sink, 0, LEN as u32)];
    let post = |scene: &Scene, wr_id, op, sges: &[Sge], flags| {
        let flags = flags | SendFlags::SIGNALED;
        scene.client.qp.post_send(&SendWr { wr_id, op, sges, flags }).unwrap();
    };
    let key = sink.lkey() & !0xff | (sink.lkey() + 1) & 0xff;
    let (at, len) = (sink.addr(), LEN as u64);
    let rest = SendFlags::empty();
    post(&scene, 1, SendOp::Read { addr, rkey }, &all, rest);
    post(&scene, 2, SendOp::LocalInv(sink.lkey()), &[], SendFlags::FENCE);
    post(&scene, 3, SendOp::RegMr { key, addr: at, len, access: Access::LOCAL_WRITE }, &[], rest);
    post(&scene, 4, SendOp::Write { addr, rkey }, &[Sge { lkey: key, ..all[0] }], rest);
    post(&scene, 5, SendOp::LocalInv(key), &[], rest);
    let opcodes = [WcOpcode::Read, WcOpcode::LocalInv, WcOpcode::RegMr, WcOpcode::Write, WcOpcode::LocalInv];
    for (i, opcode) in opcodes.into_iter().enumerate() {
        let wc = scene.client.next(&mut scene.simulation);
        assert_eq!((wc.wr_id, wc.opcode, wc.status), (i as u64 + 1, opcode, WcStatus::Success));
    }
    assert!(content(&sink) == pattern(LEN, 1));
    // Without a fence, the response finds no sink. The invalidation takes effect although the Read fails.
    let sink = scene.client.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    post(&scene, 1, SendOp::Read { addr, rkey }, &[Sge::of(&sink, 0, LEN as u32)], rest);
    post(&scene, 2, SendOp::LocalInv(sink.lkey()), &[], rest);
    let got = [0; 2].map(|_| scene.client.next(&mut scene.simulation));
    assert_eq!(got.map(|wc| wc.wr_id), [1, 2]);
    assert_eq!(got.map(|wc| wc.status), [WcStatus::LocalProtection, WcStatus::Flushed]);
    assert!(content(&sink) == [0; LEN]);
    assert_eq!(scene.server.end(&mut scene.simulation), DisconnectReason::TerminateReceived);
}

/// A Responder must wait for the first FPDU before it sends (MPA-70), but not before it binds.
#[test]
fn a_responder_binds_before_it_may_send() {
    let mut scene = Scene::new(ALL);
    let key = scene.remote.lkey();
    assert_eq!(scene.run(SendOp::LocalInv(key)), WcStatus::Success);
    let mut scene = Scene::new(ALL);
    assert_eq!(scene.run(SendOp::LocalInv(key ^ 1)), WcStatus::MemoryManagement);
    scene.server.end(&mut scene.simulation);
    assert_eq!(scene.client.end(&mut scene.simulation), DisconnectReason::Peer, "no Terminate yet (MPA-92)");
}

/// SEC-5: rights, memory and domain can be set and revoked. A revoked STag is invalid. DDP-59.
#[test]
fn regions_are_registered_anew() {
    let memory = vec![7u8; 2 * LEN];
    let base = memory.as_ptr().cast_mut();
    let mut scene = Scene::new(ALL);
    // SAFETY: `memory` outlives the regions, and no references to it are used meanwhile.
    let mut mr = unsafe { scene.server.pd.reg_mr(base, LEN, ALL) }.unwrap();
    let first = mr.rkey();
    assert_eq!(scene.write(mr.addr(), first, 3), WcStatus::Success);
    let read_only = Rereg { access: Some(Access::REMOTE_READ), ..Rereg::default() };
    // SAFETY: as above, including the second half.
    unsafe {
        mr.rereg(&read_only).unwrap();
        assert_eq!((mr.access(), mr.addr(), mr.len()), (Access::REMOTE_READ, base as u64, LEN as u64));
        assert_eq!(scene.read(mr.addr(), mr.rkey(), 3), WcStatus::Success);
        let elsewhere = Rereg { memory: Some((base.add(LEN), LEN)), ..Rereg::default() };
        mr.rereg(&elsewhere).unwrap();
        assert_eq!(mr.as_ptr(), base.add(LEN));
        assert_eq!(scene.read(mr.addr(), mr.rkey(), 3), WcStatus::Success);
        assert_eq!(scene.local.load_u8(0).unwrap(), 7);
        let wrong = Rereg { access: Some(Access::REMOTE_WRITE), ..Rereg::default() };
        assert!(matches!(mr.rereg(&wrong), Err(Error::Invalid(_))));
        assert_eq!(scene.read(mr.addr(), mr.rkey(), 3), WcStatus::Success, "as it was");
        let own = scene.server.pd.clone();
        let other = Rereg { pd: Some(&scene.client.pd), ..Rereg::default() };
        assert!(matches!(mr.rereg(&other), Err(Error::Invalid(_))), "of another device");
        let pd = scene.simulation.device(0).alloc_pd();
        mr.rereg(&Rereg { pd: Some(&pd), ..Rereg::default() }).unwrap();
        let status = scene.read(mr.addr(), mr.rkey(), 3);
        assert_eq!(status, WcStatus::RemoteAccess);
        scene.refused((0, 1, 3));
        // The device's own memory keeps its content if `rereg` does not change the memory.
        let mut own = own.alloc_mr(LEN, ALL).unwrap();
        own.write_at(5, b"kept").unwrap();
        own.rereg(&read_only).unwrap();
        assert_eq!(content(&own)[5..9], *b"kept");
    }
    // A right, the former memory and the former key are refused, and the memory stays as it is.
    // SAFETY: inside the vector; volatile, because the device has written to it.
    let octets = || (0..2 * LEN).map(|i| unsafe { base.add(i).read_volatile() }).collect::<Vec<u8>>();
    let before = octets();
    let elsewhere = Rereg { memory: Some((base.wrapping_add(LEN), LEN)), ..Rereg::default() };
    for (what, change, old_key, codes) in [
        ("a right", &read_only, false, (1, 1, 0)),
        ("the key", &read_only, true, (1, 1, 0)),
        ("the memory", &elsewhere, false, (1, 1, 1)),
        ("nothing", &Rereg::default(), false, (0, 0, 0)),
    ] {
        let mut scene = Scene::new(ALL);
        // SAFETY: as above, including the second half.
        let mut mr = unsafe { scene.server.pd.reg_mr(base, LEN, ALL) }.unwrap();
        let (addr, first) = (mr.addr(), mr.rkey());
        // SAFETY: as above.
        unsafe { mr.rereg(change) }.unwrap();
        let status = scene.write(addr, if old_key { first } else { mr.rkey() }, 9);
        if what == "nothing" {
            assert_eq!(status, WcStatus::Success);
            assert!(octets()[..9] == pattern(LEN, 2)[..9]);
        } else {
            scene.refused(codes);
            assert!(octets() == before, "{what}");
        }
    }
    let mut scene = Scene::new(ALL);
    let (addr, rkey) = (scene.remote.addr(), scene.remote.rkey());
    scene.remote.revoke().unwrap();
    scene.write(addr, rkey, 1);
    scene.refused((1, 1, 0));
    assert!(content(&scene.remote) == pattern(LEN, 1));
}

/// Offsets of a region may begin at 0 or at any other value. The peer uses these offsets, and so do local requests with
/// inline data.
#[test]
fn regions_have_offsets_of_their_own() {
    let memory = pattern(LEN, 5);
    let base = memory.as_ptr().cast_mut();
    for first in [0, 1 << 63, u64::MAX - LEN as u64, 0x1234_5678] {
        let mut scene = Scene::new(ALL);
        // SAFETY: `memory` outlives the region, and no references to it are used meanwhile.
        let mr = unsafe {
            match first {
                0 => scene.server.pd.reg_mr(base, LEN, ALL | Access::ZERO_BASED),
                _ => scene.server.pd.reg_mr_iova(base, LEN, first, ALL),
            }
        }
        .unwrap();
        assert_eq!((mr.addr(), mr.as_ptr()), (first, base));
        assert_eq!(scene.write(first + 10, mr.rkey(), 10), WcStatus::Success);
        assert_eq!(content(&mr)[10..20], pattern(LEN, 2)[..10]);
        scene.client.post_recv(1, &[Sge::of(&scene.local, 0, 4)]);
        let wr = SendWr {
            wr_id: 2,
            op: SendOp::Send,
            sges: &[Sge::of(&mr, 20, 4)],
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
        };
        scene.server.qp.post_send(&wr).unwrap();
        assert_eq!(scene.client.next(&mut scene.simulation).wr_id, 1);
        assert_eq!(content(&scene.local)[..4], content(&mr)[20..24]);
        let status = scene.read(first + LEN as u64 - 1, mr.rkey(), 2);
        assert_eq!(status, WcStatus::RemoteAccess);
        // SAFETY: as above; these are refused.
        unsafe {
            let wraps = scene.server.pd.reg_mr_iova(base, LEN, u64::MAX - 10, ALL);
            assert!(matches!(wraps, Err(Error::Invalid(_))));
            let both = scene.server.pd.reg_mr_iova(base, LEN, 5, ALL | Access::ZERO_BASED);
            assert!(matches!(both, Err(Error::Invalid(_))));
        }
    }
}

/// Offsets may exceed 32 bits. The region has 5 GiB of addresses, which map the same 16 MiB again and again.
#[test]
fn a_region_may_be_larger_than_4_gib() {
    const PIECE: usize = 16 << 20;
    const SIZE: usize = 5 << 30;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a reservation, and a file mapped over all of it.
    let base = unsafe {
        let file = libc::memfd_create(c"piece".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, PIECE as i64), 0);
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_NONE, none, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        for at in (0..SIZE).step_by(PIECE) {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            let piece = libc::mmap(base.byte_add(at), PIECE, protection, flags, file, 0);
            assert_ne!(piece, libc::MAP_FAILED);
        }
        libc::close(file);
        base.cast::<u8>()
    };
    let mut scene = Scene::new(ALL);
    // SAFETY: mapped, without references to it.
    let mr = unsafe { scene.server.pd.reg_mr(base, SIZE, ALL) }.unwrap();
    let window = scene.server.pd.alloc_mw(MwKind::Two).unwrap();
    let (rkey, lkey) = (window.fresh_rkey(), mr.lkey());
    let offset = (4u64 << 30) + 12_345;
    let bind = SendOp::BindMw { rkey, lkey, addr: mr.addr(), len: SIZE as u64, access: Access::REMOTE_WRITE };
    assert_eq!(scene.run(bind), WcStatus::Success);
    for (rkey, from) in [(mr.rkey(), 0), (rkey, 1000)] {
        scene.local.write_at(0, &pattern(1000, from)).unwrap();
        assert_eq!(scene.write(mr.addr() + offset, rkey, 1000), WcStatus::Success);
        let mut got = vec![0; 1000];
        mr.read_at(12_345, &mut got).unwrap();
        assert_eq!(got, pattern(1000, from), "the octets are not at this offset of the pieces");
    }
    assert_eq!(scene.read(mr.addr() + offset, mr.rkey(), 1000), WcStatus::Success);
    assert_eq!(scene.read(mr.addr() + SIZE as u64 - 1, mr.rkey(), 2), WcStatus::RemoteAccess);
    drop(window);
    mr.deregister().expect("nothing is bound");
    // SAFETY: the mapping is ours, and no longer registered.
    unsafe { libc::munmap(base.cast(), SIZE) };
}

/// Checks each right alone, and both (SEC-6). Memory without a right reveals nothing. An access to zero bytes needs no
/// right (SEC-25). DDP-59.
#[test]
fn rights_are_enforced_one_by_one() {
    let (none, write, read) = (Access::empty(), Access::REMOTE_WRITE, Access::REMOTE_READ);
    for rights in [none, write, read, write | read] {
        for (need, len) in [(write, 1), (read, 1), (write, 0), (read, 0)] {
            let mut scene = Scene::new(Access::LOCAL_WRITE | rights);
            let (addr, rkey) = (scene.remote.addr(), scene.remote.rkey());
            let place = format!("{rights:?} {need:?} {len}");
            let local = content(&scene.local);
            let status =
                if need == write { scene.write(addr, rkey, len) } else { scene.read(addr, rkey, len) };
            if rights.contains(need) || len == 0 {
                assert_eq!(status, WcStatus::Success, "{place}");
            } else {
                assert_ne!(status, WcStatus::Success, "{place}");
                scene.refused(if need == write { (1, 1, 0) } else { (0, 1, 2) });
                assert!(
                    content(&scene.remote) == pattern(LEN, 1) && content(&scene.local) == local,
                    "{place}"
                );
            }
        }
    }
}

/// SEC-7, in virtual time: a peer floods a region with Writes, and the program takes the region back in every way, at
/// many moments. After that the memory does not change. DDP-59.
#[test]
fn nothing_changes_memory_that_was_taken_back() {
    const BIG: usize = 16 << 10;
    const FLOOD: usize = 20;
    let mut caught = 0;
    for (way, steps) in (0..4).flat_map(|way| (0..60).map(move |steps| (way, steps))) {
        let mut scene = Scene::new(ALL);
        let memory = Pages::new(BIG);
        let mut mr = memory.register(&scene.server.pd, ALL);
        let source = scene.client.pd.alloc_mr(FLOOD * BIG, Access::empty()).unwrap();
        for i in 0..FLOOD {
            source.write_at((i * BIG) as u64, &vec![i as u8 + 1; BIG]).unwrap();
            let op = SendOp::Write { addr: mr.addr(), rkey: mr.rkey() };
            scene.client.post(i as u64, op, &[Sge::of(&source, (i * BIG) as u64, BIG as u32)]);
        }
        for _ in 0..steps {
            scene.simulation.step(LIMIT);
        }
        match way {
            0 => drop(mr),
            1 => mr.revoke().unwrap(),
            2 => assert_eq!(scene.run(SendOp::LocalInv(mr.lkey())), WcStatus::Success),
            _ => {
                let access = Some(Access::REMOTE_READ);
                // SAFETY: there are no references to the memory.
                unsafe { mr.rereg(&Rereg { access, ..Rereg::default() }) }.unwrap();
            }
        }
        let then = memory.content();
        scene.settle();
        assert!(memory.content() == then, "way {way} after {steps} steps");
        caught += u32::from(then[0] > 0 && then[BIG - 1] < FLOOD as u8);
        let t = scene.server.qp.terminate();
        assert_eq!(t.is_some(), then[BIG - 1] < FLOOD as u8, "way {way} after {steps} steps: {t:?}");
    }
    assert!(caught > 60, "in the middle of the flood {caught} times only");
}

/// A binding that could not be posted leaves the window its STag, under which peers may still use it.
#[test]
fn a_binding_that_is_not_posted_leaves_the_window_its_stag() {
    let simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let end = End::new(&device);
    let mr = end.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let mw = end.pd.alloc_mw(MwKind::One).unwrap();
    let before = mw.rkey();
    end.qp.to_error();
    let bind = MwBind { mr: &mr, offset: 0, len: 64, access: Access::REMOTE_READ };
    let mut posted = 0;
    while let Ok(rkey) = mw.bind(&end.qp, posted, SendFlags::empty(), &bind) {
        assert_ne!(rkey, before);
        posted += 1;
        assert!(posted < 1000, "the send queue is never full");
    }
    let kept = mw.rkey();
    assert!(mw.bind(&end.qp, posted, SendFlags::empty(), &bind).is_err());
    assert_eq!(mw.rkey(), kept);
}
