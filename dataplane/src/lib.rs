//! DPDK: environment, ports, mbufs, hugepage memory, clock.
