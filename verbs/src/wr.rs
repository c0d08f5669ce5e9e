//! Work requests: what an application posts.

use bitflags::bitflags;

use crate::memory::{Access, Mr};
use crate::wc::WcOpcode;

/// A piece of local memory: one element of a scatter-gather list.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes. An element of length 0 is not checked.
    pub len: u32,
    /// Local key of the region that holds the bytes.
    pub lkey: u32,
}

impl Sge {
    /// `len` bytes of `mr` from byte `offset`. Bounds are checked when the work request is executed.
    pub fn of(mr: &Mr, offset: u64, len: u32) -> Self {
        Self { addr: mr.addr().wrapping_add(offset), len, lkey: mr.lkey() }
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send to the peer's next receive buffer (RFC 5040 §5.3).
    Send,
    /// Send, then invalidate this STag at the peer before it completes the receive.
    SendInv(u32),
    /// Write to the peer's memory (RFC 5040 §5.1).
    Write {
        /// Tagged offset of the first byte at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
    },
    /// Read the peer's memory into local memory (RFC 5040 §5.2).
    Read {
        /// Tagged offset of the first byte at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
    },
    /// Invalidate an STag of this node: a region to which no windows are bound, or a window of type 2. From its completion
    /// on, and for all later requests, it grants nothing. Earlier Reads into it fail, unless [`SendFlags::FENCE`] waits for
    /// them.
    LocalInv(u32),
    /// Bind a memory window ([`Mw`](crate::Mw)) to a part of a region, for later requests and for the peer.
    BindMw {
        /// The key that the window is to have: [`Mw::rkey`](crate::Mw::rkey) with the lowest octet as you like.
        rkey: u32,
        /// Local key of the region, which must be addressed by virtual addresses.
        lkey: u32,
        /// First byte, as in an [`Sge`] of the region.
        addr: u64,
        /// Length in bytes; 0 unbinds a window of type 1.
        len: u64,
        /// Remote rights, and [`Access::ZERO_BASED`]. Those by which the peer writes need `LOCAL_WRITE` of the region; what
        /// it grants remotely itself does not count.
        access: Access,
    },
    /// Register a part of an invalid region's own memory anew ([`LocalInv`](Self::LocalInv), [`Mr::revoke`]), as fast
    /// registrations do.
    RegMr {
        /// The key that the region is to have: [`Mr::lkey`] with the lowest octet as you like.
        key: u32,
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// The rights; `LOCAL_WRITE` only if the region was registered with it.
        access: Access,
    },
}

impl SendOp {
    /// What its completion says.
    pub(crate) fn completes_as(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendInv(_) => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::LocalInv(_) => WcOpcode::LocalInv,
            Self::BindMw { .. } => WcOpcode::BindMw,
            Self::RegMr { .. } => WcOpcode::RegMr,
        }
    }

    /// Whether it is about memory of this node only: nothing is sent.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::LocalInv(_) | Self::BindMw { .. } | Self::RegMr { .. })
    }
}

bitflags! {
    /// How a send work request is executed and reported.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Report success by a completion; errors are always reported.
        const SIGNALED = 1;
        /// Raise a solicited event at the peer (Send only).
        const SOLICITED = 1 << 1;
        /// Wait for all earlier Reads of this QP, before a request of any kind.
        const FENCE = 1 << 2;
        /// Copy the payload while posting; the memory may be reused when the call returns.
        const INLINE = 1 << 3;
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local memory: source of a Send or Write, sink of a Read (at most one element); none for requests about memory.
    pub sges: &'a [Sge],
    /// How.
    pub flags: SendFlags,
}

/// A request for the receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes, in order.
    pub sges: &'a [Sge],
}
