//! Sends, Writes and Reads on one queue pair, in both directions at once. Every completion is accounted for, and the
//! content of every message is checked: that of Writes by Reads that follow them.

use std::collections::HashSet;

use urnic::{Mr, Qp, SendOp, Sge, Wc, WcOpcode, WcStatus};

use super::node::{ALL, Node, Place, pattern, receive, send};

const LEN: u32 = 4096;
/// Maximum number of outstanding requests in the send queue.
const WINDOW: usize = 32;
/// Maximum number of Sends that an end posts beyond the number that it has received. The other end may be as
/// far ahead, so up to twice as many Sends may be under way to one end. Each end has that many receives, so
/// that every Send finds one.
const CREDIT: u64 = 16;
const RECEIVES: usize = 2 * CREDIT as usize;
/// The memory of one end: the parts that the peer reads and writes, the destination of our Reads, the source of our
/// Sends and Writes, and the memory of our receives.
pub struct Memory(Mr);

impl Memory {
    pub fn new(node: &Node) -> Self {
        let mr = node.pd.alloc_mr((INBOX as usize + RECEIVES) * LEN as usize, ALL).unwrap();
        for slot in [CONSTANT, SOURCE] {
            mr.write_at(slot * u64::from(LEN), &pattern(slot, LEN as usize)).unwrap();
        }
        Self(mr)
    }

    pub fn place(&self) -> Place {
        Place::of(&self.0)
    }

    fn slot(&self, slot: u64) -> Sge {
        Sge::of(&self.0, slot * u64::from(LEN), LEN)
    }

    fn clear(&self, slot: u64) {
        self.0.write_at(slot * u64::from(LEN), &[0; LEN as usize]).unwrap();
    }

    fn bytes(&self, slot: u64) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        self.0.read_at(slot * u64::from(LEN), &mut bytes).unwrap();
        bytes
    }
}

/// Slots of the memory.
const CONSTANT: u64 = 0;
const WRITTEN: u64 = 1;
const SOURCE: u64 = 2;
/// The first of the slots that Reads of the peer's constant go to. There is one for each request of the send queue, so
/// that each Read finds its slot empty.
const READ: u64 = 3;
/// The first of the slots that Reads of what was written at the peer go to.
const READ_BACK: u64 = READ + WINDOW as u64;
const INBOX: u64 = READ_BACK + WINDOW as u64;

/// A queue pair under traffic.
pub struct Traffic<'a> {
    pub qp: Qp,
    memory: &'a Memory,
    /// The peer's memory. Work starts when this is known.
    pub peer: Option<Place>,
    /// Ids of requests that have not completed.
    outstanding: HashSet<u64>,
    next_id: u64,
    /// Number of requests in the send queue that have not completed.
    sending: usize,
    sent: u64,
    /// Number of Reads that were posted.
    reads: u64,
    /// Whether a Write was posted.
    wrote: bool,
    received: u64,
    pub done: u64,
    pub flushed: u64,
}

impl<'a> Traffic<'a> {
    /// Makes a queue pair. `first_id` must be greater than every id of earlier work on the same completion queue.
    pub fn new(node: &Node, memory: &'a Memory, first_id: u64) -> Self {
        let mut traffic = Self {
            qp: node.qp(),
            memory,
            peer: None,
            outstanding: HashSet::new(),
            next_id: first_id,
            sending: 0,
            sent: 0,
            reads: 0,
            wrote: false,
            received: 0,
            done: 0,
            flushed: 0,
        };
        for slot in 0..RECEIVES as u64 {
            traffic.receive(INBOX + slot);
        }
        traffic
    }

    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Returns a new id. Its low bits name the slot.
    fn id(&mut self, slot: u64) -> u64 {
        let id = self.next_id << 8 | slot;
        self.next_id += 1;
        assert!(self.outstanding.insert(id));
        id
    }

    fn receive(&mut self, slot: u64) {
        let id = self.id(slot);
        receive(&self.qp, id, self.memory.slot(slot));
    }

    fn send(&mut self, op: SendOp, slot: u64) {
        let id = self.id(slot);
        self.sending += 1;
        send(&self.qp, id, op, self.memory.slot(slot));
    }

    /// Posts as many requests as may be outstanding.
    pub fn post(&mut self) {
        let Some(Place { addr, rkey }) = self.peer else { return };
        let written = addr + WRITTEN * u64::from(LEN);
        while self.sending < WINDOW {
            match self.next_id % 4 {
                0 | 1 if self.sent < self.received + CREDIT => {
                    self.sent += 1;
                    self.send(SendOp::Send, SOURCE);
                }
                2 => {
                    let slot = self.reads % WINDOW as u64;
                    self.reads += 1;
                    // The peer handles a Read only when it has placed the Writes that came before it.
                    match self.wrote && self.reads.is_multiple_of(2) {
                        true => self.send(SendOp::Read { addr: written, rkey }, READ_BACK + slot),
                        false => self.send(SendOp::Read { addr, rkey }, READ + slot),
                    }
                }
                _ => {
                    self.wrote = true;
                    self.send(SendOp::Write { addr: written, rkey }, SOURCE);
                }
            }
        }
    }

    /// Accounts for a completion. With `serving`, posts a completed receive again.
    pub fn complete(&mut self, wc: &Wc, serving: bool) {
        assert!(self.outstanding.remove(&wc.wr_id), "{wc:?} completed twice, or was never posted");
        let slot = wc.wr_id & 0xff;
        if slot < INBOX {
            self.sending -= 1;
        }
        if wc.status != WcStatus::Success {
            self.flushed += 1;
            return;
        }
        self.done += 1;
        match wc.opcode {
            WcOpcode::Recv => {
                assert_eq!(wc.byte_len, LEN);
                assert!(
                    self.memory.bytes(slot) == pattern(SOURCE, LEN as usize),
                    "a Send with wrong content"
                );
                self.memory.clear(slot);
                if serving {
                    self.receive(slot);
                }
                self.received += 1;
            }
            WcOpcode::Read => {
                let origin = if slot < READ_BACK { CONSTANT } else { SOURCE };
                assert!(
                    self.memory.bytes(slot) == pattern(origin, LEN as usize),
                    "a Read of wrong content in slot {slot}"
                );
                self.memory.clear(slot);
            }
            _ => {}
        }
    }

    /// Posts a receive and a Send to a queue pair that has ended.
    pub fn post_in_vain(&mut self) {
        self.receive(INBOX);
        self.send(SendOp::Send, SOURCE);
    }

    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }
}
