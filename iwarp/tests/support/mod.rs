//! Memory, chunks and a node for tests of a stream.
#![allow(dead_code)] // each test binary uses a part of this

pub mod refusal;

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use urnic_iwarp::*;

/// Octets before and after every region. Nothing may touch them.
pub const GUARD: usize = 64;
const GUARD_OCTET: u8 = 0xA5;
/// Content of a receive request before anything is placed.
pub const STALE_OCTET: u8 = 0x5A;

/// A chunk that counts how many chunks are alive.
#[derive(Debug)]
pub struct Bytes {
    octets: Vec<u8>,
    live: Rc<Cell<usize>>,
}

impl Bytes {
    pub fn new(octets: &[u8], live: &Rc<Cell<usize>>) -> Bytes {
        live.set(live.get() + 1);
        Bytes { octets: octets.to_vec(), live: live.clone() }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.live.set(self.live.get() - 1);
    }
}

impl Chunk for Bytes {
    fn bytes(&self) -> &[u8] {
        &self.octets
    }
}

/// Registered memory: tagged offsets `base..base + len`.
pub struct Region {
    pub stag: u32,
    pub base: u64,
    pub valid: bool,
    pub ours: bool,
    pub write: bool,
    pub read: bool,
    pub atomic: bool,
    /// Distance of the start from an address that is a multiple of 8.
    pub skew: usize,
    octets: Vec<u8>,
}

impl Region {
    pub fn data(&self) -> &[u8] {
        &self.octets[GUARD..self.octets.len() - GUARD]
    }

    pub fn data_mut(&mut self) -> &mut [u8] {
        let end = self.octets.len() - GUARD;
        &mut self.octets[GUARD..end]
    }

    /// Returns the offset of `to` in the region's octets, or why the access is refused. `right`: the region
    /// grants the right that the access needs.
    fn check(&self, to: u64, len: u32, right: bool) -> Result<usize, AccessFault> {
        if !self.valid {
            return Err(AccessFault::InvalidStag);
        }
        if !self.ours {
            return Err(AccessFault::NotAssociated);
        }
        if !right {
            return Err(AccessFault::NoRight);
        }
        let at = to.checked_sub(self.base).ok_or(AccessFault::Bounds)?;
        let end = at.checked_add(len.into()).ok_or(AccessFault::Wrap)?;
        if end > self.data().len() as u64 {
            return Err(AccessFault::Bounds);
        }
        Ok(GUARD + at as usize)
    }
}

#[derive(Clone, Copy)]
pub enum Target {
    Region { index: usize, at: usize, write: bool },
    Receive { at: usize },
}

/// A sink over plain vectors that records everything.
#[derive(Default)]
pub struct Memory {
    pub regions: Vec<Region>,
    index: HashMap<u32, usize>,
    /// Posted receive requests.
    pub receives: VecDeque<Vec<u8>>,
    /// The receive request being filled, and which of its octets have been placed.
    current: Option<(Vec<u8>, Vec<bool>)>,
    /// Octets that Writes have placed since the last message of queue 0. With `messages_wait`, the octets of all
    /// Writes, because a Write that follows a waiting message is placed before that message is delivered.
    written: Vec<(usize, Range<usize>)>,
    pub messages_wait: bool,
    pub scatter_broken: bool,
    pub pinned_stags: Vec<u32>,
    pub events: Vec<Delivery>,
    /// Payloads of delivered Sends, cut to their length.
    pub received: Vec<Vec<u8>>,
    pub placements: usize,
    pub place_calls: usize,
}

impl Memory {
    pub fn add(&mut self, stag: u32, base: u64, len: usize) -> &mut Region {
        let mut octets = vec![GUARD_OCTET; len + 2 * GUARD];
        octets[GUARD..GUARD + len].fill(0);
        self.index.insert(stag, self.regions.len());
        let (valid, ours, write, read, atomic) = (true, true, true, true, true);
        self.regions.push(Region { stag, base, valid, ours, write, read, atomic, skew: 0, octets });
        self.regions.last_mut().unwrap()
    }

    pub fn region(&self, stag: u32) -> &Region {
        &self.regions[self.index[&stag]]
    }

    pub fn region_mut(&mut self, stag: u32) -> &mut Region {
        &mut self.regions[self.index[&stag]]
    }

    pub fn post_receive(&mut self, len: usize) {
        self.receives.push_back(vec![STALE_OCTET; len]);
    }

    /// Returns the longest run of octets that Writes have placed since the last message of queue 0.
    fn longest_write(&self) -> usize {
        let mut written: Vec<_> = self.written.iter().map(|(index, r)| (*index, r.start, r.end)).collect();
        written.sort();
        let (mut run, mut longest) = ((usize::MAX, 0, 0), 0);
        for (index, start, end) in written {
            run = if (index, true) == (run.0, start <= run.2) {
                (index, run.1, end.max(run.2))
            } else {
                (index, start, end)
            };
            longest = longest.max(run.2 - run.1);
        }
        longest
    }

    fn forget_written(&mut self) {
        if !self.messages_wait {
            self.written.clear();
        }
    }

    pub fn guards_intact(&self) -> bool {
        self.regions.iter().all(|r| {
            let n = r.octets.len();
            r.octets[..GUARD].iter().chain(&r.octets[n - GUARD..]).all(|&o| o == GUARD_OCTET)
        })
    }

    /// Returns the region and offset where an Atomic at `to` is performed.
    fn atomic_at(&self, stag: u32, to: u64) -> Result<(usize, usize), AtomicFault> {
        let index = self.lookup(stag)?;
        let r = &self.regions[index];
        let at = r.check(to, 8, r.atomic)?;
        if (at - GUARD + r.skew).is_multiple_of(8) { Ok((index, at)) } else { Err(AtomicFault::Misaligned) }
    }

    /// Performs an Atomic and returns the previous value. Words are little-endian here.
    pub fn perform(&mut self, stag: u32, to: u64, op: AtomicOp) -> Result<u64, AtomicFault> {
        let (index, at) = self.atomic_at(stag, to)?;
        let word = &mut self.regions[index].octets[at..at + 8];
        let old = u64::from_le_bytes(word.try_into().unwrap());
        if let Some(new) = op.apply(old) {
            word.copy_from_slice(&new.to_le_bytes());
        }
        Ok(old)
    }

    fn lookup(&self, stag: u32) -> Result<usize, AccessFault> {
        self.index.get(&stag).copied().ok_or(AccessFault::InvalidStag)
    }
}

impl Sink for Memory {
    type Target = Target;

    fn tagged(&mut self, op: TaggedOp, stag: u32, to: u64, len: u32) -> Result<Target, TaggedFault> {
        assert!(len > 0, "an empty segment must not be checked");
        let index = self.lookup(stag)?;
        let r = &self.regions[index];
        let at = r.check(to, len, op == TaggedOp::ReadResponse || r.write)?;
        Ok(Target::Region { index, at, write: op == TaggedOp::Write })
    }

    fn receive_buffer(&mut self) -> Option<u32> {
        let buffer = self.receives.pop_front()?;
        let len = buffer.len() as u32;
        let placed = vec![false; buffer.len()];
        assert!(self.current.replace((buffer, placed)).is_none(), "two messages in one receive request");
        Some(len)
    }

    fn untagged_target(&mut self, offset: u32, len: u32) -> Result<Target, RecvFault> {
        assert!(len > 0, "an empty segment has no place");
        let capacity = self.current.as_ref().expect("a receive request was taken").0.len();
        assert!(offset as usize + len as usize <= capacity, "beyond the receive request");
        if self.scatter_broken { Err(RecvFault) } else { Ok(Target::Receive { at: offset as usize }) }
    }

    fn place(&mut self, target: Target, at: u32, src: Octets<'_>) {
        self.placements += src.len();
        self.place_calls += 1;
        let (octets, base) = match target {
            Target::Region { index, at: base, write } => {
                let start = base + at as usize;
                if write {
                    self.written.push((index, start..start + src.len()));
                }
                (&mut self.regions[index].octets, base)
            }
            Target::Receive { at: base } => {
                let (octets, placed) = self.current.as_mut().unwrap();
                placed[base + at as usize..][..src.len()].fill(true);
                (octets, base)
            }
        };
        let from = base + at as usize;
        // If a test breaks a rule, a placement may reach even beyond the guard. It is cut there, because the changed
        // guard shows the break.
        let n = src.len().min(octets.len().saturating_sub(from));
        src.copy_to(&mut octets[from..from + n]);
    }

    fn invalidate(&mut self, stag: u32) -> Result<Invalidation, CannotInvalidate> {
        let index = self.lookup(stag).map_err(|_| CannotInvalidate)?;
        if self.pinned_stags.contains(&stag) || !self.regions[index].valid || !self.regions[index].ours {
            return Err(CannotInvalidate);
        }
        self.regions[index].valid = false;
        Ok(Invalidation::Done)
    }

    fn read_source(&mut self, stag: u32, to: u64, len: u32) -> Result<(), ReadFault> {
        assert!(len > 0, "an empty Read must not be checked");
        let r = &self.regions[self.lookup(stag)?];
        r.check(to, len, r.read).map(drop)
    }

    fn atomic_target(&mut self, stag: u32, to: u64) -> Result<(), AtomicFault> {
        self.atomic_at(stag, to).map(drop)
    }

    fn atomic_result(&mut self, stag: u32, to: u64, original: u64) -> Result<(), AccessFault> {
        let index = self.lookup(stag)?;
        let at = self.regions[index].check(to, 8, true)?;
        self.place(Target::Region { index, at, write: false }, 0, original.to_le_bytes()[..].into());
        Ok(())
    }

    fn deliver(&mut self, event: Delivery) {
        if let Delivery::Immediate { written, .. } = event {
            self.current.take().expect("Immediate Data without receive request");
            assert!(written as usize <= self.longest_write(), "told of octets that no Write has placed");
            self.forget_written();
        }
        if let Delivery::Received { len, .. } = event {
            let (mut buffer, placed) = self.current.take().expect("a message without receive request");
            assert!(
                placed[..len as usize].iter().all(|p| *p),
                "{len} octets received, not all of them placed"
            );
            buffer.truncate(len as usize);
            self.received.push(buffer);
            self.forget_written();
        }
        self.events.push(event);
    }
}

/// Returns negotiated parameters with CRCs on.
pub fn negotiated(role: Role, ird: u16, ord: u16) -> Negotiated {
    Negotiated {
        role,
        rev: 2,
        crc: true,
        tx_markers: false,
        rx_markers: false,
        ird,
        ord,
        rtr: None,
        peer_to_peer: None,
    }
}

/// One end: a stream, its memory, and the octets it has sent.
pub struct Node {
    pub stream: Stream<Bytes>,
    pub memory: Memory,
    pub out: Vec<u8>,
    /// Sizes of the FPDUs in `out`.
    pub sizes: Vec<usize>,
    pub live: Rc<Cell<usize>>,
}

impl Node {
    pub fn new(n: &Negotiated) -> Node {
        Node {
            stream: Stream::new(n, Budget::new(usize::MAX, usize::MAX)),
            memory: Memory::default(),
            out: Vec::new(),
            sizes: Vec::new(),
            live: Rc::default(),
        }
    }

    /// Returns an Initiator with IRD and ORD 16, and CRCs on.
    pub fn initiator() -> Node {
        Node::new(&negotiated(Role::Initiator, 16, 16))
    }

    pub fn responder() -> Node {
        Node::new(&negotiated(Role::Responder, 16, 16))
    }

    /// Receives octets as one chunk.
    pub fn receive(&mut self, octets: &[u8]) -> Result<(), Fault> {
        let chunk = Bytes::new(octets, &self.live);
        let rest = self.stream.receive(chunk, &mut self.memory).map_err(|fault| *fault)?;
        assert!(rest.is_none(), "the stream has stopped without a limit");
        Ok(())
    }

    /// Begins a message and writes all its FPDUs to `out`.
    pub fn send(&mut self, op: Op, message: &[u8], mulpdu: usize) -> Result<(), BeginError> {
        let mut outgoing = self.stream.begin(op, message.len() as u32)?;
        while let Some(fpdu) = outgoing.next(mulpdu) {
            let octets = wire(&fpdu, message);
            assert_eq!(octets.len(), fpdu.size());
            let octets = mark(&mut self.stream, octets, fpdu.crc);
            self.sizes.push(octets.len());
            self.out.extend_from_slice(&octets);
        }
        assert!(outgoing.done() && outgoing.remaining() == 0);
        Ok(())
    }

    /// Begins an Atomic and writes its Request.
    pub fn atomic(&mut self, sink: (u32, u64), target: (u32, u64), op: AtomicOp) -> Result<(), BeginError> {
        let (sink_stag, sink_to) = sink;
        let (stag, to) = target;
        self.send(Op::Atomic { sink_stag, sink_to, stag, to, op }, &[], 1454)
    }

    /// Begins a Read and writes its Request.
    pub fn read(&mut self, len: u32, sink: (u32, u64), src: (u32, u64)) -> Result<(), BeginError> {
        let op = Op::Read { sink_stag: sink.0, sink_to: sink.1, src_stag: src.0, src_to: src.1 };
        let mut outgoing = self.stream.begin(op, len)?;
        let fpdu = outgoing.next(1454).unwrap();
        let octets = mark(&mut self.stream, wire(&fpdu, &[]), fpdu.crc);
        self.out.extend_from_slice(&octets);
        assert!(outgoing.next(1454).is_none(), "a Read Request is one FPDU");
        Ok(())
    }

    /// Responds to every pending Read Request, and performs and answers every pending Atomic Request.
    pub fn respond(&mut self, mulpdu: usize) {
        while let Some(request) = self.stream.next_response() {
            let r = match request {
                Pending::Read(r) => r,
                Pending::Atomic(a) => {
                    let original = self.memory.perform(a.stag, a.to, a.op).unwrap();
                    self.send(Op::AtomicResponse { id: a.id, original }, &[], mulpdu).unwrap();
                    continue;
                }
            };
            let data = match r.len {
                0 => Vec::new(),
                len => {
                    let region = self.memory.region(r.src_stag);
                    let at = (r.src_to - region.base) as usize;
                    region.data()[at..at + len as usize].to_vec()
                }
            };
            self.send(Op::ReadResponse(r), &data, mulpdu).unwrap();
        }
    }

    pub fn take_out(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Returns the events other than [`Delivery::FirstFpdu`].
    pub fn events(&self) -> Vec<Delivery> {
        self.memory.events.iter().copied().filter(|e| *e != Delivery::FirstFpdu).collect()
    }
}

/// Returns the octets of an FPDU of `message`.
pub fn wire(fpdu: &Fpdu<'_>, message: &[u8]) -> Vec<u8> {
    let mut octets = fpdu.header().to_vec();
    octets.extend_from_slice(&message[fpdu.payload.start as usize..fpdu.payload.end as usize]);
    octets.resize(octets.len() + usize::from(fpdu.pad), 0);
    let crc = if fpdu.crc { crc(&octets) } else { 0 };
    octets.extend_from_slice(&crc.to_le_bytes());
    octets
}

/// Returns an FPDU with the markers that its stream needs.
pub fn mark(stream: &mut Stream<Bytes>, mut octets: Vec<u8>, crc: bool) -> Vec<u8> {
    let plain = octets.len();
    if let Some(markers) = stream.tx_markers() {
        octets.resize(markers.size(plain), 0xEE);
        markers.insert(&mut octets, plain, crc);
        stream.sent(plain);
    }
    octets
}

pub fn crc(octets: &[u8]) -> u32 {
    urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, octets))
}

/// Returns an FPDU around any ULPDU, with a correct CRC.
pub fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut octets = (ulpdu.len() as u16).to_be_bytes().to_vec();
    octets.extend_from_slice(ulpdu);
    while !octets.len().is_multiple_of(4) {
        octets.push(0);
    }
    let crc = crc(&octets);
    octets.extend_from_slice(&crc.to_le_bytes());
    octets
}

/// Returns a tagged ULPDU.
pub fn tagged(ddp: u8, rdmap: u8, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    [&[ddp, rdmap][..], &stag.to_be_bytes(), &to.to_be_bytes(), payload].concat()
}

/// Returns an untagged ULPDU with Invalidate STag 0.
pub fn untagged(ddp: u8, rdmap: u8, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let fields = [qn.to_be_bytes(), msn.to_be_bytes(), mo.to_be_bytes()].concat();
    [&[ddp, rdmap, 0, 0, 0, 0][..], &fields, payload].concat()
}

/// Returns a Read Request header.
pub fn read_header(sink: (u32, u64), len: u32, src: (u32, u64)) -> Vec<u8> {
    [
        &sink.0.to_be_bytes()[..],
        &sink.1.to_be_bytes(),
        &len.to_be_bytes(),
        &src.0.to_be_bytes(),
        &src.1.to_be_bytes(),
    ]
    .concat()
}

pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect()
}

/// Returns the golden octets: name and hex.
pub fn vectors() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("../vectors.txt").lines().filter(|l| !l.starts_with('#'));
    lines.filter_map(|l| l.split_once(char::is_whitespace)).map(|(name, octets)| (name, octets.trim()))
}

/// Returns the first two octets and HdrCt of a Terminate as the table of errors writes them: layer and type, code, M
/// D R.
pub fn octets_of(t: &Terminate) -> [u8; 3] {
    let hdrct = u8::from(t.segment_len.is_some()) << 7
        | u8::from(t.ddp.is_some()) << 6
        | u8::from(t.rdma.is_some()) << 5;
    [t.layer << 4 | t.etype, t.code, hdrct]
}

pub mod fuzz;
