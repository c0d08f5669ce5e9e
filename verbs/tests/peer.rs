//! A whole RNIC against a peer that makes one mistake. The tests check each octet of the Terminate that the
//! mistake causes, as TCP carries it, and the effect on the queue pair. They cover most rows of the table of
//! errors.

mod common;
#[path = "common/peer.rs"]
mod peer;

use common::pages::Pages;
use common::*;
use peer::support::{fpdu, hex, read_header, tagged, untagged};
use peer::*;
use urnic::*;

/// A mistake of the peer: segments, the last of which is wrong; the codes of the Terminate; and the status of
/// the oldest receive.
struct Mistake {
    name: &'static str,
    says: fn(&Scene) -> Vec<Vec<u8>>,
    codes: [u8; 3],
    receive: WcStatus,
}

fn mistakes() -> Vec<Mistake> {
    type Says = fn(&Scene) -> Vec<Vec<u8>>;
    let one = |name, codes, says: Says| Mistake { name, says, codes, receive: WcStatus::Flushed };
    fn write(stag: u32, to: u64, len: usize) -> Vec<Vec<u8>> {
        vec![tagged(0xC1, 0x40, stag, to, &vec![7; len])]
    }
    fn send(ddp: u8, rdmap: u8, qn: u32, msn: u32, mo: u32, len: usize) -> Vec<Vec<u8>> {
        vec![untagged(ddp, rdmap, qn, msn, mo, &vec![7; len])]
    }
    fn read(msn: u32, len: u32, stag: u32, to: u64) -> Vec<u8> {
        untagged(0x41, 0x41, 1, msn, 0, &read_header((9, 0), len, (stag, to)))
    }
    fn atomic(code: u8, stag: u32, to: u64) -> Vec<Vec<u8>> {
        vec![atomic_request(1, code, stag, to)]
    }
    fn invalidating(stag: u32) -> Vec<Vec<u8>> {
        let mut ulpdu = untagged(0x41, 0x44, 0, 1, 0, &[]);
        ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
        vec![ulpdu]
    }
    vec![
        one("ERR-10: DV of a tagged segment", [0x11, 0x04, 0xC0], |s| {
            vec![tagged(0xC2, 0x40, s.all.rkey(), s.all.addr(), &[7; 4])]
        }),
        one("ERR-11: unknown STag", [0x11, 0x00, 0xC0], |s| write(s.all.rkey() ^ 0x0100, s.all.addr(), 4)),
        one("ERR-11: another key of the STag", [0x11, 0x00, 0xC0], |s| {
            write(s.all.rkey() ^ 1, s.all.addr(), 4)
        }),
        one("ERR-12: STag of another domain", [0x11, 0x02, 0xC0], |s| {
            write(s.foreign.rkey(), s.foreign.addr(), 4)
        }),
        one("ERR-13: before the start", [0x11, 0x01, 0xC0], |s| write(s.all.rkey(), s.all.addr() - 1, 4)),
        one("ERR-13: beyond the end", [0x11, 0x01, 0xC0], |s| write(s.all.rkey(), s.all.addr() + 1021, 4)),
        one("ERR-14: wraps around", [0x11, 0x03, 0xC0], |s| write(s.all.rkey(), u64::MAX - 3, 4)),
        one("ERR-15: not writable", [0x11, 0x00, 0xC0], |s| write(s.readable.rkey(), s.readable.addr(), 4)),
        one("ERR-20: DV of an untagged segment", [0x12, 0x06, 0xC0], |_| send(0x40, 0x43, 0, 1, 0, 4)),
        one("ERR-21: no such queue", [0x12, 0x01, 0xC0], |_| send(0x41, 0x43, 4, 1, 0, 4)),
        one("ERR-23: MSN ahead", [0x12, 0x03, 0xC0], |_| send(0x41, 0x43, 0, 2, 0, 4)),
        one("ERR-24: MO beyond the buffer", [0x12, 0x04, 0xC0], |_| send(0x41, 0x43, 0, 1, 33, 4)),
        Mistake {
            receive: WcStatus::LocalLength,
            ..one("ERR-25: too long", [0x12, 0x05, 0xC0], |_| send(0x41, 0x43, 0, 1, 0, 33))
        },
        one("ERR-26: more than IRD", [0x12, 0x02, 0xC0], |s| {
            let (stag, to) = (s.all.rkey(), s.all.addr());
            (1..=3).map(|msn| read(msn, 4, stag, to)).collect()
        }),
        one("ERR-27: a short tagged segment", [0x10, 0x00, 0x00], |_| vec![vec![0xC1; 13]]),
        one("ERR-27: a short untagged segment", [0x10, 0x00, 0x00], |_| vec![vec![0x41; 17]]),
        one("ERR-27: an empty segment", [0x10, 0x00, 0x00], |_| vec![vec![]]),
        one("ERR-30: RV", [0x02, 0x05, 0xC0], |s| {
            vec![tagged(0xC1, 0x80, s.all.rkey(), s.all.addr(), &[7; 4])]
        }),
        one("ERR-31: unknown opcode", [0x02, 0x06, 0xC0], |_| send(0x41, 0x4C, 0, 1, 0, 4)),
        one("ERR-31: Send in the queue of Requests", [0x02, 0x06, 0xC0], |_| send(0x41, 0x43, 1, 1, 0, 4)),
        one("ERR-32: unknown source", [0x01, 0x00, 0xE0], |s| {
            vec![read(1, 4, s.all.rkey() ^ 1, s.all.addr())]
        }),
        one("ERR-33: source beyond the end", [0x01, 0x01, 0xE0], |s| {
            vec![read(1, 4, s.all.rkey(), s.all.addr() + 1021)]
        }),
        one("ERR-34: not readable", [0x01, 0x02, 0xE0], |s| vec![read(1, 4, s.inbox.rkey(), s.inbox.addr())]),
        one("ERR-35: source of another domain", [0x01, 0x03, 0xE0], |s| {
            vec![read(1, 4, s.foreign.rkey(), s.foreign.addr())]
        }),
        one("ERR-36: source wraps around", [0x01, 0x04, 0xE0], |s| {
            vec![read(1, 8, s.all.rkey(), u64::MAX - 7)]
        }),
        Mistake {
            receive: WcStatus::Invalidation,
            ..one("ERR-37: invalidates an STag of another domain", [0x01, 0x09, 0xC0], |s| {
                invalidating(s.foreign.rkey())
            })
        },
        Mistake {
            receive: WcStatus::Invalidation,
            ..one("ERR-37: invalidates nothing", [0x01, 0x09, 0xC0], |s| invalidating(s.all.rkey() ^ 1))
        },
        one("ERR-38: an answer to nothing", [0x02, 0x06, 0xC0], |s| {
            vec![tagged(0xC1, 0x42, s.all.rkey(), s.all.addr(), &[7; 4])]
        }),
        one("ERR-39: a longer Request", [0x02, 0xFF, 0xC0], |s| {
            let mut longer = read(1, 4, s.all.rkey(), s.all.addr());
            longer.push(0);
            vec![longer]
        }),
        one("ERR-40: not aligned", [0x02, 0x07, 0xC0], |s| atomic(0, s.all.rkey(), s.all.addr() + 4)),
        one("ERR-41: no such Atomic", [0x02, 0x06, 0xC0], |s| atomic(1, s.all.rkey(), s.all.addr())),
        one("ERR-42: Atomic on an unknown STag", [0x01, 0x00, 0xC0], |s| {
            atomic(0, s.all.rkey() ^ 1, s.all.addr())
        }),
        one("ERR-42: Atomic beyond the end", [0x01, 0x01, 0xC0], |s| {
            atomic(0, s.all.rkey(), s.all.addr() + 1024)
        }),
        one("ERR-42: Atomic without the right", [0x01, 0x02, 0xC0], |s| {
            atomic(2, s.readable.rkey(), s.readable.addr())
        }),
        one("ERR-42: Atomic in another domain", [0x01, 0x03, 0xC0], |s| {
            atomic(0, s.foreign.rkey(), s.foreign.addr())
        }),
        one("ERR-42: Atomic wraps around", [0x01, 0x04, 0xC0], |s| atomic(0, s.all.rkey(), u64::MAX - 7)),
        one("ERR-43: 7 octets of Immediate Data", [0x02, 0xFF, 0xC0], |_| send(0x41, 0x48, 0, 1, 0, 7)),
    ]
}

/// Makes an Atomic Request whose operands are all 0x0101... With the code of FetchAdd, the RNIC adds this operand.
fn atomic_request(msn: u32, code: u8, stag: u32, to: u64) -> Vec<u8> {
    let mut header = vec![0, 0, 0, code, 0, 0, 0, 5];
    header.extend(stag.to_be_bytes());
    header.extend(to.to_be_bytes());
    header.extend([1; 32]);
    untagged(0x41, 0x4A, 1, msn, 0, &header)
}

/// ERR-40, RDMAPX-8: an Atomic needs an address in memory that is a multiple of 8, whatever its tagged offset is. The
/// test uses regions whose first tagged offset differs from their address, and windows that begin anywhere.
#[test]
fn atomics_are_aligned_in_memory() {
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    // The memory's distance from a multiple of 8, the tagged offset of its first octet, and whether the peer uses a
    // window.
    for (skew, first, window) in [
        (0, Some(0x1004), false),
        (0, Some(0x1001), false),
        (4, Some(0x1000), false),
        (4, None, false),
        (1, None, false),
        (4, None, true),
    ] {
        let mut s = scene();
        let pages = Pages::new(4096);
        let pd = &s.end.pd;
        // SAFETY: mapped memory, without references to it, which outlives the region.
        let mr = unsafe {
            match (window, first) {
                (true, _) => pd.reg_mr(pages.base(), 4096, rights),
                (_, Some(first)) => pd.reg_mr_iova(pages.base().add(skew), 4096 - skew, first, rights),
                (_, None) => pd.reg_mr(pages.base().add(skew), 4096 - skew, rights | Access::ZERO_BASED),
            }
        }
        .unwrap();
        let mw = s.end.pd.alloc_mw(MwKind::Two).unwrap();
        let rkey = if window {
            let (rkey, lkey, addr) = (mw.fresh_rkey(), mr.lkey(), mr.addr() + skew as u64);
            let access = Access::REMOTE_ATOMIC | Access::ZERO_BASED;
            s.end.post(1, SendOp::BindMw { rkey, lkey, addr, len: 64, access }, &[]);
            assert_eq!(s.end.next(&mut s.simulation).status, WcStatus::Success);
            rkey
        } else {
            mr.rkey()
        };
        let first = first.unwrap_or(0);
        // The tagged offset of octet 16 of the mapping.
        let aligned = first + 16 - skew as u64;
        assert_ne!(aligned % 8, 0, "the offset must not agree with the address");
        s.say(&[atomic_request(1, 0, rkey, aligned)]);
        let answer = fpdu(&untagged(0x41, 0x4B, 3, 1, 0, &[0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(s.hears(answer.len()), answer, "skew {skew}, first {first:#x}");
        let expected = [vec![0; 16], vec![1; 8], vec![0; 4096 - 24]].concat();
        assert!(pages.content() == expected, "skew {skew}, first {first:#x}");
        let wrong = atomic_request(2, 0, rkey, (aligned + 8).next_multiple_of(8));
        s.say(std::slice::from_ref(&wrong));
        let said = [answer, terminate([0x02, 0x07, 0xC0], &wrong)].concat();
        s.ends(&said, DisconnectReason::TerminateSent);
        assert!(pages.content() == expected, "skew {skew}, first {first:#x}");
        drop((mw, mr, s));
    }
}

/// ERR-10..15, ERR-20, 21, 23..27, ERR-30..43: the RNIC answers a mistake by exactly one Terminate, then a FIN. It
/// places or completes nothing of this segment and of later segments, all work ends, and the program can read the
/// reason. DDP-8, DDP-42, 46..48, DDP-52..56, RDMAP-5, RDMAP-51, RDMAP-71, 72, 74, 75, 77..79, RDMAP-85, RDMAPX-26.
/// RDMAP-17..20, 26, 67, 87; RDMAPX-8, 12.
#[test]
fn mistakes_are_answered_by_the_terminate_of_the_table() {
    for Mistake { name, says, codes, receive } in mistakes() {
        let mut s = scene();
        s.post_receive(10);
        s.post_receive(11);
        let before = [&s.all, &s.readable, &s.foreign, &s.inbox].map(content);
        let wrong = says(&s);
        let said = terminate(codes, wrong.last().unwrap());
        s.say(&wrong);
        // The RNIC ignores all these later segments: correct ones, and another mistake.
        let later = [
            tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[9; 64]),
            untagged(0x41, 0x43, 0, 1, 0, &[9; 8]),
            tagged(0xC1, 0x40, 0, 0, &[9; 8]),
        ];
        s.say(&later);
        s.ends(&said, DisconnectReason::TerminateSent);
        let t = s.end.qp.terminate().expect(name);
        assert_eq!((t.sent, t.layer << 4 | t.etype, t.code), (true, codes[0], codes[1]), "{name}");
        let told: Vec<_> = s.end.completions().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
        assert_eq!(told, [(10, receive, 0), (11, WcStatus::Flushed, 0)], "{name}");
        assert!([&s.all, &s.readable, &s.foreign, &s.inbox].map(content) == before, "{name}: written");
    }
}

/// ERR-22, DDP-50: without a receive the connection ends, even for zero-length Sends and for Immediate Data. RDMAP-87.
#[test]
fn without_a_receive_the_connection_ends() {
    for (rdmap, len) in [(0x43, 5), (0x43, 0), (0x46, 0), (0x48, 8)] {
        let mut s = scene();
        let ulpdu = untagged(0x41, rdmap, 0, 1, 0, &vec![7; len]);
        s.say(std::slice::from_ref(&ulpdu));
        s.ends(&terminate([0x12, 0x02, 0xC0], &ulpdu), DisconnectReason::TerminateSent);
        assert_eq!(s.statuses(), []);
    }
}

/// ERR-1, DDP-57: a wrong CRC.
/// RDMAP-17.
#[test]
fn a_wrong_crc_ends_the_connection() {
    let mut s = scene();
    s.post_receive(10);
    let mut octets = fpdu(&tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[7; 8]));
    octets[20] ^= 0x10;
    s.raw.borrow_mut().send(s.conn, &octets);
    s.ends(&terminate([0x20, 0x02, 0x00], &[]), DisconnectReason::TerminateSent);
    assert_eq!(s.statuses(), [flushed(10)]);
    assert!(content(&s.all) == [0; 1024]);
}

/// ERR-16, ERR-48, DDP-15, DDP-65, RDMAP-10, RDMAP-11: the connection goes on after segments that look odd, but are no
/// mistakes.
#[test]
fn what_looks_odd_is_no_mistake() {
    let mut s = scene();
    s.post_receive(10);
    s.post_receive(11);
    let mut reserved = untagged(0x41 | 0x3C, 0x73, 0, 2, 0, b"data");
    reserved[2..6].copy_from_slice(&s.all.rkey().to_be_bytes());
    s.say(&[
        tagged(0xC1, 0x40, 0xDEAD, u64::MAX, &[]),
        untagged(0x01, 0x43, 0, 1, 0, b"abcdefghijk"),
        untagged(0x01, 0x43, 0, 1, 2, b"CD"),
        untagged(0x41, 0x43, 0, 1, 8, b"I"),
        reserved,
        untagged(0x41, 0x41, 1, 1, 0, &read_header((9, 0x77), 0, (0xDEAD, u64::MAX))),
    ]);
    for (wr_id, len) in [(10, 11), (11, 4)] {
        let wc = s.end.next(&mut s.simulation);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, len));
        assert_eq!(wc.flags, WcFlags::empty());
    }
    let answer = fpdu(&tagged(0xC1, 0x42, 9, 0x77, &[]));
    assert_eq!(s.hears(answer.len()), answer); // RDMAP-34
    s.say(&[tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[5; 8])]);
    s.raw.borrow_mut().close(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::Peer);
    assert_eq!(content(&s.all)[..8], [5; 8]);
}

/// ERR-48b, DDP-65: a program that echoes a message reveals nothing of its buffer's former content. A segment that
/// leaves a gap ends the connection. The receive then reports 0 octets, and later receives report 0 octets too.
#[test]
fn nothing_is_received_that_did_not_come() {
    const SECRET: &[u8] = b"what another connection has said";
    let part = |ddp, mo, octets: &[u8]| untagged(ddp, 0x43, 0, 1, mo, octets);
    let cases: [(&str, Vec<Vec<u8>>); 5] = [
        ("only the last octet", vec![part(0x41, 31, b"!")]),
        ("nothing, at the end", vec![part(0x41, 32, b"")]),
        ("a gap in the middle", vec![part(0x01, 0, b"abcd"), part(0x41, 28, b"wxyz")]),
        ("a gap behind a step back", vec![part(0x01, 0, b"abcd"), part(0x01, 0, b"AB"), part(0x41, 5, b"")]),
        ("the last part first", vec![part(0x01, 28, b"wxyz"), part(0x41, 0, &[b'a'; 28])]),
    ];
    for shared in [false, true] {
        for (name, parts) in &cases {
            let mut s = if shared { scene_with_shared_queue() } else { scene() };
            s.inbox.write_at(0, SECRET).unwrap();
            s.post_receive(10);
            s.post_receive(11);
            s.say(parts);
            let soon = s.simulation.now() + std::time::Duration::from_millis(50);
            assert!(!s.simulation.run(soon, || false));
            let told = s.end.completions();
            if let Some(wc) = told.iter().find(|wc| wc.status == WcStatus::Success) {
                let echo = content(&s.inbox)[..wc.byte_len as usize].to_vec();
                panic!("{name}: the program echoes {:?}", String::from_utf8_lossy(&echo));
            }
            // The RNIC refuses the first segment that follows a gap.
            let placed = |i: usize| parts[..i].iter().map(|p| p.len() - 18).max().unwrap_or(0);
            let mo = |p: &[u8]| u32::from_be_bytes(p[14..18].try_into().unwrap()) as usize;
            let (_, gap) = parts.iter().enumerate().find(|(i, p)| mo(p) > placed(*i)).unwrap();
            s.ends(&terminate([0x12, 0x04, 0xC0], gap), DisconnectReason::TerminateSent);
            let told: Vec<_> = told.iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
            let taken = [(10, WcStatus::Flushed, 0), (11, WcStatus::Flushed, 0)];
            // Receives that no message has taken stay in a shared queue.
            assert_eq!(told, taken[..if shared { 1 } else { 2 }], "{name}");
        }
    }
}

/// The receive for a Write with immediate data counts only octets that have arrived without a gap from the first
/// segment of the Write on (DDP-65). It reports 0 octets if the Write is incomplete, or if another message arrived
/// in the middle of the Write.
#[test]
fn a_write_is_told_as_long_as_it_came() {
    let mut s = scene();
    let (stag, to) = (s.all.rkey(), s.all.addr());
    for wr_id in 10..14 {
        s.post_receive(wr_id);
    }
    let imm = |msn| untagged(0x41, 0x48, 0, msn, 0, &[0, 0, 0, 5, 0, 0, 0, 0]);
    s.say(&[
        tagged(0x81, 0x40, stag, to, b"abcd"),
        tagged(0xC1, 0x40, stag, to + 100, b"wxyz"),
        imm(1),
        tagged(0x81, 0x40, stag, to, b"abcd"),
        tagged(0x81, 0x40, stag, to, b"ABCD"),
        tagged(0xC1, 0x40, stag, to + 3, b"def"),
        imm(2),
        tagged(0x81, 0x40, stag, to, b"abcdefgh"),
        imm(3),
        tagged(0xC1, 0x40, stag, to + 8, b"ijklmnop"),
        imm(4),
    ]);
    for (wr_id, len) in [(10, 4), (11, 6), (12, 0), (13, 0)] {
        let wc = s.end.next(&mut s.simulation);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, len));
    }
}

/// ERR-47, RDMAP-47..49, RDMAP-52, RDMAP-86, DDP-9: the RNIC answers a Terminate, even a malformed one, by a FIN and
/// never by a Terminate. The program can read the content of a correct Terminate, and the oldest request reports it.
/// RDMAP-16, 73, 85; RDMAPX-28.
#[test]
fn a_terminate_is_answered_by_fin_only() {
    use DisconnectReason::{Aborted, TerminateReceived};
    let received = Some((0x11u8, 0x01u8));
    for (name, ulpdu, codes, reason, first) in [
        (
            "tagged bounds",
            untagged(0x41, 0x47, 2, 1, 0, &[0x11, 0x01, 0, 0]),
            received,
            TerminateReceived,
            WcStatus::RemoteAccess,
        ),
        (
            "with reserved bits",
            untagged(0x7D, 0x77, 2, 1, 0, &[0x11, 0x01, 0x1F, 0xFF]),
            received,
            TerminateReceived,
            WcStatus::RemoteAccess,
        ),
        (
            "unexpected opcode",
            untagged(0x41, 0x47, 2, 1, 0, &[0x02, 0x06, 0, 0]),
            Some((0x02, 0x06)),
            TerminateReceived,
            WcStatus::RemoteInvalidRequest,
        ),
        (
            "catastrophic",
            untagged(0x41, 0x47, 2, 1, 0, &[0x02, 0x07, 0, 0]),
            Some((0x02, 0x07)),
            TerminateReceived,
            WcStatus::RemoteOperation,
        ),
        (
            "access rights",
            untagged(0x41, 0x47, 2, 1, 0, &[0x01, 0x02, 0, 0]),
            Some((0x01, 0x02)),
            TerminateReceived,
            WcStatus::RemoteAccess,
        ),
        ("cut short", untagged(0x41, 0x47, 2, 1, 0, &[0x11, 0x01, 0]), None, Aborted, WcStatus::Flushed),
        (
            "headers are missing",
            untagged(0x41, 0x47, 2, 1, 0, &[0x11, 0x01, 0xC0, 0]),
            None,
            Aborted,
            WcStatus::Flushed,
        ),
        ("wrong MSN", untagged(0x41, 0x47, 2, 2, 0, &[0x11, 0x01, 0, 0]), None, Aborted, WcStatus::Flushed),
        ("wrong MO", untagged(0x41, 0x47, 2, 1, 4, &[0x11, 0x01, 0, 0]), None, Aborted, WcStatus::Flushed),
    ] {
        let mut s = scene();
        // No receive is posted. There are a Read that the peer does not answer, and a Send after it.
        let op = SendOp::Read { addr: 0x1000, rkey: 7 };
        s.end.post(1, op, &[Sge::of(&s.inbox, 0, 8)]);
        s.end.post(2, SendOp::Send, &[]);
        let request = s.hears(52 + 24);
        s.say(&[ulpdu, tagged(0xC1, 0x40, s.all.rkey(), s.all.addr(), &[9; 64])]);
        s.ends(&request, reason);
        let told = s.end.qp.terminate().map(|t| (t.sent, t.layer << 4 | t.etype, t.code));
        assert_eq!(told, codes.map(|(a, b)| (false, a, b)), "{name}");
        assert_eq!(s.statuses(), [(1, first), flushed(2)], "{name}");
        assert!(content(&s.all) == [0; 1024], "{name}");
    }
}

/// A request that was not begun is not what the peer objects to: it is flushed, and an event tells of the Terminate.
#[test]
fn a_terminate_does_not_blame_a_request_that_was_not_begun() {
    // The RNIC must be silent until the peer has sent something (MPA-70), so the Send cannot begin.
    let mut s = silent_scene();
    s.end.post(1, SendOp::Send, &[]);
    s.say(&[untagged(0x41, 0x47, 2, 1, 0, &[0x11, 0x01, 0, 0])]);
    s.ends(&[], DisconnectReason::TerminateReceived);
    assert_eq!(s.statuses(), [flushed(1)]);
    assert!(s.end.qp.terminate().is_some_and(|t| !t.sent));
    let event = s.simulation.device(0).async_events().poll();
    assert!(
        matches!(&event, Some(AsyncEvent::QpFatal(fault)) if fault.cause == FaultCause::Terminated),
        "{event:?}"
    );
}

/// ERR-44, RDMAP-76, RDMAPX-26: the RNIC reports a fault of its own by a Terminate without headers, which it sends in
/// place of the message. RDMAP-17, 19, 50.
#[test]
fn a_local_fault_is_told_in_place_of_the_message() {
    let faulty = |op, s: &mut Scene| {
        s.end.post(1, op, &[Sge::of(&s.foreign, 0, 8)]);
        s.end.post(2, SendOp::Send, &[]);
    };
    let write = SendOp::Write { addr: 0x1000, rkey: 7 };
    let immediate = SendOp::WriteImm { addr: 0x1000, rkey: 7, imm: 1 };
    for op in [SendOp::Send, SendOp::SendInv(7), write, immediate] {
        let mut s = scene();
        faulty(op, &mut s);
        let local = hex("00164147 00000000 00000002 00000001 00000000 00000000 f9a26f1d");
        s.ends(&local, DisconnectReason::TerminateSent);
        assert_eq!(s.statuses(), [(1, WcStatus::LocalProtection), flushed(2)], "{op:?}");
    }
}

/// ERR-45: a receive whose memory is of another domain is an error of the RNIC's own.
#[test]
fn a_receive_without_memory_is_a_fault_of_ours() {
    let mut s = scene();
    s.end.post_recv(10, &[Sge::of(&s.foreign, 0, 32)]);
    s.say(&[untagged(0x41, 0x43, 0, 1, 0, &[7; 4])]);
    s.ends(&terminate([0x02, 0x07, 0x00], &[]), DisconnectReason::TerminateSent);
    assert_eq!(s.statuses(), [(10, WcStatus::LocalProtection)]);
}

/// ERR-46, DDP-45: a FIN that comes while we have work left is answered by a Terminate, then our FIN. Without work
/// left, it is answered only by a FIN (DDP-61).
/// DDP-9.
#[test]
fn a_fin_that_comes_too_early_is_told() {
    let mut s = scene();
    s.post_receive(10);
    let op = SendOp::Read { addr: 0x1000, rkey: 7 };
    s.end.post(1, op, &[Sge::of(&s.inbox, 0, 8)]);
    let request = s.hears(52);
    s.raw.borrow_mut().close(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::TerminateSent);
    let said = [request, terminate([0x02, 0x07, 0x00], &[])].concat();
    assert_eq!(s.hears(said.len()), said);
    let Scene { simulation, raw, conn, .. } = &mut s;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().seen.finished.contains(conn)));
    assert_eq!(s.statuses(), [flushed(1), flushed(10)]);

    let mut s = scene();
    s.post_receive(10);
    s.raw.borrow_mut().close(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::Peer);
    let Scene { simulation, raw, conn, .. } = &mut s;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().seen.finished.contains(conn)));
    assert_eq!(s.heard(), []);
    assert_eq!((s.end.qp.terminate(), s.statuses()), (None, vec![flushed(10)]));
}

/// ERR-46: the RNIC also answers an early FIN by a Terminate if work that the peer has requested is left: a Read or an
/// Atomic that waits, or a Read whose answer is under way.
#[test]
fn a_fin_before_the_answers_is_told() {
    let catastrophic = terminate([0x02, 0x07, 0x00], &[]);
    type Request = fn(u32, &Mr) -> Vec<u8>;
    let read: Request =
        |msn, mr| untagged(0x41, 0x41, 1, msn, 0, &read_header((9, 0), 16, (mr.rkey(), mr.addr())));
    let atomic: Request = |msn, mr| atomic_request(msn, 0, mr.rkey(), mr.addr());
    for requests in [vec![read], vec![atomic], vec![read, atomic]] {
        let mut s = scene();
        s.post_receive(10);
        let asked: Vec<_> = requests.iter().zip(1..).map(|(request, msn)| request(msn, &s.all)).collect();
        // The FIN is in the same burst, so that it arrives before the RNIC can send the first answer.
        s.say(&asked);
        s.raw.borrow_mut().close(s.conn);
        assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::TerminateSent);
        assert_eq!(s.hears(catastrophic.len()), catastrophic);
        assert_eq!((s.statuses(), content(&s.all)), (vec![flushed(10)], vec![0; 1024]));
        let t = s.end.qp.terminate().unwrap();
        assert_eq!((t.sent, t.layer, t.etype, t.code), (true, 0, 2, 7));
    }

    let mut s = scene();
    let long = s.end.pd.alloc_mr(4 << 20, Access::REMOTE_READ).unwrap();
    s.say(&[untagged(0x41, 0x41, 1, 1, 0, &read_header((9, 0), 4 << 20, (long.rkey(), long.addr())))]);
    s.hears(1);
    s.raw.borrow_mut().close(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::TerminateSent);
    let Scene { simulation, raw, conn, .. } = &mut s;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().seen.finished.contains(conn)));
    let heard = s.heard();
    assert!(heard.len() < 4 << 20 && heard.ends_with(&catastrophic), "{} octets", heard.len());
    assert!(ulpdus(&heard).iter().rev().skip(1).all(|u| u[..2] == [0x81, 0x42]));
}

/// The RNIC reports a FIN in the middle of an FPDU as a truncation to its program, even if it has work left. It sends
/// no Terminate, because the stream cannot be trusted (MPA-79).
#[test]
fn a_fin_within_an_fpdu_is_no_early_one() {
    let mut s = scene();
    s.post_receive(10);
    s.end.post(1, SendOp::Read { addr: 0x1000, rkey: 7 }, &[Sge::of(&s.inbox, 0, 8)]);
    let request = s.hears(52);
    s.raw.borrow_mut().send(s.conn, &fpdu(&untagged(0x41, 0x43, 0, 1, 0, &[7; 8]))[..21]);
    s.raw.borrow_mut().close(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::Truncated);
    let Scene { simulation, raw, conn, .. } = &mut s;
    let limit = simulation.now() + LIMIT;
    assert!(simulation.run(limit, || raw.borrow().seen.finished.contains(conn)));
    assert_eq!((s.heard(), s.end.qp.terminate()), (request, None));
    assert_eq!(s.statuses(), [flushed(1), flushed(10)]);
}

/// ERR-45: if the memory for the result of an Atomic is deregistered before the answer comes, this Atomic completes
/// with a protection error.
#[test]
fn an_atomic_whose_sink_is_gone_is_to_blame() {
    let mut s = scene();
    let sink = s.end.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
    s.end.post(1, SendOp::FetchAdd { addr: 0x1000, rkey: 7, add: 1 }, &[Sge::of(&sink, 0, 8)]);
    s.end.post(2, SendOp::Read { addr: 0x1000, rkey: 7 }, &[Sge::of(&s.inbox, 0, 8)]);
    let requests = s.hears(76 + 52);
    drop(sink);
    s.say(&[untagged(0x41, 0x4B, 3, 1, 0, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9])]);
    let said = [requests, terminate([0x02, 0x07, 0x00], &[])].concat();
    s.ends(&said, DisconnectReason::TerminateSent);
    assert_eq!(s.statuses(), [(1, WcStatus::LocalProtection), flushed(2)]);
}

/// ERR-3, DDP-3, DDP-46: the RNIC reports a reset, and sends nothing more.
#[test]
fn a_reset_ends_all_work() {
    let mut s = scene();
    s.post_receive(10);
    s.end.post(1, SendOp::Read { addr: 0x1000, rkey: 7 }, &[Sge::of(&s.inbox, 0, 8)]);
    let request = s.hears(52);
    s.raw.borrow_mut().abort(s.conn);
    assert_eq!(s.end.end(&mut s.simulation), DisconnectReason::Reset);
    assert_eq!((s.heard(), s.end.qp.terminate()), (request, None));
    assert_eq!((s.statuses(), s.end.qp.state()), (vec![flushed(1), flushed(10)], QpState::Error));
}

/// ERR-38, RDMAP-39, RDMAPX-17, at the requesting end: answers that do not fit end the connection, and no answer
/// completes anything. RDMAP-64, RDMAPX-18.
/// RDMAP-72.
#[test]
fn answers_that_do_not_fit() {
    type Answers = fn(&Scene) -> Vec<u8>;
    let result = |id: u32| [&id.to_be_bytes()[..], &[0; 8]].concat();
    let read: (SendOp, usize) = (SendOp::Read { addr: 0x1000, rkey: 7 }, 52);
    let add: (SendOp, usize) = (SendOp::FetchAdd { addr: 0x1000, rkey: 7, add: 1 }, 76);
    let cases: [((SendOp, usize), [u8; 3], Answers); 7] = [
        (read, [0x11, 0x00, 0xC0], |s| tagged(0xC1, 0x42, s.all.rkey(), s.inbox.addr(), &[7; 8])),
        (read, [0x11, 0x01, 0xC0], |s| tagged(0xC1, 0x42, s.inbox.rkey(), s.inbox.addr() + 1, &[7; 8])),
        (read, [0x11, 0x01, 0xC0], |s| tagged(0xC1, 0x42, s.inbox.rkey(), s.inbox.addr(), &[7; 9])),
        (read, [0x11, 0x01, 0xC0], |s| tagged(0xC1, 0x42, s.inbox.rkey(), s.inbox.addr(), &[7; 7])),
        (read, [0x02, 0x06, 0xC0], |_| untagged(0x41, 0x4B, 3, 1, 0, &[0; 12])),
        (add, [0x12, 0x03, 0xC0], |_| untagged(0x41, 0x4B, 3, 2, 0, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0])),
        (add, [0x02, 0xFF, 0xC0], |_| untagged(0x41, 0x4B, 3, 1, 0, &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0])),
    ];
    for ((op, len), codes, answer) in cases {
        let mut s = scene();
        s.end.post(1, op, &[Sge::of(&s.inbox, 0, 8)]);
        let request = s.hears(len);
        assert_eq!(s.end.completions(), [], "not complete before it is answered");
        let ulpdu = answer(&s);
        s.say(std::slice::from_ref(&ulpdu));
        s.ends(&[request, terminate(codes, &ulpdu)].concat(), DisconnectReason::TerminateSent);
        assert_eq!(s.statuses(), [flushed(1)], "{codes:02x?}");
        assert!(content(&s.inbox) == [0; 64]);
    }
    // This answer fits.
    let mut s = scene();
    s.end.post(1, add.0, &[Sge::of(&s.inbox, 0, 8)]);
    s.hears(76);
    s.say(&[untagged(0x41, 0x4B, 3, 1, 0, &result(1))]);
    let wc = s.end.next(&mut s.simulation);
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::FetchAdd));
}
