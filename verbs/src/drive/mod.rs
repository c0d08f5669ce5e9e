//! What drives the objects: the shard, which decides which thread runs an engine; the engine; the transport, which
//! carries its streams; and the ports below.

pub(crate) mod clock;
pub(crate) mod draft;
pub(crate) mod engine;
pub(crate) mod open;
pub(crate) mod port;
pub(crate) mod shard;
pub mod transport;
pub(crate) mod wakeup;
