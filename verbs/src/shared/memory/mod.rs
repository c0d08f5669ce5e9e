//! Registered memory: the rights on it, and where it is. The peer and the application may write to it at any
//! time, so it is never a Rust slice. All access is by raw pointers within checked bounds: volatile copies,
//! atomic operations, and transports that send lent memory from where it is.

mod allocate;
pub(crate) mod copy;
mod huge;
mod regions;
mod stag;
mod table;

use bitflags::bitflags;

use super::error::{Error, Result};

pub(crate) use allocate::{Allocate, Block, PageAllocator, fault_in};
pub(crate) use huge::HugepageAllocator;
pub(crate) use regions::Regions;
pub(crate) use table::{Bind, MAX_REGIONS, MrEntry, MrFault, MrTable, Refused};

bitflags! {
    /// Rights on a memory region. Local reading is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u8 {
        /// Receives, Reads and the results of Atomics of this node may write to it.
        const LOCAL_WRITE = 1;
        /// The peer may write to it; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read it.
        const REMOTE_READ = 1 << 2;
        /// The peer may perform Atomics on it (RFC 7306), at addresses that are multiples of 8; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Scatter-gather elements and the peer address its bytes from 0 instead of by virtual addresses.
        const ZERO_BASED = 1 << 4;
        /// Every peer of the domain's queue pairs may invalidate the region by a Send with Invalidate, if the
        /// region has a remote right. Do not use this for regions that several peers use, because one peer
        /// could take the region away from the others (RFC 5040 §8.1.1). Regions that are limited to one queue
        /// pair ([`Mr::restrict_to`](crate::Mr::restrict_to)), and windows of type 2, do not need it.
        const REMOTE_INVALIDATE = 1 << 5;
    }
}

impl Access {
    /// All rights that a peer can have.
    pub(crate) const REMOTE: Self = Self::REMOTE_WRITING.union(Self::REMOTE_READ);
    /// The rights by which a peer changes memory; they need `LOCAL_WRITE`.
    pub(crate) const REMOTE_WRITING: Self = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);
    /// The right to read that every region grants to its own node, and no window does.
    pub(crate) const LOCAL_READ: Self = Self::from_bits_retain(1 << 7);

    /// Checks that the rights are consistent.
    pub(crate) fn check(self) -> Result<()> {
        if self.intersects(Self::REMOTE_WRITING) && !self.contains(Self::LOCAL_WRITE) {
            return Err(Error::Invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE"));
        }
        Ok(())
    }
}

/// The kinds of memory windows. [`Mw::bind`](crate::Mw::bind) and [`SendOp::BindMw`](crate::SendOp::BindMw)
/// bind windows of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwKind {
    /// Usable by all queue pairs of its protection domain. It may be bound anew at any time, and cannot be
    /// invalidated.
    One,
    /// Usable only by the queue pair that binds it. It must be invalidated before it is bound again, by
    /// [`SendOp::LocalInv`](crate::SendOp::LocalInv) or by the peer. It is unbound when its queue pair is
    /// destroyed or goes back to idle.
    Two,
}

#[cfg(test)]
mod tests;
