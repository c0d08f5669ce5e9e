//! The RNIC: engine, memory, queues, connection manager, Rust verbs API.
