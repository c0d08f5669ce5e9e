//! The memory that frames lie in: pools, single buffers from them, and payload shared by several frames.

mod mbuf;
mod payload;
mod pool;

use dpdk_sys as sys;

pub use mbuf::Mbuf;
pub(crate) use mbuf::prefetch_data;
pub use payload::{TxBuf, TxPayload};
pub use pool::{HEADROOM, Pool, PoolError, retired_pools};
pub(crate) use pool::{Lease, Users};

/// Flags that describe an mbuf's memory, as opposed to its frame.
pub(crate) const ATTACHED: u64 = sys::RTE_MBUF_F_EXTERNAL | sys::RTE_MBUF_F_INDIRECT;
