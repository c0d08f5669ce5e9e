//! Which QPs have new work.

use crossbeam_queue::ArrayQueue;

/// The numbers of QPs with work, each at most once (see `QpShared::scheduled`), so there is room for all.
pub(crate) struct Doorbells {
    ringing: ArrayQueue<u32>,
}

impl Doorbells {
    /// For at most `qps` QPs.
    pub(crate) fn new(qps: usize) -> Self {
        Self { ringing: ArrayQueue::new(qps.max(1)) }
    }

    /// A QP has work and was not entered yet.
    #[inline]
    pub(crate) fn ring(&self, qpn: u32) {
        let entered = self.ringing.push(qpn);
        debug_assert!(entered.is_ok(), "a QP was entered twice");
    }

    /// Whether no QP is entered.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ringing.is_empty()
    }

    /// Engine: the next QP with work. `QpShared::answer_doorbell` comes next, then the look at its queues.
    #[inline]
    pub(crate) fn pop(&self) -> Option<u32> {
        // Looking first costs less than a failed pop: this is asked in every pass.
        if self.is_empty() { None } else { self.ringing.pop() }
    }

    /// Under the engine lock: removes the entry of a QP that nobody can post to any more.
    pub(crate) fn forget(&self, qpn: u32) {
        for _ in 0..self.ringing.len() {
            match self.ringing.pop() {
                Some(other) if other != qpn => self.ring(other),
                Some(_) => {}
                None => break,
            }
        }
    }
}
