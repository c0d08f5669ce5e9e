//! The outbound half: sequence numbers, headers, and the Reads and Atomics that wait for their responses.

use super::Op;
use crate::BeginError;
use crate::atomic::{AtomicHeader, AtomicResult};
use crate::header::{Control, ReadHeader, UNTAGGED_WORDS, halves, opcode, queue};
use crate::outgoing::Header;
use crate::terminate::TERMINATE_MAX;
use std::collections::VecDeque;

/// A Read or Atomic of ours whose response is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// MSN of the request; also the Request Identifier of an Atomic.
    pub(super) msn: u32,
    pub(super) atomic: bool,
    pub(super) sink_stag: u32,
    pub(super) sink_to: u64,
    /// Octets of a Read; 0 for an Atomic.
    pub(super) len: u32,
    /// Octets of the response placed so far.
    pub(super) placed: u32,
}

#[derive(Debug)]
pub(super) struct Outbound {
    /// Next MSN of queue 0, of queue 1 and of queue 3 (DDP-24).
    pub(super) send_msn: u32,
    pub(super) request_msn: u32,
    pub(super) atomic_msn: u32,
    /// Outstanding Reads and Atomics, oldest first; at most `ord`. Allocates nothing before the first one.
    pub(super) requests: VecDeque<Outstanding>,
    pub(super) ord: u16,
    pub(super) crc: bool,
    terminated: bool,
}

impl Outbound {
    pub(super) fn new(ord: u16, crc: bool) -> Self {
        Outbound {
            send_msn: 1,
            request_msn: 1,
            atomic_msn: 1,
            requests: VecDeque::new(),
            ord,
            crc,
            terminated: false,
        }
    }

    #[inline]
    pub(super) fn begin(&mut self, op: Op, len: u32, into: &mut impl Header) -> Result<(), BeginError> {
        // Nothing follows a Terminate (RDMAP-51).
        if self.terminated {
            return Err(BeginError::Ended);
        }
        match op {
            Op::Write { stag, to } => self.tagged(opcode::WRITE, stag, to, len, into),
            Op::ReadResponse(r) => {
                self.tagged(opcode::READ_RESPONSE, r.sink_stag, r.sink_to, r.len, into);
            }
            Op::Send { solicited, invalidate } => {
                let opcode = match (solicited, invalidate) {
                    (false, None) => opcode::SEND,
                    (false, Some(_)) => opcode::SEND_INVALIDATE,
                    (true, None) => opcode::SEND_SE,
                    (true, Some(_)) => opcode::SEND_SE_INVALIDATE,
                };
                let ddp = untagged(opcode, invalidate.unwrap_or(0), queue::SEND, self.send_msn);
                self.send_msn = self.send_msn.wrapping_add(1);
                into.fill(ddp, [], len, self.crc);
            }
            Op::Read { sink_stag, sink_to, src_stag, src_to } => {
                let ddp = self.request(opcode::READ_REQUEST, sink_stag, sink_to, len)?;
                let rdma = ReadHeader { sink_stag, sink_to, len, src_stag, src_to }.words();
                into.fill(ddp, rdma, 0, self.crc);
            }
            Op::Immediate { data, solicited } => {
                let opcode = if solicited { opcode::IMMEDIATE_SE } else { opcode::IMMEDIATE };
                let ddp = untagged(opcode, 0, queue::SEND, self.send_msn);
                self.send_msn = self.send_msn.wrapping_add(1);
                into.fill(ddp, halves(u64::from_be_bytes(data)), 0, self.crc);
            }
            Op::Atomic { sink_stag, sink_to, stag, to, op } => {
                let id = self.request_msn;
                let ddp = self.request(opcode::ATOMIC_REQUEST, sink_stag, sink_to, 0)?;
                into.fill(ddp, AtomicHeader { id, stag, to, op }.words(), 0, self.crc);
            }
            Op::AtomicResponse { id, original } => {
                let ddp = untagged(opcode::ATOMIC_RESPONSE, 0, queue::ATOMIC_RESPONSE, self.atomic_msn);
                self.atomic_msn = self.atomic_msn.wrapping_add(1);
                into.fill(ddp, AtomicResult { id, original }.words(), 0, self.crc);
            }
            Op::Terminate(t) => {
                self.terminated = true;
                let mut rdma = [0; TERMINATE_MAX];
                let rdma_len = t.encode(&mut rdma);
                let ddp = untagged(opcode::TERMINATE, 0, queue::TERMINATE, 1);
                into.fill_terminate(ddp, rdma, rdma_len, self.crc);
            }
        }
        Ok(())
    }

    /// Adds to the outstanding Reads and Atomics. Returns the DDP header of the request.
    fn request(
        &mut self,
        opcode: u8,
        sink_stag: u32,
        sink_to: u64,
        len: u32,
    ) -> Result<[u32; UNTAGGED_WORDS], BeginError> {
        // MPAE-10, RDMAP-69
        if self.requests.len() >= self.ord.into() {
            return Err(if self.ord == 0 { BeginError::NoReads } else { BeginError::OrdReached });
        }
        let (msn, atomic) = (self.request_msn, opcode == opcode::ATOMIC_REQUEST);
        self.requests.push_back(Outstanding { msn, atomic, sink_stag, sink_to, len, placed: 0 });
        self.request_msn = msn.wrapping_add(1);
        Ok(untagged(opcode, 0, queue::REQUEST, msn))
    }

    #[inline]
    fn tagged(&self, opcode: u8, stag: u32, to: u64, len: u32, into: &mut impl Header) {
        let [to_high, to_low] = halves(to);
        into.fill([Control::word(true, opcode), stag, to_high, to_low], [], len, self.crc);
    }
}

#[inline]
fn untagged(opcode: u8, invalidate: u32, qn: u32, msn: u32) -> [u32; UNTAGGED_WORDS] {
    [Control::word(false, opcode), invalidate, qn, msn, 0]
}
