//! Runs those tests of the engine that do not concern frames, over streams in memory instead of TCP, because the engine
//! must pass them on any carrier of streams. (`common` chooses the carrier by this file's name.)

// Each of these files is also a test binary of its own, and includes the modules that it shares with others.
#![allow(clippy::duplicate_mod)]

#[path = "async_events.rs"]
mod async_events;
#[path = "bind.rs"]
mod bind;
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
