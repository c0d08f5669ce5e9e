//! How busy the engines of a device are.

/// How busy an engine is and was: see [`DeviceAttr::per_engine`](crate::DeviceAttr::per_engine).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineFigures {
    /// Its number in the device, from 0: the completion vector that names it.
    pub number: u32,
    /// The core that its thread is pinned to; `None` if it is pinned to none, or there is no thread.
    pub core: Option<usize>,
    /// Times that a thread has driven it: passes, and posts and verbs between passes.
    pub passes: u64,
    /// Passes that found work.
    pub busy_passes: u64,
    /// Queue pairs that it has at this moment.
    pub queue_pairs: u32,
    /// Connections that it has at this moment, those that begin or end included.
    pub connections: u32,
    /// Counters by name, of this engine.
    pub counters: Vec<(&'static str, u64)>,
}

impl EngineFigures {
    /// Returns the counters of all engines together, in the order of the first one's.
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
