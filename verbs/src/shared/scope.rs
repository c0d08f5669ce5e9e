//! The scopes that may use an STag.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A scope that may use an STag: a protection domain or one queue pair. Each has a number of its own in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope(pub(crate) u32);

impl Scope {
    /// A scope that no queue pair has.
    pub(crate) const NOBODY: Self = Self(u32::MAX);
}

/// The scopes of a device that are in use. A number is used again only when all others have been used since, so that a
/// new scope has nothing in common with one that has ended.
#[derive(Default)]
pub(crate) struct UsedScopes(Mutex<Used>);

#[derive(Default)]
struct Used {
    /// The number that is tried next; wraps.
    next: u32,
    scopes: HashSet<Scope>,
}

impl UsedScopes {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a scope for a new protection domain or queue pair. Leaves out numbers in use, because a domain may be
    /// older than 2^32 queue pairs, and its memory must not be open to a queue pair of another domain (SEC-1).
    pub(crate) fn take(&self) -> Scope {
        let Used { next, scopes } = &mut *self.used();
        loop {
            let scope = Scope(*next);
            *next = next.wrapping_add(1);
            if scope != Scope::NOBODY && scopes.insert(scope) {
                return scope;
            }
        }
    }

    /// Takes back the scope of a domain or queue pair that no longer exists.
    pub(crate) fn give_back(&self, scope: Scope) {
        self.used().scopes.remove(&scope);
    }

    /// Makes `next` the number that is tried next.
    #[cfg(test)]
    pub(crate) fn go_on_at(&self, next: u32) {
        self.used().next = next;
    }
}

/// The scopes of a queue pair's accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scopes {
    /// The scope of the queue pair's protection domain.
    pub(crate) pd: Scope,
    /// The queue pair's own scope.
    pub(crate) qp: Scope,
}

impl Scopes {
    #[inline]
    pub(crate) fn include(self, scope: Scope) -> bool {
        scope == self.pd || scope == self.qp
    }
}

#[cfg(test)]
mod tests;
