//! Sequence numbers that wrap, whose test needs private fields, and the sizes of types.

use super::*;
use crate::{CannotInvalidate, Fpdu, Invalidation, RecvFault, TaggedFault, TaggedOp};

impl Chunk for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Accepts everything and records only events.
#[derive(Default)]
struct Events(Vec<Delivery>);

impl Sink for Events {
    type Target = ();
    fn tagged(&mut self, _: TaggedOp, _: u32, _: u64, _: u32) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn receive_buffer(&mut self) -> Option<u32> {
        Some(u32::MAX)
    }
    fn untagged_target(&mut self, _: u32, _: u32) -> Result<(), RecvFault> {
        Ok(())
    }
    fn place(&mut self, _: (), _: u32, _: Octets<'_>) {}
    fn invalidate(&mut self, _: u32) -> Result<Invalidation, CannotInvalidate> {
        Ok(Invalidation::Done)
    }
    fn read_source(&mut self, _: u32, _: u64, _: u32) -> Result<(), ReadFault> {
        Ok(())
    }
    fn atomic_target(&mut self, _: u32, _: u64) -> Result<(), AtomicFault> {
        Ok(())
    }
    fn atomic_result(&mut self, _: u32, _: u64, _: u64) -> Result<(), ReadFault> {
        Ok(())
    }
    fn deliver(&mut self, event: Delivery) {
        self.0.push(event);
    }
}

fn stream(role: Role) -> Stream<Vec<u8>> {
    let n = Negotiated {
        role,
        rev: 1,
        crc: false,
        tx_markers: false,
        rx_markers: false,
        ird: 4,
        ord: 4,
        rtr: None,
        peer_to_peer: None,
    };
    Stream::new(&n, Budget::new(usize::MAX, usize::MAX))
}

/// Returns the single FPDU of a message without payload.
fn octets(outgoing: Outgoing) -> Vec<u8> {
    let mut outgoing = outgoing;
    let fpdu = outgoing.next(1454).unwrap();
    assert!(fpdu.last);
    let mut octets = fpdu.header().to_vec();
    octets.resize(fpdu.size(), 0);
    assert!(outgoing.next(1454).is_none());
    octets
}

/// DDP-24: on queue 0 and queue 1, MSN FFFFFFFF is followed by 0, at both ends.
#[test]
fn sequence_numbers_wrap() {
    let (mut a, mut b) = (stream(Role::Initiator), stream(Role::Responder));
    (a.rdmap.outbound.send_msn, a.rdmap.outbound.request_msn) = (u32::MAX, u32::MAX);
    (b.rdmap.inbound.send_msn, b.rdmap.inbound.request_msn) = (u32::MAX, u32::MAX);
    let mut sink = Events::default();
    for msn in [u32::MAX, 0, 1] {
        let send = octets(a.begin(Op::Send { solicited: false, invalidate: None }, 0).unwrap());
        assert_eq!(send[12..16], msn.to_be_bytes());
        let read = Op::Read { sink_stag: 1, sink_to: 0, src_stag: 1, src_to: 0 };
        let read = octets(a.begin(read, 9).unwrap());
        assert_eq!(read[12..16], msn.to_be_bytes());
        b.receive([send, read].concat(), &mut sink).unwrap();
    }
    assert_eq!(sink.0.len(), 1 + 6);
    assert_eq!(b.responses_pending(), 3);
}

/// RDMAPX-17: the MSN of Atomic Responses, and the identifier of the request that they answer, wrap in the same way.
#[test]
fn sequence_numbers_of_atomics_wrap() {
    let (mut a, mut b) = (stream(Role::Initiator), stream(Role::Responder));
    (a.rdmap.outbound.request_msn, a.rdmap.inbound.atomic_msn) = (u32::MAX, u32::MAX);
    (b.rdmap.inbound.request_msn, b.rdmap.outbound.atomic_msn) = (u32::MAX, u32::MAX);
    let (mut asked, mut answered) = (Events::default(), Events::default());
    for msn in [u32::MAX, 0, 1] {
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let request = Op::Atomic { sink_stag: 1, sink_to: 0, stag: 1, to: 0, op };
        b.receive(octets(a.begin(request, 0).unwrap()), &mut asked).unwrap();
        let Some(Pending::Atomic(AtomicRequest { id, .. })) = b.next_response() else { panic!("an Atomic") };
        assert_eq!(id, msn);
        let response = octets(b.begin(Op::AtomicResponse { id, original: 7 }, 0).unwrap());
        assert_eq!(response[12..16], msn.to_be_bytes());
        a.receive(response, &mut answered).unwrap();
        assert_eq!(answered.0.last(), Some(&Delivery::AtomicDone { msn }));
    }
    assert_eq!(a.reads_outstanding(), 0);
}

/// A stream, without the memory that it allocates, takes at most four cache lines; a message, less than two.
#[test]
fn idle_streams_are_small() {
    assert!(size_of::<Stream<[usize; 4]>>() <= 256, "{}", size_of::<Stream<[usize; 4]>>());
    assert!(size_of::<Outgoing>() <= 96 && size_of::<Fpdu>() <= 32);
}
