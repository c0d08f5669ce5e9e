mod threads;

use proptest::prelude::*;
use urnic_config::Progress;

use super::{Access, Rereg, copy};
use crate::api::fake;
use crate::shared::error::{Error, PostError};
use crate::shared::scope::{Scope, Scopes};
use crate::shared::wr::Sge;

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

/// SEC-16, SEC-5: a program can register only what it can access itself, according to the kernel.
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
    // SAFETY: `memory` outlives the regions. The other mappings are refused, read-only, or never accessed.
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

/// SEC-16: all memory must be present. The check covers every page, and finds holes, files that are too short, and
/// mere reservations.
#[test]
fn registration_finds_every_page_that_cannot_be_had() {
    const PAGE: usize = 4096;
    let (device, _) = fake::device(Progress::Inline);
    let pd = device.alloc_pd();
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let map = |len, protection, flags, fd| {
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>()
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let refused = |base: *mut u8, len, access| {
        // SAFETY: the device never accesses the memory, because its engine is a fake.
        let outcome = unsafe { pd.reg_mr(base, len, access) };
        assert!(
            matches!(outcome, Err(Error::Fault { addr, len: l, .. }) if addr == base as u64 && l == len as u64),
            "{outcome:?}"
        );
    };
    // SAFETY: the mappings and the file are ours.
    unsafe {
        let hole = map(9 * PAGE, both, anonymous, -1);
        libc::munmap(hole.add(5 * PAGE).cast(), PAGE);
        refused(hole, 9 * PAGE, Access::empty());
        refused(hole.add(5 * PAGE - 1), 2, Access::LOCAL_WRITE);
        drop(pd.reg_mr(hole.add(1), 5 * PAGE - 1, Access::LOCAL_WRITE).unwrap());
        drop(pd.reg_mr(hole.add(6 * PAGE), 3 * PAGE, Access::LOCAL_WRITE).unwrap());
        libc::munmap(hole.cast(), 9 * PAGE);

        let file = libc::memfd_create(c"short".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, PAGE as i64), 0);
        let short = map(3 * PAGE, both, libc::MAP_SHARED, file);
        refused(short, 3 * PAGE, Access::LOCAL_WRITE);
        drop(pd.reg_mr(short, PAGE, Access::LOCAL_WRITE).unwrap());
        libc::munmap(short.cast(), 3 * PAGE);
        libc::close(file);

        // A length beyond 32 bits is checked in full. None of this memory is present.
        let huge = map(5 << 30, libc::PROT_NONE, anonymous, -1);
        refused(huge, 5 << 30, Access::empty());
        libc::munmap(huge.cast(), 5 << 30);
    }
}

#[test]
fn regions_end_with_their_handle() {
    let (device, _) = fake::device(Progress::Inline);
    let pd = device.alloc_pd();
    let mr = pd.alloc_mr(64, Access::empty()).unwrap();
    let (stag, addr, id) = (mr.lkey(), mr.addr(), Scopes { pd: pd.shared.scope, qp: Scope(u32::MAX) });
    let known = || device.shared.table.resolve(stag, id, Access::empty(), addr, 64).is_ok();
    assert!(known());
    drop(mr);
    assert!(!known());
}

/// A region keeps the `iova` that it was registered with when only its rights or its domain change.
#[test]
fn registration_anew_keeps_the_first_offset() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, other) = (device.alloc_pd(), device.alloc_pd());
    let mut memory = vec![0u8; 100];
    let base = memory.as_mut_ptr();
    let change = Rereg { access: Some(Access::LOCAL_WRITE), ..Rereg::default() };
    // SAFETY: `memory` outlives the regions.
    unsafe {
        let mut mr = pd.reg_mr_iova(base, 100, 0x7000, Access::empty()).unwrap();
        mr.rereg(&change).unwrap();
        assert_eq!(mr.addr(), 0x7000);
        mr.rereg(&Rereg { pd: Some(&other), ..Rereg::default() }).unwrap();
        assert_eq!(mr.addr(), 0x7000);
        // New memory has its own address. A region that counted from 0 has no offset to keep.
        mr.rereg(&Rereg { memory: Some((base.add(1), 50)), ..Rereg::default() }).unwrap();
        assert_eq!(mr.addr(), base as u64 + 1);
        let mut zero = pd.reg_mr(base, 100, Access::ZERO_BASED).unwrap();
        zero.rereg(&change).unwrap();
        assert_eq!(zero.addr(), base as u64);
    }
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

proptest! {
    /// Copies at every alignment are exact and touch nothing else.
    #[test]
    fn region_copies_are_exact(offset in 0usize..32, data in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut memory = vec![0xee_u8; 200];
        let at = memory.as_mut_ptr().wrapping_add(offset);
        // SAFETY: offset + length is at most 132 of the 200 bytes.
        unsafe { copy::write(at, &data) };
        prop_assert!(memory[..offset].iter().all(|b| *b == 0xee));
        prop_assert_eq!(&memory[offset..offset + data.len()], &data[..]);
        prop_assert!(memory[offset + data.len()..].iter().all(|b| *b == 0xee));
        let mut back = vec![0; data.len()];
        // SAFETY: as above.
        unsafe { copy::read(memory.as_ptr().wrapping_add(offset), &mut back) };
        prop_assert_eq!(back, data);
    }
}
