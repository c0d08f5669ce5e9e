//! The scopes that may use an STag.

/// A scope that may use an STag: a protection domain or one queue pair. Each has a number of its own in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope(pub(crate) u32);

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
