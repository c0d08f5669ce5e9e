//! Who can use an STag.

/// Who can use an STag: a protection domain or one queue pair. Each of either has a number of its own in the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scope(pub(crate) u32);

/// The scopes that accesses of a queue pair have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scopes {
    /// Its protection domain's.
    pub(crate) pd: Scope,
    /// Its own.
    pub(crate) qp: Scope,
}

impl Scopes {
    #[inline]
    pub(crate) fn include(self, scope: Scope) -> bool {
        scope == self.pd || scope == self.qp
    }
}
