//! Work completions: what a completion queue reports.

use bitflags::bitflags;

/// How a work request ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcStatus {
    /// The request succeeded.
    #[default]
    Success,
    /// The message does not fit into the receive.
    LocalLength,
    /// A local scatter-gather element is invalid: key, protection domain, rights or bounds.
    LocalProtection,
    /// The request cannot be executed on this queue pair, for example a Read where ORD is 0.
    LocalQpOp,
    /// The request was not completed, because the queue pair went to the terminate or the error state. A
    /// request that was under way may nevertheless have taken effect at the peer.
    Flushed,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer could not complete the operation.
    RemoteOperation,
    /// The peer did not understand or allow the request.
    RemoteInvalidRequest,
    /// The STag that a Send with Invalidate names cannot be invalidated.
    Invalidation,
    /// A binding, registration or invalidation that a request asked for is not possible: key, state, protection
    /// domain, rights or bounds.
    MemoryManagement,
    /// Any other error of the queue pair.
    Fatal,
}

impl WcStatus {
    /// Returns the status in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocalLength => "local length error",
            Self::LocalProtection => "local protection error",
            Self::LocalQpOp => "local QP operation error",
            Self::Flushed => "flushed",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operation error",
            Self::RemoteInvalidRequest => "remote invalid request",
            Self::Invalidation => "invalidation refused",
            Self::MemoryManagement => "memory management error",
            Self::Fatal => "fatal error",
        }
    }
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The kind of work that completed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcOpcode {
    /// A Send of any kind.
    #[default]
    Send,
    /// A Write, with or without immediate data.
    Write,
    /// A Read.
    Read,
    /// A receive.
    Recv,
    /// An invalidation of an STag of this node.
    LocalInv,
    /// The binding of a window.
    BindMw,
    /// The registration of a region by a request.
    RegMr,
    /// A receive taken by Immediate Data, which came after a Write of the peer or alone. The receive's memory is
    /// not touched.
    RecvRdmaWithImm,
    /// A Fetch and Add.
    FetchAdd,
    /// A Compare and Swap.
    CmpSwap,
}

bitflags! {
    /// Extra facts of a completion.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The Send invalidated the STag [`Wc::invalidated_rkey`].
        const WITH_INV = 1;
        /// The Send or the Immediate Data asked for a solicited event.
        const SOLICITED = 1 << 1;
        /// Immediate data arrived: [`Wc::imm`], [`Wc::imm_data`].
        const WITH_IMM = 1 << 2;
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// Id of the work request.
    pub wr_id: u64,
    /// Outcome. If it is not [`WcStatus::Success`], only `wr_id`, `status` and `qpn` are valid.
    pub status: WcStatus,
    /// Kind of work that completed.
    pub opcode: WcOpcode,
    /// Extra facts.
    pub flags: WcFlags,
    /// Length, in bytes, of the message that was received, sent or written, or of the data that was read. For
    /// [`WcOpcode::RecvRdmaWithImm`], the bytes of the Write immediately before the Immediate Data; 0 if there was
    /// none.
    pub byte_len: u32,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The STag that the peer invalidated; valid with [`WcFlags::WITH_INV`].
    pub invalidated_rkey: u32,
    /// The eight octets of the Immediate Data (RFC 7306 §6), the first octet as the highest; valid with
    /// [`WcFlags::WITH_IMM`].
    pub imm: u64,
}

impl Wc {
    /// Returns the 32 bits of the peer's [`SendOp::WriteImm`](crate::SendOp::WriteImm), which are the first four
    /// octets of the Immediate Data.
    pub fn imm_data(&self) -> u32 {
        (self.imm >> 32) as u32
    }

    /// Returns whether this completion counts as solicited: an error, or the receive of a Send or Immediate
    /// Data that asked for a solicited event.
    pub(crate) fn is_solicited(&self) -> bool {
        self.status != WcStatus::Success || self.flags.contains(WcFlags::SOLICITED)
    }
}
