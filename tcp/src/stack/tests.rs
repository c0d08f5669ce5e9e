//! Tests of whole stacks.

mod bind;
mod close;
mod handshake;
mod hostile;
mod ipv6;
mod link;
mod loss;
mod memory;
mod pmtu;
mod postponed;
mod scripted;
mod transfer;
