//! DPDK for urnic: environment, ports, frames, hugepage memory, clock.
//!
//! `Eal::start` once, then `Port::open` for each link, or `Port::open_queues` where several engines share one. A port
//! and everything made from its pools belong to one engine and are not `Send`: the engine moves between threads as a
//! whole, under its lock.
//!
//! Receiving: `Port::rx_burst` returns owned `Mbuf`s. Sending: a `TxBuf` from `Port::tx_pool` is filled and frozen
//! into a `TxPayload`, which is shared by reference count and sent as often as needed by `Port::frame`, a `TxQueue`
//! and `Port::tx_burst`.
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
