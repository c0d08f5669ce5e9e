//! Runs those tests of the engine that do not concern frames, between devices of several engines each, over kernel
//! sockets. Queue pairs begin at the engine of their completion queue, and connections arrive at whichever engine is
//! driven first. (`common` chooses the carrier by this file's name.)

// Each of these files is also a test binary of its own, and includes the modules that it shares with others.
#![allow(clippy::duplicate_mod)]

#[path = "async_events.rs"]
mod async_events;
#[path = "errors.rs"]
mod errors;
#[path = "extensions.rs"]
mod extensions;
#[path = "memory.rs"]
mod memory;
#[path = "read_lists.rs"]
mod read_lists;
#[path = "srq.rs"]
mod srq;
#[path = "states.rs"]
mod states;
#[path = "two_ends.rs"]
mod two_ends;
#[path = "unready.rs"]
mod unready;
