//! Whole stacks against each other.

mod close;
mod handshake;
mod hostile;
mod link;
mod loss;
mod memory;
mod scripted;
mod transfer;
