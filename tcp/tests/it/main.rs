//! Whole stacks over a simulated network, in virtual time.
//!
//! `URNIC_TEST_SEEDS=n` runs the randomized tests over n seeds each instead of the default.

mod harness;
mod peer;

mod acks;
mod attacks;
mod closing;
mod random;
#[cfg(feature = "sabotage")]
mod sabotage;
mod smoltcp_peer;
mod throughput;
mod windows;
