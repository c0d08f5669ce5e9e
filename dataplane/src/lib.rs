//! DPDK for urnic: environment, ports, frames, hugepage memory, clock.
//!
//! [`Eal::start`] once, then [`Port::open`] for each link. A port and everything made from its pools belong to one
//! engine and are not `Send`: the engine moves between threads as a whole, under its lock.
//!
//! Receiving: [`Port::rx_burst`] gives owned [`Mbuf`]s. Sending: a [`TxBuf`] from [`Port::tx_pool`] is filled and
//! frozen into a [`TxPayload`], which is shared by reference count and sent as often as needed by [`Port::frame`], a
//! [`TxQueue`] and [`Port::tx_burst`].

mod affinity;
mod arena;
mod caps;
mod capture;
mod checksum;
mod clock;
mod cloexec;
mod eal;
mod frame;
mod hugepages;
mod layers;
mod log;
mod mbuf;
mod payload;
mod pool;
mod port;

pub use affinity::{PinError, allowed_cores, pin_current_thread};
pub use arena::{Arena, ArenaError, HugeBuf};
pub use caps::{Capabilities, ExternalMemory, RxChecksum, TxChecksum};
pub use capture::{Capture, CaptureError, CaptureStats, Direction};
pub use checksum::fill_checksum;
pub use clock::Clock;
pub use eal::{Eal, EalConfig, EalError, MemoryKind, is_control_thread};
pub use frame::{Part, TxFrame, TxQueue};
pub use hugepages::{HugepageStatus, status as hugepage_status};
pub use mbuf::Mbuf;
pub use payload::{TxBuf, TxPayload};
pub use pool::{HEADROOM, Pool, PoolError, retired_pools};
pub use port::{BURST, NicChecksums, Port, PortError, PortOptions, PortStats, RxEvent};
pub use urnic_config::Hugepages;
