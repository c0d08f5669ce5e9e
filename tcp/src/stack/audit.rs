//! For tests: invariants of a stack.

use super::Stack;
use crate::audit::{Fault, Numbers, must};
use crate::buffers::{Buffers, ConnId};
use crate::connection::Flags;
use crate::time::Time;
use std::collections::HashSet;

impl<B: Buffers> Stack<B> {
    /// Checks all state of the stack, for tests.
    ///
    /// # Errors
    /// The broken invariant, and the connection if one is concerned.
    pub fn audit(&self) -> Result<(), (Fault, Option<ConnId>)> {
        let listed: HashSet<u32> = self.work.iter().copied().collect();
        let mut held = 0;
        for (i, c) in self.connections.iter() {
            let listing = || {
                must!(!c.flags.has(Flags::LISTED) || listed.contains(&i));
                must!(c.armed == Time::MAX || self.wheel.deadline(i).is_some_and(|at| at <= c.armed));
                must!(self.other_owner(c.key).is_none());
                must!(self.table.get(c.key) == Some(super::Place::Connection(i).pack()));
                Ok(())
            };
            c.audit(&self.net).and_then(|()| listing()).map_err(|fault| (fault, Some(c.id(i))))?;
            held += c.held();
        }
        let shared = || {
            must!(held == self.net.held.frames());
            let (connections, embryos, waiting) = self.census();
            let tcp = &self.net.cfg.tcp;
            must!(connections <= tcp.max_connections as usize);
            must!(embryos <= tcp.max_syn_backlog as usize);
            must!(waiting <= tcp.max_time_wait as usize);
            must!(self.table.len() == connections + embryos + waiting);
            self.net.audit(connections)
        };
        shared().map_err(|fault| (fault, None))
    }

    /// Returns a connection's sequence numbers, for tests.
    pub fn numbers(&self, conn: ConnId) -> Option<Numbers> {
        self.get(conn).map(|c| c.numbers())
    }
}
