//! The table of STags by itself.

use std::collections::{HashMap, HashSet};

use crate::shared::error::Error;
use crate::shared::memory::stag::StagMap;
use crate::shared::memory::table::Span;
use crate::shared::memory::{Access, Bind, MrEntry, MrFault, MrTable, MwKind};
use crate::shared::scope::{Scope, Scopes};

const PD: Scope = Scope(1);
/// The scopes of queue pairs of that domain and of another.
const BY: Scopes = Scopes { pd: PD, qp: Scope(10) };
const OTHER: Scopes = Scopes { pd: Scope(2), qp: Scope(20) };

fn entry(base: usize, len: u64, access: Access) -> MrEntry {
    MrEntry { base: base as *mut u8, len, pd: PD, access, virt: base as u64, ours: false }
}

#[test]
fn stag_map_is_a_permutation() {
    for seed in 0..4 {
        let map = StagMap::new(&mut fastrand::Rng::with_seed(seed));
        for slot in (0..1 << 24).step_by(997).chain(0..2000) {
            let stag = map.stag(slot, 0x5a);
            assert_eq!(map.slot(stag), (slot, 0x5a), "seed {seed}");
        }
    }
}

/// SEC-9, SEC-37: STags have no constant stride, use both halves of the range, have few neighbours, return late,
/// and are never 0.
#[test]
fn stags_are_spread_and_reused_late() {
    for seed in 0..20 {
        let table = super::table(seed);
        let stags: Vec<u32> =
            (0..1000).map(|_| table.insert(entry(0x1000, 16, Access::empty())).unwrap()).collect();
        let distinct: HashSet<_> = stags.iter().collect();
        assert_eq!(distinct.len(), stags.len(), "seed {seed}");
        assert!(!stags.contains(&0));
        let high = stags.iter().filter(|s| **s >= 1 << 31).count();
        assert!((300..700).contains(&high), "seed {seed}: {high} of 1000 in the upper half");
        let strides: HashSet<u32> = stags.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(strides.len() > 900, "seed {seed}: only {} strides", strides.len());
        let mut sorted = stags.clone();
        sorted.sort_unstable();
        let neighbours = sorted.windows(2).filter(|w| (w[1] >> 8) - (w[0] >> 8) <= 1).count();
        assert!(neighbours < 20, "seed {seed}: {neighbours} neighbours");
        // With one region at a time, neither the STag nor the slot returns soon.
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let stag = table.insert(entry(0x1000, 16, Access::empty())).unwrap();
            assert!(seen.insert(stag >> 8), "seed {seed}: a slot was used again at once");
            table.remove(stag).unwrap();
        }
    }
}

/// SEC-9: when a slot is used again, its old STags stay invalid, each for 255 uses of the slot. Neither an access nor
/// an invalidation succeeds with an old STag.
#[test]
fn an_old_stag_is_invalid_when_its_slot_comes_back() {
    let table = super::table(7);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let mut used: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut uses = 0;
    while uses < 255 {
        let stag = table.insert(entry(0x1000, 16, access)).unwrap();
        let before = used.entry(stag >> 8).or_default();
        assert!(
            !before.contains(&stag),
            "{stag:#010x} is used again after {} uses of its slot",
            before.len()
        );
        for &old in before.iter() {
            let resolved = table.resolve(old, BY, Access::REMOTE_WRITE, 0x1000, 1);
            assert_eq!(resolved, Err(MrFault::InvalidStag));
            assert!(table.invalidate(old, BY).is_err());
        }
        assert!(table.resolve(stag, BY, Access::REMOTE_WRITE, 0x1000, 1).is_ok(), "the new one is valid");
        before.push(stag);
        uses = before.len();
        table.remove(stag).unwrap();
    }
    assert!(used.len() > 1000, "only {} slots take turns", used.len());
}

/// STag 0 never names a region or window, because programs take it for "no key", and peers refuse it.
#[test]
fn no_stag_is_0() {
    // A table in which one of the first slots can have that STag.
    let zero = |seed| StagMap::new(&mut fastrand::Rng::with_seed(seed)).slot(0).0;
    let seed = (0..).find(|seed| zero(*seed) < 256).unwrap();
    let mut table = super::table(seed);
    let mut uses = 0;
    let mut keys = HashSet::new();
    while uses < 300 {
        let stag = table.insert(entry(0x1000, 16, Access::empty())).unwrap();
        assert_ne!(stag, 0);
        if stag < 256 {
            uses += 1;
            keys.insert(stag);
        }
        table.remove(stag).unwrap();
    }
    assert_eq!(keys.len(), 255, "all other keys of that slot are used");

    // A request cannot make that STag either.
    let mut until = |region: bool| loop {
        let stag = match region {
            true => table.insert(entry(0x1000, 16, Access::LOCAL_WRITE)).unwrap(),
            false => table.insert_window(MwKind::Two, PD).unwrap(),
        };
        if stag < 256 {
            return (stag, std::mem::replace(&mut table, super::table(seed)));
        }
        table.remove(stag).unwrap();
    };
    let (stag, table) = until(true);
    table.revoke(stag).unwrap();
    assert_eq!(table.register(0, 0x1000, 16, Access::REMOTE_READ, BY), Err(MrFault::InvalidStag));
    assert_eq!(table.resolve(0, BY, Access::LOCAL_READ, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(table.register(stag ^ 1, 0x1000, 16, Access::REMOTE_READ, BY).is_ok(), stag != 1);
    let (window, table) = until(false);
    let lkey = table.insert(entry(0x1000, 16, Access::LOCAL_WRITE)).unwrap();
    let bind = Bind { rkey: 0, lkey, addr: 0x1000, len: 16, access: Access::REMOTE_READ };
    assert_eq!(table.bind(bind, BY), Err(MrFault::InvalidStag));
    assert_eq!(table.bind(Bind { rkey: window, ..bind }, BY), Ok(()));
}

/// A region's windows are unbound with it; those of other regions stay.
#[test]
fn windows_of_other_regions_stay() {
    let table = super::table(8);
    let regions = [0x1000, 0x2000, 0x3000]
        .map(|base| (base, table.insert(entry(base, 0x100, Access::LOCAL_WRITE)).unwrap()));
    let mut windows = Vec::new();
    for kind in [MwKind::One, MwKind::Two] {
        for (base, lkey) in regions {
            let rkey = table.insert_window(kind, PD).unwrap();
            let access = Access::REMOTE_READ;
            table.bind(Bind { rkey, lkey, addr: base as u64, len: 16, access }, BY).unwrap();
            windows.push((base, rkey));
        }
    }
    for (gone, (_, stag)) in regions.iter().enumerate() {
        table.remove(*stag).unwrap();
        for (base, rkey) in &windows {
            let reached = table.resolve(*rkey, BY, Access::REMOTE_READ, *base as u64, 16).is_ok();
            let there = regions[gone + 1..].iter().any(|(other, _)| other == base);
            assert_eq!(reached, there, "a window to {base:#x} when {} regions are gone", gone + 1);
        }
        for (_, stag) in &regions[gone + 1..] {
            assert_eq!(table.windows(*stag).unwrap(), 2);
        }
    }
}

/// The table tells which memory every port can send from.
#[test]
fn memory_of_the_allocator_is_told_apart() {
    let table = super::table(9);
    let ours = table.insert(MrEntry { ours: true, ..entry(0x1000, 16, Access::LOCAL_WRITE) }).unwrap();
    let other = table.insert(entry(0x1000, 16, Access::LOCAL_WRITE)).unwrap();
    let window = table.insert_window(MwKind::One, PD).unwrap();
    table
        .bind(Bind { rkey: window, lkey: ours, addr: 0x1000, len: 16, access: Access::REMOTE_READ }, BY)
        .unwrap();
    assert_eq!(
        [ours, other, window, ours ^ 0x100].map(|stag| table.is_ours(stag)),
        [true, false, false, false]
    );
}

#[test]
fn checks_come_in_order() {
    let table = super::table(1);
    let stag = table.insert(entry(0x1000, 0x100, Access::LOCAL_WRITE | Access::REMOTE_WRITE)).unwrap();
    let resolve = |stag, by, need, addr, len| table.resolve(stag, by, need, addr, len);
    let write = Access::REMOTE_WRITE;
    let span = |at: usize, len| Ok(Span { ptr: at as *mut u8, len });
    assert_eq!(resolve(stag, BY, write, 0x1000, 0x100), span(0x1000, 0x100));
    assert_eq!(resolve(stag, BY, Access::LOCAL_READ, 0x10ff, 1), span(0x10ff, 1));
    assert_eq!(resolve(stag ^ 1, BY, write, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(stag ^ 0x100, BY, write, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(0, BY, write, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(stag, OTHER, Access::REMOTE_READ, 0, 1), Err(MrFault::NotAssociated));
    assert_eq!(resolve(stag, BY, Access::REMOTE_READ, u64::MAX, 9), Err(MrFault::NoRight));
    assert_eq!(resolve(stag, BY, write, u64::MAX, 1), Err(MrFault::Wrap));
    assert_eq!(resolve(stag, BY, write, 0xfff, 1), Err(MrFault::Bounds));
    assert_eq!(resolve(stag, BY, write, 0x1000, 0x101), Err(MrFault::Bounds));
    assert_eq!(resolve(stag, BY, write, 0x1100, 1), Err(MrFault::Bounds));
    // ERR-16: an access of no bytes is not checked.
    assert!(resolve(stag ^ 1, OTHER, Access::REMOTE_READ, 0, 0).is_ok());
}

/// RDMAP-46, 81, SEC-8: what a peer may invalidate, and the state afterwards.
#[test]
fn a_peer_invalidates_what_is_its_own() {
    let table = super::table(1);
    let region = |access| table.insert(entry(0x1000, 8, access)).unwrap();
    let local = region(Access::LOCAL_WRITE | Access::REMOTE_INVALIDATE);
    let shared = region(Access::REMOTE_READ);
    let passing = region(Access::REMOTE_READ | Access::REMOTE_INVALIDATE);
    let own = region(Access::REMOTE_READ);
    table.restrict(own, BY.qp).unwrap();
    let sibling = Scopes { qp: Scope(11), ..BY };
    for (stag, by, outcome) in [
        (local, BY, Err(MrFault::NoRight)),
        (shared, BY, Err(MrFault::NoRight)),
        (passing, OTHER, Err(MrFault::NotAssociated)),
        (passing ^ 1, BY, Err(MrFault::InvalidStag)),
        (passing, sibling, Ok(())),
        (passing, sibling, Err(MrFault::InvalidStag)),
        (own, sibling, Err(MrFault::NotAssociated)),
        (own, BY, Ok(())),
    ] {
        let before = table.resolve(stag, by, Access::LOCAL_READ, 0x1000, 8);
        assert_eq!(table.invalidate(stag, by), outcome);
        let after = table.resolve(stag, by, Access::LOCAL_READ, 0x1000, 8);
        assert_eq!(after, if outcome.is_ok() { Err(MrFault::InvalidStag) } else { before });
    }
    // The application still holds the invalidated region.
    assert_eq!(table.invalidate_local(passing, BY), Ok(()));
    table.remove(passing).unwrap();
    assert!(matches!(table.remove(passing), Err(Error::UnknownKey(_))));
    assert_eq!(table.invalidate_local(passing, BY), Err(MrFault::InvalidStag));
}

/// Tests the checks of a binding, one fault at a time, and which queue pairs can use the bound window.
#[test]
fn windows_are_bound_within_their_region() {
    let table = super::table(3);
    let (write, read) = (Access::REMOTE_WRITE, Access::REMOTE_READ);
    let mr = table.insert(entry(0x1000, 0x100, Access::LOCAL_WRITE)).unwrap();
    let unwritable = table.insert(entry(0x1000, 0x100, Access::empty())).unwrap();
    let zero_based = MrEntry { virt: 0, ..entry(0x1000, 0x100, Access::LOCAL_WRITE | Access::ZERO_BASED) };
    let zero_based = table.insert(zero_based).unwrap();
    let foreign = MrEntry { pd: OTHER.pd, ..entry(0x1000, 0x100, Access::LOCAL_WRITE) };
    let foreign = table.insert(foreign).unwrap();
    let window = table.insert_window(MwKind::Two, PD).unwrap();
    let other_window = table.insert_window(MwKind::Two, OTHER.pd).unwrap();
    let good = Bind { rkey: window, lkey: mr, addr: 0x1010, len: 0x20, access: write };
    for (bind, fault) in [
        (Bind { rkey: mr, ..good }, MrFault::InvalidStag),
        (Bind { rkey: window ^ 0x100, ..good }, MrFault::InvalidStag),
        (Bind { rkey: other_window, ..good }, MrFault::NotAssociated),
        (Bind { lkey: mr ^ 1, ..good }, MrFault::InvalidStag),
        (Bind { lkey: window, ..good }, MrFault::InvalidStag),
        (Bind { lkey: foreign, ..good }, MrFault::NotAssociated),
        (Bind { lkey: unwritable, ..good }, MrFault::NoRight),
        (Bind { lkey: zero_based, addr: 0x10, ..good }, MrFault::NoRight),
        (Bind { access: Access::empty(), ..good }, MrFault::NoRight),
        (Bind { access: write | Access::LOCAL_WRITE, ..good }, MrFault::NoRight),
        (Bind { addr: 0xfff, ..good }, MrFault::Bounds),
        (Bind { addr: 0x10e1, ..good }, MrFault::Bounds),
        (Bind { len: u64::MAX, ..good }, MrFault::Bounds),
        (Bind { len: 0, ..good }, MrFault::Bounds),
    ] {
        assert_eq!(table.bind(bind, BY), Err(fault), "{bind:x?}");
    }
    assert_eq!(table.windows(mr).unwrap(), 0);
    let resolve = |table: &MrTable, stag, by, need, addr, len| table.resolve(stag, by, need, addr, len);
    let at = |ptr: usize, len| Ok(Span { ptr: ptr as *mut u8, len });

    // The user chooses the key. The window is for this queue pair only, and grants only what was asked for (SEC-2).
    let rkey = window ^ 0x55;
    table.bind(Bind { rkey, ..good }, BY).unwrap();
    assert_eq!(resolve(&table, rkey, BY, write, 0x1010, 0x20), at(0x1010, 0x20));
    assert_eq!(resolve(&table, window, BY, write, 0x1010, 0x20), Err(MrFault::InvalidStag));
    let sibling = Scopes { qp: Scope(11), ..BY };
    assert_eq!(resolve(&table, rkey, sibling, write, 0x1010, 0x20), Err(MrFault::NotAssociated));
    for need in [read, Access::LOCAL_READ, Access::LOCAL_WRITE] {
        assert_eq!(resolve(&table, rkey, BY, need, 0x1010, 1), Err(MrFault::NoRight));
    }
    assert_eq!(resolve(&table, rkey, BY, write, 0x100f, 2), Err(MrFault::Bounds));
    assert_eq!(resolve(&table, rkey, BY, write, 0x1030, 1), Err(MrFault::Bounds));
    // While the window is bound, it cannot be bound again, and its region can be neither invalidated nor
    // revoked.
    assert_eq!(table.bind(Bind { rkey: window, ..good }, BY), Err(MrFault::InvalidStag));
    assert_eq!(table.invalidate_local(mr, BY), Err(MrFault::NoRight));
    assert!(matches!(table.revoke(mr), Err(Error::WindowsBound(1))));
    // An invalidated window can be bound anew, here counted from 0.
    assert_eq!(table.invalidate(rkey, BY), Ok(()));
    assert_eq!(table.windows(mr).unwrap(), 0);
    let zero = Bind { rkey, access: read | Access::ZERO_BASED, ..good };
    table.bind(zero, BY).unwrap();
    assert_eq!(resolve(&table, rkey, BY, read, 0x1f, 1), at(0x102f, 1));
    assert_eq!(resolve(&table, rkey, BY, read, 0x1010, 1), Err(MrFault::Bounds));
    // The window is unbound with its queue pair; other windows stay.
    let first = table.insert_window(MwKind::One, PD).unwrap();
    table.bind(Bind { rkey: first, ..good }, BY).unwrap();
    table.queue_pair_gone(BY.qp);
    assert_eq!(resolve(&table, rkey, BY, read, 0, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(&table, first, sibling, write, 0x1010, 1), at(0x1010, 1));
    // A window of type 1 is bound anew at any time, never invalidated, and unbound by a length of 0.
    assert_eq!(table.invalidate(first, BY), Err(MrFault::NoRight));
    assert_eq!(table.invalidate_local(first, BY), Err(MrFault::NoRight));
    table.bind(Bind { rkey: first ^ 1, ..good }, BY).unwrap();
    assert_eq!(resolve(&table, first, BY, write, 0x1010, 1), Err(MrFault::InvalidStag));
    assert_eq!(table.windows(mr).unwrap(), 1);
    table.bind(Bind { rkey: first ^ 2, len: 0, ..good }, BY).unwrap();
    assert_eq!(table.windows(mr).unwrap(), 0);
    // A binding that remains ends with the region.
    table.bind(Bind { rkey: first, ..good }, BY).unwrap();
    table.remove(mr).unwrap();
    assert_eq!(resolve(&table, first, BY, write, 0x1010, 1), Err(MrFault::InvalidStag));
    table.remove(first).unwrap();
}

/// A part of a region's own memory can be registered, with no more rights than the memory was registered with.
#[test]
fn an_invalid_region_is_registered_anew() {
    let table = super::table(4);
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let mr = table.insert(entry(0x1000, 0x100, all)).unwrap();
    let key = mr ^ 0xff;
    assert_eq!(table.register(key, 0x1000, 1, all, BY), Err(MrFault::InvalidStag), "while it is valid");
    table.revoke(mr).unwrap();
    for (stag, addr, len, access, by, fault) in [
        (key ^ 0x100, 0x1000, 1, all, BY, MrFault::InvalidStag),
        (key, 0x1000, 1, all, OTHER, MrFault::NotAssociated),
        (key, 0x1000, 1, Access::REMOTE_WRITE, BY, MrFault::NoRight),
        (key, 0xfff, 1, all, BY, MrFault::Bounds),
        (key, 0x10ff, 2, all, BY, MrFault::Bounds),
        (key, 0x1000, u64::MAX, all, BY, MrFault::Bounds),
        (key, 0x1000, 0, all, BY, MrFault::Bounds),
    ] {
        assert_eq!(table.register(stag, addr, len, access, by), Err(fault), "{stag:x} {addr:x} {len:x}");
    }
    table.register(key, 0x1080, 0x80, all | Access::ZERO_BASED, BY).unwrap();
    let span = Span { ptr: 0x1080 as *mut u8, len: 0x80 };
    assert_eq!(table.resolve(key, BY, Access::REMOTE_WRITE, 0, 0x80), Ok(span));
    assert_eq!(table.resolve(mr, BY, Access::REMOTE_WRITE, 0, 1), Err(MrFault::InvalidStag));
    table.invalidate_local(key, BY).unwrap();
    table.register(mr, 0x1000, 0x100, all, BY).unwrap();
    let read_only = table.insert(entry(0x1000, 0x100, Access::REMOTE_READ)).unwrap();
    table.invalidate_local(read_only, BY).unwrap();
    assert_eq!(
        table.register(read_only, 0x1000, 1, all, BY),
        Err(MrFault::NoRight),
        "not registered for writing"
    );
    // The handle has an old key, and still names the region.
    table.invalidate_local(mr, BY).unwrap();
    table.register(key, 0x1000, 1, all, BY).unwrap();
    table.remove(mr).unwrap();
    assert_eq!(table.resolve(key, BY, Access::LOCAL_READ, 0x1000, 1), Err(MrFault::InvalidStag));
}

/// SEC-17: the number of regions is limited, and a place that was given back can be used again.
#[test]
fn regions_run_out() {
    let table = super::table(5);
    let insert = |table: &MrTable| table.insert(entry(0x1000, 1, Access::empty()));
    let first = insert(&table).unwrap();
    for _ in 1..crate::shared::memory::MAX_REGIONS {
        insert(&table).unwrap();
    }
    assert!(matches!(insert(&table), Err(Error::Exhausted(_))));
    assert!(matches!(table.insert_window(MwKind::One, PD), Err(Error::Exhausted(_))));
    table.remove(first).unwrap();
    assert_ne!(insert(&table).unwrap(), first);
    assert!(insert(&table).is_err());
}

/// The STag of lists stays the same for the life of a table. No region or window ever has it, however many there are.
#[test]
fn no_region_has_the_stag_of_lists() {
    let mut seen = HashSet::new();
    for seed in 0..50 {
        let table = super::table(seed);
        let list = table.list();
        assert!(list != 0 && seen.insert(list), "seed {seed}");
        for _ in 0..2000 {
            let stag = table.insert(entry(0x1000, 16, Access::REMOTE_READ)).unwrap();
            assert_ne!(stag >> 8, list >> 8, "seed {seed}");
        }
        assert_eq!(table.list(), list);
        for need in [Access::LOCAL_READ, Access::LOCAL_WRITE, Access::REMOTE_READ] {
            assert_eq!(table.resolve(list, BY, need, 0x1000, 1), Err(MrFault::InvalidStag));
        }
        assert_eq!(table.invalidate(list, BY), Err(MrFault::InvalidStag));
        assert_eq!(table.invalidate_local(list, BY), Err(MrFault::InvalidStag));
        assert_eq!(table.register(list, 0x1000, 16, Access::REMOTE_READ, BY), Err(MrFault::InvalidStag));
        assert!(table.remove(list).is_err());
        let bind = Bind { rkey: list, lkey: list, addr: 0x1000, len: 1, access: Access::REMOTE_READ };
        assert_eq!(table.bind(bind, BY), Err(MrFault::InvalidStag));
    }
}
