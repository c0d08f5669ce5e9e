//! Raw bindings to the distribution's DPDK (22.11 or newer), made at build time.
//!
//! Nothing here is safe to call; `urnic-dataplane` is the interface. DPDK defines some flags by casts and shifts,
//! which bindgen cannot evaluate; they are written out below under DPDK's names.

#![cfg(feature = "dpdk")]
#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn, unnecessary_transmutes)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

pub const RTE_ETH_TX_OFFLOAD_TCP_CKSUM: u64 = 1 << 3;
pub const RTE_ETH_TX_OFFLOAD_TCP_TSO: u64 = 1 << 5;
pub const RTE_ETH_TX_OFFLOAD_MULTI_SEGS: u64 = 1 << 15;
pub const RTE_ETH_RX_OFFLOAD_TCP_CKSUM: u64 = 1 << 3;
pub const RTE_ETH_RX_OFFLOAD_TCP_LRO: u64 = 1 << 4;

/// The guest accepts TCP segments that are larger than the MTU (virtio 1.2 §5.1.3).
pub const VIRTIO_NET_F_GUEST_TSO4: u64 = 1 << 7;
pub const VIRTIO_NET_F_GUEST_TSO6: u64 = 1 << 8;

pub const RTE_MBUF_F_RX_LRO: u64 = 1 << 16;
pub const RTE_MBUF_F_RX_L4_CKSUM_MASK: u64 = (1 << 3) | (1 << 8);
pub const RTE_MBUF_F_RX_L4_CKSUM_BAD: u64 = 1 << 3;
pub const RTE_MBUF_F_RX_L4_CKSUM_GOOD: u64 = 1 << 8;
pub const RTE_MBUF_F_RX_L4_CKSUM_NONE: u64 = (1 << 3) | (1 << 8);
pub const RTE_MBUF_F_TX_TCP_SEG: u64 = 1 << 50;
pub const RTE_MBUF_F_TX_TCP_CKSUM: u64 = 1 << 52;
pub const RTE_MBUF_F_TX_IPV4: u64 = 1 << 55;
pub const RTE_MBUF_F_TX_IPV6: u64 = 1 << 56;
pub const RTE_MBUF_F_EXTERNAL: u64 = 1 << 61;
pub const RTE_MBUF_F_INDIRECT: u64 = 1 << 62;
