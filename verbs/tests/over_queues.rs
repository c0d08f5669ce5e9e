//! The tests of the engine that are not about frames, between devices of several engines each, over simulated ports that throw
//! every frame at any engine.
//! (`common` picks the carrier by this file's name.)

// Each of these files is a test of its own and brings what it shares with others.
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
