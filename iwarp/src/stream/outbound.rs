//! The outbound half: sequence numbers, headers, and the Reads that wait for their responses.

use super::Op;
use crate::header::{Control, ReadHeader, TAGGED_LEN, UNTAGGED_LEN, opcode, queue};
use crate::sabotage::{Rule, broken};
use crate::terminate::TERMINATE_MAX;
use crate::{BeginError, Outgoing};
use std::collections::VecDeque;

/// A Read of ours whose response is not complete.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutstandingRead {
    pub(super) msn: u32,
    pub(super) sink_stag: u32,
    pub(super) sink_to: u64,
    pub(super) len: u32,
    /// Octets of the response so far.
    pub(super) placed: u32,
}

#[derive(Debug)]
pub(super) struct Outbound {
    /// Next MSN of queue 0 and queue 1 (DDP-24).
    pub(super) send_msn: u32,
    pub(super) read_msn: u32,
    /// Oldest first; at most `ord`. No memory until the first Read.
    pub(super) reads: VecDeque<OutstandingRead>,
    pub(super) ord: u16,
    crc: bool,
    terminated: bool,
}

impl Outbound {
    pub(super) fn new(ord: u16, crc: bool) -> Self {
        Outbound { send_msn: 1, read_msn: 1, reads: VecDeque::new(), ord, crc, terminated: false }
    }

    #[inline]
    pub(super) fn begin(&mut self, op: Op, len: u32) -> Result<Outgoing, BeginError> {
        // Nothing follows a Terminate (RDMAP-51).
        if self.terminated {
            return Err(BeginError::Ended);
        }
        Ok(match op {
            Op::Write { stag, to } => self.tagged(opcode::WRITE, stag, to, len),
            Op::ReadResponse(r) => self.tagged(opcode::READ_RESPONSE, r.sink_stag, r.sink_to, r.len),
            Op::Send { solicited, invalidate } => {
                let opcode = match (solicited, invalidate) {
                    (false, None) => opcode::SEND,
                    (false, Some(_)) => opcode::SEND_INVALIDATE,
                    (true, None) => opcode::SEND_SE,
                    (true, Some(_)) => opcode::SEND_SE_INVALIDATE,
                };
                let ddp = untagged(opcode, invalidate.unwrap_or(0), queue::SEND, self.send_msn);
                self.send_msn = self.send_msn.wrapping_add(1);
                Outgoing::new(ddp, [], len, self.crc)
            }
            Op::Read { sink_stag, sink_to, src_stag, src_to } => {
                let over = self.reads.len() >= self.ord.into(); // MPAE-10, RDMAP-69
                if over && !broken(Rule::IgnoreOrd) {
                    return Err(if self.ord == 0 { BeginError::NoReads } else { BeginError::OrdReached });
                }
                let ddp = untagged(opcode::READ_REQUEST, 0, queue::READ_REQUEST, self.read_msn);
                let rdma = ReadHeader { sink_stag, sink_to, len, src_stag, src_to }.octets();
                self.reads.push_back(OutstandingRead {
                    msn: self.read_msn,
                    sink_stag,
                    sink_to,
                    len,
                    placed: 0,
                });
                self.read_msn = self.read_msn.wrapping_add(1);
                Outgoing::new(ddp, rdma, 0, self.crc)
            }
            Op::Terminate(t) => {
                self.terminated = true;
                let mut rdma = [0; TERMINATE_MAX];
                let rdma_len = t.encode(&mut rdma);
                let ddp = untagged(opcode::TERMINATE, 0, queue::TERMINATE, 1);
                Outgoing::terminate(ddp, rdma, rdma_len, self.crc)
            }
        })
    }

    fn tagged(&self, opcode: u8, stag: u32, to: u64, len: u32) -> Outgoing {
        let mut ddp = [0; TAGGED_LEN];
        ddp[0..2].copy_from_slice(&Control::octets(true, opcode));
        ddp[2..6].copy_from_slice(&stag.to_be_bytes());
        ddp[6..14].copy_from_slice(&to.to_be_bytes());
        Outgoing::new(ddp, [], len, self.crc)
    }
}

fn untagged(opcode: u8, invalidate: u32, qn: u32, msn: u32) -> [u8; UNTAGGED_LEN] {
    let mut ddp = [0; UNTAGGED_LEN];
    ddp[0..2].copy_from_slice(&Control::octets(false, opcode));
    ddp[2..6].copy_from_slice(&invalidate.to_be_bytes());
    ddp[6..10].copy_from_slice(&qn.to_be_bytes());
    ddp[10..14].copy_from_slice(&msn.to_be_bytes());
    ddp
}
