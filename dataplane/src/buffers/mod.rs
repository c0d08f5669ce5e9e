//! What frames lie in: the pools, single buffers of them, and payload that is shared by several.

mod mbuf;
mod payload;
mod pool;

use dpdk_sys as sys;

pub use mbuf::Mbuf;
pub(crate) use mbuf::prefetch_data;
pub use payload::{TxBuf, TxPayload};
pub use pool::{HEADROOM, Pool, PoolError, retired_pools};
pub(crate) use pool::{Lease, Users};

/// What an mbuf's memory is, as opposed to what its frame needs.
pub(crate) const ATTACHED: u64 = sys::RTE_MBUF_F_EXTERNAL | sys::RTE_MBUF_F_INDIRECT;
