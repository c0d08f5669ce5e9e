use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use urnic_config::Progress;

use super::stag::StagMap;
use super::table::Span;
use super::{Access, MrEntry, MrFault, MrTable};
use crate::error::{Error, PostError};
use crate::fake;
use crate::pd::PdId;
use crate::wr::Sge;

const PD: PdId = PdId(1);

fn entry(base: usize, len: u64, access: Access) -> MrEntry {
    MrEntry { base: base as *mut u8, len, pd: PD, access, virt: base as u64 }
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

/// SEC-9, SEC-37: no constant stride, both halves of the range used, few neighbours, no early reuse, never 0.
#[test]
fn stags_are_spread_and_reused_late() {
    for seed in 0..20 {
        let mut table = MrTable::new(seed);
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
        // One at a time: the same STag, or even the same slot, does not come back soon.
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let stag = table.insert(entry(0x1000, 16, Access::empty())).unwrap();
            assert!(seen.insert(stag >> 8), "seed {seed}: a slot was used again at once");
            table.remove(stag).unwrap();
        }
    }
}

#[test]
fn checks_come_in_order() {
    let mut table = MrTable::new(1);
    let stag = table.insert(entry(0x1000, 0x100, Access::LOCAL_WRITE | Access::REMOTE_WRITE)).unwrap();
    let resolve = |stag, pd, need, addr, len| table.resolve(stag, pd, need, addr, len);
    let write = Access::REMOTE_WRITE;
    let span = |at: usize, len| Ok(Span { ptr: at as *mut u8, len });
    assert_eq!(resolve(stag, PD, write, 0x1000, 0x100), span(0x1000, 0x100));
    assert_eq!(resolve(stag, PD, Access::empty(), 0x10ff, 1), span(0x10ff, 1));
    assert_eq!(resolve(stag ^ 1, PD, write, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(stag ^ 0x100, PD, write, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(0, PD, write, 0x1000, 1), Err(MrFault::InvalidStag));
    assert_eq!(resolve(stag, PdId(2), Access::REMOTE_READ, 0, 1), Err(MrFault::NotAssociated));
    assert_eq!(resolve(stag, PD, Access::REMOTE_READ, u64::MAX, 9), Err(MrFault::NoRight));
    assert_eq!(resolve(stag, PD, write, u64::MAX, 1), Err(MrFault::Wrap));
    assert_eq!(resolve(stag, PD, write, 0xfff, 1), Err(MrFault::Bounds));
    assert_eq!(resolve(stag, PD, write, 0x1000, 0x101), Err(MrFault::Bounds));
    assert_eq!(resolve(stag, PD, write, 0x1100, 1), Err(MrFault::Bounds));
    // ERR-16: an access of no bytes is not checked.
    assert!(resolve(stag ^ 1, PdId(9), Access::REMOTE_READ, 0, 0).is_ok());
}

#[test]
fn invalidation_keeps_the_region_until_it_is_removed() {
    let mut table = MrTable::new(1);
    let local = table.insert(entry(0x1000, 8, Access::LOCAL_WRITE)).unwrap();
    let remote = table.insert(entry(0x1000, 8, Access::REMOTE_READ)).unwrap();
    assert_eq!(table.invalidate(local, PD), Err(MrFault::NoRight));
    assert_eq!(table.invalidate(remote, PdId(3)), Err(MrFault::NotAssociated));
    assert_eq!(table.invalidate(remote ^ 1, PD), Err(MrFault::InvalidStag));
    assert_eq!(table.invalidate(remote, PD), Ok(()));
    assert_eq!(table.resolve(remote, PD, Access::REMOTE_READ, 0x1000, 8), Err(MrFault::InvalidStag));
    assert_eq!(table.invalidate(remote, PD), Ok(()));
    table.remove(remote).unwrap();
    assert!(matches!(table.remove(remote), Err(Error::UnknownKey(_))));
    assert_eq!(table.invalidate(remote, PD), Err(MrFault::InvalidStag));
}

#[derive(Clone, Debug)]
enum Step {
    Insert { base: u32, len: u16, access: u8, pd: u8 },
    Remove(usize),
    Invalidate(usize, u8),
    Resolve { pick: usize, pd: u8, need: u8, offset: i32, len: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0x1000u32.., 1u16.., 0u8..8, 0u8..2).prop_map(|(base, len, access, pd)| Step::Insert {
            base,
            len,
            access,
            pd
        }),
        any::<usize>().prop_map(Step::Remove),
        (any::<usize>(), 0u8..2).prop_map(|(pick, pd)| Step::Invalidate(pick, pd)),
        (any::<usize>(), 0u8..2, 0u8..8, -100i32..70_000, 1u16..)
            .prop_map(|(pick, pd, need, offset, len)| Step::Resolve { pick, pd, need, offset, len }),
    ]
}

proptest! {
    /// Against a map: an access is granted exactly if the region is there, valid, of the PD, with the rights, and
    /// holds every byte; the memory granted is that of the region.
    #[test]
    fn table_behaves_like_its_model(seed: u64, steps in prop::collection::vec(step(), 0..120)) {
        let mut table = MrTable::new(seed);
        let mut model: HashMap<u32, (MrEntry, bool)> = HashMap::new();
        let mut stags = Vec::new();
        for step in steps {
            match step {
                Step::Insert { base, len, access, pd } => {
                    let access = Access::from_bits_truncate(access);
                    let entry = MrEntry { pd: PdId(pd.into()), ..entry(base as usize, len.into(), access) };
                    let stag = table.insert(entry).unwrap();
                    prop_assert!(model.insert(stag, (entry, true)).is_none());
                    stags.push(stag);
                }
                Step::Remove(pick) if !stags.is_empty() => {
                    let stag = stags[pick % stags.len()];
                    prop_assert_eq!(table.remove(stag).is_ok(), model.remove(&stag).is_some());
                }
                Step::Invalidate(pick, pd) if !stags.is_empty() => {
                    let stag = stags[pick % stags.len()];
                    let allowed = model.get_mut(&stag).filter(|(entry, _)| {
                        entry.pd == PdId(pd.into()) && entry.access.intersects(Access::REMOTE)
                    });
                    prop_assert_eq!(table.invalidate(stag, PdId(pd.into())).is_ok(), allowed.is_some());
                    if let Some((_, valid)) = allowed {
                        *valid = false;
                    }
                }
                Step::Resolve { pick, pd, need, offset, len } if !stags.is_empty() => {
                    let stag = stags[pick % stags.len()];
                    let need = Access::from_bits_truncate(need);
                    let pd = PdId(pd.into());
                    let Some((entry, valid)) = model.get(&stag) else {
                        prop_assert_eq!(table.resolve(stag, pd, need, 0, 1), Err(MrFault::InvalidStag));
                        continue;
                    };
                    let addr = entry.virt.wrapping_add_signed(offset.into());
                    let inside = offset >= 0 && u64::from(offset as u32) + u64::from(len) <= entry.len;
                    let granted = *valid && entry.pd == pd && entry.access.contains(need) && inside;
                    match table.resolve(stag, pd, need, addr, len.into()) {
                        Ok(span) => {
                            prop_assert!(granted);
                            prop_assert_eq!(span.ptr as u64, entry.base as u64 + offset as u64);
                            prop_assert_eq!(span.len, u32::from(len));
                        }
                        Err(_) => prop_assert!(!granted),
                    }
                }
                _ => {}
            }
        }
    }

    /// Copies at every alignment are exact and touch nothing else.
    #[test]
    fn region_copies_are_exact(offset in 0usize..32, data in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut memory = vec![0xee_u8; 200];
        let at = memory.as_mut_ptr().wrapping_add(offset);
        // SAFETY: offset + length is at most 132 of the 200 bytes.
        unsafe { super::copy::write(at, &data) };
        prop_assert!(memory[..offset].iter().all(|b| *b == 0xee));
        prop_assert_eq!(&memory[offset..offset + data.len()], &data[..]);
        prop_assert!(memory[offset + data.len()..].iter().all(|b| *b == 0xee));
        let mut back = vec![0; data.len()];
        // SAFETY: as above.
        unsafe { super::copy::read(memory.as_ptr().wrapping_add(offset), &mut back) };
        prop_assert_eq!(back, data);
    }
}

#[test]
fn regions_are_read_and_written_within_bounds() {
    let (device, _) = fake::device(Progress::Inline);
    let mr = device.alloc_pd().alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    mr.write_at(90, b"0123456789").unwrap();
    let mut back = [0; 3];
    mr.read_at(97, &mut back).unwrap();
    assert_eq!(&back, b"789");
    mr.store_u8(0, 7).unwrap();
    assert_eq!(mr.load_u8(0).unwrap(), 7);
    assert!(matches!(mr.write_at(91, b"0123456789"), Err(Error::OutOfBounds { offset: 91, len: 10, .. })));
    assert!(matches!(mr.read_at(u64::MAX, &mut back), Err(Error::OutOfBounds { .. })));
    assert!(mr.load_u8(100).is_err() && mr.store_u8(100, 0).is_err());
}

#[test]
fn registration_checks_memory_and_rights() {
    let (device, _) = fake::device(Progress::Inline);
    let pd = device.alloc_pd();
    let mut memory = vec![1u8; 10_000];
    let base = memory.as_mut_ptr();
    let page = |protection| {
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>()
    };
    // SAFETY: `memory` outlives the regions; the others are refused, read-only or never accessed.
    unsafe {
        let mr = pd.reg_mr(base, 10_000, Access::LOCAL_WRITE).unwrap();
        assert_eq!((mr.addr(), mr.len(), mr.lkey()), (base as u64, 10_000, mr.rkey()));
        assert!(matches!(pd.reg_mr(base, 0, Access::empty()), Err(Error::Invalid(_))));
        assert!(matches!(pd.reg_mr(base, 9, Access::REMOTE_WRITE), Err(Error::Invalid(_))));
        assert!(matches!(pd.reg_mr(base, usize::MAX, Access::empty()), Err(Error::Invalid(_))));
        let read_only = page(libc::PROT_READ);
        pd.reg_mr(read_only, 4096, Access::REMOTE_READ).unwrap();
        assert!(matches!(pd.reg_mr(read_only, 4096, Access::LOCAL_WRITE), Err(Error::Fault { .. })));
        libc::munmap(read_only.cast(), 4096);
        assert!(matches!(pd.reg_mr(read_only, 4096, Access::empty()), Err(Error::Fault { len: 4096, .. })));
    }
}

#[test]
fn regions_end_with_their_handle() {
    let (device, _) = fake::device(Progress::Inline);
    let pd = device.alloc_pd();
    let mr = pd.alloc_mr(64, Access::empty()).unwrap();
    let (stag, addr, id) = (mr.lkey(), mr.addr(), pd.shared.id);
    let known = || {
        let resolve = |table: &MrTable| table.resolve(stag, id, Access::empty(), addr, 64).is_ok();
        device.shared.shard.control(|engine| Ok(resolve(engine.table()))).unwrap()
    };
    assert!(known());
    drop(mr);
    assert!(!known());
}

#[test]
fn inline_data_is_gathered_from_registered_memory_only() {
    let (device, _) = fake::device(Progress::Inline);
    let pd = device.alloc_pd();
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    mr.write_at(0, b"abcdefgh").unwrap();
    let gather = |sges: &[Sge]| {
        let mut room = vec![0; sges.iter().map(|s| s.len as usize).sum()];
        pd.shared.regions.gather(sges, &mut room).map(|()| room)
    };
    let at = |offset, len| Sge::of(&mr, offset, len);
    assert_eq!(gather(&[at(4, 4), at(0, 2)]).unwrap(), b"efghab");
    assert_eq!(gather(&[Sge { addr: 1, len: 0, lkey: 1 }]).unwrap(), b"");
    assert_eq!(gather(&[at(61, 4)]), Err(PostError::InlineAccess));
    assert_eq!(gather(&[Sge { lkey: mr.lkey() ^ 1, ..at(0, 1) }]), Err(PostError::InlineAccess));
    assert_eq!(gather(&[Sge { addr: mr.addr() - 1, ..at(0, 1) }]), Err(PostError::InlineAccess));
    let other = device.alloc_pd();
    assert_eq!(other.shared.regions.gather(&[at(0, 1)], &mut [0]), Err(PostError::InlineAccess));
    let stale = at(0, 1);
    drop(mr);
    assert_eq!(pd.shared.regions.gather(&[stale], &mut [0]), Err(PostError::InlineAccess));
}
