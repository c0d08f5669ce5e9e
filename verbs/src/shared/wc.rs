//! Work completions: what a completion queue reports.

use bitflags::bitflags;

/// How a work request ended.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcStatus {
    /// Done.
    #[default]
    Success,
    /// The message does not fit the receive buffer, or a length is not allowed.
    LocalLength,
    /// A local scatter-gather element is not valid: key, protection domain, rights or bounds.
    LocalProtection,
    /// The request cannot be executed on this QP (for example a Read where ORD is 0).
    LocalQpOp,
    /// Not executed, because the QP went to the error state.
    Flushed,
    /// The peer refused access to its memory.
    RemoteAccess,
    /// The peer could not complete the operation.
    RemoteOperation,
    /// The peer did not understand or allow the request.
    RemoteInvalidRequest,
    /// The STag that a Send with Invalidate names cannot be invalidated.
    Invalidation,
    /// A binding, registration or invalidation asked for by a request is not possible: key, state, protection domain,
    /// rights or bounds.
    MemoryManagement,
    /// The connection ended before the peer acknowledged the request.
    ConnectionLost,
    /// The QP met an error that fits nothing else.
    Fatal,
}

impl WcStatus {
    /// The status in words.
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
            Self::ConnectionLost => "connection lost",
            Self::Fatal => "fatal error",
        }
    }
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What completed.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcOpcode {
    /// A Send of any kind.
    #[default]
    Send,
    /// A Write.
    Write,
    /// A Read.
    Read,
    /// A receive.
    Recv,
    /// An invalidation of an STag of this node.
    LocalInv,
    /// A window was bound.
    BindMw,
    /// A region was registered by a request.
    RegMr,
    /// A receive that Immediate Data has taken, behind a Write of the peer or alone; its memory is not touched.
    RecvRdmaWithImm,
    /// A fetch and add.
    FetchAdd,
    /// A compare and swap.
    CmpSwap,
}

bitflags! {
    /// Extra facts of a completion.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct WcFlags: u8 {
        /// The Send invalidated [`Wc::invalidated_rkey`].
        const WITH_INV = 1;
        /// The Send asked for a solicited event.
        const SOLICITED = 1 << 1;
        /// Immediate data arrived: [`Wc::imm_data`].
        const WITH_IMM = 1 << 2;
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// The id of the work request.
    pub wr_id: u64,
    /// How it ended; if not [`WcStatus::Success`], only `wr_id`, `status` and `qpn` count.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Extra facts.
    pub flags: WcFlags,
    /// Bytes received or read; of [`WcOpcode::RecvRdmaWithImm`] those of the Write right before the Immediate Data, 0 if
    /// there was none.
    pub byte_len: u32,
    /// The queue pair.
    pub qpn: u32,
    /// The STag that the peer invalidated; see [`WcFlags::WITH_INV`].
    pub invalidated_rkey: u32,
    /// The eight octets of the Immediate Data (RFC 7306 §6), the first as the highest; see [`WcFlags::WITH_IMM`].
    pub imm: u64,
}

impl Wc {
    /// The 32 bits of the peer's [`SendOp::WriteImm`](crate::SendOp::WriteImm): the first four octets of the Immediate
    /// Data.
    pub fn imm_data(&self) -> u32 {
        (self.imm >> 32) as u32
    }

    /// Whether this completion counts as solicited: a solicited Send arrived, or an error (verbs §8.2.5).
    pub(crate) fn is_solicited(&self) -> bool {
        self.status != WcStatus::Success || self.flags.contains(WcFlags::SOLICITED)
    }
}
