//! What a completion queue was asked to report by an event.

use crate::shared::sabotage::{Rule, broken};
use crate::shared::sync::atomic::{AtomicU8, Ordering, fence};

/// Nothing.
const NO: u8 = 0;
/// The next completion that is solicited, or an error.
const SOLICITED: u8 = 1;
/// The next completion.
const ANY: u8 = 2;

/// The wish of a program for one event. Any thread arms; every engine that gives completions to the queue looks.
#[derive(Default)]
pub(crate) struct Arming(AtomicU8);

impl Arming {
    /// Whether an event is wanted. Only a hint.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NO
    }

    /// Asks for one event. Poll once more after this: each completion is found by that poll, or its engine sees the wish.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let wanted = if solicited_only { SOLICITED } else { ANY };
        // The stronger wish wins: arming for solicited ones does not take back arming for any.
        self.0.fetch_max(wanted, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Engine, after it has published a completion: returns whether that is the one to announce, and takes the wish back
    /// then. One engine announces, whichever others publish at the same time.
    #[inline(always)]
    pub(crate) fn fires(&self, solicited: impl Fn() -> bool) -> bool {
        // Pairs with the fence in `arm`: either this sees the queue armed, or the poll that follows arming sees the
        // completion, in whichever lane (verbs §8.2.5).
        fence(Ordering::SeqCst);
        let wanted = self.0.load(Ordering::Relaxed);
        (wanted == ANY || (wanted == SOLICITED && solicited())) && self.disarm(wanted, solicited())
    }

    /// Takes the wish back, unless another engine has.
    #[cold]
    fn disarm(&self, mut wanted: u8, solicited: bool) -> bool {
        // The wish may have grown or gone; it may also have been renewed meanwhile, but not forever.
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
        // Too much happens here to leave the program without an event.
        true
    }
}

/// Attempts to take a wish back that changes all the time.
const ATTEMPTS: u32 = 8;
