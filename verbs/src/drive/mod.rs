//! What drives the objects: the shard that decides who runs an engine, the engine, the transport that carries its streams,
//! and the ports below that.

pub(crate) mod clock;
pub(crate) mod draft;
pub(crate) mod engine;
pub(crate) mod open;
pub(crate) mod port;
pub(crate) mod shard;
pub mod transport;
pub(crate) mod wakeup;
