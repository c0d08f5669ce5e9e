//! The layers below the API's objects, top first: the shard, which decides which thread runs an engine; the engine;
//! the transport, which carries the engine's streams; and the ports, on which a transport sends frames.

pub(crate) mod clock;
pub(crate) mod draft;
pub(crate) mod engine;
pub(crate) mod open;
pub(crate) mod port;
pub(crate) mod shard;
pub mod transport;
pub(crate) mod wakeup;
