//! Whole stacks against each other.

mod close;
mod handshake;
mod loss;
mod transfer;
