//! A program's request for an event of a completion queue.

use crate::shared::sabotage::{Rule, broken};
use crate::shared::sync::atomic::{AtomicU8, Ordering, fence};

/// No event is requested.
const NO: u8 = 0;
/// An event is requested for the next completion that is solicited or an error.
const SOLICITED: u8 = 1;
/// An event is requested for the next completion.
const ANY: u8 = 2;

/// A program's request for one event. Any thread may arm. Every engine that completes to the queue checks the
/// request.
#[derive(Default)]
pub(crate) struct Arming(AtomicU8);

impl Arming {
    /// Returns whether an event is requested. Only a hint.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NO
    }

    /// Requests one event. After this call, poll once more. If that poll finds no completion of the requested kind,
    /// the engine that publishes the next one announces it, because it sees the request.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        // The stronger request wins: arming for solicited completions does not cancel arming for any.
        self.0.fetch_max(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Called by the engine after it has published a completion: returns whether it must announce that completion,
    /// and withdraws the request in that case. Only one engine announces, even if others publish at the same time,
    /// except if the request changes too often (see `disarm`).
    #[inline(always)]
    pub(crate) fn fires(&self, solicited: impl Fn() -> bool) -> bool {
        // Pairs with the fence in `arm`: either this sees the queue armed, or the poll that follows arming sees
        // the completion, in whichever lane it is.
        fence(Ordering::SeqCst);
        let wanted = self.0.load(Ordering::Relaxed);
        (wanted == ANY || (wanted == SOLICITED && solicited())) && self.disarm(wanted, solicited())
    }

    /// Withdraws the request, unless another engine has done so. Returns whether this engine must announce its
    /// completion.
    #[cold]
    fn disarm(&self, mut wanted: u8, solicited: bool) -> bool {
        // Other threads may have strengthened, withdrawn or renewed the request meanwhile.
        for _ in 0..ATTEMPTS {
            if !(wanted == ANY || (wanted == SOLICITED && solicited)) {
                return false;
            }
            if broken(Rule::OneEvent) {
                return true;
            }
            match self.0.compare_exchange(wanted, NO, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => wanted = now,
            }
        }
        // The request changes too often. One event too many is better than none.
        true
    }
}

/// Number of attempts to withdraw a request that changes all the time.
const ATTEMPTS: u32 = 8;
