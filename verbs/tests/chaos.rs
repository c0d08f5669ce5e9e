//! Two nodes whose programs behave, at random moments, as careless or hostile programs do. They take memory
//! away while it is used, invalidate, bind, register anew, resize, post nonsense, and close. With an odd seed,
//! the network loses and reorders frames.
//!
//! Two things must hold nevertheless. No octet changes outside of the memory that is granted at that moment; the test
//! compares all other memory with a shadow copy after every turn. And every posted request completes once and in order,
//! unless its queue pair is destroyed.

mod common;

use common::pages::Pages;
use common::*;
use fastrand::Rng;
use std::collections::VecDeque;
use std::ops::Range;
use urnic::simulation::{Options, Simulation, Steering};
use urnic::*;

const SEEDS: u64 = 100;
const TURNS: usize = 250;
const SLOTS: usize = 12;
/// Octets of a slot. The slot's memory is a part of these octets, between guards.
const SLOT: usize = 12 << 10;
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The use of a slot's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// Peers may read and write the memory.
    Open,
    /// Peers may read and write the part that a window of type 1 or 2 grants.
    Windowed(MwKind),
    /// Peers may read the memory.
    ReadOnly,
    /// Only receives, Reads and Atomics of this node write the memory, until a `RegMr` grants peers the same
    /// access as `Open`.
    Own,
}

/// A piece of a node's memory.
struct Slot {
    range: Range<usize>,
    purpose: Use,
    domain: usize,
    mr: Option<Mr>,
    /// The present STag of the memory.
    key: u32,
    mw: Option<Mw>,
    /// Whether a request that concerns the slot is outstanding. There is at most one at a time, so that its effect is
    /// known.
    busy: bool,
    /// The queue pair to which the latest request that concerns the slot was posted.
    bound_by: u32,
    /// The range of memory that the STag should grant; `None`: no memory.
    grants: Option<Range<usize>>,
    /// The ranges of memory that may change now.
    open: Vec<Range<usize>>,
}

/// A present or former STag: first address, length, key.
type Known = (u64, usize, u32);

struct Node {
    device: Device,
    domains: [Pd; 2],
    shadow: Vec<u8>,
    slots: Vec<Slot>,
    known: Vec<Known>,
    /// The memory of all regions. The last field, because it must be dropped after the regions.
    pages: Pages,
}

impl Node {
    fn new(device: Device, rng: &mut Rng) -> Node {
        let pages = Pages::new(SLOTS * SLOT);
        let shadow: Vec<u8> = (0..pages.len()).map(|_| rng.u8(..)).collect();
        pages.fill(&shadow);
        let slots = (0..SLOTS).map(|i| {
            let purpose = [
                Use::Open,
                Use::Windowed(MwKind::Two),
                Use::Windowed(MwKind::One),
                Use::ReadOnly,
                Use::Own,
                Use::Own,
            ][i % 6];
            let start = i * SLOT + rng.usize(1..2000);
            let range = start..start + rng.usize(100..8000);
            Slot {
                range,
                purpose,
                domain: i / 6 % 2,
                mr: None,
                key: 0,
                mw: None,
                busy: false,
                bound_by: 0,
                grants: None,
                open: Vec::new(),
            }
        });
        let slots = slots.collect();
        let domains = [device.alloc_pd(), device.alloc_pd()];
        Node { domains, device, shadow, slots, known: Vec::new(), pages }
    }

    /// Notes that the slot's open ranges are closed, and copies their content, which must not change from now on.
    fn close(&mut self, slot: usize) {
        let now = self.pages.content();
        self.slots[slot].grants = None;
        for range in self.slots[slot].open.drain(..) {
            self.shadow[range.clone()].copy_from_slice(&now[range]);
        }
    }

    fn register(&mut self, i: usize) {
        let slot = &mut self.slots[i];
        let access = match slot.purpose {
            Use::Open => Access::LOCAL_WRITE | REMOTE | Access::REMOTE_INVALIDATE,
            Use::ReadOnly => Access::REMOTE_READ,
            Use::Windowed(_) | Use::Own => Access::LOCAL_WRITE,
        };
        let base = self.pages.base().wrapping_add(slot.range.start);
        // SAFETY: within the mapping, which is dropped after the region; there are no references to it.
        let mr = unsafe { self.domains[slot.domain].reg_mr(base, slot.range.len(), access) }.unwrap();
        slot.key = mr.rkey();
        self.known.push((mr.addr(), slot.range.len(), slot.key));
        if matches!(slot.purpose, Use::Open | Use::Own) {
            slot.open.push(slot.range.clone());
        }
        slot.grants = (!matches!(slot.purpose, Use::Windowed(_))).then(|| slot.range.clone());
        if let Use::Windowed(kind) = slot.purpose {
            slot.mw = Some(self.domains[slot.domain].alloc_mw(kind).unwrap());
        }
        slot.mr = Some(mr);
    }

    /// Takes a slot's memory back in one of the ways in which a program can do so at once.
    fn take_back(&mut self, i: usize, rng: &mut Rng) {
        let slot = &mut self.slots[i];
        let done = match rng.u8(..4) {
            0 => slot.mw.take().is_some(),
            // The device refuses this if a window is bound. A busy slot is left out, because its outstanding request
            // could grant access anew.
            1 => !slot.busy && slot.mr.as_ref().is_some_and(|mr| mr.revoke().is_ok()),
            2 => slot.mr.as_mut().is_some_and(|mr| {
                let change = Rereg { access: Some(Access::REMOTE_READ), ..Rereg::default() };
                // SAFETY: as for `register`.
                let done = unsafe { mr.rereg(&change) }.is_ok();
                slot.key = mr.rkey();
                done
            }),
            _ => slot.mr.take().is_some(),
        };
        if done {
            self.close(i);
        }
    }

    /// Returns a random request that concerns a slot's memory: invalidation, binding, or registration.
    fn manage(&mut self, i: usize, rng: &mut Rng) -> Option<SendOp> {
        let slot = &mut self.slots[i];
        let (mr, whole) = (slot.mr.as_ref()?, slot.range.clone());
        if slot.busy {
            return None;
        }
        let from = whole.start + rng.usize(..whole.len() / 2);
        let part = from..from + rng.usize(1..=whole.end - from);
        let (addr, len) = (self.pages.base() as u64 + part.start as u64, part.len() as u64);
        let invalidates = slot.grants.is_some();
        slot.grants = Some(part.clone());
        let op = match (&slot.mw, slot.purpose) {
            (Some(_), Use::Windowed(MwKind::Two)) if invalidates => SendOp::LocalInv(slot.key),
            (Some(mw), _) => {
                slot.key = mw.fresh_rkey();
                slot.open.push(part);
                let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
                SendOp::BindMw { rkey: slot.key, lkey: mr.lkey(), addr, len, access }
            }
            _ if invalidates => SendOp::LocalInv(slot.key),
            _ => {
                slot.key = slot.key & !0xff | slot.key.wrapping_add(1) & 0xff;
                let access = if slot.purpose == Use::ReadOnly {
                    Access::REMOTE_READ
                } else {
                    slot.open.push(part);
                    Access::LOCAL_WRITE | REMOTE | Access::REMOTE_INVALIDATE
                };
                SendOp::RegMr { key: slot.key, addr, len, access }
            }
        };
        slot.busy = true;
        self.known.push((addr, len as usize, slot.key));
        Some(op)
    }

    /// Notes that the peer has invalidated `key`.
    fn invalidated(&mut self, key: u32) {
        if let Some(i) = self.slots.iter().position(|slot| slot.key == key && !slot.busy) {
            self.close(i);
        }
    }

    /// Checks that the memory outside of the open ranges agrees with the shadow copy.
    fn check(&self) -> Result<(), String> {
        let mut now = self.pages.content();
        for range in self.slots.iter().flat_map(|slot| &slot.open) {
            now[range.clone()].copy_from_slice(&self.shadow[range.clone()]);
        }
        match now.iter().zip(&self.shadow).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(format!("octet {at} has changed, in slot {}", at / SLOT)),
        }
    }
}

/// The access to the peer's memory that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Atomics and invalidation, which windows do not grant.
    Exclusive,
}

/// Two queue pairs that were connected, and their outstanding requests: the number of each request, and the
/// slot that it concerns.
struct Pair {
    domain: usize,
    ends: [End; 2],
    sends: [VecDeque<(u64, Option<usize>)>; 2],
    receives: [VecDeque<u64>; 2],
    /// Number of receives of at least 16 octets for which no message is under way.
    ready: [u32; 2],
}

#[derive(Default, Debug)]
struct Seen {
    succeeded: u32,
    flushed: u32,
    managed: u32,
    refused: u32,
    invalidated: u32,
    pairs: u32,
}

struct World {
    simulation: Simulation,
    rng: Rng,
    /// The generator that chooses engines.
    choices: Rng,
    nodes: [Node; 2],
    pairs: Vec<Pair>,
    next: u64,
    seen: Seen,
}

impl World {
    /// Makes two nodes. With `several`, each has several engines.
    fn new(seed: u64, several: bool) -> World {
        let rng = &mut Rng::with_seed(seed);
        let network = ["delay=5us", "delay=20us,loss=0.01,reorder=0.05"][seed as usize % 2];
        let network = format!("{network},seed={seed}").parse().unwrap();
        let mut choices = Rng::with_seed(seed ^ 0x656e_6769);
        let engines = [0; 2].map(|_| choices.usize(2..=6)).into_iter().filter(|_| several).collect();
        let options = Options { network, engines, steering: Steering::Random, ..Options::default() };
        let simulation = Simulation::new(&options).unwrap();
        let nodes = [0, 1].map(|i| Node::new(simulation.device(i), rng));
        let pairs = Vec::new();
        World { simulation, rng: rng.clone(), choices, nodes, pairs, next: 0, seen: Seen::default() }
    }

    fn add_pair(&mut self) {
        let domain = self.rng.usize(..2);
        let mut ends = [0, 1].map(|side: usize| {
            let node: &Node = &self.nodes[side];
            let vector = self.choices.u32(..node.device.attributes().unwrap().engines);
            let init = CqInit { depth: 256, channel: None, timestamps: false, vector };
            let (pd, cq) = (node.domains[domain].clone(), node.device.create_cq_with(&init).unwrap());
            let events = node.device.create_event_channel().unwrap();
            End { qp: create_qp(&pd, &cq), pd, cq, events, connection: None }
        });
        let [server, client] = &mut ends;
        connect(&mut self.simulation, server, client);
        self.pairs.push(Pair {
            domain,
            ends,
            sends: Default::default(),
            receives: Default::default(),
            ready: [0; 2],
        });
        self.seen.pairs += 1;
    }

    /// Returns a scatter-gather list of this node's memory. The list is correct most of the time.
    fn sges(&mut self, side: usize, domain: usize, purposes: &[Use], most: usize) -> Vec<Sge> {
        let node = &self.nodes[side];
        let rng = &mut self.rng;
        let fits = |slot: &Slot| {
            let usable =
                slot.domain == domain && slot.mr.is_some() && !slot.busy && purposes.contains(&slot.purpose);
            slot.grants.clone().filter(|_| usable).map(|range| (range, slot.key))
        };
        let all: Vec<_> = node.slots.iter().filter_map(fits).collect();
        let Some((range, lkey)) = rng.choice(all) else { return Vec::new() };
        let from = rng.usize(range.clone());
        let n = rng.usize(..=(range.end - from).min(most));
        let mut sge = Sge { addr: node.pages.base() as u64 + from as u64, len: n as u32, lkey };
        match rng.u16(..400) {
            0 => sge.lkey ^= rng.u32(..),
            1 => sge.addr = sge.addr.wrapping_add(rng.u64(..20_000)),
            2 => sge.addr = rng.u64(..),
            _ => {}
        }
        vec![sge]
    }

    /// Returns an address and an STag of the peer, and a number of octets. They are correct most of the time.
    fn target(&mut self, p: usize, side: usize, kind: Kind) -> Option<(u64, u32, usize)> {
        let pair = &self.pairs[p];
        let (node, qpn, rng) = (&self.nodes[1 - side], pair.ends[1 - side].qp.qpn(), &mut self.rng);
        if rng.u16(..60) == 0 {
            let (base, len, key) = rng.choice(&node.known).copied().unwrap_or((0, 1, 1));
            return Some(match rng.u8(..4) {
                0 => (base.wrapping_sub(rng.u64(..100)), key, len),
                1 => (rng.u64(..), key, len),
                2 => (base, rng.u32(..), len),
                _ => (base, key, len),
            });
        }
        let granted = |slot: &Slot| {
            let usable = slot.domain == pair.domain && slot.mr.is_some() && !slot.busy;
            let right = match slot.purpose {
                Use::ReadOnly => kind == Kind::Read,
                Use::Windowed(_) if kind == Kind::Exclusive => false,
                Use::Windowed(of) => slot.bound_by == qpn || of == MwKind::One,
                Use::Open => true,
                Use::Own => false,
            };
            let range = slot.grants.clone().filter(|_| right);
            range.filter(|_| usable).map(|range| (range, slot.key))
        };
        let all: Vec<_> = node.slots.iter().filter_map(granted).collect();
        let (range, key) = rng.choice(all)?;
        let from = rng.usize(range.clone());
        Some((node.pages.base() as u64 + from as u64, key, range.end - from))
    }

    fn post(&mut self, p: usize, side: usize) {
        let domain = self.pairs[p].domain;
        self.next += 1;
        let wr_id = self.next;
        if self.rng.u8(..3) == 0 {
            let sges = self.sges(side, domain, &[Use::Own, Use::Open], 8000);
            if sges.iter().all(|sge| sge.len < 16) && self.rng.u8(..50) > 0 {
                return;
            }
            let pair = &mut self.pairs[p];
            if pair.ends[side].qp.post_recv(&RecvWr { wr_id, sges: &sges }).is_ok() {
                pair.receives[side].push_back(wr_id);
                pair.ready[side] += u32::from(sges.iter().any(|sge| sge.len >= 16));
            }
            return;
        }
        let sources = [Use::Own, Use::Open, Use::ReadOnly];
        let sinks = [Use::Own, Use::Open];
        let mut about = None;
        let kind = self.rng.u8(..16);
        let access = match kind {
            5..8 => Kind::Read,
            8 | 13 => Kind::Exclusive,
            _ => Kind::Write,
        };
        let Some((addr, rkey, most)) = self.target(p, side, access) else { return };
        if kind == 8 && most < 16 {
            return;
        }
        let received = (9..14).contains(&kind);
        if received {
            // Without a receive, the message ends the connection.
            let to = &mut self.pairs[p].ready[1 - side];
            if *to == 0 && self.rng.u8(..100) > 0 {
                return;
            }
            *to = to.saturating_sub(1);
        }
        let (op, sges) = match kind {
            0..5 => (SendOp::Write { addr, rkey }, self.sges(side, domain, &sources, most)),
            5..8 => (SendOp::Read { addr, rkey }, self.sges(side, domain, &sinks, most)),
            8 => {
                let sges = self.sges(side, domain, &sinks, 8).into_iter().map(|sge| Sge { len: 8, ..sge });
                (SendOp::FetchAdd { addr: addr.next_multiple_of(8), rkey, add: 1 }, sges.collect())
            }
            9 => (SendOp::WriteImm { addr, rkey, imm: 5 }, self.sges(side, domain, &sources, most)),
            10..13 => (SendOp::Send, self.sges(side, domain, &sources, 16)),
            13 => (SendOp::SendInv(rkey), Vec::new()),
            _ => {
                // Now and then, the slot belongs to the other domain, and this node's device must refuse the request.
                let of = if self.rng.u8(..50) > 0 { domain } else { 1 - domain };
                let slot = of * SLOTS / 2 + self.rng.usize(..SLOTS / 2);
                let Some(op) = self.nodes[side].manage(slot, &mut self.rng) else { return };
                self.nodes[side].slots[slot].bound_by = self.pairs[p].ends[side].qp.qpn();
                about = Some(slot);
                (op, Vec::new())
            }
        };
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::FENCE, self.rng.u8(..4) == 0);
        let pair = &mut self.pairs[p];
        match pair.ends[side].qp.post_send(&SendWr { wr_id, op, sges: &sges, flags }) {
            Ok(()) => pair.sends[side].push_back((wr_id, about)),
            Err(_) => {
                if let Some(slot) = about {
                    self.nodes[side].slots[slot].busy = false;
                }
            }
        }
    }

    fn completion(&mut self, p: usize, side: usize, wc: &Wc) -> Result<(), String> {
        let pair = &mut self.pairs[p];
        self.seen.succeeded += u32::from(wc.status == WcStatus::Success);
        self.seen.flushed += u32::from(wc.status == WcStatus::Flushed);
        self.seen.refused += u32::from(!matches!(wc.status, WcStatus::Success | WcStatus::Flushed));
        if pair.receives[side].front() == Some(&wc.wr_id) {
            pair.receives[side].pop_front();
            if wc.flags.contains(WcFlags::WITH_INV) && wc.status == WcStatus::Success {
                self.seen.invalidated += 1;
                self.nodes[side].invalidated(wc.invalidated_rkey);
            }
            return Ok(());
        }
        let about = match pair.sends[side].pop_front() {
            Some((wr_id, about)) if wr_id == wc.wr_id => about,
            other => return Err(format!("{wc:?} instead of {other:?}")),
        };
        if let Some(i) = about {
            self.nodes[side].slots[i].busy = false;
            if wc.status == WcStatus::Success {
                self.seen.managed += 1;
                if wc.opcode == WcOpcode::LocalInv {
                    self.nodes[side].close(i);
                }
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<(), String> {
        for p in 0..self.pairs.len() {
            for side in 0..2 {
                while self.pairs[p].ends[side].events.poll().is_some() {}
                for wc in self.pairs[p].ends[side].completions() {
                    self.completion(p, side, &wc)?;
                }
            }
        }
        self.nodes.iter().try_for_each(Node::check)
    }

    fn turn(&mut self) -> Result<(), String> {
        if self.pairs.len() < 3 {
            self.add_pair();
        }
        for _ in 0..self.rng.usize(..6) {
            let (p, side) = (self.rng.usize(..self.pairs.len()), self.rng.usize(..2));
            self.post(p, side);
        }
        let (side, i) = (self.rng.usize(..2), self.rng.usize(..SLOTS));
        if self.nodes[side].slots[i].mr.is_none() {
            self.nodes[side].slots[i].mw = None;
            if !self.nodes[side].slots[i].busy {
                self.nodes[side].register(i);
            }
        } else if self.rng.u8(..6) == 0 {
            self.nodes[side].take_back(i, &mut self.rng);
        }
        let p = self.rng.usize(..self.pairs.len());
        let end = &self.pairs[p].ends[side];
        match self.rng.u16(..300) {
            0 => end.qp.to_error(),
            1 => {
                if let Some(connection) = &end.connection {
                    let _ = connection.disconnect();
                }
            }
            // This destroys the pair in the middle of its work.
            2 => self.forget(p),
            3..9 => end.cq.resize(self.rng.u32(128..1000)).map_err(|e| e.to_string())?,
            9 => {
                let _ = end.qp.to_idle();
            }
            _ => {}
        }
        for _ in 0..self.rng.usize(..20) {
            self.simulation.step(LIMIT);
        }
        self.collect()?;
        let over = |pair: &Pair| {
            let ended = |side: usize| pair.ends[side].qp.state() == QpState::Error;
            ended(0) && ended(1) && pair.sends.iter().all(VecDeque::is_empty)
        };
        if let Some(p) = self.pairs.iter().position(over) {
            self.forget(p);
        }
        Ok(())
    }

    fn forget(&mut self, p: usize) {
        let pair = self.pairs.swap_remove(p);
        for side in 0..2 {
            for slot in pair.sends[side].iter().filter_map(|(_, about)| *about) {
                self.nodes[side].slots[slot].busy = false;
            }
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..TURNS {
            self.turn()?;
        }
        for pair in &self.pairs {
            pair.ends[0].qp.to_error();
            pair.ends[1].qp.to_error();
        }
        let limit = self.simulation.now() + std::time::Duration::from_secs(1);
        self.simulation.run(limit, || false);
        self.collect()?;
        let left = |pair: &Pair| {
            pair.sends.iter().map(VecDeque::len).chain(pair.receives.iter().map(VecDeque::len)).sum::<usize>()
        };
        match self.pairs.iter().map(left).sum() {
            0 => Ok(()),
            n => Err(format!("{n} requests have not completed")),
        }
    }
}

#[test]
fn careless_programs_change_nothing_that_is_not_granted() {
    run_all(false);
}

/// Programs take memory back at one engine while other engines use it, and requests of several engines concern the same
/// STag.
#[test]
fn careless_programs_change_nothing_at_several_engines_either() {
    run_all(true);
}

fn run_all(several: bool) {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let only: Option<u64> = number("URNIC_SEED");
    let seeds = only.map_or(0..number("URNIC_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut all = Seen::default();
    for seed in seeds {
        let mut world = World::new(seed, several);
        world.run().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let seen = &world.seen;
        all.succeeded += seen.succeeded;
        all.flushed += seen.flushed;
        all.managed += seen.managed;
        all.refused += seen.refused;
        all.invalidated += seen.invalidated;
        all.pairs += seen.pairs;
    }
    println!("{all:?}");
    if only.is_none() {
        assert!(all.succeeded > 5000 && all.managed > 500 && all.refused > 500, "{all:?}");
        assert!(all.flushed > 1000 && all.invalidated > 100 && all.pairs > 500, "{all:?}");
    }
}
