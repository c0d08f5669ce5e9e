//! Order and completion of an RNIC's messages, as a peer sees them on the wire: RFC 5040 §5.5, and RFC 7306 §5.4
//! and §7.

mod common;
#[path = "common/peer.rs"]
mod peer;

use common::*;
use peer::support::{fpdu, read_header, tagged, untagged};
use peer::*;
use std::time::Duration;
use urnic::simulation::Impairment;
use urnic::*;

/// Returns the opcodes of the segments that the peer has received.
fn opcodes(s: &Scene) -> Vec<u8> {
    ulpdus(&s.heard()).iter().map(|u| u[1] & 0x0F).collect()
}

/// Lets time pass.
fn pass(s: &mut Scene) {
    let limit = s.simulation.now() + Duration::from_secs(2);
    assert!(!s.simulation.run(limit, || false));
}

/// Makes Atomic Response number `msn`. It answers request 2 * `msn`, because Reads and Atomics alternate and are
/// numbered together.
fn word(msn: u32) -> Vec<u8> {
    untagged(0x41, 0x4B, 3, msn, 0, &[&(2 * msn).to_be_bytes()[..], &[0; 8]].concat())
}

/// DDP-34, RDMAP-24, 30, 42, 60, RDMAPX-13, 22: requests of all kinds are sent in the order of posting. RDMAP-67: the
/// RNIC sends only RDMA messages. RDMAP-62, 64, RDMAPX-18: completions come in the same order, and an unanswered Read
/// or Atomic holds up the completions of later requests. RDMAP-37.
#[test]
fn requests_go_out_and_complete_in_order() {
    let mut s = scene();
    let sge = [Sge::of(&s.inbox, 0, 8)];
    let (addr, rkey) = (0x1000, 7);
    for (i, op) in [
        SendOp::Write { addr, rkey },
        SendOp::Send,
        SendOp::Read { addr, rkey },
        SendOp::SendInv(9),
        SendOp::FetchAdd { addr, rkey, add: 1 },
        SendOp::WriteImm { addr, rkey, imm: 5 },
        SendOp::Write { addr, rkey },
    ]
    .into_iter()
    .enumerate()
    {
        s.end.post(i as u64, op, &sge);
    }
    pass(&mut s);
    assert_eq!(opcodes(&s), [0, 3, 1, 4, 10, 0, 8, 0]);
    let msns: Vec<(u32, u32)> = ulpdus(&s.heard())
        .iter()
        .filter(|u| u[0] & 0x80 == 0)
        .map(|u| {
            let field = |at: usize| u32::from_be_bytes(u[at..at + 4].try_into().unwrap());
            (field(6), field(10))
        })
        .collect();
    assert_eq!(msns, [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]); // DDP-24, RDMAPX-9
    let ids = |s: &Scene| s.statuses().iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>();
    assert_eq!(ids(&s), [0, 1]);
    // The answer has two segments, and only the segment with L completes the Read.
    let (stag, to) = (s.inbox.rkey(), s.inbox.addr());
    s.say(&[tagged(0x81, 0x42, stag, to, &[3; 5])]);
    pass(&mut s);
    assert_eq!(ids(&s), []);
    s.say(&[tagged(0xC1, 0x42, stag, to + 5, &[4; 3])]);
    pass(&mut s);
    assert_eq!(ids(&s), [2, 3]);
    assert_eq!(content(&s.inbox)[..8], [3, 3, 3, 3, 3, 4, 4, 4]);
    s.say(&[word(1)]);
    pass(&mut s);
    assert_eq!(ids(&s), [4, 5, 6]);
}

/// RDMAP-68, 69, RDMAP-70: at most the agreed number of Reads and Atomics is unanswered at a time. Further Reads and
/// Atomics wait, and requests behind them too; each answer releases one Read or Atomic (RDMAP-65, RDMAPX-9).
#[test]
fn reads_and_atomics_wait_for_ord() {
    let mut s = scene();
    let (addr, rkey) = (0x1000, 7);
    let sge = [Sge::of(&s.inbox, 0, 8)];
    for i in 0..3 {
        s.end.post(2 * i, SendOp::Read { addr, rkey }, &sge);
        s.end.post(2 * i + 1, SendOp::FetchAdd { addr, rkey, add: 1 }, &sge);
    }
    s.end.post(6, SendOp::Send, &[]);
    let (stag, to) = (s.inbox.rkey(), s.inbox.addr());
    let mut expected = vec![1, 10];
    for turn in 0..6 {
        pass(&mut s);
        assert_eq!(opcodes(&s), expected, "turn {turn}");
        assert_eq!(s.statuses().len(), usize::from(turn > 0));
        expected.extend(match turn {
            0 | 2 => vec![1],
            1 | 3 => vec![10],
            _ => vec![],
        });
        if turn == 3 {
            // The Send had waited only for the last Atomic.
            expected.push(3);
        }
        if turn % 2 == 0 {
            s.say(&[tagged(0xC1, 0x42, stag, to, &[1; 8])]);
        } else {
            s.say(&[word(turn / 2 + 1)]);
        }
    }
    pass(&mut s);
    assert_eq!(s.statuses(), [(5, WcStatus::Success), (6, WcStatus::Success)]);
}

/// A fence holds back its request until all earlier Reads and Atomics are answered (RDMAP-59).
#[test]
fn a_fence_waits() {
    let (addr, rkey) = (0x1000, 7);
    for (op, sent) in [
        (SendOp::WriteImm { addr, rkey, imm: 1 }, &[0, 8][..]),
        (SendOp::Write { addr, rkey }, &[0]),
        (SendOp::Send, &[3]),
    ] {
        let mut s = scene();
        let sges = [Sge::of(&s.inbox, 0, 8)];
        s.end.post(1, SendOp::FetchAdd { addr, rkey, add: 1 }, &sges);
        let flags = SendFlags::FENCE | SendFlags::SIGNALED;
        s.end.qp.post_send(&SendWr { wr_id: 2, op, sges: &sges, flags }).unwrap();
        pass(&mut s);
        assert_eq!(opcodes(&s), [10]);
        let result = [&1u32.to_be_bytes()[..], &77u64.to_be_bytes()].concat();
        s.say(&[untagged(0x41, 0x4B, 3, 1, 0, &result)]);
        pass(&mut s);
        assert_eq!(opcodes(&s), [&[10], sent].concat());
        let message = &ulpdus(&s.heard())[1];
        assert!(message.ends_with(&77u64.to_ne_bytes()), "{message:?}");
    }
}

/// Answers and requests go in turn if both wait (SEC-19), and a Send tells whether it is solicited (RDMAP-8). Both wait
/// here because this side must be silent before the peer's first FPDU (MPA-70).
#[test]
fn answers_and_requests_take_turns() {
    for inline in [false, true] {
        let mut s = silent_scene();
        let sges = [Sge::of(&s.inbox, 0, 8)];
        let how = if inline { SendFlags::INLINE } else { SendFlags::empty() };
        for (wr_id, flags) in [(1, SendFlags::empty()), (2, SendFlags::SOLICITED), (3, SendFlags::empty())] {
            let wr = SendWr { wr_id, op: SendOp::Send, sges: &sges, flags: flags | how };
            s.end.qp.post_send(&wr).unwrap();
        }
        let (stag, at) = (s.all.rkey(), s.all.addr() + 8);
        let header = [&[0; 4][..], &1u32.to_be_bytes(), &stag.to_be_bytes(), &at.to_be_bytes()].concat();
        let atomic = untagged(0x41, 0x4A, 1, 2, 0, &[&header[..], &[0; 32]].concat());
        s.say(&[untagged(0x41, 0x41, 1, 1, 0, &read_header((0xABCD, 3), 8, (stag, at))), atomic]);
        pass(&mut s);
        assert_eq!(opcodes(&s), [3, 2, 5, 11, 3], "inline: {inline}");
    }
}

/// A message is one FPDU if its ULPDU has at most MULPDU octets (DDP-27), and a request of the peer is answered alike.
#[test]
fn a_message_is_one_fpdu_up_to_the_mulpdu() {
    let mut s = scene();
    let source = s.end.pd.alloc_mr(4096, Access::REMOTE_READ).unwrap();
    s.end.post(0, SendOp::Send, &[Sge::of(&source, 0, 4096)]);
    pass(&mut s);
    let mut seen = ulpdus(&s.heard());
    let mulpdu = seen[0].len();
    let (addr, rkey) = (source.addr(), source.rkey());
    for extra in [-1, 0, 1] {
        for (i, (op, header)) in
            [(Some(SendOp::Send), 18), (Some(SendOp::Write { addr, rkey }), 14), (None, 14)]
                .into_iter()
                .enumerate()
        {
            let len = (mulpdu - header).checked_add_signed(extra).unwrap() as u32;
            match op {
                Some(op) => s.end.post(i as u64, op, &[Sge::of(&source, 0, len)]),
                None => {
                    let header = read_header((1, 0), len, (rkey, addr));
                    s.say(&[untagged(0x41, 0x41, 1, (extra + 2) as u32, 0, &header)]);
                }
            }
            pass(&mut s);
            let all = ulpdus(&s.heard());
            let lengths: Vec<usize> = all[seen.len()..].iter().map(Vec::len).collect();
            let expected = if extra == 1 { vec![mulpdu, header + 1] } else { vec![header + len as usize] };
            assert_eq!(lengths, expected, "{op:?} of {len} octets");
            seen = all;
        }
    }
}

/// A request whose memory is not ours leaves nothing in the segment that holds the requests before it (ERR-44).
#[test]
fn a_local_fault_behind_short_messages() {
    // All wait until the peer's first FPDU (MPA-70), and leave in one turn.
    let mut s = silent_scene();
    let ours = [Sge::of(&s.inbox, 0, 8)];
    let foreign = [Sge::of(&s.foreign, 0, 8)];
    for (wr_id, sges) in [(1, &ours), (2, &ours), (3, &foreign), (4, &ours)] {
        s.end.post(wr_id, SendOp::Send, sges);
    }
    s.say(&[tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[1; 8])]);
    pass(&mut s);
    assert_eq!(opcodes(&s), [3, 3, 7]);
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::Success),
        (3, WcStatus::LocalProtection),
        (4, WcStatus::Flushed),
    ];
    assert_eq!(s.statuses(), expected);
}

/// RDMAP-58, RDMAP-66, RDMAPX-19, 25: a peer's Read or Atomic sees all data that the peer sent before it. The RNIC
/// answers in order (RDMAP-30, 32, 38, RDMAPX-14). The answer names its destination by the peer's STag and offset
/// (RDMAP-14, 15). The RNIC's program gets no completion for the peer's request, and loses no receive (RDMAP-23, 29,
/// RDMAPX-11). RDMAP-65.
#[test]
fn what_the_peer_asks_is_answered_in_order() {
    let mut s = scene();
    s.post_receive(10);
    let (stag, at) = (s.all.rkey(), s.all.addr() + 8);
    let add = |msn: u32, id: u32| {
        let mut header = [&[0; 4][..], &id.to_be_bytes(), &stag.to_be_bytes(), &at.to_be_bytes()].concat();
        header.extend([&1u64.to_be_bytes()[..], &[0; 16], &[0xFF; 8]].concat());
        untagged(0x41, 0x4A, 1, msn, 0, &header)
    };
    let read =
        |msn: u32, len: u32| untagged(0x41, 0x41, 1, msn, 0, &read_header((0xABCD, 3), len, (stag, at)));
    s.say(&[tagged(0xC1, 0x40, stag, at, &41u64.to_ne_bytes()), read(1, 8), add(2, 1001)]);
    pass(&mut s);
    s.say(&[add(3, 1002), read(4, 7)]);
    pass(&mut s);
    s.say(&[tagged(0xC1, 0x40, stag, at, &99u64.to_ne_bytes()), read(5, 0), read(6, 8)]);
    pass(&mut s);
    let result = |msn: u32, id: u32, value: u64| {
        untagged(0x41, 0x4B, 3, msn, 0, &[&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
    };
    let answers = [
        tagged(0xC1, 0x42, 0xABCD, 3, &41u64.to_ne_bytes()),
        result(1, 1001, 41),
        result(2, 1002, 42),
        tagged(0xC1, 0x42, 0xABCD, 3, &43u64.to_ne_bytes()[..7]),
        tagged(0xC1, 0x42, 0xABCD, 3, &[]),
        tagged(0xC1, 0x42, 0xABCD, 3, &99u64.to_ne_bytes()),
    ];
    assert_eq!(ulpdus(&s.heard()), answers);
    assert_eq!(s.end.completions(), []);
    // A Send overtakes a Read that is not answered yet (RDMAP-63, RDMAPX-20).
    s.say(&[read(7, 8), untagged(0x41, 0x43, 0, 1, 0, &[1; 4])]);
    let wc = s.end.next(&mut s.simulation);
    assert_eq!((wc.wr_id, wc.byte_len), (10, 4));
}

/// RDMAP-36, RDMAPX-15: the RNIC serves as many requests at once as IRD allows, again and again.
#[test]
fn ird_requests_at_once() {
    let mut s = scene();
    let (stag, at) = (s.all.rkey(), s.all.addr());
    for round in 0..20 {
        let read = |n: u32| {
            let msn = 2 * round + n + 1;
            untagged(0x41, 0x41, 1, msn, 0, &read_header((1, 0), 100, (stag, at)))
        };
        s.say(&[read(0), read(1)]);
        let answer = fpdu(&tagged(0xC1, 0x42, 1, 0, &[0; 100]));
        s.hears(2 * (round as usize + 1) * answer.len());
    }
    assert!(s.end.qp.terminate().is_none());
}

/// Every segment of a large answer names the place of its own octets, and only the last segment has L (DDP-12, 20,
/// RDMAP-2, 27, 35).
#[test]
fn a_large_read_is_answered_in_segments() {
    let mut s = scene();
    let big = s.end.pd.alloc_mr(10_000, Access::REMOTE_READ).unwrap();
    big.write_at(0, &pattern(10_000, 5)).unwrap();
    let header = read_header((0xABCD, u64::MAX - 4000), 10_000, (big.rkey(), big.addr()));
    s.say(&[untagged(0x41, 0x41, 1, 1, 0, &header)]);
    pass(&mut s);
    let mut octets = Vec::<u8>::new();
    let all = ulpdus(&s.heard());
    for (i, u) in all.iter().enumerate() {
        let control = if i + 1 == all.len() { 0xC1 } else { 0x81 };
        assert_eq!(u[..6], [control, 0x42, 0, 0, 0xAB, 0xCD]);
        let to = u64::from_be_bytes(u[6..14].try_into().unwrap());
        assert_eq!(to, (u64::MAX - 4000).wrapping_add(octets.len() as u64));
        octets.extend(&u[14..]);
    }
    assert!(all.len() > 5 && octets == pattern(10_000, 5));
}

/// RDMAP-61, DDP-38: a request is not complete while TCP cannot take its whole message. It is complete when TCP has the
/// whole message, even if the peer has not read it.
#[test]
fn what_tcp_has_not_taken_is_not_complete() {
    let mut s = scene();
    let big = s.end.pd.alloc_mr(4 << 20, Access::empty()).unwrap();
    let deaf = Impairment { loss: 1.0, ..Impairment::default() };
    s.simulation.network().link_mut(0, 1).unwrap().set_impairment(&deaf);
    s.end.post(1, SendOp::Write { addr: 0, rkey: 7 }, &[Sge::of(&big, 0, 8)]);
    s.end.post(2, SendOp::Write { addr: 0, rkey: 7 }, &[Sge::of(&big, 0, 4 << 20)]);
    s.end.post(3, SendOp::Send, &[]);
    pass(&mut s);
    let done = s.statuses();
    assert_eq!(done, [(1, WcStatus::Success)]);
    assert_eq!(s.heard(), []);
    s.simulation.network().link_mut(0, 1).unwrap().set_impairment(&Impairment::default());
    for wr_id in [2, 3] {
        let wc = s.end.next(&mut s.simulation);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

/// DDP-43, 60, 62: after a disconnect, the RNIC sends the messages that were posted before it, and no later ones. The
/// peer's half stays open: until the peer's FIN, its messages are placed and completed, and TCP acknowledges them.
#[test]
fn a_disconnect_closes_our_half_only() {
    let mut s = scene();
    s.post_receive(10);
    let connection = {
        // The handle of the connection at the RNIC's end.
        s.end.connection.take().expect("a connection")
    };
    s.end.post(1, SendOp::Send, &[]);
    connection.disconnect().unwrap();
    s.end.post(2, SendOp::Send, &[]);
    s.post_receive(11);
    pass(&mut s);
    assert_eq!(opcodes(&s), [3]);
    assert!(s.raw.borrow().seen.finished.contains(&s.conn), "FIN");
    let (stag, at) = (s.all.rkey(), s.all.addr());
    s.say(&[tagged(0xC1, 0x40, stag, at, &[8; 100]), untagged(0x41, 0x43, 0, 1, 0, &[9; 4])]);
    pass(&mut s);
    assert_eq!(content(&s.all)[..101], [vec![8; 100], vec![0]].concat());
    assert_eq!(s.statuses(), [(1, WcStatus::Success), (10, WcStatus::Success)]);
    s.raw.borrow_mut().close(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::Local);
    assert_eq!(opcodes(&s), [3]);
    assert_eq!(s.statuses(), [(2, WcStatus::Flushed), (11, WcStatus::Flushed)]);
}

/// RDMAP-21, RDMAPX-26: if memory is deregistered while the peer reads it, the Terminate tells how far the answer has
/// come. DDP-53.
#[test]
fn a_source_that_goes_while_it_is_read() {
    let mut s = scene();
    const LEN: u32 = 8 << 20;
    let big = s.end.pd.alloc_mr(LEN as usize, Access::REMOTE_READ).unwrap();
    let (stag, at) = (big.rkey(), big.addr());
    let request = untagged(0x41, 0x41, 1, 1, 0, &read_header((0xABCD, 0x500), LEN, (stag, at)));
    s.say(std::slice::from_ref(&request));
    s.hears(100_000);
    drop(big);
    let Scene { simulation, raw, conn, .. } = &mut s;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().seen.finished.contains(conn)));
    let mut all = ulpdus(&s.heard());
    let t = all.pop().unwrap();
    let sent: usize = all.iter().map(|u| u.len() - 14).sum();
    assert!(sent > 50_000 && sent < LEN as usize);
    assert_eq!(t[18..24], [0x01, 0x00, 0xE0, 0, 0, 46]);
    assert_eq!(t[24..42], request[..18]);
    let rest = read_header((0xABCD, 0x500 + sent as u64), LEN - sent as u32, (stag, at + sent as u64));
    assert_eq!(t[42..], rest);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::TerminateSent);
}

/// RDMAP-21: if the memory of a short answer is deregistered while the answer waits behind another, the other is
/// sent whole, and then a Terminate that names the whole request.
#[test]
fn a_source_that_goes_while_a_short_answer_waits() {
    let mut s = scene();
    const LEN: u32 = 1 << 20;
    let big = s.end.pd.alloc_mr(LEN as usize, Access::REMOTE_READ).unwrap();
    let small = s.end.pd.alloc_mr(4096, Access::REMOTE_READ).unwrap();
    let read = |msn, len, source| untagged(0x41, 0x41, 1, msn, 0, &read_header((0xABCD, 0), len, source));
    let gone = read(3, 8, (small.rkey(), small.addr()));
    s.say(&[read(1, 8, (small.rkey(), small.addr()))]);
    s.hears(2 + 14 + 8 + 4);
    assert_eq!(ulpdus(&s.heard())[0].len(), 14 + 8, "the memory was there");
    s.say(&[read(2, LEN, (big.rkey(), big.addr())), gone.clone()]);
    s.hears(50_000);
    drop(small);
    let Scene { simulation, raw, conn, .. } = &mut s;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().seen.finished.contains(conn)));
    let mut all = ulpdus(&s.heard());
    let t = all.pop().unwrap();
    let sent: usize = all.iter().map(|u| u.len() - 14).sum();
    assert_eq!(sent, 8 + LEN as usize);
    assert_eq!(t[18..24], [0x01, 0x00, 0xE0, 0, 0, 46]);
    assert_eq!(t[24..], gone);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::TerminateSent);
}
