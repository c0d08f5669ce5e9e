//! Follows the peer of a `vhost` port: which memory it shares, and where its rings are.
//!
//! The vhost library handles the peer's messages on a thread of its own. It tells us before and after each one, and
//! when the peer comes and goes. Before a message that changes memory or rings, what it changes is withdrawn. After the
//! message, the state that results is published. The queues look at a version number in each burst.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dpdk_sys as sys;

use super::memory::{Memory, Region};
use super::ring::Place;

/// Most queues whose rings are served in place.
pub(super) const QUEUES: usize = 8;

/// Two rings for each queue. The peer's even numbers are its rings for frames from us, the odd ones for frames to us.
const RINGS: usize = 2 * QUEUES;

/// How a ring is served.
#[derive(Clone, Debug, Default)]
pub(super) enum Service {
    /// By the driver, which is all that can be done without a peer, or for a peer with a ring of another kind.
    #[default]
    Driver,
    /// By nobody, while the peer's message about it is being handled.
    Paused,
    /// In place.
    InPlace(Place, Arc<Memory>),
}

/// State of a ring.
#[derive(Clone, Debug, Default)]
pub(super) struct RingState {
    pub(super) service: Service,
    /// Changes whenever the ring does. As long as it stays the same, the positions in the ring stay valid.
    pub(super) number: u64,
    /// Whether the peer has disabled the ring. The driver serves no such ring.
    is_disabled: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// The library's number of the peer; `None`: there is no peer. The library forgets a peer only after `lose`, so the
    /// number is valid while the state is locked.
    pub(super) peer: Option<i32>,
    /// Whether one frame for the peer may lie in several chains of buffers (virtio 1.2 §5.1.6.3.1).
    pub(super) merges: bool,
    memory: Option<Arc<Memory>>,
    /// Whether a message about the memory was withdrawn for, and not handled. If it fails, the library has no memory of
    /// the peer: it must not be asked for that, and no ring can be served, until another such message is handled.
    memory_is_unknown: bool,
    pub(super) rings: [RingState; RINGS],
}

/// What a queue does with a ring, for the library's thread.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Progress {
    /// The number of chains given back, modulo 2^16, and the flags below.
    word: AtomicU32,
    /// Whether the queue is notifying the peer.
    notifies: AtomicBool,
}

impl Progress {
    /// The queue uses the ring at this moment.
    const BUSY: u32 = 1 << 16;
    /// The queue has opened the ring, and nobody else has served it since.
    const OPEN: u32 = 1 << 17;

    /// Notes that the queue has opened the ring, of which `given` chains have been given back.
    pub(super) fn open(&self, given: u16) {
        self.word.store(Self::OPEN | u32::from(given), Ordering::SeqCst);
    }

    /// Notes that the queue uses the ring from now on. It must look at the [version](Link::version) afterwards, and
    /// leave the ring alone if that has changed.
    #[inline]
    pub(super) fn enter(&self) {
        self.word.fetch_or(Self::BUSY, Ordering::SeqCst);
    }

    /// Notes that the queue no longer uses the ring, and has changed nothing.
    #[cold]
    pub(super) fn leave(&self) {
        self.word.fetch_and(!Self::BUSY, Ordering::SeqCst);
    }

    /// Notes that the queue no longer uses the ring, and has given back `given` chains in all.
    #[inline]
    pub(super) fn leave_at(&self, given: u16) {
        self.word.store(Self::OPEN | u32::from(given), Ordering::Release);
    }

    /// Notifies the peer by `call`, unless `is_gone` says that there is no such peer any more.
    pub(super) fn notify(&self, is_gone: impl FnOnce() -> bool, call: impl FnOnce()) {
        self.notifies.store(true, Ordering::SeqCst);
        if !is_gone() {
            call();
        }
        self.notifies.store(false, Ordering::Release);
    }

    /// Waits until the queue, from which the ring was withdrawn before, no longer uses it. Returns how many chains it
    /// has given back; `None` if it had not opened the ring.
    pub(super) fn end(&self) -> Option<u16> {
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word & Self::BUSY == 0 {
                self.word.fetch_and(!Self::OPEN, Ordering::SeqCst);
                return (word & Self::OPEN != 0).then_some(word as u16);
            }
            std::thread::yield_now();
        }
    }

    /// Waits until the queue, whose peer is gone, no longer notifies it.
    fn await_notification(&self) {
        while self.notifies.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}

/// The peer of a port, and its rings.
#[derive(Debug)]
pub(in crate::port) struct Link {
    port: u16,
    /// Changes whenever something in `state` changes.
    version: AtomicU32,
    /// Number of peers that are gone.
    gone: AtomicU32,
    state: Mutex<State>,
    pub(super) progress: [Progress; RINGS],
}

/// The links of this process's `vhost` ports. DPDK's callbacks find them here.
static LINKS: Mutex<Vec<Weak<Link>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(is_it: impl Fn(&Link) -> bool) -> Option<Arc<Link>> {
    let mut links = lock(&LINKS);
    links.retain(|link| link.strong_count() > 0);
    // The newest first: the link of a port that is being closed may still be there when a new port has its number.
    links.iter().rev().filter_map(Weak::upgrade).find(|link| is_it(link))
}

/// Returns the peer's number of its ring for frames from queue `queue` to us.
pub(super) const fn to_us(queue: usize) -> usize {
    2 * queue + 1
}

/// Returns whether ring `index` of the peer is for frames to us.
const fn is_to_us(index: usize) -> bool {
    index % 2 == 1
}

/// Returns the peer's number of its ring for frames from us to queue `queue`.
pub(super) const fn from_us(queue: usize) -> usize {
    2 * queue
}

/// Changes that a message makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The memory. The rings stay, but may be at other addresses.
    Memory,
    /// This ring.
    Ring(usize),
    /// Whether this ring is enabled.
    Enabled(usize, bool),
    /// All rings.
    Rings,
}

/// Codes of the messages that change something (vhost-user protocol).
mod message {
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const RESET_OWNER: u32 = 4;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const GET_VRING_BASE: u32 = 11;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const RESET_DEVICE: u32 = 34;
    pub(super) const ADD_MEM_REG: u32 = 37;
    pub(super) const REM_MEM_REG: u32 = 38;
}

/// Returns what the message changes; `None`: nothing that matters here. `index` and `value` are the first words of its
/// payload.
fn change(code: u32, index: u32, value: u32) -> Option<Change> {
    use message::*;
    let ring = Some(index as usize).filter(|ring| *ring < RINGS);
    match code {
        SET_MEM_TABLE | ADD_MEM_REG | REM_MEM_REG => Some(Change::Memory),
        SET_VRING_NUM | SET_VRING_ADDR | SET_VRING_BASE | GET_VRING_BASE => ring.map(Change::Ring),
        SET_VRING_ENABLE => ring.map(|ring| Change::Enabled(ring, value != 0)),
        SET_FEATURES | RESET_OWNER | RESET_DEVICE => Some(Change::Rings),
        _ => None,
    }
}

impl Link {
    /// Follows the peers of port `port`, which is not started yet.
    pub(in crate::port) fn follow(port: u16) -> Arc<Self> {
        let link = Arc::new(Link {
            port,
            version: AtomicU32::new(0),
            gone: AtomicU32::new(0),
            state: Mutex::default(),
            progress: Default::default(),
        });
        lock(&LINKS).push(Arc::downgrade(&link));
        // SAFETY: the function lives for ever; registering it twice for a port is no error.
        unsafe {
            sys::rte_eth_dev_callback_register(
                port,
                sys::rte_eth_event_type_RTE_ETH_EVENT_INTR_LSC,
                Some(came_or_went),
                ptr::null_mut(),
            );
        }
        link
    }

    /// Returns the number of the present state.
    #[inline]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::SeqCst)
    }

    /// Returns the number of peers that are gone.
    pub(super) fn gone(&self) -> u32 {
        self.gone.load(Ordering::SeqCst)
    }

    /// Returns the state, locked. Do not call functions of the library that lock rings meanwhile, because the library's
    /// thread waits for the state while it has locked all rings.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Tells the queues that the state has changed. Call this under its lock.
    fn changed(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Withdraws what a message of the peer `vid` is going to change.
    fn withdraw(&self, vid: i32, change: Change) {
        let mut state = lock(&self.state);
        if change == Change::Memory {
            state.memory = None;
            state.memory_is_unknown = true;
        }
        for (index, ring) in state.rings.iter_mut().enumerate() {
            if matches!(change, Change::Ring(only) | Change::Enabled(only, _) if only != index) {
                continue;
            }
            if change != Change::Memory {
                ring.number += 1;
                ring.service = Service::Paused;
            } else if matches!(ring.service, Service::InPlace(..)) {
                ring.service = Service::Paused;
            }
        }
        self.changed();
        drop(state);
        match change {
            Change::Memory => {}
            Change::Ring(index) | Change::Enabled(index, _) => self.hand_over(vid, index),
            Change::Rings => (0..RINGS).for_each(|index| self.hand_over(vid, index)),
        }
    }

    /// Tells the library how far ring `index` has been served, which was withdrawn before. The library tells the peer,
    /// or serves the ring from there on. Chains that were taken but not given back are taken again: TCP drops what it
    /// has received already.
    pub(super) fn hand_over(&self, vid: i32, index: usize) {
        if let Some(given) = self.progress.get(index).and_then(Progress::end) {
            // SAFETY: no pointers are passed.
            unsafe { sys::rte_vhost_set_vring_base(vid, index as u16, given, given) };
        }
    }

    /// Reads the state of the peer `vid` after the change `change`, and publishes it. `None`: the peer has come.
    fn publish(&self, vid: i32, change: Option<Change>) {
        let mut state = lock(&self.state);
        state.peer = Some(vid);
        match change {
            None | Some(Change::Memory) => state.memory_is_unknown = false,
            Some(Change::Enabled(index, is_enabled)) => {
                if let Some(ring) = state.rings.get_mut(index) {
                    ring.is_disabled = !is_enabled;
                }
            }
            Some(Change::Ring(_) | Change::Rings) => {}
        }
        if state.memory_is_unknown {
            return;
        }
        let kind = kind(vid);
        state.merges = kind.is_some_and(|kind| kind.merges);
        let fills_checksums = kind.is_some_and(|kind| kind.fills_checksums);
        if kind.is_none() {
            state.memory = None;
        } else if state.memory.is_none() {
            state.memory = memory(vid).map(Arc::new);
        }
        let memory = state.memory.clone();
        for (index, ring) in state.rings.iter_mut().enumerate() {
            let place = memory.as_ref().and_then(|memory| place(vid, index, memory));
            ring.service = match (place, &memory) {
                (Some(place), Some(memory)) if !ring.is_disabled && (is_to_us(index) || fills_checksums) => {
                    Service::InPlace(place, memory.clone())
                }
                _ => Service::Driver,
            };
        }
        self.changed();
    }

    /// Notes that there is no peer.
    fn lose(&self) {
        let mut state = lock(&self.state);
        let vid = state.peer.take();
        state.memory = None;
        for ring in &mut state.rings {
            ring.number += 1;
            ring.service = Service::Driver;
            ring.is_disabled = false;
        }
        self.gone.fetch_add(1, Ordering::SeqCst);
        self.changed();
        drop(state);
        for (index, progress) in self.progress.iter().enumerate() {
            progress.await_notification();
            if let Some(vid) = vid {
                self.hand_over(vid, index);
            }
        }
    }
}

/// Properties of a peer whose rings [`super::ring`] serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    /// Whether a frame for the peer may lie in several chains of buffers.
    merges: bool,
    /// Whether the peer takes frames whose checksum is left to it. For other peers, the driver computes checksums.
    fills_checksums: bool,
}

/// Returns the kind of the peer; `None`: its rings are of another kind.
fn kind(vid: i32) -> Option<Kind> {
    const GUEST_CSUM: u64 = 1 << 1;
    const MERGING: u64 = 1 << 15;
    const VERSION_1: u64 = 1 << 32;
    /// Logging of written memory, notifications by index, IOMMU, and packed rings.
    const OTHERWISE: u64 = 1 << 26 | 1 << 29 | 1 << 33 | 1 << 34;
    let mut features = 0;
    // SAFETY: `features` is ours.
    let status = unsafe { sys::rte_vhost_get_negotiated_features(vid, &raw mut features) };
    let is_known = status == 0 && features & VERSION_1 != 0 && features & OTHERWISE == 0;
    let (merges, fills_checksums) = (features & MERGING != 0, features & GUEST_CSUM != 0);
    is_known.then_some(Kind { merges, fills_checksums })
}

/// Maps the memory of the peer `vid`. Call this on the library's thread, on which nothing changes meanwhile.
fn memory(vid: i32) -> Option<Memory> {
    let mut table = ptr::null_mut();
    // SAFETY: the library puts a copy of its table there, which is then ours to free.
    unsafe {
        if sys::rte_vhost_get_mem_table(vid, &raw mut table) != 0 || table.is_null() {
            return None;
        }
        let regions = (*table).regions.as_slice((*table).nregions as usize);
        let regions: Option<Vec<_>> = regions
            .iter()
            .map(|r| {
                Some(Region {
                    guest: r.guest_phys_addr,
                    len: usize::try_from(r.size).ok()?,
                    library: r.host_user_addr,
                    offset: usize::try_from(r.host_user_addr.checked_sub(r.mmap_addr as u64)?).ok()?,
                    file: (r.fd >= 0).then(|| BorrowedFd::borrow_raw(r.fd))?,
                })
            })
            .collect();
        let memory = regions.as_deref().and_then(Memory::map);
        libc::free(table.cast());
        memory
    }
}

/// Returns where ring `index` is; `None` if the peer has none, or one that cannot be used.
fn place(vid: i32, index: usize, memory: &Memory) -> Option<Place> {
    let mut found = MaybeUninit::<sys::rte_vhost_vring>::zeroed();
    // SAFETY: the structure consists of integers and raw pointers, for which zero is a value.
    let found = unsafe {
        if sys::rte_vhost_get_vhost_vring(vid, index as u16, found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    let size = found.size;
    if !size.is_power_of_two() {
        return None;
    }
    // SAFETY: with split rings, these are the members in use.
    let (descriptors, available, used) = unsafe {
        (
            found.__bindgen_anon_1.desc as u64,
            found.__bindgen_anon_2.avail as u64,
            found.__bindgen_anon_3.used as u64,
        )
    };
    let [of_descriptors, of_available, of_used] = Place::lengths(size);
    // Shared words are read and written as atomics, so they must be aligned.
    let at = |address: u64, len| memory.of_library(address, len).filter(|_| address.is_multiple_of(2));
    Some(Place {
        descriptors: at(descriptors, of_descriptors)?.cast(),
        available: at(available, of_available)?.cast(),
        used: at(used, of_used)?.cast(),
        size,
    })
}

/// Called on the library's thread when the peer of a port has come or gone.
unsafe extern "C" fn came_or_went(
    port: u16,
    _: sys::rte_eth_event_type,
    _: *mut c_void,
    _: *mut c_void,
) -> i32 {
    /// The functions that the library calls before and after each message.
    struct Hooks(sys::rte_vhost_user_extern_ops);
    // SAFETY: only function pointers.
    unsafe impl Sync for Hooks {}
    static HOOKS: Hooks = Hooks(sys::rte_vhost_user_extern_ops {
        pre_msg_handle: Some(before_message),
        post_msg_handle: Some(after_message),
    });
    let Some(link) = find(|link| link.port == port) else { return 0 };
    let mut state = sys::rte_eth_link::default();
    // SAFETY: the device exists; `state` is ours. The hooks live for ever.
    unsafe {
        let status = sys::rte_eth_link_get_nowait(port, &raw mut state);
        let vid = sys::rte_eth_vhost_get_vid_from_port_id(port);
        if status == 0
            && state.link_status() != 0
            && vid >= 0
            && sys::rte_vhost_extern_callback_register(vid, &raw const HOOKS.0, ptr::null_mut()) == 0
        {
            link.publish(vid, None);
        } else {
            link.lose();
        }
    }
    0
}

/// Returns the link with the peer `vid`, and the change that the message makes.
///
/// # Safety
/// `message` is a message of the library.
unsafe fn concerned(vid: i32, message: *mut c_void) -> Option<(Arc<Link>, Change)> {
    // The library passes the message as it came: code, flags, length of the payload, and then the payload, for which
    // there is always room.
    let message = NonNull::new(message)?.cast::<u32>();
    // SAFETY: as the caller promises.
    let [code, index, value] = [0, 3, 4].map(|word| unsafe { message.add(word).read_unaligned() });
    let change = change(code, index, value)?;
    Some((find(|link| lock(&link.state).peer == Some(vid))?, change))
}

/// Called on the library's thread before it handles a message.
unsafe extern "C" fn before_message(vid: i32, message: *mut c_void) -> sys::rte_vhost_msg_result {
    // SAFETY: the library passes a message.
    if let Some((link, change)) = unsafe { concerned(vid, message) } {
        link.withdraw(vid, change);
    }
    sys::rte_vhost_msg_result_RTE_VHOST_MSG_RESULT_NOT_HANDLED
}

/// Called on the library's thread after it has handled a message.
unsafe extern "C" fn after_message(vid: i32, message: *mut c_void) -> sys::rte_vhost_msg_result {
    // SAFETY: the library passes a message.
    if let Some((link, change)) = unsafe { concerned(vid, message) } {
        link.publish(vid, Some(change));
    }
    sys::rte_vhost_msg_result_RTE_VHOST_MSG_RESULT_NOT_HANDLED
}
