//! The clock of a device.

use std::sync::Arc;

/// A function that returns an engine's time in nanoseconds.
pub(crate) type DeviceClock = Arc<dyn Fn() -> u64 + Send + Sync>;
