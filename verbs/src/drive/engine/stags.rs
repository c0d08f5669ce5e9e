//! The device's table of STags, as one engine uses it.

use crate::shared::engines::EngineNumber;
use crate::shared::grace::Grace;
use crate::shared::memory::{Bind, MrTable, Refused};
use crate::shared::scope::Scopes;
use std::ops::Deref;
use std::sync::Arc;

/// The table of STags, and the number of the engine whose passes use it.
pub(super) struct Stags {
    table: Arc<MrTable>,
    engine: usize,
}

impl Stags {
    pub(super) fn new(table: Arc<MrTable>, engine: EngineNumber) -> Self {
        Self { table, engine: engine.index() }
    }

    /// Returns the device's table.
    pub(super) fn shared(&self) -> &Arc<MrTable> {
        &self.table
    }

    /// See [`MrTable::invalidate`].
    pub(super) fn invalidate(&self, stag: u32, by: Scopes) -> Result<Grace, Refused> {
        self.table.invalidate(stag, by, self.engine)
    }

    /// See [`MrTable::invalidate_local`].
    pub(super) fn invalidate_local(&self, stag: u32, by: Scopes) -> Result<Grace, Refused> {
        self.table.invalidate_local(stag, by, self.engine)
    }

    /// See [`MrTable::bind`].
    pub(super) fn bind(&self, bind: Bind, by: Scopes) -> Result<Grace, Refused> {
        self.table.bind(bind, by, self.engine)
    }

    /// Returns whether a grace period is over.
    pub(super) fn has_ended(&self, grace: &mut Grace) -> bool {
        grace.has_ended(self.table.fellows())
    }
}

impl Deref for Stags {
    type Target = MrTable;

    #[inline]
    fn deref(&self) -> &MrTable {
        &self.table
    }
}
