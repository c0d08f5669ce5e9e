//! Tests the table of a device with several engines. In the engines' passes, other threads read the memory that STags
//! name.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::shared::grace::{Fellow, Fellows, Grace, PassLock, PassNumber};
use crate::shared::memory::table::Span;
use crate::shared::memory::{Access, Bind, MrEntry, MrFault, MrTable, MwKind, Refused, copy};
use crate::shared::scope::{Scope, Scopes};

const PD: Scope = Scope(1);
/// The scopes of the queue pairs of two engines.
const BY: [Scopes; 2] = [Scopes { pd: PD, qp: Scope(10) }, Scopes { pd: PD, qp: Scope(11) }];
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_INVALIDATE);

/// An engine that consists of its lock only.
#[derive(Default)]
struct Engine(PassLock);

impl Engine {
    fn pass<R>(&self, does: impl FnOnce() -> R) -> Option<R> {
        /// Releases the lock even if the pass panics, because others wait for it.
        struct Guard<'a>(&'a PassLock);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.let_go();
            }
        }
        self.0.try_take(7).then(|| {
            let _guard = Guard(&self.0);
            does()
        })
    }

    /// Waits as a verb does.
    fn await_pass(&self) {
        if let Some(pass) = self.0.under_way() {
            while !self.0.has_ended(pass) {
                std::thread::yield_now();
            }
        }
    }
}

impl Fellow for Engine {
    fn ring(&self, _qpn: u32) {}

    fn ring_receives(&self) {}

    fn wake(&self) {}

    fn pass_under_way(&self) -> Option<PassNumber> {
        self.0.under_way()
    }

    fn has_ended(&self, pass: PassNumber) -> bool {
        self.0.has_ended(pass)
    }
}

struct Device {
    engines: Vec<Arc<Engine>>,
    table: MrTable,
}

impl Device {
    fn new(engines: usize) -> Self {
        let engines: Vec<_> = (0..engines).map(|_| Arc::new(Engine::default())).collect();
        let fellows = Arc::new(Fellows::default());
        fellows.introduce(engines.iter().map(|engine| {
            let fellow: Arc<dyn Fellow> = engine.clone();
            Arc::downgrade(&fellow) as Weak<dyn Fellow>
        }));
        Self { engines, table: MrTable::new(1, fellows) }
    }

    fn ended(&self, grace: &mut Grace) -> bool {
        grace.has_ended(self.table.fellows())
    }

    fn region(&self, access: Access) -> u32 {
        let base = 0x1000 as *mut u8;
        self.table.insert(MrEntry { base, len: 0x100, pd: PD, access, virt: 0x1000, ours: false }).unwrap()
    }
}

/// An invalidation takes effect at once. It is complete, and the slot is free for another registration, once
/// the passes that were under way at other engines have ended.
fn an_invalidation_waits(
    invalidate: fn(&MrTable, u32) -> Result<Grace, Refused>,
) -> Result<(), &'static str> {
    let device = Device::new(3);
    let stag = device.region(ALL);
    let again = |stag| device.table.register(stag, 0x1000, 0x100, ALL, BY[0]);
    let mut wrong = Ok(());
    let mut grace = Grace::default();
    device.engines[0].pass(|| {
        device.engines[1].pass(|| {
            grace = invalidate(&device.table, stag).unwrap();
            let resolved = device.table.resolve(stag, BY[1], Access::REMOTE_READ, 0x1000, 1);
            assert_eq!(resolved, Err(MrFault::InvalidStag));
            if device.ended(&mut grace) {
                wrong = Err("it is complete while another engine may use it");
            }
            if again(stag) != Err(Refused::Later) {
                wrong = Err("the slot is written while another engine may read it");
            }
        });
        // The invalidating engine is in its own pass, and the third engine was in no pass.
        if wrong.is_ok() {
            assert!(device.ended(&mut grace));
            assert_eq!(again(stag), Ok(()));
        }
    });
    wrong
}

fn local(table: &MrTable, stag: u32) -> Result<Grace, Refused> {
    table.invalidate_local(stag, BY[0], 0)
}

fn remote(table: &MrTable, stag: u32) -> Result<Grace, Refused> {
    table.invalidate(stag, BY[0], 0)
}

#[test]
fn an_invalidation_waits_for_the_passes_of_others() {
    an_invalidation_waits(local).unwrap();
    an_invalidation_waits(remote).unwrap();
}

#[cfg(feature = "sabotage")]
#[test]
fn slots_that_are_free_too_early_are_noticed() {
    use crate::shared::sabotage::{Rule, set};
    for rule in [Rule::RewriteAfterGrace, Rule::CompleteAfterGrace] {
        set(Some(rule));
        let outcomes = [local, remote].map(an_invalidation_waits);
        set(None);
        assert!(outcomes.iter().all(Result::is_err), "{rule:?}: {outcomes:?}");
    }
}

/// An STag that is limited to a queue pair is used only by the queue pair's own engine, once all engines know of
/// the limit.
#[test]
fn what_is_limited_to_a_queue_pair_is_invalid_at_once() {
    let device = Device::new(2);
    let mr = device.region(ALL);
    let limited = device.region(ALL);
    let window = device.table.insert_window(MwKind::Two, PD).unwrap();
    let bind = Bind { rkey: window, lkey: mr, addr: 0x1000, len: 16, access: Access::REMOTE_READ };
    device.engines[1].pass(|| {
        assert!(device.table.bind(bind, BY[0], 0).unwrap().is_over());
        assert!(device.table.invalidate(window, BY[0], 0).unwrap().is_over());
        assert!(device.table.bind(bind, BY[1], 1).unwrap().is_over());
        device.table.restrict(limited, BY[0].qp).unwrap();
        assert!(!device.table.invalidate_local(limited, BY[0], 0).unwrap().is_over());
        assert_eq!(device.table.register(limited, 0x1000, 16, ALL, BY[0]), Err(Refused::Later));
    });
    device.table.register(limited, 0x1000, 16, ALL, BY[0]).unwrap();
    device.engines[1].pass(|| {
        assert!(device.table.invalidate_local(limited, BY[0], 0).unwrap().is_over());
        device.table.register(limited, 0x1000, 16, ALL, BY[0]).unwrap();
    });
}

/// A window of type 1 is for all queue pairs. It is unbound at once, and can be bound anew when no pass uses it.
#[test]
fn a_window_of_type_1_is_bound_anew_when_nobody_uses_it() {
    let device = Device::new(2);
    let mr = device.region(ALL);
    let window = device.table.insert_window(MwKind::One, PD).unwrap();
    let bind = Bind { rkey: window, lkey: mr, addr: 0x1000, len: 16, access: Access::REMOTE_READ };
    let other = Bind { rkey: window ^ 1, addr: 0x1010, ..bind };
    let reaches = |stag, addr| device.table.resolve(stag, BY[1], Access::REMOTE_READ, addr, 1).is_ok();
    device.engines[1].pass(|| {
        assert!(device.table.bind(bind, BY[0], 0).unwrap().is_over());
        let faulty = Bind { len: 0x1000, ..other };
        assert_eq!(device.table.bind(faulty, BY[0], 0).err(), Some(Refused::Fault(MrFault::Bounds)));
        assert!(reaches(window, 0x1000), "a binding that is refused changes nothing");
        assert_eq!(device.table.bind(other, BY[0], 0).err(), Some(Refused::Later));
        assert_eq!(device.table.windows(mr).unwrap(), 0);
        assert!(!reaches(window, 0x1000) && !reaches(window ^ 1, 0x1010));
    });
    assert!(device.table.bind(other, BY[0], 0).unwrap().is_over());
    assert!(!reaches(window, 0x1000) && reaches(window ^ 1, 0x1010));
    // An unbinding, by a length of 0, also completes later.
    let mut grace = Grace::default();
    device.engines[1].pass(|| {
        grace = device.table.bind(Bind { len: 0, ..other }, BY[0], 0).unwrap();
        assert!(!reaches(window ^ 1, 0x1010) && !device.ended(&mut grace));
    });
    assert!(device.ended(&mut grace));
}

/// A withdrawn slot cannot be used until it is released. Its windows cannot be bound anew until no pass uses
/// them.
#[test]
fn what_is_withdrawn_cannot_be_registered_or_bound() {
    let device = Device::new(2);
    let mr = device.region(ALL);
    let other = device.region(ALL);
    let window = device.table.insert_window(MwKind::Two, PD).unwrap();
    let bind = Bind { rkey: window, lkey: mr, addr: 0x1000, len: 16, access: Access::REMOTE_READ };
    device.table.bind(bind, BY[1], 1).unwrap();
    device.engines[1].pass(|| {
        device.table.withdraw(mr).unwrap();
        let fault = Err(Refused::Fault(MrFault::InvalidStag));
        assert_eq!(device.table.register(mr, 0x1000, 16, ALL, BY[0]), fault);
        assert_eq!(device.table.invalidate_local(mr, BY[0], 0).err(), fault.err());
        assert!(device.table.withdraw(mr).is_err() && device.table.restrict(mr, BY[0].qp).is_err());
        assert_eq!(device.table.bind(Bind { lkey: other, ..bind }, BY[0], 0).err(), Some(Refused::Later));
    });
    device.table.bind(Bind { lkey: other, ..bind }, BY[0], 0).unwrap();
    device.table.release(mr).unwrap();
}

const ROUNDS: u64 = 1000;
/// Maximum number of rounds. It is large, because readers may not run for a while.
const MOST_ROUNDS: u64 = 10_000_000;
/// Number of registrations at a time.
const TARGETS: usize = 16;
/// Offset in a page of the part that is registered by a request.
const PART: usize = 64;

/// Threads in passes read the memory that STags name, while others register, revoke, invalidate and take memory away.
/// All memory that a pass finds belongs to the registration that the pass has found, and exists until the pass ends.
#[test]
fn nothing_is_read_that_was_given_up() {
    const READERS: usize = 3;
    let device = Device::new(READERS + 1);
    // STags to read. Each comes with its first offset, which is also the content of the memory.
    let targets: Vec<Mutex<(u32, u64)>> = (0..TARGETS).map(|_| Mutex::default()).collect();
    let over = AtomicBool::new(false);
    let found = AtomicU64::new(0);
    let read = |span: Span, canary: u64| {
        let mut octets = [0; 8];
        // SAFETY: the memory was just resolved, in a pass; that it exists is what this tests.
        unsafe { copy::read(span.ptr, &mut octets) };
        assert_eq!(u64::from_ne_bytes(octets), canary, "memory of another registration");
    };
    std::thread::scope(|scope| {
        for reader in 1..=READERS {
            let (device, targets, over, found) = (&device, &targets, &over, &found);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(reader as u64);
                while !over.load(Ordering::Relaxed) {
                    device.engines[reader].pass(|| {
                        for _ in 0..8 {
                            let (stag, virt) = *targets[rng.usize(..TARGETS)].lock().unwrap();
                            let span = device.table.resolve(stag, BY[1], Access::REMOTE_READ, virt, 8);
                            let Ok(span) = span else { continue };
                            (0..rng.usize(1..9)).for_each(|_| read(span, virt));
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    std::thread::yield_now();
                }
            });
        }
        let mut rng = fastrand::Rng::with_seed(9);
        let await_all = || device.engines.iter().for_each(|engine| engine.await_pass());
        let mut held: Vec<Option<(u32, Page)>> = (0..TARGETS).map(|_| None).collect();
        for canary in 1..MOST_ROUNDS {
            if canary > ROUNDS && found.load(Ordering::Relaxed) > ROUNDS {
                break;
            }
            let at = rng.usize(..TARGETS);
            let tell = |stag, virt| *targets[at].lock().unwrap() = (stag, virt);
            // Either the region stays, and a part of it is registered anew as by a work request; or the region is
            // dropped with its memory, and another region replaces it.
            if rng.bool()
                && let Some((stag, page)) = &mut held[at]
            {
                if rng.bool() {
                    let mut grace = device.table.invalidate_local(*stag, BY[0], 0).unwrap();
                    while !device.ended(&mut grace) {
                        std::thread::yield_now();
                    }
                } else {
                    device.table.revoke(*stag).unwrap();
                    await_all();
                }
                // No pass reads the page now.
                page.fill(0, !canary);
                *stag = *stag & !0xff | u32::from((*stag as u8).wrapping_add(1).max(1));
                let virt = page.0 as u64 + PART as u64;
                page.fill(PART, virt);
                while device.table.register(*stag, virt, 16, ALL, BY[0]) == Err(Refused::Later) {
                    std::thread::yield_now();
                }
                tell(*stag, virt);
                std::thread::yield_now();
                continue;
            }
            if let Some((stag, page)) = held[at].take() {
                device.table.withdraw(stag).unwrap();
                await_all();
                device.table.release(stag).unwrap();
                drop(page);
            }
            let page = Page::new(canary);
            let (base, len) = (page.0, Page::LEN as u64);
            let entry = MrEntry { base, len, pd: PD, access: ALL, virt: canary, ours: false };
            let stag = device.table.insert(entry).unwrap();
            tell(stag, canary);
            held[at] = Some((stag, page));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(found.load(Ordering::Relaxed) > ROUNDS, "readers have found too little");
}

/// A page of its own. Once it is dropped, a thread that reads it ends the process.
struct Page(*mut u8);

impl Page {
    const LEN: usize = 4096;

    fn new(canary: u64) -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), Self::LEN, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let page = Self(at.cast());
        page.fill(0, canary);
        page
    }

    fn fill(&self, at: usize, canary: u64) {
        // SAFETY: 8 bytes of our page.
        unsafe { copy::write(self.0.add(at), &canary.to_ne_bytes()) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.0.cast(), Self::LEN) };
    }
}
