//! Markers in both directions (RFC 5044 §4.2, §4.3, §4.4, §8).

mod support;

use support::*;
use urnic_iwarp::*;

const SEND: Op = Op::Send { solicited: false, invalidate: None };
const SEND_HEADER: usize = 18;

/// Returns an end that sends markers, receives markers, or both.
fn node(role: Role, tx_markers: bool, rx_markers: bool) -> Node {
    Node::new(&Negotiated { tx_markers, rx_markers, ..negotiated(role, 16, 16) })
}

/// Returns a stream of Sends of zeros, with one FPDU for each ULPDU length.
fn sends(ulpdus: &[usize]) -> Vec<u8> {
    let mut sender = node(Role::Initiator, true, false);
    for ulpdu in ulpdus {
        sender.send(SEND, &vec![0; ulpdu - SEND_HEADER], MULPDU_MAX).unwrap();
    }
    sender.out
}

/// Returns a Responder that has asked for markers, with receives for all of `ulpdus`.
fn receiver(ulpdus: &[usize]) -> Node {
    let mut receiver = node(Role::Responder, false, true);
    ulpdus.iter().for_each(|ulpdu| receiver.memory.post_receive(ulpdu - SEND_HEADER));
    receiver
}

/// Corrects the CRC field of the FPDU at `range` of a stream.
fn mend(stream: &mut [u8], range: std::ops::Range<usize>) {
    let field = range.end - 4;
    let crc = crc(&stream[range.start..field]).to_le_bytes();
    stream[field..range.end].copy_from_slice(&crc);
}

struct Golden {
    ulpdus: &'static [usize],
    /// Stream offset and FPDUPTR.
    markers: &'static [(usize, u16)],
    /// Stream offset of ULPDU_Length, stream offset of the CRC field, and the CRC field in hexadecimal digits.
    fpdus: &'static [(usize, usize, &'static str)],
    total: usize,
}

const GOLDEN: [Golden; 6] = [
    // ULPDUs of 1000 octets: all markers within one FPDU point to the same header.
    Golden {
        ulpdus: &[1000, 1000],
        markers: &[(0, 0), (512, 508), (1024, 8), (1536, 520)],
        fpdus: &[(4, 1012, "d7fe96be"), (1016, 2028, "25510d05")],
        total: 2032,
    },
    // A marker between two FPDUs.
    Golden {
        ulpdus: &[502, 42],
        markers: &[(0, 0), (512, 0)],
        fpdus: &[(4, 508, "a09bb55b"), (516, 560, "cc08199e")],
        total: 564,
    },
    // A marker between pad and CRC field.
    Golden {
        ulpdus: &[506, 42],
        markers: &[(0, 0), (512, 508)],
        fpdus: &[(4, 516, "38cf64e8"), (520, 564, "290fbede")],
        total: 568,
    },
    // A marker directly after the first four octets of an FPDU.
    Golden {
        ulpdus: &[498, 42],
        markers: &[(0, 0), (512, 4)],
        fpdus: &[(4, 504, "67126e0c"), (508, 556, "0524497a")],
        total: 560,
    },
    // Nine markers in one FPDU: FPDUPTR counts the earlier ones as well.
    Golden {
        ulpdus: &[4096],
        markers: &[
            (0, 0),
            (512, 508),
            (1024, 1020),
            (1536, 1532),
            (2048, 2044),
            (2560, 2556),
            (3072, 3068),
            (3584, 3580),
            (4096, 4092),
        ],
        fpdus: &[(4, 4136, "0c11bd54")],
        total: 4140,
    },
    // RFC 5044, figures 5 and 6. Figure 6 is the second FPDU of a stream whose first one ends at 0x1EC.
    Golden {
        ulpdus: &[482, 42],
        markers: &[(0, 0), (512, 0x14)],
        fpdus: &[(4, 488, ""), (492, 540, "84925898")],
        total: 544,
    },
];

/// MPA-12, 17, 20..25, 28, 36, 73: golden octets of streams with markers.
#[test]
fn streams_with_markers_are_the_golden_octets() {
    for golden in &GOLDEN {
        let stream = sends(golden.ulpdus);
        assert_eq!(stream.len(), golden.total, "{:?}", golden.ulpdus);
        assert_eq!(stream.len().div_ceil(512), golden.markers.len());
        for (at, pointer) in golden.markers {
            assert_eq!(stream[*at..at + 4], u32::from(*pointer).to_be_bytes(), "{:?}: {at}", golden.ulpdus);
        }
        for ((length, field, crc), ulpdu) in golden.fpdus.iter().zip(golden.ulpdus) {
            assert_eq!(stream[*length..length + 2], (*ulpdu as u16).to_be_bytes());
            assert!(crc.is_empty() || stream[*field..field + 4] == hex(crc), "{:?}: CRC", golden.ulpdus);
        }
    }
    let fig5 = "00000000 002a4143 00000000 00000000 00000001 00000000 00000000 00000000
                00000000 00000000 00000000 00000000 52239983";
    assert_eq!(sends(&[42]), hex(fig5));
    let fig6 = "002a4143 00000000 00000000 00000002 00000000 00000014 00000000 00000000
                00000000 00000000 00000000 00000000 84925898";
    assert_eq!(sends(&[482, 42])[492..], hex(fig6));
}

/// MPA-26, 44, 45, 47: from golden streams in chunks of every size, the receiver gets the messages and nothing else.
#[test]
fn golden_streams_are_received_in_any_split() {
    for golden in &GOLDEN {
        let stream = sends(golden.ulpdus);
        for size in (1..70).chain([500, 512, 513, 1448, 8000]) {
            let mut node = receiver(golden.ulpdus);
            for chunk in stream.chunks(size) {
                node.receive(chunk).unwrap();
            }
            let sizes: Vec<usize> = node.memory.received.iter().map(|m| m.len() + SEND_HEADER).collect();
            assert_eq!(sizes, golden.ulpdus, "chunks of {size}");
            assert!(node.memory.received.iter().flatten().all(|octet| *octet == 0));
            assert_eq!((node.live.get(), node.stream.mid_fpdu()), (0, false));
        }
    }
}

/// MPA-21, 24, 25: messages of random sizes in both directions, cut at random MULPDUs. A second pass over the
/// streams counts octets from their start. It finds every marker in its place, with the right pointer. The data
/// arrives.
#[test]
fn random_streams_both_ways() {
    let mut rng = fastrand::Rng::with_seed(5044);
    for round in 0..60 {
        let mut ends = [node(Role::Initiator, true, true), node(Role::Responder, true, true)];
        for end in &mut ends {
            end.memory.add(7, 0, 200_000);
        }
        for turn in 0..20 {
            let (from, to) = if turn % 2 == 0 { (0, 1) } else { (1, 0) };
            let len = *rng.choice(&[0, 1, 3, 482, 490, 494, 498, 502, 506, 1000, 4096, 60_000]).unwrap();
            let message: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            let mulpdu = *rng.choice(&[128, 500, 530, 1430, 1442, 8882, MULPDU_MAX]).unwrap();
            ends[to].memory.post_receive(len);
            let (at, before) = (rng.u64(..100_000), ends[from].out.len());
            ends[from].send(SEND, &message, mulpdu).unwrap();
            ends[from].send(Op::Write { stag: 7, to: at }, &message, mulpdu).unwrap();
            let mut octets = ends[from].out[before..].to_vec();
            while !octets.is_empty() {
                let rest = octets.split_off(rng.usize(1..3000).min(octets.len()));
                ends[to].receive(&octets).unwrap();
                octets = rest;
            }
            assert_eq!(ends[to].memory.received.last(), Some(&message), "round {round}, turn {turn}");
            assert!(ends[to].memory.region(7).data()[at as usize..][..len] == message);
            assert!(!ends[to].stream.mid_fpdu() && ends[to].live.get() == 0);
        }
        for end in &ends {
            let mut start = 0;
            for size in &end.sizes {
                let fpdu = start..start + size;
                for at in fpdu.clone().filter(|at| at % 512 == 0) {
                    // A marker before ULPDU_Length belongs to the FPDU.
                    let length = if start % 512 == 0 { start + 4 } else { start };
                    let pointer = at.saturating_sub(length) as u32;
                    assert_eq!(end.out[at..at + 4], pointer.to_be_bytes(), "round {round}: {at} in {fpdu:?}");
                }
                start = fpdu.end;
            }
            assert_eq!(start, end.out.len());
        }
    }
}

/// MPA-19, 27, 54: only a direction whose receiver asked for markers has them.
#[test]
fn each_direction_on_its_own() {
    for (tx, rx) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut a, mut b) = (node(Role::Initiator, tx, rx), node(Role::Responder, rx, tx));
        a.memory.post_receive(1000);
        b.memory.post_receive(1000);
        a.send(SEND, &[1; 1000], 2000).unwrap();
        assert_eq!(a.out[..4] == [0; 4], tx);
        assert_eq!(a.out.len(), if tx { 1024 + 12 } else { 1024 });
        b.receive(&a.take_out()).unwrap();
        b.send(SEND, &[2; 1000], 2000).unwrap();
        assert_eq!(b.out[..4] == [0; 4], rx);
        a.receive(&b.take_out()).unwrap();
        assert_eq!((&a.memory.received, &b.memory.received), (&vec![vec![2; 1000]], &vec![vec![1; 1000]]));
    }
}

/// MPA-17, 18: reserved bits and the low two bits of FPDUPTR may have any value. The CRC covers them as received.
#[test]
fn bits_without_meaning_are_ignored() {
    let ulpdus = [1000, 1000];
    for (at, fpdu) in [(0, 0..1016), (512, 0..1016), (1024, 1016..2032)] {
        for (octet, bits) in [(0, 0xFF), (1, 0xFF), (3, 0x03), (3, 0x01)] {
            let mut stream = sends(&ulpdus);
            stream[at + octet] |= bits;
            assert_eq!(receiver(&ulpdus).receive(&stream).unwrap_err().cause, Cause::Crc);
            mend(&mut stream, fpdu.clone());
            let mut node = receiver(&ulpdus);
            node.receive(&stream).unwrap();
            assert_eq!(node.memory.received.len(), 2, "octet {octet} of the marker at {at}");
        }
    }
}

/// ERR-2, MPA-79, 80, 82, 92: a marker with a wrong pointer but a good CRC ends the stream with 20 03. This FPDU and
/// later ones have no effect. If it is a Responder's first FPDU, the Responder sends nothing.
#[test]
fn a_marker_that_disagrees_ends_the_stream() {
    let ulpdus = [1000, 1000, 42];
    for (at, fpdu, good) in [(0, 0..1016, 0), (512, 0..1016, 0), (1024, 1016..2032, 1), (1536, 1016..2032, 1)]
    {
        for (octet, bits) in [(2, 0x01), (2, 0x80), (3, 0x04), (3, 0x80)] {
            for role in [Role::Initiator, Role::Responder] {
                let mut stream = sends(&ulpdus);
                stream[at + octet] ^= bits;
                mend(&mut stream, fpdu.clone());
                let mut node = node(role, false, true);
                (0..3).for_each(|_| node.memory.post_receive(1000));
                let mut fault = None;
                for chunk in stream.chunks(700) {
                    fault = node.receive(chunk).err().or(fault);
                }
                let fault = fault.expect("a fault");
                assert!(matches!(fault.cause, Cause::Marker { .. }), "{fault}");
                assert_eq!(node.memory.received.len(), good, "marker at {at}");
                let silent = role == Role::Responder && good == 0;
                assert_eq!(fault.terminate, (!silent).then_some(Terminate::MARKER));
            }
        }
    }
    assert_eq!(octets_of(&Terminate::MARKER), [0x20, 0x03, 0]);
}

/// MPA-28, 37, 46: no bit of an FPDU with markers can change undetected in the middle of a stream, not even in a
/// marker. Earlier FPDUs are delivered, and nothing else.
#[test]
fn every_bit_is_covered() {
    for middle in [42, 506, 999, 1000] {
        let ulpdus = [100, middle, 60_000, 10_000];
        let mut sender = node(Role::Initiator, true, false);
        for ulpdu in ulpdus {
            sender.send(SEND, &vec![3; ulpdu - SEND_HEADER], MULPDU_MAX).unwrap();
        }
        let start = sender.sizes[0];
        let end = start + sender.sizes[1];
        for bit in 8 * start..8 * end {
            let mut stream = sender.out.clone();
            // If the flipped bit makes the length larger, the fault shows only when that many octets have arrived.
            let length = [0, 1, 4, 5].contains(&(bit / 8 - start));
            stream.truncate(if length { stream.len() } else { end + 100 });
            stream[bit / 8] ^= 1 << (bit % 8);
            for size in [stream.len(), start + 21] {
                let mut node = receiver(&ulpdus);
                let faults: Vec<_> =
                    stream.chunks(size).filter_map(|chunk| node.receive(chunk).err()).collect();
                let [Fault { cause: Cause::Crc, .. }] = faults[..] else { panic!("bit {bit}: {faults:?}") };
                assert_eq!(node.memory.received, [vec![3; 100 - SEND_HEADER]], "bit {bit}");
                assert_eq!(node.memory.placements, 100 - SEND_HEADER, "bit {bit}");
            }
        }
    }
}

/// MPA-16, 34: without CRCs, the CRC field is zero in streams with markers as well, and markers are still
/// checked.
#[test]
fn markers_without_crc() {
    let n = |role, tx_markers| {
        let n = Negotiated { crc: false, tx_markers, rx_markers: !tx_markers, ..negotiated(role, 4, 4) };
        Node::new(&n)
    };
    let mut sender = n(Role::Initiator, true);
    sender.send(SEND, &[7; 488], MULPDU_MAX).unwrap(); // the marker between pad and CRC field
    assert_eq!(sender.out[512..], [0, 0, 1, 0xFC, 0, 0, 0, 0]);
    let mut receiver = n(Role::Responder, false);
    receiver.memory.post_receive(488);
    receiver.receive(&sender.out).unwrap();
    assert_eq!(receiver.memory.received, [[7; 488]]);
    sender.out[515] = 0;
    let mut receiver = n(Role::Responder, false);
    receiver.memory.post_receive(488);
    let fault = receiver.receive(&sender.out).unwrap_err();
    assert_eq!(fault.cause, Cause::Marker { expected: 508, got: 256 });
}

/// MPA-5, 38: an FPDU of the MULPDU fits its segment wherever markers fall. An FPDU that is four octets longer may not
/// fit.
#[test]
fn the_mulpdu_leaves_room_for_markers() {
    for emss in [192, 508, 512, 516, 536, 1024, 1220, 1448, 1460, 2048, 8948, 8960, 16_384, 64_000] {
        let plain = 2 + mulpdu(emss, true) + 4;
        assert_eq!(plain % 4, 0);
        let (mut largest, mut node) = (0, node(Role::Initiator, true, false));
        for _ in 0..128 {
            largest = largest.max(node.stream.tx_markers().unwrap().size(plain));
            node.stream.sent(4); // the next FPDU begins four octets later
        }
        assert!(largest <= emss && largest + 8 > emss - emss % 4, "EMSS {emss}: {largest}");
    }
}

/// MPA-21: marker positions stay right beyond 2^32 octets, where sequence numbers wrap.
#[test]
fn positions_do_not_wrap() {
    let mut node = node(Role::Initiator, true, false);
    let (mut total, mut rng) = (0u64, fastrand::Rng::with_seed(32));
    while total < 9 << 32 {
        let plain = 4 * rng.usize(5..16_000);
        let markers = node.stream.tx_markers().unwrap();
        let size = markers.size(plain) as u64;
        let within = (total + size).div_ceil(512) - total.div_ceil(512);
        assert_eq!(size, plain as u64 + 4 * within);
        node.stream.sent(plain);
        total += size;
    }
}

/// A direction without markers never gets any (MPA-27).
#[test]
fn none_stay_none() {
    let mut node = node(Role::Initiator, false, true);
    node.stream.sent(1000);
    assert_eq!(node.stream.tx_markers(), None);
}

/// A Terminate ends a stream with markers, however it is split, and nothing of it is kept (RDMAP-52).
#[test]
fn a_terminate_in_two_pieces() {
    let mut sender = node(Role::Initiator, true, false);
    sender.send(Op::Terminate(Terminate::CRC), &[], MULPDU_MAX).unwrap();
    for split in 0..sender.out.len() {
        let mut receiver = node(Role::Responder, false, true);
        receiver.receive(&sender.out[..split]).unwrap();
        receiver.receive(&[&sender.out[split..], &[0; 20]].concat()).unwrap();
        assert!(receiver.events().contains(&Delivery::Terminated(Terminate::CRC)), "split at {split}");
        assert_eq!((receiver.live.get(), receiver.stream.mid_fpdu()), (0, false), "split at {split}");
    }
}

/// MPA-8, 48: the longest FPDU that the length field can name arrives in chunks of any size. At most eight
/// chunks are held.
#[test]
fn the_longest_fpdu_with_markers() {
    let plain = fpdu(&untagged(0x41, 0x43, 0, 1, 0, &[5; 65535 - 18]));
    let sender = node(Role::Initiator, true, false);
    let markers = sender.stream.tx_markers().unwrap();
    let mut octets = plain.clone();
    octets.resize(markers.size(plain.len()), 0);
    markers.insert(&mut octets, plain.len(), true);
    assert_eq!(octets.len(), plain.len() + 4 * 130);
    for size in [1, 100, 1448, 70_000] {
        let mut node = receiver(&[65535]);
        for chunk in octets.chunks(size) {
            assert!(node.memory.received.is_empty());
            node.receive(chunk).unwrap();
            assert!(node.live.get() <= 8);
        }
        assert_eq!(node.memory.received, [vec![5; 65535 - 18]], "chunks of {size}");
    }
    // Nothing is written if there is no room.
    let mut small = plain.clone();
    markers.insert(&mut small, plain.len(), true);
    assert!(small == plain);
}

/// MPA-70, 73: a Responder sends no marker before the Initiator's first FPDU. Its own first marker goes with its
/// first FPDU.
#[test]
fn a_responder_sends_no_marker_first() {
    let mut b = node(Role::Responder, true, true);
    assert_eq!(b.stream.begin(SEND, 0).unwrap_err(), BeginError::NotYet);
    assert!(b.out.is_empty());
    b.memory.post_receive(24);
    b.receive(&sends(&[42])).unwrap();
    b.send(SEND, &[], 1000).unwrap();
    assert_eq!(b.out[..6], [0, 0, 0, 0, 0, 18]);
}
