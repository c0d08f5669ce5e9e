//! Measurements: RDMA operations between two urnic nodes, the raw link below them, and programs on the kernel's sockets
//! for comparison. Also the relay, which impairs a link.

pub mod compare;
#[cfg(all(feature = "dpdk", target_arch = "x86_64"))]
pub mod crossings;
#[cfg(feature = "dpdk")]
pub mod crowd;
#[cfg(feature = "dpdk")]
pub mod memory;
pub mod perf;
#[cfg(feature = "dpdk")]
pub mod relay;
#[cfg(feature = "dpdk")]
pub mod scaling;
