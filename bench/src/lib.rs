//! Measurements: perftest-like operations between two urnic nodes, and the floor of the link below them.

pub mod memory;
pub mod perf;
