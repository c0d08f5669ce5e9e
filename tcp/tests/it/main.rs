//! Whole stacks over a simulated network, in virtual time.
//!
//! `URNIC_SEEDS=n` runs the random connections over n seeds instead of 500, and changes the number of seeds of
//! the other randomized tests in proportion.

mod broken;
mod harness;
mod paths;
mod peer;

mod acks;
mod attacks;
mod closing;
mod devices;
mod far;
mod floods;
mod goodput;
mod random;
mod sabotage;
mod scale;
mod sharing;
mod smoltcp_peer;
mod throughput;
mod veiled;
mod windows;
