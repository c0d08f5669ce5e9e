//! Changes of STags: removal, invalidation, binding, registration by work request.
//!
//! Verbs wait for the lock, and after a revocation for the passes that were under way. Passes only try the lock, and
//! do not wait after a revocation: the engine begins a grace period, and checks it in later passes until it is over.

use super::links::{self, Links};
use super::{Content, Home, Kind, Managed, MrEntry, MrFault, MrTable, OURS, State, Word, of_region};
use crate::shared::error::{Error, Result};
use crate::shared::grace::{Grace, Witnesses};
use crate::shared::memory::{Access, MwKind};
use crate::shared::sabotage::{Rule, broken};
use crate::shared::scope::{Scope, Scopes};

/// The parameters of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// The window, with its new key.
    pub(crate) rkey: u32,
    /// The region.
    pub(crate) lkey: u32,
    /// The first byte, as a scatter-gather element of the region names it.
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
}

/// Why a pass could not change an STag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Fault(MrFault),
    /// Another thread is changing the table, or passes of other engines may still use the slot's old content. Try
    /// again in a later pass.
    Later,
}

impl From<MrFault> for Refused {
    fn from(fault: MrFault) -> Self {
        Refused::Fault(fault)
    }
}

/// Changes by verbs.
impl MrTable {
    /// Revokes for good the region or window that the application's handle names by `stag` (see [`Self::held`]). A
    /// region's windows are unbound first. The caller calls [`Self::release`] when the passes that are under way have
    /// ended.
    pub(crate) fn withdraw(&self, stag: u32) -> Result<()> {
        let witnesses = self.fellows.witnesses(None);
        let managed = &mut *self.managed.lock()?;
        let index = self.held(stag)?;
        self.leave(managed, index, &witnesses);
        Ok(())
    }

    /// Makes a withdrawn slot usable again. Called when no pass uses the slot.
    pub(crate) fn release(&self, stag: u32) -> Result<()> {
        let managed = &mut *self.managed.lock()?;
        let index = self.map.slot(stag).0;
        if let Some(slot) = self.slots.get(index as usize)
            && slot.word().state() == State::Leaving
        {
            slot.set_word(slot.word().with_state(State::Free));
            managed.free.push_back(index);
        }
        Ok(())
    }

    /// Enters the region `entry`, and withdraws the region that the application's handle names by `stag`, as
    /// [`Self::withdraw`] does. Refused if windows are bound to the old region. Returns the STag of the new region.
    pub(crate) fn replace(&self, stag: u32, entry: MrEntry) -> Result<u32> {
        let witnesses = self.fellows.witnesses(None);
        let managed = &mut *self.managed.lock()?;
        let index = self.held(stag)?;
        refuse_if_bound(managed, index)?;
        let (content, home) = of_region(entry);
        let stag = self.enter(managed, content, home)?;
        self.leave(managed, index, &witnesses);
        Ok(stag)
    }

    /// Revokes a slot whose content the application gives up.
    fn leave(&self, managed: &mut Managed, index: usize, witnesses: &Witnesses) {
        for _ in 0..windows_of(managed, index) {
            let Some(window) = managed.homes.get(index).map(|home| home.bound.next) else { return };
            self.revoke_slot(managed, window as usize, State::Invalid, Some(witnesses));
        }
        self.revoke_slot(managed, index, State::Leaving, Some(witnesses));
        unlimit(managed, index);
    }

    /// Returns the number of windows that are bound to the region of the application's handle with `stag`.
    pub(crate) fn windows(&self, stag: u32) -> Result<u32> {
        let managed = self.managed.lock()?;
        self.held(stag).map(|index| windows_of(&managed, index))
    }

    /// Revokes all that the handle's STag grants, until the region is registered anew. The caller waits for the
    /// passes that are under way.
    pub(crate) fn revoke(&self, stag: u32) -> Result<()> {
        let witnesses = self.fellows.witnesses(None);
        let managed = &mut *self.managed.lock()?;
        let index = self.held(stag)?;
        refuse_if_bound(managed, index)?;
        self.revoke_slot(managed, index, State::Invalid, Some(&witnesses));
        Ok(())
    }

    /// Limits the handle's STag to the queue pair with scope `qp`. The caller waits for the passes that are under
    /// way.
    pub(crate) fn restrict(&self, stag: u32, qp: Scope) -> Result<()> {
        let witnesses = self.fellows.witnesses(None);
        let managed = &mut *self.managed.lock()?;
        let index = self.held(stag)?;
        let Some(slot) = self.slots.get(index) else { return Err(Error::UnknownKey(stag)) };
        slot.set_word(slot.word().with_scope(qp));
        limit(managed, index, qp);
        if let Some(home) = managed.homes.get_mut(index) {
            home.grace = witnesses.begin();
        }
        Ok(())
    }

    /// Unbinds the windows that were bound for the queue pair with scope `qp`, and makes the regions that were
    /// limited to it unusable. The queue pair's own engine calls this when the queue pair no longer exists or
    /// is about to have another peer. So no pass uses these windows and regions.
    pub(crate) fn queue_pair_gone(&self, qp: Scope) -> Result<()> {
        let managed = &mut *self.managed.lock()?;
        while let Some(&index) = managed.limited.get(&qp) {
            let index = index as usize;
            match (self.slots.get(index), managed.homes.get(index).map(|home| home.kind)) {
                (Some(slot), Some(Kind::Region { .. })) => {
                    slot.set_word(slot.word().with_scope(Scope::NOBODY))
                }
                _ => self.revoke_slot(managed, index, State::Invalid, None),
            }
            unlimit(managed, index);
        }
        Ok(())
    }

    /// Revokes what the slot grants, and unties a window from its region. `witnesses` is `None` only if no engine but
    /// the caller's can be using the slot.
    fn revoke_slot(&self, managed: &mut Managed, index: usize, state: State, witnesses: Option<&Witnesses>) {
        let Some(slot) = self.slots.get(index) else { return };
        let word = slot.word();
        slot.set_word(word.with_state(state));
        if word.state() != State::Valid {
            return;
        }
        let Some(home) = managed.homes.get_mut(index) else { return };
        if let Some(witnesses) = witnesses {
            home.grace = witnesses.begin();
        }
        if let Kind::Window { region, .. } = home.kind {
            links::leave(&mut managed.homes, bound, index as u32);
            if let Some(Home { kind: Kind::Region { windows, .. }, .. }) =
                managed.homes.get_mut(region as usize)
            {
                *windows -= 1;
            }
            unlimit(managed, index);
        }
    }
}

/// Changes by passes. `own` is the index of the pass's engine.
impl MrTable {
    /// Invalidates an STag at a peer's request (RFC 5040 §5.3). The STag must be valid and belong to the stream. It
    /// must name a type 2 window or a region. A region must have remote rights and no windows, and must be limited to
    /// this queue pair or explicitly allow invalidation by peers (RDMAP-46, 81, SEC-8). Returns the grace period after
    /// which no pass uses the STag.
    pub(crate) fn invalidate(&self, stag: u32, by: Scopes, own: usize) -> Result<Grace, Refused> {
        let witnesses = self.fellows.witnesses(Some(own));
        let managed = &mut *self.managed.try_lock().ok_or(Refused::Later)?;
        let (index, word) = self.named(stag).ok_or(MrFault::InvalidStag)?;
        if word.state() != State::Valid {
            return Err(MrFault::InvalidStag.into());
        }
        if !by.include(word.scope()) {
            return Err(MrFault::NotAssociated.into());
        }
        let own = word.scope() == by.qp || word.access().contains(Access::REMOTE_INVALIDATE);
        match managed.homes.get(index).map(|home| home.kind) {
            Some(Kind::Window { kind: MwKind::Two, .. }) => {}
            Some(Kind::Region { windows: 0, .. }) if own && word.access().intersects(Access::REMOTE) => {}
            _ => return Err(MrFault::NoRight.into()),
        }
        Ok(self.invalidate_slot(managed, index, word, by, &witnesses))
    }

    /// Invalidates an STag of this node for a work request: a region without windows, or a type 2 window. The STag
    /// may be invalid already. Returns the grace period after which no pass uses the STag.
    pub(crate) fn invalidate_local(&self, stag: u32, by: Scopes, own: usize) -> Result<Grace, Refused> {
        let witnesses = self.fellows.witnesses(Some(own));
        let managed = &mut *self.managed.try_lock().ok_or(Refused::Later)?;
        let (index, word) = self.named(stag).ok_or(MrFault::InvalidStag)?;
        if !by.include(word.scope()) {
            return Err(MrFault::NotAssociated.into());
        }
        match managed.homes.get(index).map(|home| home.kind) {
            Some(Kind::Window { kind: MwKind::Two, .. } | Kind::Region { windows: 0, .. }) => {}
            _ => return Err(MrFault::NoRight.into()),
        }
        Ok(self.invalidate_slot(managed, index, word, by, &witnesses))
    }

    /// Invalidates the slot, whose word is `word`. A slot that only the queue pair of `by` can use needs no grace
    /// period, because that queue pair's engine is the one that runs this pass.
    fn invalidate_slot(
        &self,
        managed: &mut Managed,
        index: usize,
        word: Word,
        by: Scopes,
        witnesses: &Witnesses,
    ) -> Grace {
        let before = self.may_write(managed, index);
        let alone = word.scope() == by.qp && before;
        self.revoke_slot(managed, index, State::Invalid, (!alone).then_some(witnesses));
        match managed.homes.get(index) {
            Some(home) if !broken(Rule::CompleteAfterGrace) => home.grace.clone(),
            _ => Grace::default(),
        }
    }

    /// Returns whether the grace period of the last revocation is over.
    fn may_write(&self, managed: &mut Managed, index: usize) -> bool {
        broken(Rule::RewriteAfterGrace)
            || managed.homes.get_mut(index).is_some_and(|home| home.grace.has_ended(&self.fellows))
    }

    /// Binds a window, for a work request, to a part of a region that is not [`Access::ZERO_BASED`]. A window
    /// of type 2 must be unbound before, and is only for this queue pair afterwards. A window of type 1 is
    /// first unbound from its former region; a length of 0 only unbinds it. Returns the grace period after
    /// which no pass uses the former binding.
    pub(crate) fn bind(&self, bind: Bind, by: Scopes, own: usize) -> Result<Grace, Refused> {
        let witnesses = self.fellows.witnesses(Some(own));
        let managed = &mut *self.managed.try_lock().ok_or(Refused::Later)?;
        let (window, key) = self.map.slot(bind.rkey);
        let window = window as usize;
        let (Some(slot), Some(home)) = (self.slots.get(window), managed.homes.get(window)) else {
            return Err(MrFault::InvalidStag.into());
        };
        let (state, pd) = (slot.word().state(), home.pd);
        let Kind::Window { kind, .. } = home.kind else { return Err(MrFault::InvalidStag.into()) };
        let unbound = state == State::Invalid || kind == MwKind::One && state == State::Valid;
        if !unbound || bind.rkey == 0 {
            return Err(MrFault::InvalidStag.into());
        }
        if pd != by.pd {
            return Err(MrFault::NotAssociated.into());
        }
        if bind.len == 0 && kind == MwKind::One {
            let grace = self.invalidate_slot(managed, window, slot.word(), by, &witnesses);
            slot.set_word(slot.word().with_key(key));
            return Ok(grace);
        }
        let (region, word) = self.named(bind.lkey).ok_or(MrFault::InvalidStag)?;
        let of_region = matches!(managed.homes.get(region), Some(Home { kind: Kind::Region { .. }, .. }));
        if word.state() != State::Valid || !of_region {
            return Err(MrFault::InvalidStag.into());
        }
        if !by.include(word.scope()) {
            return Err(MrFault::NotAssociated.into());
        }
        let grants = Access::REMOTE | Access::ZERO_BASED;
        let writes = bind.access.intersects(Access::REMOTE_WRITING);
        if !grants.contains(bind.access)
            || !bind.access.intersects(Access::REMOTE)
            || writes && !word.access().contains(Access::LOCAL_WRITE)
            || word.access().contains(Access::ZERO_BASED)
        {
            return Err(MrFault::NoRight.into());
        }
        let (base, len, virt) = self.slots.get(region).ok_or(MrFault::InvalidStag)?.grants();
        let offset = bind.addr.checked_sub(virt).ok_or(MrFault::Bounds)?;
        if bind.len == 0 || offset.checked_add(bind.len).is_none_or(|end| end > len) {
            return Err(MrFault::Bounds.into());
        }
        self.revoke_slot(managed, window, State::Invalid, Some(&witnesses));
        if !self.may_write(managed, window) {
            return Err(Refused::Later);
        }
        if let Some(Home { kind: Kind::Region { windows, .. }, .. }) = managed.homes.get_mut(region) {
            *windows += 1;
        }
        if let Some(home) = managed.homes.get_mut(window) {
            home.kind = Kind::Window { kind, region: region as u32 };
        }
        links::join(&mut managed.homes, bound, region as u32, window as u32);
        if kind == MwKind::Two {
            limit(managed, window, by.qp);
        }
        let scope = if kind == MwKind::Two { by.qp } else { by.pd };
        slot.write(Content {
            base: base.wrapping_add(offset as usize),
            len: bind.len,
            virt: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr },
            word: Word::new(scope, bind.access, key, State::Valid),
        });
        Ok(Grace::default())
    }

    /// Registers a part of an invalid region's memory anew for a work request, with another key and other rights.
    pub(crate) fn register(
        &self,
        stag: u32,
        addr: u64,
        len: u64,
        access: Access,
        by: Scopes,
    ) -> Result<(), Refused> {
        let managed = &mut *self.managed.try_lock().ok_or(Refused::Later)?;
        let (index, key) = self.map.slot(stag);
        let index = index as usize;
        let (Some(slot), Some(home)) = (self.slots.get(index), managed.homes.get(index)) else {
            return Err(MrFault::InvalidStag.into());
        };
        let &Home { pd, kind: Kind::Region { base, len: all, writable, .. }, .. } = home else {
            return Err(MrFault::InvalidStag.into());
        };
        let word = slot.word();
        if word.state() != State::Invalid || stag == 0 {
            return Err(MrFault::InvalidStag.into());
        }
        if pd != by.pd || !by.include(word.scope()) {
            return Err(MrFault::NotAssociated.into());
        }
        if access.check().is_err() || access.contains(Access::LOCAL_WRITE) && !writable {
            return Err(MrFault::NoRight.into());
        }
        let offset = addr.checked_sub(base as u64).ok_or(MrFault::Bounds)?;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > all) {
            return Err(MrFault::Bounds.into());
        }
        if !self.may_write(managed, index) {
            return Err(Refused::Later);
        }
        let access = access.difference(OURS) | Access::LOCAL_READ | word.access().intersection(OURS);
        slot.write(Content {
            base: base.wrapping_add(offset as usize),
            len,
            virt: if access.contains(Access::ZERO_BASED) { 0 } else { addr },
            word: Word::new(word.scope(), access, key, State::Valid),
        });
        Ok(())
    }
}

fn bound(home: &mut Home) -> &mut Links {
    &mut home.bound
}

fn limited(home: &mut Home) -> &mut Links {
    &mut home.limited
}

fn windows_of(managed: &Managed, index: usize) -> u32 {
    match managed.homes.get(index).map(|home| home.kind) {
        Some(Kind::Region { windows, .. }) => windows,
        _ => 0,
    }
}

fn refuse_if_bound(managed: &Managed, index: usize) -> Result<()> {
    match windows_of(managed, index) {
        0 => Ok(()),
        windows => Err(Error::WindowsBound(windows)),
    }
}

/// Limits a slot to the queue pair `qp`, and to no other.
fn limit(managed: &mut Managed, index: usize, qp: Scope) {
    unlimit(managed, index);
    let Managed { homes, limited: heads, .. } = managed;
    let Some(home) = homes.get_mut(index) else { return };
    home.limited_to = Some(qp);
    let head = *heads.entry(qp).or_insert(index as u32);
    if head != index as u32 {
        links::join(homes, limited, head, index as u32);
    }
}

/// Removes a slot's limitation to a queue pair.
fn unlimit(managed: &mut Managed, index: usize) {
    let Managed { homes, limited: heads, .. } = managed;
    let Some(qp) = homes.get_mut(index).and_then(|home| home.limited_to.take()) else { return };
    match links::leave(homes, limited, index as u32) {
        None => {
            heads.remove(&qp);
        }
        Some(next) => {
            heads.insert(qp, next);
        }
    }
}

/// For tests without passes.
#[cfg(test)]
impl MrTable {
    /// Withdraws and releases an STag.
    pub(crate) fn remove(&self, stag: u32) -> Result<()> {
        self.withdraw(stag)?;
        self.release(stag)
    }
}
