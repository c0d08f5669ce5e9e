//! What changes an STag: removal, invalidation, binding, registration by work request (verbs §7).

use super::{Home, Kind, MrFault, MrTable, NOBODY, Slot, State};
use crate::shared::error::{Error, Result};
use crate::shared::memory::{Access, MwKind};
use crate::shared::scope::{Scope, Scopes};

/// What a window is to be bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// The window, with the key that it is to have.
    pub(crate) rkey: u32,
    /// The region.
    pub(crate) lkey: u32,
    /// First byte, as the region counts them.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
}

impl MrTable {
    /// Removes what the application's handle with `stag` is for. A region's windows are unbound first.
    pub(crate) fn remove(&mut self, stag: u32) -> Result<()> {
        let index = self.held(stag)?;
        if self.windows_of(index) > 0 {
            self.unbind_all(|_, bound_to| bound_to as usize == index);
        }
        self.invalidate_slot(index);
        let of_region = matches!(self.homes[index].kind, Kind::Region { .. });
        self.limited -= u32::from(of_region && self.slots[index].scope != self.homes[index].pd);
        self.slots[index].state = State::Free;
        self.free.push_back(index as u32);
        Ok(())
    }

    /// Windows bound to what the application's handle with `stag` is for.
    pub(crate) fn windows(&self, stag: u32) -> Result<u32> {
        self.held(stag).map(|index| self.windows_of(index))
    }

    fn windows_of(&self, index: usize) -> u32 {
        match self.homes[index].kind {
            Kind::Region { windows, .. } => windows,
            Kind::Window { .. } => 0,
        }
    }

    /// Takes back what the handle's STag grants, until it is registered anew.
    pub(crate) fn revoke(&mut self, stag: u32) -> Result<()> {
        let index = self.held(stag)?;
        match self.windows_of(index) {
            0 => self.invalidate_slot(index),
            windows => return Err(Error::WindowsBound(windows)),
        }
        Ok(())
    }

    /// From now on only the queue pair of scope `qp` can use the handle's STag.
    pub(crate) fn restrict(&mut self, stag: u32, qp: Scope) -> Result<()> {
        let index = self.held(stag)?;
        let was = std::mem::replace(&mut self.slots[index].scope, qp);
        self.limited += u32::from(was == self.homes[index].pd);
        Ok(())
    }

    /// A peer invalidates an STag (RFC 5040 §5.3). It must be valid, of the stream, and the peer's alone by rights: a
    /// type 2 window, or a region with remote rights that is limited to this queue pair or says that peers may
    /// (RDMAP-46, 81, SEC-8).
    pub(crate) fn invalidate(&mut self, stag: u32, by: Scopes) -> Result<(), MrFault> {
        let index = self.named(stag).ok_or(MrFault::InvalidStag)?;
        let slot = &self.slots[index];
        if slot.state != State::Valid {
            return Err(MrFault::InvalidStag);
        }
        if !by.include(slot.scope) {
            return Err(MrFault::NotAssociated);
        }
        let own = slot.scope == by.qp || slot.access.contains(Access::REMOTE_INVALIDATE);
        match self.homes[index].kind {
            Kind::Window { kind: MwKind::Two, .. } => {}
            Kind::Region { windows: 0, .. } if own && slot.access.intersects(Access::REMOTE) => {}
            _ => return Err(MrFault::NoRight),
        }
        self.invalidate_slot(index);
        Ok(())
    }

    /// A work request invalidates an STag of its own node: a region without windows, or a type 2 window. That it is
    /// invalid already is no fault.
    pub(crate) fn invalidate_local(&mut self, stag: u32, by: Scopes) -> Result<(), MrFault> {
        let index = self.named(stag).ok_or(MrFault::InvalidStag)?;
        if !by.include(self.slots[index].scope) {
            return Err(MrFault::NotAssociated);
        }
        match self.homes[index].kind {
            Kind::Window { kind: MwKind::One, .. } => return Err(MrFault::NoRight),
            Kind::Region { windows, .. } if windows > 0 => return Err(MrFault::NoRight),
            _ => {}
        }
        self.invalidate_slot(index);
        Ok(())
    }

    /// The queue pair of scope `qp` is gone, or about to have another peer, and with it the windows that were bound for
    /// it; regions that were limited to it are nobody's.
    pub(crate) fn queue_pair_gone(&mut self, qp: Scope) {
        if self.limited == 0 {
            return;
        }
        self.unbind_all(|slot, _| slot.scope == qp);
        for (slot, home) in self.slots.iter_mut().zip(&self.homes) {
            if slot.scope == qp && matches!(home.kind, Kind::Region { .. }) {
                slot.scope = NOBODY;
            }
        }
    }

    /// Unbinds those windows for whose slot and region `which` holds. Looks at all slots, which only unusual events do.
    fn unbind_all(&mut self, which: impl Fn(&Slot, u32) -> bool) {
        for index in 0..self.slots.len() {
            if let Kind::Window { region, .. } = self.homes[index].kind
                && self.slots[index].state == State::Valid
                && which(&self.slots[index], region)
            {
                self.invalidate_slot(index);
            }
        }
    }

    /// The slot grants nothing any more; a window lets go of its region.
    fn invalidate_slot(&mut self, index: usize) {
        let was = std::mem::replace(&mut self.slots[index].state, State::Invalid);
        if was == State::Valid
            && let Kind::Window { kind, region } = self.homes[index].kind
        {
            if let Kind::Region { windows, .. } = &mut self.homes[region as usize].kind {
                *windows -= 1;
            }
            self.limited -= u32::from(kind == MwKind::Two);
        }
    }

    /// A work request binds a window to a part of a region that is addressed by virtual addresses. A window of type 2
    /// must be unbound, and is from now on for this queue pair only; one of type 1 lets go of what it was bound to. No bytes:
    /// a window of type 1 is unbound.
    pub(crate) fn bind(&mut self, bind: Bind, by: Scopes) -> Result<(), MrFault> {
        let (window, key) = self.map.slot(bind.rkey);
        let window = window as usize;
        let Some(Slot { state, .. }) = self.slots.get(window) else { return Err(MrFault::InvalidStag) };
        let Kind::Window { kind, .. } = self.homes[window].kind else { return Err(MrFault::InvalidStag) };
        if *state == State::Free || bind.rkey == 0 || (kind == MwKind::Two && *state == State::Valid) {
            return Err(MrFault::InvalidStag);
        }
        if self.homes[window].pd != by.pd {
            return Err(MrFault::NotAssociated);
        }
        if bind.len == 0 && kind == MwKind::One {
            self.invalidate_slot(window);
            self.slots[window].key = key;
            return Ok(());
        }
        let region = self.named(bind.lkey).ok_or(MrFault::InvalidStag)?;
        let Slot { base, len, virt, scope, access, state, .. } = self.slots[region];
        if state != State::Valid || !matches!(self.homes[region].kind, Kind::Region { .. }) {
            return Err(MrFault::InvalidStag);
        }
        if !by.include(scope) {
            return Err(MrFault::NotAssociated);
        }
        let grants = Access::REMOTE | Access::ZERO_BASED;
        let writes = bind.access.intersects(Access::REMOTE_WRITING);
        if !grants.contains(bind.access)
            || !bind.access.intersects(Access::REMOTE)
            || writes && !access.contains(Access::LOCAL_WRITE)
            || access.contains(Access::ZERO_BASED)
        {
            return Err(MrFault::NoRight);
        }
        let offset = bind.addr.checked_sub(virt).ok_or(MrFault::Bounds)?;
        if bind.len == 0 || offset.checked_add(bind.len).is_none_or(|end| end > len) {
            return Err(MrFault::Bounds);
        }
        self.invalidate_slot(window);
        if let Kind::Region { windows, .. } = &mut self.homes[region].kind {
            *windows += 1;
        }
        self.limited += u32::from(kind == MwKind::Two);
        self.homes[window].kind = Kind::Window { kind, region: region as u32 };
        self.slots[window] = Slot {
            base: base.wrapping_add(offset as usize),
            len: bind.len,
            virt: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            scope: if kind == MwKind::Two { by.qp } else { by.pd },
            access: bind.access,
            key,
            state: State::Valid,
        };
        Ok(())
    }

    /// A work request registers a part of an invalid region's memory anew, with another key and other rights.
    pub(crate) fn register(
        &mut self,
        stag: u32,
        addr: u64,
        len: u64,
        access: Access,
        by: Scopes,
    ) -> Result<(), MrFault> {
        let (index, key) = self.map.slot(stag);
        let index = index as usize;
        let Some(slot) = self.slots.get_mut(index) else { return Err(MrFault::InvalidStag) };
        let Home { pd, kind: Kind::Region { base, len: all, writable, .. } } = self.homes[index] else {
            return Err(MrFault::InvalidStag);
        };
        if slot.state != State::Invalid || stag == 0 {
            return Err(MrFault::InvalidStag);
        }
        if pd != by.pd || !by.include(slot.scope) {
            return Err(MrFault::NotAssociated);
        }
        if access.check().is_err() || access.contains(Access::LOCAL_WRITE) && !writable {
            return Err(MrFault::NoRight);
        }
        let offset = addr.checked_sub(base as u64).ok_or(MrFault::Bounds)?;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > all) {
            return Err(MrFault::Bounds);
        }
        slot.base = base.wrapping_add(offset as usize);
        slot.len = len;
        slot.virt = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        slot.access = access | Access::LOCAL_READ;
        slot.key = key;
        slot.state = State::Valid;
        Ok(())
    }
}
