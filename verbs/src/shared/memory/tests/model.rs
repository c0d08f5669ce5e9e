//! Tests the table of STags against a model that keeps everything explicitly.

use proptest::prelude::*;

use crate::shared::memory::{Access, Bind, MrEntry, MwKind};
use crate::shared::scope::{Scope, Scopes};

/// The scopes of two queue pairs in each of two domains.
const QPS: [Scopes; 4] = [
    Scopes { pd: Scope(1), qp: Scope(10) },
    Scopes { pd: Scope(1), qp: Scope(11) },
    Scopes { pd: Scope(2), qp: Scope(20) },
    Scopes { pd: Scope(2), qp: Scope(21) },
];

/// An STag of the application.
#[derive(Clone, Debug)]
struct Held {
    /// The STag in the handle, and the present STag.
    handle: u32,
    stag: u32,
    pd: Scope,
    scope: Scope,
    /// First byte of memory, length, first offset and rights that the STag grants; `None` if it grants nothing.
    grants: Option<(u64, u64, u64, Access)>,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// First byte and length of the region's memory, and whether it was registered for writing.
    Region { base: u64, len: u64, writable: bool },
    /// Whether the window is of type 2, and the handle of the region that it is bound to.
    Window { two: bool, region: u32 },
}

#[derive(Clone, Debug)]
enum Step {
    Insert { base: u32, len: u16, access: u8, pd: bool, zero: bool },
    Window { two: bool, pd: bool },
    Remove(usize),
    Revoke(usize),
    Restrict(usize, usize),
    Invalidate { pick: usize, qp: usize, key: bool, remote: bool },
    Bind { window: usize, region: usize, key: u8, offset: i32, len: u16, access: u8, qp: usize },
    Register { pick: usize, key: u8, offset: i32, len: u16, access: u8, qp: usize },
    Gone(usize),
    Resolve { pick: usize, qp: usize, need: u8, offset: i32, len: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    let (pick, qp) = (any::<usize>(), 0usize..4);
    let (offset, len, bits) = (-20i32..300, 0u16..300, any::<u8>());
    prop_oneof![
        (0x1000u32..0x1100, 1u16..300, bits, any::<bool>(), any::<bool>())
            .prop_map(|(base, len, access, pd, zero)| Step::Insert { base, len, access, pd, zero }),
        any::<(bool, bool)>().prop_map(|(two, pd)| Step::Window { two, pd }),
        pick.prop_map(Step::Remove),
        pick.prop_map(Step::Revoke),
        (pick, qp.clone()).prop_map(|(pick, qp)| Step::Restrict(pick, qp)),
        (pick, qp.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(pick, qp, key, remote)| Step::Invalidate { pick, qp, key, remote }),
        (pick, pick, any::<u8>(), offset.clone(), len.clone(), bits, qp.clone()).prop_map(
            |(window, region, key, offset, len, access, qp)| Step::Bind {
                window,
                region,
                key,
                offset,
                len,
                access,
                qp
            }
        ),
        (pick, any::<u8>(), offset.clone(), len.clone(), bits, qp.clone()).prop_map(
            |(pick, key, offset, len, access, qp)| Step::Register { pick, key, offset, len, access, qp }
        ),
        qp.clone().prop_map(Step::Gone),
        (pick, qp, bits, offset, len).prop_map(|(pick, qp, need, offset, len)| Step::Resolve {
            pick,
            qp,
            need,
            offset,
            len
        }),
    ]
}

/// Returns the rights among `bits`. If the highest bit is clear, adds `LOCAL_WRITE`, because the peer's rights to write
/// need it.
fn rights(bits: u8) -> Access {
    let access = Access::from_bits_truncate(bits);
    if bits & 0x80 == 0 { access | Access::LOCAL_WRITE } else { access }
}

fn remote(access: Access) -> bool {
    access.intersects(Access::REMOTE)
}

#[derive(Default)]
struct Model(Vec<Held>);

impl Model {
    fn windows(&self, handle: u32) -> usize {
        let bound = |h: &&Held| {
            h.grants.is_some() && matches!(h.kind, Kind::Window { region, .. } if region == handle)
        };
        self.0.iter().filter(bound).count()
    }

    fn unbind(&mut self, which: impl Fn(&Held, u32) -> bool) {
        for held in &mut self.0 {
            if let Kind::Window { region, .. } = held.kind
                && which(held, region)
            {
                held.grants = None;
            }
        }
    }

    fn may_invalidate(&self, held: &Held, by: Scopes, from_afar: bool) -> bool {
        if held.scope != by.pd && held.scope != by.qp {
            return false;
        }
        match (&held.kind, held.grants) {
            (Kind::Window { two, .. }, grants) => *two && (grants.is_some() || !from_afar),
            (Kind::Region { .. }, _) if self.windows(held.handle) > 0 => false,
            (Kind::Region { .. }, _) if !from_afar => true,
            (Kind::Region { .. }, None) => false,
            (Kind::Region { .. }, Some((.., access))) => {
                remote(access) && (held.scope == by.qp || access.contains(Access::REMOTE_INVALIDATE))
            }
        }
    }

    /// Returns what a binding grants; `None` if it is not possible, `Some(None)` if it unbinds.
    fn binding(&self, window: &Held, bind: &Bind, by: Scopes) -> Option<Option<(u64, u64, u64, Access)>> {
        let Kind::Window { two, .. } = window.kind else { return None };
        if (two && window.grants.is_some()) || window.pd != by.pd || bind.rkey == 0 {
            return None;
        }
        if bind.len == 0 {
            return (!two).then_some(None);
        }
        let region = self.0.iter().find(|h| h.stag == bind.lkey)?;
        let (base, len, virt, access) = region.grants?;
        let usable = matches!(region.kind, Kind::Region { .. })
            && (region.scope == by.pd || region.scope == by.qp)
            && !access.contains(Access::ZERO_BASED)
            && (access.contains(Access::LOCAL_WRITE) || !bind.access.intersects(Access::REMOTE_WRITING))
            && remote(bind.access)
            && (Access::REMOTE | Access::ZERO_BASED).contains(bind.access)
            && bind.addr >= virt
            && bind.addr - virt + bind.len <= len;
        let first = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        usable.then(|| Some((base + bind.addr - virt, bind.len, first, bind.access)))
    }
}

proptest! {
    /// SEC-1, 2, 4, 6: whatever has happened before, an access is granted exactly if its STag is valid, belongs
    /// to the domain or the queue pair, has the right, and covers every byte. A granted access gets the right
    /// memory.
    #[test]
    fn table_behaves_like_its_model(seed: u64, steps in prop::collection::vec(step(), 0..150)) {
        let table = super::table(seed);
        let mut model = Model::default();
        let mut old: Vec<u32> = Vec::new();
        for step in steps {
            let held = |pick: usize| (!model.0.is_empty()).then(|| pick % model.0.len());
            let stags: Vec<u32> = model.0.iter().map(|h| h.stag).collect();
            match step {
                Step::Insert { base, len, access, pd, zero } => {
                    let mut access = rights(access) - Access::ZERO_BASED;
                    access.set(Access::ZERO_BASED, zero);
                    let (base, len, pd) = (u64::from(base), u64::from(len), QPS[2 * usize::from(pd)].pd);
                    let virt = if zero { 0 } else { base };
                    let entry = MrEntry { base: base as *mut u8, len, pd, access, virt, ours: false };
                    let stag = table.insert(entry).unwrap();
                    prop_assert!(!stags.contains(&stag) && !old.contains(&stag) && stag != 0);
                    let kind = Kind::Region { base, len, writable: access.contains(Access::LOCAL_WRITE) };
                    let grants = Some((base, len, virt, access));
                    model.0.push(Held { handle: stag, stag, pd, scope: pd, grants, kind });
                }
                Step::Window { two, pd } => {
                    let pd = QPS[2 * usize::from(pd)].pd;
                    let stag = table.insert_window(if two { MwKind::Two } else { MwKind::One }, pd).unwrap();
                    let kind = Kind::Window { two, region: 0 };
                    model.0.push(Held { handle: stag, stag, pd, scope: pd, grants: None, kind });
                }
                Step::Remove(pick) => if let Some(i) = held(pick) {
                    let gone = model.0.swap_remove(i);
                    table.remove(gone.handle).unwrap();
                    prop_assert!(table.remove(gone.handle).is_err());
                    if let Kind::Region { .. } = gone.kind {
                        model.unbind(|_, region| region == gone.handle);
                    }
                },
                Step::Revoke(pick) => if let Some(i) = held(pick) {
                    let free = model.windows(model.0[i].handle) == 0;
                    prop_assert_eq!(table.revoke(model.0[i].handle).is_ok(), free);
                    if free {
                        model.0[i].grants = None;
                    }
                },
                Step::Restrict(pick, qp) => if let Some(i) = held(pick)
                    && matches!(model.0[i].kind, Kind::Region { .. })
                {
                    table.restrict(model.0[i].handle, QPS[qp].qp).unwrap();
                    model.0[i].scope = QPS[qp].qp;
                },
                Step::Invalidate { pick, qp, key, remote } => if let Some(i) = held(pick) {
                    let (stag, by) = (model.0[i].stag ^ u32::from(key), QPS[qp]);
                    let may = !key && model.may_invalidate(&model.0[i], by, remote);
                    let did = if remote { table.invalidate(stag, by) } else { table.invalidate_local(stag, by) };
                    prop_assert_eq!(did.is_ok(), may, "{:?}: {:?}", did, model.0[i]);
                    if may {
                        model.0[i].grants = None;
                    }
                },
                Step::Bind { window, region, key, offset, len, access, qp } => {
                    let Some((w, r)) = held(window).zip(held(region)) else { continue };
                    let first = model.0[r].grants.map_or(0, |(.., virt, _)| virt);
                    let bind = Bind {
                        rkey: model.0[w].stag & !0xff | u32::from(key),
                        lkey: model.0[r].stag,
                        addr: first.saturating_add_signed(offset.into()),
                        len: len.into(),
                        access: Access::from_bits_truncate(access),
                    };
                    let expected = model.binding(&model.0[w], &bind, QPS[qp]);
                    let did = table.bind(bind, QPS[qp]);
                    prop_assert_eq!(did.is_ok(), expected.is_some(), "{:?}: {:x?}", did, bind);
                    let region = model.0[r].handle;
                    if let (Some(grants), Kind::Window { two, .. }) = (expected, model.0[w].kind.clone()) {
                        let held = &mut model.0[w];
                        held.grants = grants;
                        held.stag = bind.rkey;
                        if grants.is_some() {
                            held.scope = if two { QPS[qp].qp } else { held.pd };
                            held.kind = Kind::Window { two, region };
                        }
                    }
                }
                Step::Register { pick, key, offset, len, access, qp } => if let Some(i) = held(pick) {
                    let (by, access) = (QPS[qp], rights(access));
                    let held = &model.0[i];
                    let stag = held.stag & !0xff | u32::from(key);
                    let (mut addr, mut may) = (0, false);
                    if let Kind::Region { base, len: all, writable } = held.kind {
                        addr = base.saturating_add_signed(offset.into());
                        may = held.grants.is_none()
                            && held.pd == by.pd
                            && (held.scope == by.pd || held.scope == by.qp)
                            && access.check().is_ok()
                            && (writable || !access.contains(Access::LOCAL_WRITE))
                            && addr >= base
                            && len > 0
                            && addr - base + u64::from(len) <= all
                            && stag != 0;
                    }
                    let did = table.register(stag, addr, len.into(), access, by);
                    prop_assert_eq!(did.is_ok(), may, "{:?}: {:?}", did, held);
                    if may {
                        let virt = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
                        model.0[i].grants = Some((addr, len.into(), virt, access));
                        model.0[i].stag = stag;
                    }
                },
                Step::Gone(qp) => {
                    table.queue_pair_gone(QPS[qp].qp);
                    model.unbind(|held, _| held.scope == QPS[qp].qp);
                    for held in model.0.iter_mut().filter(|held| held.scope == QPS[qp].qp) {
                        if let Kind::Region { .. } = held.kind {
                            held.scope = Scope(u32::MAX);
                        }
                    }
                }
                Step::Resolve { pick, qp, need, offset, len } => if let Some(i) = held(pick) {
                    let (by, held) = (QPS[qp], &model.0[i]);
                    let need = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::LOCAL_WRITE, Access::LOCAL_READ]
                        [usize::from(need % 4)];
                    let len = u32::from(len).max(1);
                    let first = held.grants.map_or(0, |(.., virt, _)| virt);
                    let addr = first.wrapping_add_signed(offset.into());
                    let granted = held.grants.filter(|(_, all, _, access)| {
                        let local = need == Access::LOCAL_READ && matches!(held.kind, Kind::Region { .. });
                        (held.scope == by.pd || held.scope == by.qp)
                            && (access.contains(need) || local)
                            && offset >= 0
                            && u64::from(offset as u32) + u64::from(len) <= *all
                    });
                    let span = table.resolve(held.stag, by, need, addr, len);
                    prop_assert_eq!(span.is_ok(), granted.is_some(), "{:?}: {:?}", span, held);
                    if let (Ok(span), Some((base, ..))) = (span, granted) {
                        prop_assert_eq!((span.ptr as u64, span.len), (base + offset as u64, len));
                    }
                },
            }
            old.extend(stags.iter().filter(|stag| !model.0.iter().any(|h| h.stag == **stag)));
            for held in &model.0 {
                let bound = model.windows(held.handle);
                prop_assert_eq!(table.windows(held.handle).unwrap() as usize, bound);
            }
        }
    }
}
