//! What drives the objects: the shard that decides who runs an engine, the engine, and the ports below it.

pub(crate) mod engine;
pub(crate) mod port;
pub(crate) mod shard;
