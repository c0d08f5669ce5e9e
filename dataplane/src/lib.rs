//! DPDK for urnic: environment, ports, frames, hugepage memory, clock.
//!
//! Call `Eal::start` once, then `Port::open` for each link, or `Port::open_queues` if several engines share the
//! link. A port and everything made from its pools belong to one engine. None of them is `Send`, because they
//! may move to another thread only together, with the whole engine, under its lock.
//!
//! Receiving: `Port::rx_burst` returns owned `Mbuf`s. Sending: fill a `TxBuf` from `Port::tx_pool`, and freeze it into
//! a `TxPayload`, which is shared by reference count and may be sent any number of times. `Port::frame` makes a frame
//! of payloads, and `Port::tx_burst` sends the frames of a `TxQueue`.
//!
//! Without the feature `dpdk` (on by default) there are no ports, and DPDK need not be installed.

// Code that only ports use.
#![cfg_attr(not(feature = "dpdk"), allow(dead_code))]

mod affinity;
#[cfg(feature = "dpdk")]
mod arena;
#[cfg(feature = "dpdk")]
mod buffers;
mod caps;
mod capture;
mod checksum;
mod clock;
#[cfg(feature = "dpdk")]
mod cloexec;
#[cfg(feature = "dpdk")]
mod eal;
#[cfg(feature = "dpdk")]
mod frame;
#[cfg(feature = "dpdk")]
mod got;
mod hugepages;
#[cfg(feature = "dpdk")]
mod joined;
mod layers;
#[cfg(feature = "dpdk")]
mod log;
mod numa;
#[cfg(feature = "dpdk")]
mod port;
mod rx_event;

pub use affinity::{PinError, allowed_cores, free_cores, pin_current_thread, set_current_thread};
#[cfg(feature = "dpdk")]
pub use arena::{Arena, ArenaError, HugeBuf};
#[cfg(feature = "dpdk")]
pub use buffers::{HEADROOM, Mbuf, Pool, PoolError, TxBuf, TxPayload, retired_pools};
pub use caps::{Capabilities, ExternalMemory, Rss, RxChecksum, Spread, TxChecksum};
pub use capture::{Capture, CaptureError, CaptureStats, Direction};
pub use checksum::fill_checksum;
pub use clock::Clock;
#[cfg(feature = "dpdk")]
pub use eal::{Eal, EalConfig, EalError, MemoryKind, is_control_thread};
#[cfg(feature = "dpdk")]
pub use frame::{Part, TxFrame, TxQueue};
pub use hugepages::{HugepageStatus, status as hugepage_status};
#[cfg(feature = "dpdk")]
pub use joined::before_cleanup;
pub use numa::Machine;
#[cfg(feature = "dpdk")]
pub use port::{BURST, NicChecksums, Port, PortError, PortOptions, PortStats};
pub use rx_event::RxEvent;
pub use urnic_config::Hugepages;

/// Returns whether the caller is the thread that runs DPDK's control calls.
#[cfg(not(feature = "dpdk"))]
pub fn is_control_thread() -> bool {
    false
}
