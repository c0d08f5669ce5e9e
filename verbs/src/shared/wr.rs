//! Work requests, as applications post them.

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

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send to the peer's next receive buffer (RFC 5040 §5.3).
    Send,
    /// Send, and name an STag of the peer's, which the peer invalidates before it completes the receive.
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
    /// Invalidate an STag of this node: a region to which no windows are bound, or a window of type 2. After its
    /// completion, and for all later requests, the STag grants nothing. Earlier Reads into the memory fail, unless
    /// [`SendFlags::FENCE`] makes this request wait for them.
    LocalInv(u32),
    /// Bind a memory window ([`Mw`](crate::Mw)) to a part of a region, for later requests and for the peer.
    BindMw {
        /// The window's new key: [`Mw::rkey`](crate::Mw::rkey) with any lowest octet.
        rkey: u32,
        /// Local key of the region, which must not be [`Access::ZERO_BASED`].
        lkey: u32,
        /// First byte, as in an [`Sge`] of the region.
        addr: u64,
        /// Length in bytes; 0 unbinds a window of type 1.
        len: u64,
        /// Remote rights, and [`Access::ZERO_BASED`]. Rights by which the peer writes need `LOCAL_WRITE` of the
        /// region. The remote rights of the region itself do not matter.
        access: Access,
    },
    /// Register a part of an invalid region's own memory anew (after [`LocalInv`](Self::LocalInv) or
    /// [`Mr::revoke`](crate::Mr::revoke)), as fast registration does.
    RegMr {
        /// The region's new key: [`Mr::lkey`](crate::Mr::lkey) with any lowest octet.
        key: u32,
        /// Virtual address of the first byte, also if the region has an `iova`
        /// ([`Pd::reg_mr_iova`](crate::Pd::reg_mr_iova)).
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// The rights. `LOCAL_WRITE` is possible only if the region was registered with it.
        access: Access,
    },
    /// Write to the peer's memory, then take the peer's next receive and complete it with these 32 bits
    /// ([`Wc::imm_data`](crate::Wc::imm_data)).
    ///
    /// On the wire this is an RDMA Write followed by Immediate Data: four octets of `imm`, then four octets of 0
    /// (RFC 7306 §6). It has one completion here. [`SendFlags::SOLICITED`] makes it Immediate Data with Solicited
    /// Event.
    WriteImm {
        /// Tagged offset of the first byte at the peer; ignored for a length of 0.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// The 32 bits of immediate data.
        imm: u32,
    },
    /// Always refused with [`PostError::SendImm`](crate::PostError::SendImm), because iWARP has no Send with
    /// immediate data. Use a [`WriteImm`](Self::WriteImm) of no bytes, or put the bits into the message.
    SendImm(u32),
    /// Add to 64 bits of the peer's memory, and return the former value in one local element of 8 bytes (RFC 7306
    /// §5).
    ///
    /// The word at the peer and the local word are each in the byte order of their machine. An Atomic is atomic with
    /// respect to all Atomics of all connections of the peer's device. It counts against ORD as a Read does, and the
    /// peer answers it in order with the Reads.
    ///
    /// The address at the peer must be a multiple of 8; otherwise the peer ends the connection. A peer that does
    /// not know Atomics ends the connection too. Nothing on the wire tells beforehand whether the peer knows them:
    /// programs must agree on the use of Atomics. An Atomic need not be atomic with respect to other accesses to the
    /// word, such as Reads and Writes: use the word for Atomics only.
    FetchAdd {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// The number to add.
        add: u64,
    },
    /// Store `swap` in 64 bits of the peer's memory if their value is `compare`, and return the former value, as
    /// [`FetchAdd`](Self::FetchAdd) does.
    CmpSwap {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// The expected value.
        compare: u64,
        /// The value to store.
        swap: u64,
    },
    /// Add to several fields of the word at once, otherwise as [`FetchAdd`](Self::FetchAdd).
    MaskedFetchAdd {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// The numbers to add, each in its field.
        add: u64,
        /// Marks the fields: each bit that is set is the highest bit of a field. Nothing is carried out of a field.
        mask: u64,
    },
    /// Compare and swap some bits of the word, otherwise as [`CmpSwap`](Self::CmpSwap). With a `compare_mask` of 0
    /// it is a plain swap.
    MaskedCmpSwap {
        /// Tagged offset of the word at the peer.
        addr: u64,
        /// STag of the peer's region.
        rkey: u32,
        /// The expected value.
        compare: u64,
        /// The bits to compare.
        compare_mask: u64,
        /// The value to store.
        swap: u64,
        /// The bits to store.
        swap_mask: u64,
    },
}

/// An Atomic: the operation, and the word of the peer's memory.
pub(crate) struct Atomic {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) op: AtomicOp,
}

impl SendOp {
    /// Returns the opcode of the operation's completion.
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

    /// Returns whether the operation concerns only memory of this node, so that nothing is sent.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::LocalInv(_) | Self::BindMw { .. } | Self::RegMr { .. })
    }

    /// Returns the Atomic; `None` if the operation is not an Atomic.
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

    /// Returns whether the operation is complete only when the peer has answered: a Read or an Atomic.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. }) || self.is_atomic()
    }

    /// Returns whether the operation is an Atomic.
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
    /// How to execute and report a send work request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Report success too. Errors are always reported.
        const SIGNALED = 1;
        /// Raise a solicited event at the peer (Sends and [`SendOp::WriteImm`]).
        const SOLICITED = 1 << 1;
        /// Wait for all earlier Reads and Atomics of this queue pair. Applies to requests of any kind.
        const FENCE = 1 << 2;
        /// Copy the payload while posting. The memory may be reused when the call returns.
        const INLINE = 1 << 3;
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Id chosen by the application, returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The local memory: the source of a Send or Write, the destination of a Read, or one element of 8 bytes
    /// for the result of an Atomic. Empty for requests that concern memory ([`SendOp::LocalInv`],
    /// [`SendOp::BindMw`], [`SendOp::RegMr`]).
    pub sges: &'a [Sge],
    /// How to execute and report the request.
    pub flags: SendFlags,
}

/// A request for the receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Id chosen by the application, returned in the completion.
    pub wr_id: u64,
    /// The memory for the message, filled in order.
    pub sges: &'a [Sge],
}
