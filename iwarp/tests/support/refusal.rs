//! Segments that must be refused, and the consequences.

use super::*;

pub const STAG: u32 = 0x1234_5678;
pub const BASE: u64 = 0x1000;
pub const LEN: usize = 64;

/// Returns a Responder with one region of 64 octets and a receive request of 32 octets.
pub fn node() -> Node {
    let mut node = Node::responder();
    node.memory.add(STAG, BASE, LEN);
    node.memory.post_receive(32);
    node
}

/// Feeds a ULPDU that must be refused with a Terminate that starts with `octets` (type, code, HdrCt). Checks that the
/// Terminate blames this segment, and that good segments afterwards have no effect.
#[track_caller]
pub fn refused(node: &mut Node, ulpdu: &[u8], octets: [u8; 3]) -> Cause {
    let placed = node.memory.placements;
    let fault = node.receive(&fpdu(ulpdu)).unwrap_err();
    let t = fault.terminate.expect("a Terminate");
    assert_eq!(octets_of(&t), octets, "{t} for {fault}");
    if octets[2] & 0x40 != 0 {
        let header_len = if ulpdu[0] & 0x80 != 0 { 14 } else { 18 };
        assert_eq!(t.segment_len, Some(ulpdu.len() as u16)); // DDP-53, RDMAP-18
        assert_eq!(t.ddp.unwrap().octets(), &ulpdu[..header_len]); // RDMAP-19
    }
    assert_eq!(t.rdma.map(|r| r.to_vec()), (octets[2] & 0x20 != 0).then(|| ulpdu[18..].to_vec()));
    assert_eq!(node.memory.placements, placed, "nothing of the segment is placed (DDP-52)");

    // DDP-54, MPA-82: later segments are dropped without an answer.
    let events = node.memory.events.len();
    node.memory.post_receive(32);
    node.receive(&fpdu(&tagged(0xC1, 0x40, STAG, BASE, &[9; 8]))).unwrap();
    node.receive(&fpdu(&untagged(0x41, 0x43, 0, 1, 0, &[9; 8]))).unwrap();
    node.receive(&[0; 7]).unwrap();
    assert_eq!((node.memory.placements, node.memory.events.len()), (placed, events));
    assert!(node.stream.ended() && !node.stream.mid_fpdu() && node.live.get() == 0);
    assert!(node.memory.guards_intact());

    // Only the Terminate may be sent, once (RDMAP-51).
    let write = Op::Write { stag: 1, to: 0 };
    assert_eq!(node.stream.begin(write, 0).unwrap_err(), BeginError::Ended);
    node.send(Op::Terminate(t), &[], 1454).unwrap();
    assert_eq!(node.stream.begin(Op::Terminate(t), 0).unwrap_err(), BeginError::Ended);
    fault.cause
}

#[track_caller]
pub fn fresh(ulpdu: &[u8], octets: [u8; 3]) -> Cause {
    refused(&mut node(), ulpdu, octets)
}

#[track_caller]
pub fn accepted(node: &mut Node, ulpdu: &[u8]) {
    node.receive(&fpdu(ulpdu)).unwrap();
    assert!(node.memory.guards_intact());
}

pub fn write(stag: u32, to: u64, len: usize) -> Vec<u8> {
    tagged(0xC1, 0x40, stag, to, &vec![7; len])
}

pub fn send(msn: u32, mo: u32, len: usize) -> Vec<u8> {
    untagged(0x41, 0x43, 0, msn, mo, &vec![7; len])
}

pub fn read(msn: u32, len: u32, stag: u32, to: u64) -> Vec<u8> {
    untagged(0x41, 0x41, 1, msn, 0, &read_header((9, 0), len, (stag, to)))
}
