//! Work requests: what an application posts.

use bitflags::bitflags;
use urnic_iwarp::AtomicOp;

use crate::shared::memory::Access;
use crate::shared::wc::WcOpcode;

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
    /// Register a part of an invalid region's own memory anew ([`LocalInv`](Self::LocalInv), [`Mr::revoke`](crate::Mr::revoke)), as fast
    /// registrations do.
    RegMr {
        /// The key that the region is to have: [`Mr::lkey`](crate::Mr::lkey) with the lowest octet as you like.
        key: u32,
        /// Address of the first byte.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// The rights; `LOCAL_WRITE` only if the region was registered with it.
        access: Access,
    },
    /// Write to the peer's memory, then take its next receive and complete it with these 32 bits
    /// ([`Wc::imm_data`](crate::Wc::imm_data)).
    ///
    /// On the wire an RDMA Write followed by Immediate Data, whose first four octets are `imm` and the other four 0 (RFC
    /// 7306 §6); one completion here. [`SendFlags::SOLICITED`] makes it Immediate Data with Solicited Event.
    WriteImm {
        /// Tagged offset of the first byte at the peer; not looked at for a length of 0.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// The 32 bits.
        imm: u32,
    },
    /// Refused with [`PostError::SendImm`](crate::PostError::SendImm): iWARP has no Send with immediate data. A
    /// [`WriteImm`](Self::WriteImm) of no bytes carries the bits, or the message itself may.
    SendImm(u32),
    /// Add to 64 bits of the peer's memory and get what was there before, into one local element of 8 bytes (RFC 7306 §5).
    ///
    /// Both words are in the byte order of their machine. An Atomic is atomic among all Atomics of all connections of the
    /// peer's device, and counts against ORD like a Read, which the peer also answers in order. The address at the peer
    /// must be a multiple of 8, or the peer ends the connection; so does a peer that does not know Atomics, which nothing
    /// tells beforehand: programs agree on their use. Towards other accesses to the word, as by Reads and Writes, an
    /// Atomic need not be atomic; better keep such memory for Atomics alone.
    FetchAdd {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// What is added.
        add: u64,
    },
    /// Store `swap` in 64 bits of the peer's memory if `compare` is there, and get what was there before, as with
    /// [`FetchAdd`](Self::FetchAdd).
    CmpSwap {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// What is expected.
        compare: u64,
        /// What is stored.
        swap: u64,
    },
    /// As [`FetchAdd`](Self::FetchAdd) on several fields of the word at once.
    MaskedFetchAdd {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// What is added.
        add: u64,
        /// Each bit that is set is the highest bit of a field; nothing is carried out of it.
        mask: u64,
    },
    /// As [`CmpSwap`](Self::CmpSwap) on some bits of the word. With a `compare_mask` of 0 it is a plain swap.
    MaskedCmpSwap {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// What is expected.
        compare: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// What is stored.
        swap: u64,
        /// The bits that are stored.
        swap_mask: u64,
    },
}

/// An Atomic: what it does to which word of the peer's memory.
pub(crate) struct Atomic {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) op: AtomicOp,
}

impl SendOp {
    /// What its completion says.
    pub(crate) fn completes_as(&self) -> WcOpcode {
        match self {
            Self::Send | Self::SendInv(_) | Self::SendImm(_) => WcOpcode::Send,
            Self::Write { .. } | Self::WriteImm { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::FetchAdd { .. } | Self::MaskedFetchAdd { .. } => WcOpcode::FetchAdd,
            Self::CmpSwap { .. } | Self::MaskedCmpSwap { .. } => WcOpcode::CmpSwap,
            Self::LocalInv(_) => WcOpcode::LocalInv,
            Self::BindMw { .. } => WcOpcode::BindMw,
            Self::RegMr { .. } => WcOpcode::RegMr,
        }
    }

    /// Whether it is about memory of this node only: nothing is sent.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::LocalInv(_) | Self::BindMw { .. } | Self::RegMr { .. })
    }

    /// Returns the Atomic that it is, if it is one.
    pub(crate) fn atomic(&self) -> Option<Atomic> {
        const ALL: u64 = u64::MAX;
        let (addr, rkey, op) = match *self {
            Self::FetchAdd { addr, rkey, add } => (addr, rkey, AtomicOp::FetchAdd { add, mask: 0 }),
            Self::MaskedFetchAdd { addr, rkey, add, mask } => (addr, rkey, AtomicOp::FetchAdd { add, mask }),
            Self::CmpSwap { addr, rkey, compare, swap } => {
                (addr, rkey, AtomicOp::CmpSwap { compare, compare_mask: ALL, swap, swap_mask: ALL })
            }
            Self::MaskedCmpSwap { addr, rkey, compare, compare_mask, swap, swap_mask } => {
                (addr, rkey, AtomicOp::CmpSwap { compare, compare_mask, swap, swap_mask })
            }
            _ => return None,
        };
        Some(Atomic { addr, rkey, op })
    }

    /// Whether the peer answers it, so that it is complete only then: a Read or an Atomic.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic()
    }

    /// Whether it is an Atomic.
    pub(crate) fn is_atomic(&self) -> bool {
        matches!(
            self,
            Self::FetchAdd { .. }
                | Self::CmpSwap { .. }
                | Self::MaskedFetchAdd { .. }
                | Self::MaskedCmpSwap { .. }
        )
    }
}

bitflags! {
    /// How a send work request is executed and reported.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Report success by a completion; errors are always reported.
        const SIGNALED = 1;
        /// Raise a solicited event at the peer (Sends and [`SendOp::WriteImm`]).
        const SOLICITED = 1 << 1;
        /// Wait for all earlier Reads and Atomics of this QP, before a request of any kind.
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
    /// The local memory: source of a Send or Write, sink of a Read, or of an Atomic (one element of 8 bytes);
    /// none for requests about memory.
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
