//! Every breakable rule, broken, is noticed: by one short scenario per rule that passes while the rule holds.
#![cfg(feature = "sabotage")]

mod support;

use support::*;
use urnic_iwarp::sabotage::{Rule, set};
use urnic_iwarp::*;

const STAG: u32 = 7;

fn receiver() -> Node {
    let mut node = Node::responder();
    node.memory.add(STAG, 0, 64);
    node.memory.post_receive(64);
    node.receive(&fpdu(&tagged(0xC1, 0x40, 0, 0, &[]))).unwrap();
    node
}

fn reader() -> Node {
    let mut node = Node::new(&negotiated(Role::Initiator, 1, 1));
    node.memory.add(STAG, 0, 64);
    node.read(8, (STAG, 8), (5, 0)).unwrap();
    node
}

fn send_part(last: bool, msn: u32, mo: u32) -> Vec<u8> {
    fpdu(&untagged(if last { 0x41 } else { 0x01 }, 0x43, 0, msn, mo, &[1; 8]))
}

/// Whether the stream keeps `rule`.
fn kept(rule: Rule) -> bool {
    let mut bad_crc = fpdu(&tagged(0xC1, 0x40, STAG, 0, &[9; 8]));
    bad_crc[20] ^= 1;
    match rule {
        Rule::SkipCrc => receiver().receive(&bad_crc).is_err(),
        Rule::PlaceBeforeCrc => {
            let mut n = receiver();
            n.receive(&bad_crc).is_err() && n.memory.placements == 0
        }
        Rule::SkipBounds => {
            let mut n = receiver();
            n.receive(&fpdu(&tagged(0xC1, 0x40, STAG, 60, &[9; 8]))).is_err() && n.memory.guards_intact()
        }
        Rule::IgnoreTaggedFault => receiver().receive(&fpdu(&tagged(0xC1, 0x40, 8, 0, &[9; 8]))).is_err(),
        Rule::IgnoreMsn => receiver().receive(&send_part(true, 5, 0)).is_err(),
        Rule::AcceptGaps => receiver().receive(&send_part(false, 1, 1)).is_err(),
        Rule::AcceptAnyReadResponse => {
            reader().receive(&fpdu(&tagged(0xC1, 0x42, STAG, 16, &[9; 8]))).is_err()
        }
        Rule::AcceptAnyAtomicResponse => {
            let mut n = Node::new(&negotiated(Role::Initiator, 1, 1));
            n.memory.add(STAG, 0, 64);
            n.atomic((STAG, 0), (5, 0), AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap();
            n.receive(&fpdu(&untagged(0x41, 0x4B, 3, 1, 0, &[9; 12]))).is_err()
        }
        Rule::DeliverEarly => {
            let mut n = receiver();
            n.receive(&send_part(false, 1, 0)).unwrap();
            n.events().is_empty()
        }
        Rule::ReadDoneEarly => {
            let mut n = reader();
            n.receive(&fpdu(&tagged(0x81, 0x42, STAG, 8, &[9; 4]))).unwrap();
            n.events().is_empty()
        }
        Rule::ResponderTalksFirst => !Node::responder().stream.may_send(),
        Rule::IgnoreOrd => reader().read(8, (STAG, 8), (5, 0)).is_err(),
        Rule::IgnoreIrd => {
            let mut n = reader();
            let mut read = |msn| {
                let header = read_header((9, 0), 0, (9, 0));
                n.receive(&fpdu(&untagged(0x41, 0x41, 1, msn, 0, &header)))
            };
            read(1).is_ok() && read(2).is_err()
        }
        Rule::ReceiveAfterFault => {
            let mut n = receiver();
            n.receive(&bad_crc).unwrap_err();
            n.receive(&send_part(true, 1, 0)).unwrap();
            n.events().is_empty()
        }
        Rule::LastOnEverySegment => {
            let mut n = Node::initiator();
            n.send(Op::Write { stag: 1, to: 0 }, &[0; 300], 128).unwrap();
            n.out[2] & 0x40 == 0
        }
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    for rule in Rule::ALL {
        set(None);
        assert!(kept(rule), "{rule:?} is not kept");
        set(Some(rule));
        assert!(!kept(rule), "{rule:?} is broken and nobody notices");
    }
    set(None);
}
