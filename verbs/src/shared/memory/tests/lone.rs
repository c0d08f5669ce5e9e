//! The table of a device with one engine: no operation waits for another engine.

use std::ops::Deref;
use std::sync::Arc;

use crate::shared::grace::{Fellows, Grace};
use crate::shared::memory::{Access, Bind, MrFault, MrTable, Refused};
use crate::shared::scope::{Scope, Scopes};

pub(super) struct Lone(MrTable);

pub(super) fn table(seed: u64) -> Lone {
    Lone(MrTable::new(seed, Arc::new(Fellows::default())))
}

impl Deref for Lone {
    type Target = MrTable;
    fn deref(&self) -> &MrTable {
        &self.0
    }
}

fn at_once(outcome: Result<Grace, Refused>) -> Result<(), MrFault> {
    match outcome {
        Ok(grace) => assert!(grace.is_over()),
        Err(Refused::Later) => panic!("nobody else has the lock"),
        Err(Refused::Fault(fault)) => return Err(fault),
    }
    Ok(())
}

impl Lone {
    pub(super) fn invalidate(&self, stag: u32, by: Scopes) -> Result<(), MrFault> {
        at_once(self.0.invalidate(stag, by, 0))
    }

    pub(super) fn invalidate_local(&self, stag: u32, by: Scopes) -> Result<(), MrFault> {
        at_once(self.0.invalidate_local(stag, by, 0))
    }

    pub(super) fn bind(&self, bind: Bind, by: Scopes) -> Result<(), MrFault> {
        at_once(self.0.bind(bind, by, 0))
    }

    pub(super) fn register(
        &self,
        stag: u32,
        addr: u64,
        len: u64,
        access: Access,
        by: Scopes,
    ) -> Result<(), MrFault> {
        at_once(self.0.register(stag, addr, len, access, by).map(|()| Grace::default()))
    }

    pub(super) fn queue_pair_gone(&self, qp: Scope) {
        self.0.queue_pair_gone(qp).unwrap();
    }
}
