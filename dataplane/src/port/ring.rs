//! Links between two devices of one process: pairs of rings, found by name.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;

use crate::{Mbuf, Pool};

/// Slots of a ring; it holds one frame less.
pub(super) const SLOTS: u16 = 1024;

/// The rings of a link, one for each queue and direction. The rings in `rings[i]` carry the frames that side `i` sends.
#[derive(Debug)]
struct Link {
    rings: [Vec<NonNull<sys::rte_ring>>; 2],
    open: [bool; 2],
}

// SAFETY: rings are made for use from two threads; all else is guarded by the lock of LINKS.
unsafe impl Send for Link {}

static LINKS: Mutex<Option<HashMap<String, Link>>> = Mutex::new(None);

fn with_links<T>(f: impl FnOnce(&mut HashMap<String, Link>) -> T) -> T {
    f(LINKS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

impl Link {
    fn new(queues: u16) -> Option<Self> {
        let mut link = Self { rings: [Vec::new(), Vec::new()], open: [false; 2] };
        for rings in &mut link.rings {
            for _ in 0..queues {
                rings.push(new_ring()?);
            }
        }
        Some(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for ring in self.rings.iter().flatten() {
            let mut m = ptr::null_mut();
            // SAFETY: neither side is open, so the rings have no other user; they contain frames.
            unsafe {
                while sys::rte_ring_dequeue(ring.as_ptr(), &raw mut m) == 0 {
                    sys::rte_pktmbuf_free(m.cast());
                }
                sys::rte_ring_free(ring.as_ptr());
            }
        }
    }
}

fn new_ring() -> Option<NonNull<sys::rte_ring>> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let name = CString::new(format!("urnic_link{}", SERIAL.fetch_add(1, Ordering::Relaxed))).ok()?;
    let flags = sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ;
    // SAFETY: EAL runs; a NUL-terminated string.
    NonNull::new(unsafe { sys::rte_ring_create(name.as_ptr(), SLOTS.into(), -1, flags) })
}

/// One side of a link; leaves the link on drop, and the last to leave frees the rings.
#[derive(Debug)]
pub(super) struct End {
    name: String,
    side: usize,
    /// The rings that we receive from, and those that we send to.
    rings: [Vec<NonNull<sys::rte_ring>>; 2],
}

/// Why a side of a link cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Both sides are taken.
    Taken,
    /// The other side has this number of queues, which differs from ours.
    Queues(u16),
    /// EAL has no memory for the rings.
    Memory,
}

// SAFETY: the rings live as long as a side is open, and are made for one thread at each end.
unsafe impl Send for End {}
// SAFETY: shared access only reads the addresses, or takes the lock of LINKS.
unsafe impl Sync for End {}

impl End {
    /// Takes the free side of the link `name`, with `queues` queues. The other side must have as many.
    pub(super) fn join(name: &str, queues: u16) -> Result<Self, Refusal> {
        with_links(|links| {
            if !links.contains_key(name) {
                links.insert(name.to_owned(), Link::new(queues).ok_or(Refusal::Memory)?);
            }
            let link = links.get_mut(name).ok_or(Refusal::Memory)?;
            let free = link.open.iter_mut().enumerate().find(|(_, open)| !**open);
            let (side, open) = free.ok_or(Refusal::Taken)?;
            let [a, b] = link.rings.clone();
            if a.len() != usize::from(queues) {
                return Err(Refusal::Queues(a.len() as u16));
            }
            *open = true;
            let rings = if side == 0 { [b, a] } else { [a, b] };
            Ok(Self { name: name.to_owned(), side, rings })
        })
    }

    /// Returns whether both sides are open.
    pub(super) fn is_whole(&self) -> bool {
        with_links(|links| links.get(&self.name).is_some_and(|l| l.open == [true; 2]))
    }

    /// Makes an Ethernet device of this end. Returns its port id, or a negative number. `name` is the whole name of the
    /// device. Its prefix `net_ring_` is not passed on, because the driver adds that prefix.
    pub(super) fn make_device(&self, name: &CStr) -> i32 {
        let name = name.to_bytes_with_nul();
        let name = name.strip_prefix(b"net_ring_").and_then(|n| CStr::from_bytes_with_nul(n).ok());
        let Some(name) = name else { return -1 };
        let [mut rx, mut tx] =
            self.rings.each_ref().map(|rings| rings.iter().map(|ring| ring.as_ptr()).collect::<Vec<_>>());
        let (receives, sends) = (rx.len() as u32, tx.len() as u32);
        // SAFETY: EAL runs; the numbers are those of the rings in `rx` and `tx`, which live until this end is dropped.
        // DPDK copies their addresses.
        unsafe {
            sys::rte_eth_from_rings(name.as_ptr(), rx.as_mut_ptr(), receives, tx.as_mut_ptr(), sends, 0)
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        with_links(|links| {
            let Some(link) = links.get_mut(&self.name) else { return };
            if let Some(open) = link.open.get_mut(self.side) {
                *open = false;
            }
            if link.open == [false; 2] {
                links.remove(&self.name);
            }
        });
    }
}

/// One queue of an end: the ring that it receives from and the ring that it sends to. DPDK's driver is bypassed,
/// because it keeps the counters of neighbouring queues on one cache line and writes them in every poll.
#[derive(Debug)]
pub(super) struct Queue {
    rx: NonNull<sys::rte_ring>,
    tx: NonNull<sys::rte_ring>,
    /// Frames received.
    pub(super) received: u64,
    /// Frames sent.
    pub(super) sent: u64,
}

impl End {
    /// Returns the queues. They must not be used after this end is dropped.
    pub(super) fn queues(&self) -> Vec<Queue> {
        let [rx, tx] = &self.rings;
        rx.iter().zip(tx).map(|(&rx, &tx)| Queue { rx, tx, received: 0, sent: 0 }).collect()
    }
}

impl Queue {
    /// Receives up to `most` frames; returns how many.
    ///
    /// # Safety
    /// The end is open, only the caller receives from this queue, and `frames` has room for `most`.
    #[inline]
    pub(super) unsafe fn receive(&mut self, frames: *mut *mut sys::rte_mbuf, most: u16) -> u16 {
        // SAFETY: as the caller promises.
        let n = unsafe {
            sys::rte_ring_dequeue_burst(self.rx.as_ptr(), frames.cast(), most.into(), ptr::null_mut())
        };
        if n > 0 {
            self.received += u64::from(n);
        }
        n as u16
    }

    /// Sends as many of `n` frames as there is room for; returns how many.
    ///
    /// # Safety
    /// The end is open, only the caller sends to this queue, and `frames` has `n` frames that are the caller's.
    #[inline]
    pub(super) unsafe fn send(&mut self, frames: *mut *mut sys::rte_mbuf, n: u16) -> u16 {
        // SAFETY: as the caller promises.
        let sent = unsafe {
            sys::rte_ring_enqueue_burst(
                self.tx.as_ptr(),
                frames.cast_const().cast(),
                n.into(),
                ptr::null_mut(),
            )
        };
        self.sent += u64::from(sent);
        sent as u16
    }
}

// SAFETY: rings are made for one thread at a time at each end, and only the holder of the handle uses a queue.
unsafe impl Send for Queue {}
// SAFETY: shared access only reads the counts.
unsafe impl Sync for Queue {}

/// Copies a frame into one mbuf of `pool`; `None` if it does not fit or the pool is empty.
///
/// # Safety
/// `m` is a whole frame that does not change meanwhile.
pub(super) unsafe fn copy(m: NonNull<sys::rte_mbuf>, pool: &mut Pool) -> Option<Mbuf> {
    let mut copy = pool.mbuf()?;
    let mut segment = m.as_ptr().cast_const();
    while !segment.is_null() {
        // SAFETY: a segment of the frame.
        let bytes = unsafe {
            let s = &*segment;
            segment = s.next;
            std::slice::from_raw_parts(s.buf_addr.cast::<u8>().add(s.data_off.into()), s.data_len.into())
        };
        copy.append(bytes.len())?.copy_from_slice(bytes);
    }
    // SAFETY: as the caller promises.
    if unsafe { m.as_ref() }.ol_flags & sys::RTE_MBUF_F_TX_TCP_CKSUM != 0 {
        copy.trust_checksum();
    }
    Some(copy)
}
