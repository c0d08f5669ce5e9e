//! The memory that frames lie in: pools, single buffers from them, and payload shared by several frames.

pub(crate) mod borrowed;
mod mbuf;
mod payload;
pub(crate) mod pool;
mod references;

use dpdk_sys as sys;

pub use mbuf::Mbuf;
pub(crate) use mbuf::{prefetch_data, prefetch_for_writing};
pub use payload::{TxBuf, TxPayload};
pub use pool::{HEADROOM, Pool, PoolError, retired_pools};
pub(crate) use pool::{Lease, Users};

/// Flags of an mbuf whose data is not in its own buffer, but in lent memory or in another mbuf. All other flags
/// describe the frame.
pub(crate) const ATTACHED: u64 = sys::RTE_MBUF_F_EXTERNAL | sys::RTE_MBUF_F_INDIRECT;
