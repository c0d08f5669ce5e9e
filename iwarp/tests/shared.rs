//! Chunks in pieces, of memory that the sender may change at any time.

mod support;

use std::cell::{Cell, RefCell};
use std::env;
use std::rc::Rc;
use std::thread;
use support::*;
use urnic_iwarp::*;

const WRITTEN: u32 = 0x11;
const SOURCE: u32 = 0x22;
const INVALIDATED: u32 = 0x1000;
const LEN: usize = 1 << 13;
/// CRCs off: what passes is what the length and the headers alone let pass.
const NO_CRC: bool = false;

/// Prints the seed if the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("seed {}", self.0);
        }
    }
}

/// Calls `f` with random numbers of `count` seeds. `URNIC_SEEDS` changes the number in proportion to its usual value,
/// 500. Returns whether there were at least `count` seeds.
fn for_seeds(count: u64, f: impl Fn(&mut fastrand::Rng)) -> bool {
    let scale = env::var("URNIC_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    let seeds = (count * scale / 500).max(1);
    let first = fastrand::u64(..u64::MAX / 2);
    println!("seeds from {first} on");
    for seed in first..first + seeds {
        let _seed = Seed(seed);
        f(&mut fastrand::Rng::with_seed(seed));
    }
    seeds >= count
}

fn cells(octets: &[u8]) -> Vec<Cell<u8>> {
    octets.iter().copied().map(Cell::new).collect()
}

enum Piece {
    Own(Vec<u8>),
    Shared(Vec<Cell<u8>>),
}

impl Piece {
    fn view(&self) -> Octets<'_> {
        match self {
            Piece::Own(octets) => octets[..].into(),
            Piece::Shared(octets) => octets[..].into(),
        }
    }
}

/// A chunk in pieces. A chunk that is not shared has one.
struct Pieces {
    pieces: Vec<Piece>,
    is_shared: bool,
    /// Number of shared chunks that are alive.
    alive: Rc<Cell<usize>>,
}

impl Pieces {
    fn own(octets: &[u8], alive: &Rc<Cell<usize>>) -> Self {
        Pieces { pieces: vec![Piece::Own(octets.to_vec())], is_shared: false, alive: alive.clone() }
    }

    /// Cuts `octets` into pieces of random length, own and shared ones.
    fn random(mut octets: &[u8], rng: &mut fastrand::Rng, alive: &Rc<Cell<usize>>) -> Self {
        let most = [3, 40, 700, 5000][rng.usize(..4)];
        let mut pieces = Vec::new();
        while !octets.is_empty() {
            let (piece, rest) = octets.split_at(rng.usize(1..=most).min(octets.len()));
            pieces.push(if rng.u8(..4) == 0 {
                Piece::Own(piece.to_vec())
            } else {
                Piece::Shared(cells(piece))
            });
            octets = rest;
        }
        alive.set(alive.get() + 1);
        Pieces { pieces, is_shared: true, alive: alive.clone() }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - usize::from(self.is_shared));
    }
}

impl Chunk for Pieces {
    fn bytes(&self) -> &[u8] {
        assert!(!self.is_shared, "no slice of shared octets exists");
        self.pieces.first().map_or(&[], |piece| piece.view().own().unwrap())
    }

    fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.view().len()).sum()
    }

    fn piece(&self, mut at: usize) -> Octets<'_> {
        for piece in self.pieces.iter().map(Piece::view) {
            if at < piece.len() {
                return piece.get(at..piece.len()).unwrap();
            }
            at -= piece.len();
        }
        Octets::from(&[][..] as &[u8])
    }

    fn keep(&mut self) {
        let mut all = Vec::new();
        self.pieces.iter().for_each(|piece| piece.view().append_to(&mut all));
        self.alive.set(self.alive.get() - usize::from(self.is_shared));
        (self.pieces, self.is_shared) = (vec![Piece::Own(all)], false);
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }
}

/// Returns random messages of an Initiator on the wire, some of them spoilt.
fn messages(rng: &mut fastrand::Rng, n: &Negotiated) -> Vec<u8> {
    let n = Negotiated { role: Role::Initiator, tx_markers: n.rx_markers, rx_markers: false, ..*n };
    let mut sender = Node::new(&n);
    sender.send(Rtr::Write.op(), &[], 128).unwrap();
    let mut reads = 0;
    for i in 0..rng.u32(1..12) {
        let len = [0, rng.usize(1..20), rng.usize(1..3000), LEN / 2][rng.usize(..4)];
        let data: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        let mulpdu = [128, 1454, rng.usize(128..9000), 64768][rng.usize(..4)];
        let solicited = rng.bool();
        match rng.u8(..8) {
            0..3 => {
                let to = rng.u64(..LEN as u64 / 2);
                sender.send(Op::Write { stag: WRITTEN, to }, &data, mulpdu).unwrap();
            }
            3..6 => {
                let invalidate = rng.bool().then_some(INVALIDATED + i);
                sender.send(Op::Send { solicited, invalidate }, &data, mulpdu).unwrap();
            }
            6 => sender.send(Op::Immediate { data: [i as u8; 8], solicited }, &[], mulpdu).unwrap(),
            _ if reads < 4 => {
                sender.read(rng.u32(..LEN as u32), (9, 9), (SOURCE, 0)).unwrap();
                reads += 1;
            }
            _ => {}
        }
    }
    let mut octets = sender.take_out();
    if rng.u8(..3) == 0 {
        let at = rng.usize(..octets.len());
        octets[at] ^= 1 << rng.u8(..8);
    }
    octets
}

/// What a stream has made of its octets.
#[derive(Debug, PartialEq)]
struct Effects {
    fault: Option<Fault>,
    events: Vec<Delivery>,
    received: Vec<Vec<u8>>,
    written: Vec<u8>,
    valid: Vec<bool>,
    mid_fpdu: bool,
    ended: bool,
}

/// Receives `octets` in the chunks that `cut` makes of them. With `late`, receives are posted only at the end.
fn receive<C: Chunk>(
    n: &Negotiated,
    late: bool,
    octets: &[u8],
    mut cut: impl FnMut(&mut &[u8]) -> C,
    mut check: impl FnMut(),
) -> Effects {
    let mut memory = Memory::default();
    memory.messages_wait = late;
    memory.add(WRITTEN, 0, LEN);
    memory.add(SOURCE, 0, LEN);
    for i in 0..16 {
        memory.add(INVALIDATED + i, 0, 8);
    }
    let post = |memory: &mut Memory| (0..16).for_each(|_| memory.post_receive(LEN));
    let mut stream = Stream::<C>::new(n, Budget::new(usize::MAX, usize::MAX));
    if late {
        stream.let_sends_wait();
    } else {
        post(&mut memory);
    }
    let (mut rest, mut fault) = (octets, None);
    while !rest.is_empty() && fault.is_none() {
        let mut next = Some(cut(&mut rest));
        while let Some(chunk) = next.take() {
            match stream.receive(chunk, &mut memory) {
                Err(f) => fault = Some(*f),
                Ok(None) => {}
                Ok(Some(_)) => panic!("stopped without a limit"),
            }
        }
        check();
    }
    if late && fault.is_none() {
        post(&mut memory);
        fault = stream.take_up_sends(&mut memory).err().map(|f| *f);
    }
    assert!(memory.guards_intact());
    Effects {
        fault,
        written: memory.region(WRITTEN).data().to_vec(),
        valid: memory.regions.iter().map(|r| r.valid).collect(),
        events: memory.events,
        received: memory.received,
        mid_fpdu: stream.mid_fpdu(),
        ended: stream.ended(),
    }
}

/// However the octets lie, and wherever the stream is cut, the effects are those of one chunk of own memory.
#[test]
fn pieces_of_shared_memory_are_placed_like_one_chunk() {
    for_seeds(3000, |rng| {
        let markers = rng.u8(..4) == 0;
        let n = Negotiated { rx_markers: markers, crc: rng.u8(..4) > 0, ..negotiated(Role::Responder, 4, 4) };
        let octets = messages(rng, &n);
        // Waiting Sends must fit into the room for them.
        let late = rng.bool() && octets.len() < 50_000;
        let alive = Rc::default();
        let whole = |rest: &mut &[u8]| Pieces::own(std::mem::take(rest), &alive);
        let expected = receive(&n, late, &octets, whole, || {});
        let most = [2, 30, 1460, 20_000][rng.usize(..4)];
        let pieces = |rest: &mut &[u8]| {
            let (octets, after) = rest.split_at(rng.usize(1..=most).min(rest.len()));
            *rest = after;
            if rng.u8(..4) == 0 { Pieces::own(octets, &alive) } else { Pieces::random(octets, rng, &alive) }
        };
        let held = || assert_eq!(alive.get(), 0, "a shared chunk is held");
        assert_eq!(receive(&n, late, &octets, pieces, held), expected);
    });
}

/// Memory that the sender changes between any two reads: it always shows one of several buffers, and octets of these
/// change, too.
struct Hostile {
    buffers: Vec<Vec<Cell<u8>>>,
    rng: RefCell<fastrand::Rng>,
}

impl Hostile {
    /// Changes some octets.
    fn change(&self) {
        let mut rng = self.rng.borrow_mut();
        for _ in 0..rng.usize(..3) {
            let buffer = &self.buffers[rng.usize(..self.buffers.len())];
            let octet = [rng.u8(..), rng.u8(..3), 0x41, 0x43, 0xC1, 0x44][rng.usize(..6)];
            // The first octets are the headers of the first FPDU.
            let among = if rng.bool() { buffer.len().min(24) } else { buffer.len() };
            buffer[rng.usize(..among)].set(octet);
        }
    }

    fn len(&self) -> usize {
        self.buffers[0].len()
    }

    fn piece(&self, at: usize) -> Octets<'_> {
        self.change();
        let mut rng = self.rng.borrow_mut();
        let buffer = &self.buffers[rng.usize(..self.buffers.len())];
        let end = if rng.bool() { buffer.len() } else { buffer.len().min(at + rng.usize(1..3000)) };
        buffer.get(at..end).unwrap_or_default().into()
    }
}

/// A chunk in [`Hostile`] memory, until it is kept.
struct Trap {
    memory: Rc<Hostile>,
    kept: Option<Vec<u8>>,
}

impl Chunk for Trap {
    fn bytes(&self) -> &[u8] {
        self.kept.as_ref().expect("a chunk that is kept")
    }

    fn len(&self) -> usize {
        self.memory.len()
    }

    fn piece(&self, at: usize) -> Octets<'_> {
        match &self.kept {
            Some(kept) => kept.get(at..).unwrap_or_default().into(),
            None => self.memory.piece(at),
        }
    }

    fn keep(&mut self) {
        if self.kept.is_none() {
            let mut all = Vec::new();
            while all.len() < self.len() {
                self.memory.piece(all.len()).append_to(&mut all);
            }
            self.kept = Some(all);
        }
    }

    fn is_shared(&self) -> bool {
        self.kept.is_none()
    }
}

/// A sink that changes the hostile memory in each call, and checks that each segment is placed as far as it was
/// granted.
struct Warden {
    memory: Rc<Hostile>,
    /// Octets granted to the present segment, and those placed.
    granted: u32,
    placed: u32,
    /// Number of the present grant.
    grant: u64,
    /// Octets of receives that are posted.
    receives: Vec<u32>,
    capacity: u32,
    /// Octets of the present message that were placed without a gap.
    whole: u32,
    /// Segment and STag of the invalidation that is not done: it must come again.
    awaited: Option<(Option<(u32, u32)>, u32)>,
    /// Whether messages wait in the stream.
    waits: bool,
    /// Present segment of queue 0 as far as it was granted.
    segment: Option<(u32, u32)>,
    octets: u64,
}

impl Warden {
    fn call(&mut self) {
        self.memory.change();
    }

    /// Ends the segment in hand.
    fn settle(&mut self) {
        assert_eq!(self.placed, self.granted, "not all octets of the segment were placed");
        (self.placed, self.granted) = (0, 0);
    }

    fn grant(&mut self, len: u32) -> u64 {
        assert!(len > 0);
        (self.granted, self.placed) = (len, 0);
        self.grant += 1;
        self.grant
    }
}

impl Sink for Warden {
    type Target = u64;

    fn tagged(&mut self, _: TaggedOp, _: u32, _: u64, len: u32) -> Result<u64, TaggedFault> {
        self.call();
        self.settle();
        // Other traffic is served while a message waits.
        assert!(self.awaited.is_none() || self.waits, "another segment in place of the one that waits");
        Ok(self.grant(len))
    }

    fn receive_buffer(&mut self) -> Option<u32> {
        self.call();
        self.settle();
        self.capacity = self.receives.pop()?;
        self.whole = 0;
        Some(self.capacity)
    }

    fn untagged_target(&mut self, offset: u32, len: u32) -> Result<u64, RecvFault> {
        self.call();
        self.settle();
        assert!(offset <= self.whole && u64::from(offset) + u64::from(len) <= self.capacity.into());
        self.segment = Some((offset, len));
        if let Some((segment, _)) = self.awaited {
            assert_eq!(segment, self.segment, "another segment in place of the one that waits");
        }
        self.whole = self.whole.max(offset + len);
        Ok(self.grant(len))
    }

    fn place(&mut self, target: u64, at: u32, src: Octets<'_>) {
        assert_eq!((target, at), (self.grant, self.placed), "out of order");
        self.placed += src.len() as u32;
        self.octets += src.len() as u64;
        assert!(self.placed <= self.granted, "beyond the target");
        self.call();
    }

    fn invalidate(&mut self, stag: u32) -> Result<Invalidation, CannotInvalidate> {
        self.call();
        self.settle();
        let this = (self.segment.take(), stag);
        if let Some(awaited) = self.awaited.take() {
            // An empty last segment has no target: the one noted was then that of the segment before it.
            assert_eq!(
                (this.0.and(awaited.0), awaited.1),
                this,
                "another message in place of the one that waits"
            );
        }
        if self.memory.rng.borrow_mut().bool() {
            self.awaited = Some(this);
            return Ok(Invalidation::Later);
        }
        Ok(Invalidation::Done)
    }

    fn read_source(&mut self, _: u32, _: u64, _: u32) -> Result<(), ReadFault> {
        self.call();
        Ok(())
    }

    fn atomic_target(&mut self, _: u32, _: u64) -> Result<(), AtomicFault> {
        self.call();
        Ok(())
    }

    fn atomic_result(&mut self, _: u32, _: u64, _: u64) -> Result<(), AccessFault> {
        self.call();
        Ok(())
    }

    fn deliver(&mut self, event: Delivery) {
        self.call();
        self.settle();
        self.segment = None;
        if let Delivery::Received { len, .. } = event {
            assert!(len <= self.whole, "{len} octets received, {} placed", self.whole);
            assert_eq!(self.awaited, None);
        }
    }
}

/// Returns memory that shows different streams of messages, of the same length.
fn hostile(rng: &mut fastrand::Rng, n: &Negotiated, skip: usize) -> Rc<Hostile> {
    let first = messages(rng, n);
    let len = first.len().saturating_sub(skip).max(1);
    let mut buffers = vec![first];
    for _ in 0..rng.usize(1..3) {
        let other = if rng.bool() { buffers[0].clone() } else { messages(rng, n) };
        buffers.push(other);
    }
    for octets in &mut buffers {
        octets.drain(..skip.min(octets.len()));
        octets.resize(len, 0);
    }
    Rc::new(Hostile { buffers: buffers.iter().map(|octets| cells(octets)).collect(), rng: rng.fork().into() })
}

/// Whatever the sender does to its octets meanwhile, each segment is placed whole and within its target.
#[test]
fn octets_that_change_between_reads_harm_only_their_sender() {
    let placed = Cell::new(0);
    let many = for_seeds(20_000, |rng| {
        let markers = rng.u8(..8) == 0;
        let crc = if rng.u8(..4) == 0 { !NO_CRC } else { NO_CRC };
        let n = Negotiated { rx_markers: markers, crc, ..negotiated(Role::Responder, 4, 4) };
        let size = [usize::MAX, 10_000, 0][rng.usize(..3)];
        let budget = Budget::new(size.max(70_000), size);
        let mut stream = Stream::<Trap>::new(&n, budget);
        let waits = rng.bool();
        if waits {
            stream.let_sends_wait();
        }
        let mut memory = hostile(rng, &n, 0);
        let mut sink = Warden {
            memory: memory.clone(),
            granted: 0,
            placed: 0,
            grant: 0,
            receives: vec![LEN as u32; rng.usize(..12)],
            capacity: 0,
            whole: 0,
            awaited: None,
            waits: false,
            segment: None,
            octets: 0,
        };
        for _ in 0..rng.usize(1..6) {
            let mut offered = Some(Trap { memory: memory.clone(), kept: None });
            let mut turns = 0;
            while let Some(chunk) = offered.take() {
                sink.waits = stream.sends_wait();
                let Ok(rest) = stream.receive(chunk, &mut sink) else { break };
                turns += 1;
                if let Some(Rest { chunk, taken, wants }) = rest
                    && turns < 8
                {
                    assert!(taken < chunk.len());
                    assert!(wants != Wants::Invalidation || !chunk.is_shared(), "the segment may change");
                    sink.receives.push(LEN as u32);
                    if waits && wants != Wants::Invalidation && stream.take_up_sends(&mut sink).is_err() {
                        break;
                    }
                    // The caller skips the octets that were taken.
                    let octets = match &chunk.kept {
                        Some(kept) => vec![kept[taken..].to_vec(); 2],
                        None => (0..2)
                            .map(|_| {
                                let mut all = Vec::new();
                                memory.piece(taken).append_to(&mut all);
                                all.resize(chunk.len() - taken, 0);
                                all
                            })
                            .collect(),
                    };
                    let fork = sink.memory.rng.borrow_mut().fork();
                    let buffers = octets.iter().map(|o| cells(o)).collect();
                    memory = Rc::new(Hostile { buffers, rng: fork.into() });
                    sink.memory = memory.clone();
                    let kept = chunk.kept.as_ref().map(|kept| kept[taken..].to_vec());
                    offered = Some(Trap { memory: memory.clone(), kept });
                } else if turns >= 8 {
                    return;
                }
            }
            if stream.ended() {
                break;
            }
            if rng.bool() {
                stream.copy_out();
            }
            if waits && sink.awaited.is_none() {
                sink.receives.push(LEN as u32);
                let _ = stream.take_up_sends(&mut sink);
            }
            let skip = if rng.bool() { 0 } else { rng.usize(..3000) };
            memory = hostile(rng, &n, skip);
            sink.memory = memory.clone();
        }
        placed.set(placed.get() + sink.octets);
    });
    assert!(!many || placed.get() > 100_000, "{} octets: hardly a segment was placed", placed.get());
}

/// Memory that a sink changes at one moment.
struct Shown(Rc<Vec<Cell<u8>>>, Option<Vec<u8>>);

impl Chunk for Shown {
    fn bytes(&self) -> &[u8] {
        self.1.as_ref().expect("a chunk that is kept")
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn piece(&self, at: usize) -> Octets<'_> {
        match &self.1 {
            Some(kept) => kept[at..].into(),
            None => self.0[at..].into(),
        }
    }

    fn keep(&mut self) {
        self.1.get_or_insert_with(|| self.0.iter().map(Cell::get).collect());
    }

    fn is_shared(&self) -> bool {
        self.1.is_none()
    }
}

/// A sink without receives, whose invalidations last. It changes octets of the stream when it is asked for either.
struct Changing {
    octets: Rc<Vec<Cell<u8>>>,
    /// Offset and new value.
    change: Option<(usize, u8)>,
    receives: Vec<u32>,
    done: bool,
    events: Vec<Delivery>,
}

impl Changing {
    fn change(&mut self) {
        if let Some((at, octet)) = self.change {
            self.octets[at].set(octet);
        }
    }
}

impl Sink for Changing {
    type Target = ();
    fn tagged(&mut self, _: TaggedOp, _: u32, _: u64, _: u32) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn receive_buffer(&mut self) -> Option<u32> {
        self.change();
        self.receives.pop()
    }
    fn untagged_target(&mut self, _: u32, _: u32) -> Result<(), RecvFault> {
        Ok(())
    }
    fn place(&mut self, _: (), _: u32, _: Octets<'_>) {}
    fn invalidate(&mut self, _: u32) -> Result<Invalidation, CannotInvalidate> {
        self.change();
        Ok(if self.done { Invalidation::Done } else { Invalidation::Later })
    }
    fn read_source(&mut self, _: u32, _: u64, _: u32) -> Result<(), ReadFault> {
        Ok(())
    }
    fn atomic_target(&mut self, _: u32, _: u64) -> Result<(), AtomicFault> {
        Ok(())
    }
    fn atomic_result(&mut self, _: u32, _: u64, _: u64) -> Result<(), AccessFault> {
        Ok(())
    }
    fn deliver(&mut self, event: Delivery) {
        self.events.push(event);
    }
}

/// Returns a stream, a sink that makes `change`, and a chunk with one FPDU around `ulpdu`.
fn changing(ulpdu: &[u8], change: Option<(usize, u8)>) -> (Stream<Shown>, Changing, Shown) {
    let n = Negotiated { crc: NO_CRC, ..negotiated(Role::Responder, 4, 4) };
    let octets = Rc::new(cells(&fpdu(ulpdu)));
    let (receives, events) = (Vec::new(), Vec::new());
    let sink = Changing { octets: octets.clone(), change, receives, done: false, events };
    (Stream::new(&n, Budget::new(usize::MAX, usize::MAX)), sink, Shown(octets, None))
}

#[test]
fn a_message_that_waits_is_the_one_that_was_checked() {
    // The change makes a Send with Solicited Event of the Send, after it has been checked.
    let ulpdu = untagged(0x41, 0x43, 0, 1, 0, &[7; 100]);
    let (mut stream, mut sink, chunk) = changing(&ulpdu, Some((3, 0x45)));
    stream.let_sends_wait();
    assert!(stream.receive(chunk, &mut sink).unwrap().is_none());
    assert!(stream.sends_wait());
    assert_eq!(sink.octets[3].get(), 0x45);
    sink.receives.push(100);
    stream.take_up_sends(&mut sink).unwrap();
    let received = Delivery::Received { len: 100, solicited: false, invalidated: None };
    assert_eq!(sink.events, [Delivery::FirstFpdu, received]);
}

#[test]
fn a_segment_that_waits_for_its_invalidation_must_not_change() {
    let ulpdu = untagged(0x41, 0x44, 0, 1, 0, &[7; 100]);
    // Offsets of the ULPDU_Length, the MSN and the MO; and of the payload, which may change.
    for (at, octet, faulty) in [(1, 100, true), (15, 2, true), (19, 1, true), (100, 1, false)] {
        let (mut stream, mut sink, chunk) = changing(&ulpdu, Some((at, octet)));
        sink.receives.push(200);
        let result = stream.receive(chunk, &mut sink);
        if faulty {
            assert_eq!(result.err().map(|fault| fault.cause), Some(Cause::Crc), "octet {at}");
            assert_eq!(sink.events, [Delivery::FirstFpdu]);
            continue;
        }
        let Rest { chunk, taken, wants } = result.unwrap().unwrap();
        assert_eq!((taken, wants, chunk.is_shared()), (0, Wants::Invalidation, false));
        sink.done = true;
        assert!(stream.receive(chunk, &mut sink).unwrap().is_none());
        let received = Delivery::Received { len: 100, solicited: false, invalidated: Some(0) };
        assert_eq!(sink.events, [Delivery::FirstFpdu, received]);
    }
}
