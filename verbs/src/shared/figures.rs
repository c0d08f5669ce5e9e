//! Load figures of the engines of a device.

/// Names of the counters of frames that an engine has given to other engines, and has got from them.
pub(crate) const FRAMES_HANDED_OVER: &str = "frames_handed_over";
pub(crate) const FRAMES_TAKEN_OVER: &str = "frames_taken_over";

/// Load of an engine: see [`DeviceAttr::per_engine`](crate::DeviceAttr::per_engine).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineFigures {
    /// Number of the engine in its device, from 0; it is also the completion vector that selects the engine.
    pub number: u32,
    /// The core that the configuration gives to the engine's thread; `None` if it gives none, or if the engine
    /// has no thread. If the thread cannot be pinned to the core, a warning is logged.
    pub core: Option<usize>,
    /// Number of times that a thread has driven the engine: by passes, and by posts and verbs between passes.
    pub passes: u64,
    /// Number of passes that found work.
    pub busy_passes: u64,
    /// Present number of queue pairs.
    pub queue_pairs: u32,
    /// Present number of connections, including those that begin or end.
    pub connections: u32,
    /// Counters of this engine, by name.
    pub counters: Vec<(&'static str, u64)>,
}

impl EngineFigures {
    /// Returns the counters of all engines together, in the order of the first engine's counters.
    pub(crate) fn sum(engines: &[Self]) -> Vec<(&'static str, u64)> {
        let mut sum: Vec<(&'static str, u64)> = Vec::new();
        for &(name, count) in engines.iter().flat_map(|engine| &engine.counters) {
            match sum.iter_mut().find(|(other, _)| *other == name) {
                Some((_, all)) => *all = all.saturating_add(count),
                None => sum.push((name, count)),
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests;
