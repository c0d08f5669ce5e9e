//! Reads into several pieces of memory (lists), as a peer sees them. With the STag of the Read Request, the peer can
//! place only the octets that the Read asks for, in order, and once.

mod common;
#[path = "common/peer.rs"]
mod peer;

use common::*;
use fastrand::Rng;
use peer::support::{fpdu, read_header, tagged, untagged};
use peer::*;
use urnic::*;

/// Octets of a Read Request on the wire.
const REQUEST: usize = 52;
const READ: SendOp = SendOp::Read { addr: 0x1000, rkey: 7 };
/// Lengths of the elements of a [`Listed`], in octets.
const LENS: [u32; 4] = [8, 0, 5, 11];
const TOTAL: u32 = 24;

/// A scene with a region for each element of a list, and an outstanding Read into this list.
struct Listed {
    s: Scene,
    sinks: Vec<Mr>,
    /// All octets that the peer has received.
    requests: Vec<u8>,
    stag: u32,
    to: u64,
}

/// Returns the fields of a Read Request: STag and tagged offset of the sink, and the length.
fn sink_of(ulpdu: &[u8]) -> (u32, u64, u32) {
    assert_eq!(ulpdu[..2], [0x41, 0x41], "a Read Request");
    let field = |at: usize| u32::from_be_bytes(ulpdu[at..at + 4].try_into().unwrap());
    (field(18), u64::from(field(22)) << 32 | u64::from(field(26)), field(30))
}

fn elements(sinks: &[Mr]) -> Vec<Sge> {
    // No element is at the beginning of its region, so that octets placed before an element would be seen.
    sinks.iter().zip(LENS).map(|(mr, len)| Sge::of(mr, 10, len)).collect()
}

fn listed() -> Listed {
    let mut s = scene();
    let sinks: Vec<Mr> = LENS.iter().map(|_| s.end.pd.alloc_mr(40, Access::LOCAL_WRITE).unwrap()).collect();
    s.end.post(1, READ, &elements(&sinks));
    let requests = s.hears(REQUEST);
    let all = ulpdus(&requests);
    assert_eq!(all.len(), 1, "one Read on the wire");
    let (stag, to, len) = sink_of(&all[0]);
    assert_eq!(len, TOTAL);
    assert_eq!(all[0][34..46], [&7u32.to_be_bytes()[..], &0x1000u64.to_be_bytes()].concat()[..]);
    Listed { s, sinks, requests, stag, to }
}

impl Listed {
    /// Makes a segment of the answer.
    fn part(&self, offset: u32, len: u32, last: bool) -> Vec<u8> {
        let data: Vec<u8> = (offset..offset + len).map(|i| 100 + i as u8).collect();
        tagged(if last { 0xC1 } else { 0x81 }, 0x42, self.stag, self.to + u64::from(offset), &data)
    }

    /// Checks that the sinks hold the first `octets` octets of the answer, and that everything beside the elements
    /// is unchanged.
    #[track_caller]
    fn holds(&self, octets: u32) {
        let mut data = 0..octets;
        for (mr, len) in self.sinks.iter().zip(LENS) {
            let mut expected = vec![0; 40];
            for (place, i) in expected[10..10 + len as usize].iter_mut().zip(data.by_ref()) {
                *place = 100 + i as u8;
            }
            assert_eq!(content(mr), expected);
        }
    }

    /// Sends these segments as the peer. The RNIC must refuse the last one by a Terminate with `codes`.
    #[track_caller]
    fn refuses(&mut self, name: &str, says: &[Vec<u8>], codes: [u8; 3]) {
        self.s.say(says);
        let said = [self.requests.clone(), terminate(codes, says.last().unwrap())].concat();
        println!("{name}");
        self.s.ends(&said, DisconnectReason::TerminateSent);
    }
}

/// RFC 5040 §4.4: the peer sees one sink, and not the list. The sink's STag is not that of any element, and each Read
/// has its own tagged offsets. RDMAP-31, RDMAP-35.
#[test]
fn a_list_is_one_read_on_the_wire() {
    let mut l = listed();
    l.s.end.post(2, READ, &elements(&l.sinks));
    let requests = l.s.hears(2 * REQUEST);
    let (stag, to, len) = sink_of(&ulpdus(&requests)[1]);
    assert_eq!((stag, len), (l.stag, TOTAL));
    assert!(to.abs_diff(l.to) >= 1 << 32, "{to:x}, {:x}", l.to);
    assert!(l.sinks.iter().all(|mr| mr.rkey() != stag));
    l.s.say(&[l.part(0, 7, false), l.part(7, 3, false), l.part(10, 0, false), l.part(10, 14, true)]);
    let wc = l.s.end.next(&mut l.s.simulation);
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, WcStatus::Success, WcOpcode::Read, TOTAL));
    l.holds(TOTAL);
    let second: Vec<u8> = vec![9; TOTAL as usize];
    l.s.say(&[tagged(0xC1, 0x42, stag, to, &second)]);
    let wc = l.s.end.next(&mut l.s.simulation);
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::Success));
    assert_eq!(content(&l.sinks[3])[10..21], [9; 11]);
}

/// ERR-11, 32, 37, 38, 42, RDMAP-39: the peer can use the STag of lists only to answer the Read. After a refusal,
/// memory holds the octets of the answer that arrived before it, and no others.
#[test]
fn the_stag_of_a_list_is_good_for_its_read_alone() {
    type Says = fn(&Listed) -> Vec<Vec<u8>>;
    let cases: Vec<(&str, [u8; 3], u32, Says)> = vec![
        ("a Write", [0x11, 0x00, 0xC0], 0, |l| vec![tagged(0xC1, 0x40, l.stag, l.to, &[7; 8])]),
        ("a Write in its midst", [0x11, 0x00, 0xC0], 8, |l| {
            vec![l.part(0, 8, false), tagged(0xC1, 0x40, l.stag, l.to + 8, &[7; 4])]
        }),
        ("a Write to an element", [0x11, 0x00, 0xC0], 0, |l| {
            vec![tagged(0xC1, 0x40, l.sinks[0].rkey(), l.sinks[0].addr() + 10, &[7; 8])]
        }),
        ("a Read Request", [0x01, 0x00, 0xE0], 0, |l| {
            vec![untagged(0x41, 0x41, 1, 1, 0, &read_header((9, 0), 8, (l.stag, l.to)))]
        }),
        ("an Atomic Request", [0x01, 0x00, 0xC0], 0, |l| {
            let mut header = vec![0, 0, 0, 0, 0, 0, 0, 5];
            header.extend(l.stag.to_be_bytes());
            header.extend(l.to.to_be_bytes());
            header.extend([1; 32]);
            vec![untagged(0x41, 0x4A, 1, 1, 0, &header)]
        }),
        ("an invalidation", [0x01, 0x09, 0xC0], 0, |l| {
            l.s.post_receive(10);
            let mut ulpdu = untagged(0x41, 0x44, 0, 1, 0, &[]);
            ulpdu[2..6].copy_from_slice(&l.stag.to_be_bytes());
            vec![ulpdu]
        }),
        ("an answer before the list", [0x11, 0x01, 0xC0], 0, |l| {
            vec![tagged(0x81, 0x42, l.stag, l.to.wrapping_sub(1), &[7; 8])]
        }),
        ("an answer behind its beginning", [0x11, 0x01, 0xC0], 0, |l| vec![l.part(1, 8, false)]),
        ("an answer to the next Read", [0x11, 0x01, 0xC0], 0, |l| {
            vec![tagged(0x81, 0x42, l.stag, l.to + (1 << 32), &[7; 8])]
        }),
        ("the same again", [0x11, 0x01, 0xC0], 9, |l| vec![l.part(0, 9, false), l.part(0, 9, false)]),
        ("a gap", [0x11, 0x01, 0xC0], 9, |l| vec![l.part(0, 9, false), l.part(10, 5, false)]),
        ("too much", [0x11, 0x01, 0xC0], 9, |l| vec![l.part(0, 9, false), l.part(9, 16, true)]),
        ("too little", [0x11, 0x01, 0xC0], 9, |l| vec![l.part(0, 9, false), l.part(9, 14, true)]),
        ("straight into an element", [0x11, 0x00, 0xC0], 0, |l| {
            vec![tagged(0x81, 0x42, l.sinks[0].rkey(), l.sinks[0].addr() + 10, &[7; 8])]
        }),
        ("once more when all is there", [0x02, 0x06, 0xC0], TOTAL, |l| {
            vec![l.part(0, TOTAL, true), l.part(0, TOTAL, true)]
        }),
        ("a Write when all is there", [0x11, 0x00, 0xC0], TOTAL, |l| {
            vec![l.part(0, TOTAL, true), tagged(0xC1, 0x40, l.stag, l.to, &[7; 8])]
        }),
    ];
    for (name, codes, holds, says) in cases {
        let mut l = listed();
        let says = says(&l);
        l.refuses(name, &says, codes);
        let status = if holds == TOTAL { WcStatus::Success } else { WcStatus::Flushed };
        assert_eq!(l.s.statuses()[0], (1, status), "{name}");
        l.holds(holds);
    }
}

/// A list belongs to one stream. The RNIC refuses an answer that arrives on another stream than the Read, and refuses
/// the STag of a list in an answer to a Read with a single sink.
#[test]
fn a_list_is_of_one_stream() {
    let mut l = listed();
    let mut other = End::new(&l.s.simulation.device(0));
    let conn = establish(&mut l.s.simulation, &l.s.raw, &mut other);
    let sink = other.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    other.post(5, READ, &[Sge::of(&sink, 0, TOTAL)]);
    let Listed { s, .. } = &mut l;
    let limit = s.simulation.now() + LIMIT;
    assert!(s.simulation.run(limit, || s.raw.borrow().heard(conn).len() == REPLY + REQUEST));
    let answer = l.part(0, TOTAL, true);
    l.s.raw.borrow_mut().send(conn, &fpdu(&answer));
    let wc = other.next(&mut l.s.simulation);
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::Flushed));
    let t = other.qp.terminate().unwrap();
    assert_eq!((t.sent, t.layer, t.etype, t.code), (true, 1, 1, 0), "{t}");
    assert!(content(&sink) == [0; 64]);
    l.holds(0);
    // The list's own stream is unaffected.
    l.s.say(&[answer]);
    let wc = l.s.end.next(&mut l.s.simulation);
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
    l.holds(TOTAL);
}

/// SEC-7: if the program takes back an element while the answer is under way, the RNIC no longer writes to this
/// element. A segment with octets for this element is not placed in other elements either. The Read completes with a
/// protection error.
#[test]
fn an_element_that_is_taken_back_is_not_written() {
    type TakeBack = fn(&mut Listed);
    let ways: [(&str, TakeBack); 4] = [
        ("deregistered", |l| drop(l.sinks.remove(2))),
        ("revoked", |l| l.sinks[2].revoke().unwrap()),
        ("invalidated", |l| {
            let op = SendOp::LocalInv(l.sinks[2].lkey());
            let wr = SendWr { wr_id: 3, op, sges: &[], flags: SendFlags::empty() };
            l.s.end.qp.post_send(&wr).unwrap();
        }),
        ("registered anew for other octets", |l| {
            let mr = &l.sinks[2];
            mr.revoke().unwrap();
            let op = SendOp::RegMr { key: mr.lkey(), addr: mr.addr(), len: 11, access: Access::LOCAL_WRITE };
            let wr = SendWr { wr_id: 3, op, sges: &[], flags: SendFlags::empty() };
            l.s.end.qp.post_send(&wr).unwrap();
        }),
    ];
    for (name, take_back) in ways {
        let mut l = listed();
        l.s.say(&[l.part(0, 3, false)]);
        let soon = l.s.simulation.now() + std::time::Duration::from_millis(20);
        l.s.simulation.run(soon, || false);
        take_back(&mut l);
        let soon = l.s.simulation.now() + std::time::Duration::from_millis(20);
        l.s.simulation.run(soon, || false);
        let codes = if name.ends_with("octets") { [0x11, 0x01, 0xC0] } else { [0x11, 0x00, 0xC0] };
        // The first of these segments ends before the element.
        let says = [l.part(3, 4, false), l.part(7, 17, true)];
        l.refuses(name, &says, codes);
        assert_eq!(l.s.statuses()[0], (1, WcStatus::LocalProtection), "{name}");
        let expected: Vec<u8> = (0..8).map(|i| if i < 7 { 100 + i } else { 0 }).collect();
        assert_eq!(content(&l.sinks[0])[10..18], expected, "{name}");
        assert!(l.sinks[1..].iter().all(|mr| content(mr) == [0; 40]), "{name}");
    }
}

/// However the peer and TCP cut the answer into segments, each octet gets to its place.
#[test]
fn an_answer_may_be_cut_anywhere() {
    for seed in 0..30 {
        let mut rng = Rng::with_seed(seed);
        let mut l = listed();
        let (mut octets, mut at) = (Vec::new(), 0);
        while at < TOTAL {
            let len = rng.u32(..=TOTAL - at);
            octets.extend(fpdu(&l.part(at, len, at + len == TOTAL)));
            at += len;
        }
        while !octets.is_empty() {
            let rest = octets.split_off(rng.usize(1..=octets.len()));
            l.s.raw.borrow_mut().send(l.s.conn, &octets);
            octets = rest;
            let soon = l.s.simulation.now() + std::time::Duration::from_micros(rng.u64(..200));
            l.s.simulation.run(soon, || false);
        }
        let wc = l.s.end.next(&mut l.s.simulation);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, TOTAL), "seed {seed}");
        l.holds(TOTAL);
    }
}
