//! Random messages between two streams, over the wire in any split, arrive as they were sent.

mod support;

use proptest::prelude::*;
use std::collections::VecDeque;
use support::*;
use urnic_iwarp::*;

const WRITTEN: u32 = 0x11;
const SOURCE: u32 = 0x22;
const SINK: u32 = 0x33;
const COUNTERS: u32 = 0x44;
const RESULTS: u32 = 0x55;
const INVALIDATED: u32 = 0x1000;
/// Words that Atomics operate on, and words that receive their results.
const WORDS: usize = 4;
const ANSWERS: usize = 32;
const LEN: usize = 1 << 14;

#[derive(Clone, Debug)]
enum Message {
    Write { at: usize, len: usize },
    Send { len: usize, spare: usize, solicited: bool, invalidate: bool },
    Read { from: usize, at: usize, len: usize },
    Immediate { solicited: bool },
    Atomic { target: usize, op: AtomicOp },
}

#[derive(Clone, Debug)]
struct Step {
    /// The Initiator sends the message.
    forth: bool,
    message: Message,
    mulpdu: usize,
    /// Everything arrives before the next step.
    flush: bool,
}

/// Sizes of chunks, used in turn.
#[derive(Clone, Debug)]
struct Split(Vec<usize>);

fn message() -> impl Strategy<Value = Message> {
    let len = prop_oneof![Just(0), 1..20usize, 100..3000usize, Just(LEN / 2)];
    let at = 0..LEN / 2;
    prop_oneof![
        (at.clone(), len.clone()).prop_map(|(at, len)| Message::Write { at, len }),
        (len.clone(), 0..100usize, any::<bool>(), any::<bool>()).prop_map(
            |(len, spare, solicited, invalidate)| Message::Send { len, spare, solicited, invalidate }
        ),
        (at.clone(), at, len).prop_map(|(from, at, len)| Message::Read { from, at, len }),
        any::<bool>().prop_map(|solicited| Message::Immediate { solicited }),
        (0..WORDS, atomic()).prop_map(|(target, op)| Message::Atomic { target, op }),
    ]
}

/// Makes Atomics with small numbers, so that comparisons match now and then.
fn atomic() -> impl Strategy<Value = AtomicOp> {
    let mask = prop_oneof![Just(0u64), Just(1), Just(u64::MAX), any::<u64>()];
    prop_oneof![
        (prop_oneof![0..3u64, any::<u64>()], mask.clone())
            .prop_map(|(add, mask)| AtomicOp::FetchAdd { add, mask }),
        (0..3u64, mask.clone(), 0..3u64, mask).prop_map(|(compare, compare_mask, swap, swap_mask)| {
            AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask }
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let mulpdu = prop_oneof![Just(128), Just(1454), 128..9000usize, Just(64768)];
    (any::<bool>(), message(), mulpdu, any::<bool>()).prop_map(|(forth, message, mulpdu, flush)| Step {
        forth,
        message,
        mulpdu,
        flush,
    })
}

fn split() -> impl Strategy<Value = Split> {
    let sizes = prop_oneof![
        Just(vec![1]),
        Just(vec![1460]),
        Just(vec![1 << 20]),
        prop::collection::vec(1..8usize, 1..20),
        prop::collection::vec(1..4000usize, 1..20),
        prop::collection::vec(prop_oneof![1..4usize, 1000..3000usize], 1..20),
    ];
    sizes.prop_map(Split)
}

/// One end, and its expected results.
struct End {
    node: Node,
    written: Vec<u8>,
    sink: Vec<u8>,
    received: Vec<Vec<u8>>,
    events: Vec<Delivery>,
    /// Number of Reads and Atomics so far.
    reads: u32,
    invalidated: u32,
    counters: [u64; WORDS],
    results: [u64; ANSWERS],
    /// Octets of the Write that arrived last, unless a message of queue 0 came after it.
    last_write: u32,
}

impl End {
    fn new(role: Role, ird: u16, ord: u16) -> End {
        let mut node = Node::new(&negotiated(role, ird, ord));
        node.memory.add(WRITTEN, 0, LEN);
        let source = node.memory.add(SOURCE, 1 << 40, LEN);
        source
            .data_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, o)| *o = (i * 7 + i / 255 + role as usize) as u8);
        node.memory.add(SINK, 0x100, LEN);
        node.memory.add(COUNTERS, 0x200, 8 * WORDS);
        node.memory.add(RESULTS, 0x300, 8 * ANSWERS);
        for i in 0..64 {
            node.memory.add(INVALIDATED + i, 0, 8);
        }
        End {
            node,
            written: vec![0; LEN],
            sink: vec![0; LEN],
            received: Vec::new(),
            events: vec![Delivery::FirstFpdu],
            reads: 0,
            invalidated: 0,
            counters: [0; WORDS],
            results: [0; ANSWERS],
            last_write: 0,
        }
    }
}

/// A segment of a peer that follows no rules.
#[derive(Clone, Debug)]
enum Segment {
    Send { mo: u32, len: usize, last: bool },
    Write { at: u64, len: usize, last: bool },
    Immediate,
}

fn segment() -> impl Strategy<Value = Segment> {
    let len = prop_oneof![Just(0), 1..40usize];
    let mo = prop_oneof![3 => Just(0), 4 => 0..64u32];
    prop_oneof![
        3 => (mo, len.clone(), any::<bool>()).prop_map(|(mo, len, last)| Segment::Send { mo, len, last }),
        2 => (0..64u64, len, any::<bool>()).prop_map(|(at, len, last)| Segment::Write { at, len, last }),
        1 => Just(Segment::Immediate),
    ]
}

/// Sends `segments` to a Responder whose receive requests hold 64 octets each, and checks the Responder's reports.
/// `Memory` checks them as well.
fn report(segments: &[Segment]) {
    let mut node = Node::responder();
    node.memory.add(WRITTEN, 0, 128);
    (0..segments.len()).for_each(|_| node.memory.post_receive(64));
    let mut msn = 1;
    let mut message: Option<Vec<u8>> = None;
    for (i, segment) in segments.iter().enumerate() {
        let data = |len| vec![i as u8 | 0x80; len];
        let ulpdu = match *segment {
            Segment::Send { mo, len, last } => {
                untagged(if last { 0x41 } else { 0x01 }, 0x43, 0, msn, mo, &data(len))
            }
            Segment::Write { at, len, last } => {
                tagged(if last { 0xC1 } else { 0x81 }, 0x40, WRITTEN, at, &data(len))
            }
            Segment::Immediate => untagged(0x41, 0x48, 0, msn, 0, &[0; 8]),
        };
        let result = node.receive(&fpdu(&ulpdu));
        match *segment {
            Segment::Send { mo, len, last } => {
                let placed = message.get_or_insert_default();
                let (at, end) = (mo as usize, mo as usize + len);
                if at > placed.len() || end > 64 {
                    assert_eq!(
                        result.unwrap_err().terminate.unwrap().code,
                        if at > placed.len() { 4 } else { 5 }
                    );
                    return;
                }
                placed.resize(placed.len().max(end), 0);
                placed[at..end].fill(i as u8 | 0x80);
                if last {
                    assert_eq!(node.memory.received.last(), message.as_ref());
                    (message, msn) = (None, msn + 1);
                }
            }
            Segment::Write { .. } => {}
            Segment::Immediate if message.is_some() => {
                assert!(result.is_err());
                return;
            }
            Segment::Immediate => msn += 1,
        }
        assert_eq!(result, Ok(()));
    }
}

/// Returns octets that differ from message to message.
fn payload(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed * 89 + i * 13 + i / 256) as u8).collect()
}

/// Moves all octets from one end to the other. Returns `false` if there were none.
fn carry(from: &mut End, to: &mut End, sizes: &mut impl Iterator<Item = usize>, mulpdu: usize) -> bool {
    let octets = from.node.take_out();
    let mut rest = &octets[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(sizes.next().unwrap().min(rest.len()));
        rest = after;
        to.node.receive(chunk).unwrap();
        to.node.respond(mulpdu);
        assert!(to.node.live.get() <= 8);
    }
    !octets.is_empty()
}

fn run(steps: &[Step], split: &Split) {
    let mut sizes = split.0.iter().copied().cycle();
    let mut a = End::new(Role::Initiator, 3, 2);
    let mut b = End::new(Role::Responder, 2, 3);
    // The Initiator sends the first FPDU.
    a.node.send(Rtr::Write.op(), &[], 128).unwrap();
    carry(&mut a, &mut b, &mut sizes, 128);
    b.node.send(Rtr::Write.op(), &[], 128).unwrap();

    for (i, step) in steps.iter().enumerate() {
        let (from, to) = if step.forth { (&mut a, &mut b) } else { (&mut b, &mut a) };
        match step.message {
            Message::Write { at, len } => {
                let data = payload(i, len);
                from.node.send(Op::Write { stag: WRITTEN, to: at as u64 }, &data, step.mulpdu).unwrap();
                to.written[at..at + len].copy_from_slice(&data);
                to.last_write = len as u32;
            }
            Message::Immediate { solicited } => {
                let data = (i as u64 * 0x0101_0203_0405_0607).to_be_bytes();
                to.node.memory.post_receive(i % 12);
                from.node.send(Op::Immediate { data, solicited }, &[], step.mulpdu).unwrap();
                let written = std::mem::take(&mut to.last_write);
                to.events.push(Delivery::Immediate { data, solicited, written });
            }
            Message::Atomic { target, op } => {
                let answer = from.reads as usize % ANSWERS;
                let atomic = |end: &mut End| {
                    let sink = (RESULTS, 0x300 + 8 * answer as u64);
                    end.node.atomic(sink, (COUNTERS, 0x200 + 8 * target as u64), op)
                };
                if atomic(from) == Err(BeginError::OrdReached) {
                    while carry(from, to, &mut sizes, step.mulpdu) | carry(to, from, &mut sizes, step.mulpdu)
                    {
                    }
                    atomic(from).unwrap();
                }
                from.reads += 1;
                from.events.push(Delivery::AtomicDone { msn: from.reads });
                to.events.push(Delivery::AtomicRequested);
                from.results[answer] = to.counters[target];
                to.counters[target] = op.apply(to.counters[target]).unwrap_or(to.counters[target]);
            }
            Message::Send { len, spare, solicited, invalidate } => {
                let data = payload(i, len);
                let invalidate = invalidate.then_some(INVALIDATED + to.invalidated);
                to.invalidated += u32::from(invalidate.is_some());
                to.node.memory.post_receive(len + spare);
                from.node.send(Op::Send { solicited, invalidate }, &data, step.mulpdu).unwrap();
                let len = len as u32;
                to.events.push(Delivery::Received { len, solicited, invalidated: invalidate });
                to.last_write = 0;
                to.received.push(data);
            }
            Message::Read { from: src, at, len } => {
                let read = |end: &mut End| {
                    end.node.read(len as u32, (SINK, 0x100 + at as u64), (SOURCE, (1 << 40) + src as u64))
                };
                if read(from) == Err(BeginError::OrdReached) {
                    while carry(from, to, &mut sizes, step.mulpdu) | carry(to, from, &mut sizes, step.mulpdu)
                    {
                    }
                    read(from).unwrap();
                }
                from.reads += 1;
                let done = Delivery::ReadDone { msn: from.reads, len: len as u32 };
                from.events.push(done);
                to.events.push(Delivery::ReadRequested);
                let data = to.node.memory.region(SOURCE).data()[src..src + len].to_vec();
                from.sink[at..at + len].copy_from_slice(&data);
            }
        }
        if step.flush {
            while carry(&mut a, &mut b, &mut sizes, step.mulpdu)
                | carry(&mut b, &mut a, &mut sizes, step.mulpdu)
            {}
        }
    }
    while carry(&mut a, &mut b, &mut sizes, 1454) | carry(&mut b, &mut a, &mut sizes, 1454) {}

    for end in [&a, &b] {
        let memory = &end.node.memory;
        assert_eq!(memory.received, end.received);
        assert!(memory.region(WRITTEN).data() == end.written, "written memory differs");
        assert!(memory.region(SINK).data() == end.sink, "read memory differs");
        let words = |stag| -> Vec<u64> {
            let words = memory.region(stag).data().chunks(8);
            words.map(|w| u64::from_le_bytes(w.try_into().unwrap())).collect()
        };
        assert_eq!(words(COUNTERS), end.counters);
        assert_eq!(words(RESULTS), end.results);
        assert!(memory.guards_intact());
        // Order is defined only among events of the same kind.
        let kinds: [fn(&Delivery) -> bool; 4] = [
            |e| matches!(e, Delivery::FirstFpdu),
            |e| matches!(e, Delivery::Received { .. } | Delivery::Immediate { .. }),
            |e| matches!(e, Delivery::ReadDone { .. } | Delivery::AtomicDone { .. }),
            |e| matches!(e, Delivery::ReadRequested | Delivery::AtomicRequested),
        ];
        for kind in kinds {
            let of = |events: &[Delivery]| events.iter().copied().filter(kind).collect::<Vec<_>>();
            assert_eq!(of(&memory.events), of(&end.events));
        }
        assert_eq!(memory.events.len(), end.events.len());
        for i in 0..64 {
            assert_eq!(memory.region(INVALIDATED + i).valid, i >= end.invalidated);
        }
        assert_eq!((end.node.live.get(), end.node.stream.reads_outstanding()), (0, 0));
        assert!(!end.node.stream.mid_fpdu() && memory.receives.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// MPA-44, DDP-4, DDP-29, DDP-37, RDMAP-42, RDMAP-57, RDMAP-65, RDMAPX-13, RDMAPX-22.
    /// DDP-7.
    #[test]
    fn what_arrives_is_what_was_sent(steps in prop::collection::vec(step(), 1..24), split in split()) {
        run(&steps, &split);
    }

    /// DDP-65: however a peer forms its segments, all octets reported have arrived, and nothing else is in the buffer.
    #[test]
    fn what_is_reported_has_come(segments in prop::collection::vec(segment(), 1..24)) {
        report(&segments);
    }

    /// MPA-37, MPA-82, DDP-54: one damaged bit ends the stream at its FPDU. Earlier FPDUs keep their effect, in any
    /// split.
    #[test]
    fn a_damaged_bit_ends_the_stream(
        lens in prop::collection::vec(0..3000usize, 1..12),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
        split in split(),
    ) {
        let mut sender = Node::initiator();
        for (i, &len) in lens.iter().enumerate() {
            let op = if i % 2 == 0 {
                Op::Write { stag: WRITTEN, to: (i * 100) as u64 }
            } else {
                Op::Send { solicited: false, invalidate: None }
            };
            sender.send(op, &payload(i, len), 1454).unwrap();
        }
        let mut octets = sender.take_out();
        let at = at.index(octets.len());
        let intact = sender.sizes.iter().scan(0, |end, size| { *end += size; Some(*end) });
        let intact = intact.take_while(|&end| end <= at).last().unwrap_or(0);

        let receiver = || {
            let mut node = Node::responder();
            node.memory.add(WRITTEN, 0, LEN);
            lens.iter().skip(1).step_by(2).for_each(|&len| node.memory.post_receive(len));
            node
        };
        let mut expected = receiver();
        expected.receive(&octets[..intact]).unwrap();

        octets[at] ^= 1 << bit;
        let mut damaged = receiver();
        let mut rest: VecDeque<u8> = octets.into();
        let mut sizes = split.0.iter().copied().cycle();
        let mut fault = None;
        while !rest.is_empty() {
            let size = sizes.next().unwrap().min(rest.len());
            let chunk: Vec<u8> = rest.drain(..size).collect();
            fault = damaged.receive(&chunk).err().or(fault);
        }
        // A length that became larger may wait for octets that never arrive.
        prop_assert!(fault.as_ref().map_or(damaged.stream.mid_fpdu(), |f| f.cause == Cause::Crc), "{fault:?}");
        if let Some(f) = fault {
            prop_assert_eq!(f.terminate.is_some(), intact > 0); // MPA-92
        }
        prop_assert_eq!(&damaged.memory.events, &expected.memory.events);
        prop_assert_eq!(&damaged.memory.received, &expected.memory.received);
        prop_assert_eq!(damaged.memory.placements, expected.memory.placements);
        prop_assert!(damaged.memory.region(WRITTEN).data() == expected.memory.region(WRITTEN).data());
    }
}
