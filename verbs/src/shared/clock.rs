//! The clock of a device.

use std::sync::Arc;

/// A function that returns the device's time, in nanoseconds from an arbitrary origin.
pub(crate) type DeviceClock = Arc<dyn Fn() -> u64 + Send + Sync>;
