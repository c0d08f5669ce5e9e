//! A broken rule is noticed: for each rule there is a short scenario that passes only while the rule holds.
//!
//! The stream itself always keeps the rule; a test breaks the rule around the stream, in one of two ways. The [`Sink`]
//! may behave as if the stream had broken the rule. Or the scenario is run without its violation of the rule, and the
//! stream accepts it: so nothing else was wrong with the scenario.

mod support;

use support::*;
use urnic_iwarp::*;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// An FPDU with a wrong CRC is refused.
    Crc,
    /// All of a tagged segment must lie within its region.
    Bounds,
    /// A tagged segment whose STag check fails ends the stream.
    TaggedFault,
    /// Messages on queue 0 arrive in the order of their MSNs.
    Msn,
    /// A segment on queue 0 leaves no gap before it.
    Gaps,
    /// A Read Response answers its request.
    ReadResponse,
    /// An Atomic Response answers its request.
    AtomicResponse,
    /// A Send is delivered with its last segment.
    SendWhole,
    /// A Read completes with the last segment of its response.
    ReadWhole,
    /// A Responder sends nothing before the Initiator's first FPDU.
    InitiatorFirst,
    /// No more Read Requests are sent than ORD.
    Ord,
    /// No more Read Requests are accepted than IRD.
    Ird,
    /// Nothing is received after a fault.
    DeafAfterFault,
    /// Only the last segment of a message has L set.
    LastOnLast,
}

const RULES: [Rule; 14] = [
    Rule::Crc,
    Rule::Bounds,
    Rule::TaggedFault,
    Rule::Msn,
    Rule::Gaps,
    Rule::ReadResponse,
    Rule::AtomicResponse,
    Rule::SendWhole,
    Rule::ReadWhole,
    Rule::InitiatorFirst,
    Rule::Ord,
    Rule::Ird,
    Rule::DeafAfterFault,
    Rule::LastOnLast,
];

/// Memory that behaves as if its stream had broken a rule.
struct Misled<'a> {
    memory: &'a mut Memory,
    broken: Option<Rule>,
}

impl Sink for Misled<'_> {
    /// `None` for a segment that is dropped.
    type Target = Option<Target>;

    fn tagged(&mut self, op: TaggedOp, stag: u32, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        let target =
            self.memory.tagged(op, stag, to, if self.broken == Some(Rule::Bounds) { 1 } else { len });
        if self.broken == Some(Rule::TaggedFault) { Ok(target.ok()) } else { target.map(Some) }
    }

    fn receive_buffer(&mut self) -> Option<u32> {
        self.memory.receive_buffer()
    }

    fn untagged_target(&mut self, offset: u32, len: u32) -> Result<Self::Target, RecvFault> {
        self.memory.untagged_target(offset, len).map(Some)
    }

    fn place(&mut self, target: Self::Target, at: u32, src: Octets<'_>) {
        let Some(target) = target else { return };
        self.memory.place(target, at, src);
        let len = src.len() as u32;
        match self.broken {
            Some(Rule::SendWhole) => {
                self.deliver(Delivery::Received { len, solicited: false, invalidated: None });
            }
            Some(Rule::ReadWhole) => self.deliver(Delivery::ReadDone { msn: 1, len }),
            _ => {}
        }
    }

    fn invalidate(&mut self, stag: u32) -> Result<Invalidation, CannotInvalidate> {
        self.memory.invalidate(stag)
    }

    fn read_source(&mut self, stag: u32, to: u64, len: u32) -> Result<(), ReadFault> {
        self.memory.read_source(stag, to, len)
    }

    fn atomic_target(&mut self, stag: u32, to: u64) -> Result<(), AtomicFault> {
        self.memory.atomic_target(stag, to)
    }

    fn atomic_result(&mut self, stag: u32, to: u64, original: u64) -> Result<(), AccessFault> {
        self.memory.atomic_result(stag, to, original)
    }

    fn deliver(&mut self, event: Delivery) {
        self.memory.deliver(event);
    }
}

const STAG: u32 = 7;

/// Lets a node receive an FPDU. Breaks the rule `broken` between the node's stream and its memory; `None` breaks no
/// rule.
fn receive(node: &mut Node, octets: &[u8], broken: Option<Rule>) -> Result<(), Box<Fault>> {
    let chunk = Bytes::new(octets, &node.live);
    node.stream.receive(chunk, &mut Misled { memory: &mut node.memory, broken }).map(drop)
}

/// Returns a Responder that has received an FPDU.
fn responder(crc: bool) -> Node {
    let mut node = Node::new(&Negotiated { crc, ..negotiated(Role::Responder, 16, 16) });
    node.memory.add(STAG, 0, 64);
    node.memory.post_receive(64);
    node.receive(&fpdu(&tagged(0xC1, 0x40, 0, 0, &[]))).unwrap();
    node
}

fn receiver() -> Node {
    responder(true)
}

/// Returns an Initiator with a Read outstanding.
fn reader(ird: u16, ord: u16) -> Node {
    let mut node = Node::new(&negotiated(Role::Initiator, ird, ord));
    node.memory.add(STAG, 0, 64);
    node.read(8, (STAG, 8), (5, 0)).unwrap();
    node
}

fn send_part(last: bool, msn: u32, mo: u32) -> Vec<u8> {
    fpdu(&untagged(if last { 0x41 } else { 0x01 }, 0x43, 0, msn, mo, &[1; 8]))
}

/// Returns whether a stream appears to keep `rule`. If `broken`, the rule is broken around the stream.
fn kept(rule: Rule, broken: bool) -> bool {
    let misled = broken.then_some(rule);
    let mut bad_crc = fpdu(&tagged(0xC1, 0x40, STAG, 0, &[9; 8]));
    bad_crc[20] ^= 1;
    match rule {
        Rule::Crc => responder(!broken).receive(&bad_crc).is_err(),
        Rule::Bounds => {
            let mut n = receiver();
            let beyond = fpdu(&tagged(0xC1, 0x40, STAG, 60, &[9; 8]));
            receive(&mut n, &beyond, misled).is_err() && n.memory.guards_intact()
        }
        Rule::TaggedFault => {
            receive(&mut receiver(), &fpdu(&tagged(0xC1, 0x40, 8, 0, &[9; 8])), misled).is_err()
        }
        Rule::Msn => receiver().receive(&send_part(true, if broken { 1 } else { 5 }, 0)).is_err(),
        Rule::Gaps => receiver().receive(&send_part(false, 1, if broken { 0 } else { 1 })).is_err(),
        Rule::ReadResponse => {
            let to = if broken { 8 } else { 16 };
            reader(1, 1).receive(&fpdu(&tagged(0xC1, 0x42, STAG, to, &[9; 8]))).is_err()
        }
        Rule::AtomicResponse => {
            let mut n = Node::new(&negotiated(Role::Initiator, 1, 1));
            n.memory.add(STAG, 0, 64);
            n.atomic((STAG, 0), (5, 0), AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap();
            let id: u32 = if broken { 1 } else { 9 };
            let response = [&id.to_be_bytes()[..], &[9; 8]].concat();
            n.receive(&fpdu(&untagged(0x41, 0x4B, 3, 1, 0, &response))).is_err()
        }
        Rule::SendWhole => {
            let mut n = receiver();
            receive(&mut n, &send_part(false, 1, 0), misled).unwrap();
            n.events().is_empty()
        }
        Rule::ReadWhole => {
            let mut n = reader(1, 1);
            receive(&mut n, &fpdu(&tagged(0x81, 0x42, STAG, 8, &[9; 4])), misled).unwrap();
            n.events().is_empty()
        }
        Rule::InitiatorFirst => {
            let n = if broken { receiver() } else { Node::responder() };
            !n.stream.may_send()
        }
        Rule::Ord => reader(1, if broken { 2 } else { 1 }).read(8, (STAG, 8), (5, 0)).is_err(),
        Rule::Ird => {
            let mut n = reader(if broken { 2 } else { 1 }, 1);
            let mut read = |msn| {
                let header = read_header((9, 0), 0, (9, 0));
                n.receive(&fpdu(&untagged(0x41, 0x41, 1, msn, 0, &header)))
            };
            read(1).is_ok() && read(2).is_err()
        }
        Rule::DeafAfterFault => {
            let mut n = receiver();
            n.receive(&bad_crc).unwrap_err();
            if broken {
                n.stream = receiver().stream;
            }
            n.receive(&send_part(true, 1, 0)).unwrap();
            n.events().is_empty()
        }
        Rule::LastOnLast => {
            let mut n = Node::initiator();
            n.send(Op::Write { stag: 1, to: 0 }, &[0; 300], if broken { 1454 } else { 128 }).unwrap();
            n.out[2] & 0x40 == 0
        }
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    for rule in RULES {
        assert!(kept(rule, false), "{rule:?} is not kept");
        assert!(!kept(rule, true), "{rule:?} is broken and nobody notices");
    }
}

/// The time at which a CRC is verified can be changed only inside the stream.
#[cfg(feature = "sabotage")]
#[test]
fn placement_before_the_crc_is_noticed() {
    use urnic_iwarp::sabotage::{Rule, set};
    let kept = || {
        let mut bad_crc = fpdu(&tagged(0xC1, 0x40, STAG, 0, &[9; 8]));
        bad_crc[20] ^= 1;
        let mut n = receiver();
        n.receive(&bad_crc).is_err() && n.memory.placements == 0
    };
    assert!(kept());
    set(Some(Rule::PlaceBeforeCrc));
    let noticed = !kept();
    set(None);
    assert!(noticed, "an FPDU is placed before its CRC is verified and nobody notices");
}
