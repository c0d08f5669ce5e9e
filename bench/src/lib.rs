//! Measurements: perftest-like operations between two urnic nodes, the raw link below them, the kernel's peers for
//! comparison, and the relay that impairs a link.

pub mod compare;
#[cfg(feature = "dpdk")]
pub mod crowd;
#[cfg(feature = "dpdk")]
pub mod memory;
pub mod perf;
#[cfg(feature = "dpdk")]
pub mod relay;
#[cfg(feature = "dpdk")]
pub mod scaling;
