//! DPDK for urnic: environment, ports, frames, hugepage memory, clock.
#![warn(missing_docs)]

mod affinity;
mod eal;
mod hugepages;
mod log;

pub use affinity::{PinError, allowed_cores, pin_current_thread};
pub use eal::{Eal, EalConfig, EalError, Hugepages, MemoryKind};
pub use hugepages::{HugepageStatus, status as hugepage_status};
