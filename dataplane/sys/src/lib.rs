//! Raw bindings to the distribution's DPDK.
