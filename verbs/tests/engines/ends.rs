//! Code that the tests with several engines share.

use std::time::{Duration, Instant};

use urnic::*;

/// Time limit of a test, which only a stopped machine exceeds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Makes a completion queue whose home is the engine `vector`, modulo the number of engines.
pub(crate) fn queue(device: &Device, vector: usize) -> Cq {
    let vector = vector as u32 % device.attributes().unwrap().engines;
    device.create_cq_with(&CqInit { depth: 4096, channel: None, timestamps: false, vector }).unwrap()
}

pub(crate) fn init(cq: &Cq) -> QpInit<'_> {
    QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline: 64,
        signal_all: true,
    }
}

/// The time limit of a test. [`Self::check`] fails after it.
pub(crate) struct Limit(Instant);

impl Limit {
    pub(crate) fn new() -> Self {
        Self(Instant::now() + PATIENCE)
    }

    pub(crate) fn check(&self, what: &str) {
        assert!(Instant::now() < self.0, "{what} did not happen within {PATIENCE:?}");
    }
}

/// Returns the next completion, which must be a success.
pub(crate) fn next(cq: &Cq, limit: &Limit, what: &str) -> Wc {
    let mut wc = [Wc::default()];
    while cq.poll(&mut wc) == 0 {
        limit.check(what);
    }
    assert_eq!(wc[0].status, WcStatus::Success, "{what}: {:?}", wc[0]);
    wc[0]
}

/// Returns the next event of a channel.
pub(crate) fn event(events: &EventChannel, what: &str) -> CmEvent {
    events.wait(PATIENCE).unwrap_or_else(|| panic!("{what} did not happen"))
}

pub(crate) fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 + seed * 7) as u8).collect()
}
