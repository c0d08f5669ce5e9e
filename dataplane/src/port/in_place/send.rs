//! Transmission of a `vhost` port in place: frames are written into the buffers that their receiver offers.
//!
//! The driver of `vhost` does the same, but waits for the other core in each burst: it looks for buffers when it needs
//! them, and it waits until all it wrote is visible before it asks whether the receiver wants a notification. Here both
//! happen while the engine waits for frames anyway.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use super::CHECKSUM;
use super::lane::{Bell, Lane};
use super::link::{Link, from_us};
use super::ring::{HEADER, LONGEST_CHAIN, Ring, Taken, Used};
use crate::buffers::borrowed::Piece;
use crate::buffers::pool;

/// Most chains of one frame. A frame in more of them is dropped.
const CHAINS: usize = 64;

/// The peer's ring that one queue of a port sends to.
#[derive(Debug)]
pub(in crate::port) struct Outlet {
    link: Arc<Link>,
    version: u32,
    /// The peer's number of the ring.
    index: usize,
    lane: Lane,
    /// Number of the ring that the lane is about.
    number: u64,
    /// Whether a frame may lie in several chains.
    merges: bool,
    bell: Option<Bell>,
    /// Number of chains that the ring is known to offer.
    known: u16,
    /// Whether frames were sent since the receiver was asked, for certain, whether it wants a notification.
    is_to_ask: bool,
    /// Frames sent, their bytes, and frames dropped because the receiver's buffers are too small.
    pub(in crate::port) frames: u64,
    pub(in crate::port) bytes: u64,
    pub(in crate::port) dropped: u64,
}

/// Who has sent a burst.
pub(in crate::port) enum Sent {
    /// The driver must be asked.
    ByDriver,
    /// This many frames were sent, or dropped, in place.
    InPlace(u16),
}

/// What has become of a frame.
enum Fate {
    Sent,
    /// It is longer than the buffers.
    Dropped,
    /// There are too few buffers.
    Waits,
}

impl Outlet {
    /// Returns the outlet of queue `queue`.
    pub(in crate::port) fn new(link: Arc<Link>, queue: u16) -> Self {
        Outlet {
            version: link.version().wrapping_sub(1),
            link,
            index: from_us(queue.into()),
            lane: Lane::Driver,
            number: 0,
            merges: false,
            bell: None,
            known: 0,
            is_to_ask: false,
            frames: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Sends frames from the front of `frames`, as many as the receiver has buffers for, and frees their mbufs.
    ///
    /// # Safety
    /// `frames` are whole frames that are ours to free, and whose mbufs only this thread uses.
    #[inline]
    pub(in crate::port) unsafe fn send(&mut self, frames: &[NonNull<sys::rte_mbuf>]) -> Sent {
        if self.version != self.link.version() {
            self.renew();
        }
        match &self.lane {
            // SAFETY: as the caller promises.
            Lane::InPlace(_) => Sent::InPlace(unsafe { self.write_all(frames) }),
            Lane::Paused(_) => Sent::InPlace(0),
            Lane::Driver | Lane::Unopened => Sent::ByDriver,
        }
    }

    /// Does the work of `send`.
    ///
    /// # Safety
    /// As [`send`](Self::send).
    #[inline(never)]
    unsafe fn write_all(&mut self, frames: &[NonNull<sys::rte_mbuf>]) -> u16 {
        let Self { link, lane: Lane::InPlace(ring), known, .. } = self else { return 0 };
        let Some(progress) = link.progress.get(self.index) else { return 0 };
        progress.enter();
        if self.version != link.version() {
            progress.leave();
            return 0;
        }
        let mut used = ArrayVec::<Used, { 2 * CHAINS }>::new();
        let mut sent = 0;
        for &frame in frames {
            // SAFETY: as the caller promises.
            match unsafe { write(frame, ring, known, self.merges, &mut used) } {
                Fate::Sent => {
                    // SAFETY: as the caller promises.
                    self.bytes += u64::from(unsafe { frame.as_ref().pkt_len });
                    self.frames += 1;
                }
                Fate::Dropped => self.dropped += 1,
                Fate::Waits => break,
            }
            sent += 1;
            if used.len() > CHAINS {
                ring.give(&used);
                used.clear();
            }
        }
        ring.give(&used);
        progress.leave_at(ring.positions().given);
        // SAFETY: as the caller promises. Nothing refers to the frames any more.
        frames.iter().take(sent.into()).for_each(|&frame| unsafe { pool::release(frame) });
        if sent > 0 {
            ring.foresee_buffers();
            self.is_to_ask = true;
            // Almost always certain already.
            if ring.wants_notification() {
                self.notify();
            }
        }
        sent
    }

    /// Does what can wait until the engine receives: asks whether the receiver wants to be notified of frames that were
    /// sent before, and looks for buffers.
    #[inline]
    pub(in crate::port) fn follow_up(&mut self) {
        if self.is_to_ask {
            self.ask();
        }
    }

    #[inline(never)]
    fn ask(&mut self) {
        if matches!(self.lane, Lane::Paused(_)) && self.version != self.link.version() {
            self.renew();
        }
        // A ring that is paused may go on, and the receiver may have gone to sleep before.
        let Lane::InPlace(ring) = &mut self.lane else { return };
        self.is_to_ask = false;
        // The receiver says that it wants notifications, and then looks for frames once more. We have sent frames, and
        // then look whether it wants any. With a fence in between on both sides, one of us sees what the other has
        // done.
        fence(Ordering::SeqCst);
        let wants = ring.wants_notification();
        if self.known < ring.size() / 2 {
            self.known = ring.offered();
        }
        if wants {
            self.notify();
        }
    }

    #[cold]
    fn notify(&mut self) {
        self.is_to_ask = false;
        if let Some(bell) = self.bell {
            bell.ring(&self.link, self.index);
        }
    }

    /// Takes note of changes.
    #[cold]
    fn renew(&mut self) {
        // While the state is locked, the library does not forget the peer.
        let state = self.link.state();
        self.version = self.link.version();
        self.bell = state.peer.map(|vid| Bell::of(&self.link, vid));
        self.merges = state.merges;
        self.known = 0;
        let Some(ring) = state.rings.get(self.index).cloned() else { return };
        let before = std::mem::replace(&mut self.number, ring.number);
        self.lane =
            std::mem::take(&mut self.lane).renewed(&self.link, state.peer, self.index, ring, before, true);
        // The library's thread may wait for the state while it has locked the ring, which notifying locks.
        drop(state);
        if self.is_to_ask && matches!(self.lane, Lane::Driver) {
            // The driver asks only after frames of its own.
            self.notify();
        }
    }
}

/// Writes a frame into the next buffers of `ring`, which is known to offer `known` chains. Adds the chains to `used`,
/// unless the frame is not sent.
///
/// # Safety
/// `frame` is a whole frame.
#[inline]
unsafe fn write(
    frame: NonNull<sys::rte_mbuf>,
    ring: &mut Ring,
    known: &mut u16,
    merges: bool,
    used: &mut ArrayVec<Used, { 2 * CHAINS }>,
) -> Fate {
    // SAFETY: as the caller promises.
    let len = HEADER + unsafe { frame.as_ref().pkt_len as usize };
    let mut pieces = ArrayVec::<Piece, LONGEST_CHAIN>::new();
    let (before, mut room) = (used.len(), 0);
    let fate = loop {
        if *known == 0 {
            *known = ring.offered();
            if *known == 0 {
                // A frame that has all chains of the ring, and is longer, would wait for ever.
                let has_all = used.len() - before >= ring.size().into();
                break if has_all { Fate::Dropped } else { Fate::Waits };
            }
        }
        let first = pieces.len();
        let Some(Taken { chain, is_sound }) = ring.take_buffers(&mut pieces) else { break Fate::Waits };
        *known -= 1;
        let has = pieces.iter().skip(first).fold(0usize, |sum, piece| sum.saturating_add(piece.len));
        let written = has.min(len - room) as u32;
        used.push(Used { chain, written });
        room += written as usize;
        match (is_sound, used.len() - before) {
            (true, _) if room == len => break Fate::Sent,
            (true, 1..CHAINS) if merges => {}
            // A ring whose next chain breaks the rules is served no further, as by the driver.
            (false, 1) => break Fate::Waits,
            _ => break Fate::Dropped,
        }
    };
    let chains = (used.len() - before) as u16;
    match fate {
        // SAFETY: as the caller promises. The buffers have room.
        Fate::Sent => unsafe { copy(frame, chains, &pieces) },
        Fate::Dropped | Fate::Waits => {
            ring.put_back(chains);
            *known += chains;
            used.truncate(before);
        }
    }
    fate
}

/// Copies a frame and its header into the buffers `pieces` of `chains` chains.
///
/// # Safety
/// `frame` is a whole frame. The pieces are writable, and have room.
#[inline]
unsafe fn copy(frame: NonNull<sys::rte_mbuf>, chains: u16, pieces: &[Piece]) {
    let mut pieces = pieces.iter().map(|piece| (piece.at.cast_mut(), piece.len));
    let (mut to, mut room) = pieces.next().unwrap_or((std::ptr::null_mut(), 0));
    let mut put = |mut from: *const u8, mut len: usize| {
        while len > 0 {
            if room == 0 {
                (to, room) = pieces.next().unwrap_or((to, len));
            }
            let n = len.min(room);
            // SAFETY: `n` octets are within the segment, and within the piece: all pieces have room for all octets.
            unsafe {
                to.copy_from_nonoverlapping(from, n);
                (to, from) = (to.add(n), from.add(n));
            }
            (room, len) = (room - n, len - n);
        }
    };
    // SAFETY: as the caller promises.
    let header = header(unsafe { frame.as_ref() }, chains);
    put(header.as_ptr(), HEADER);
    let mut segment = Some(frame);
    while let Some(m) = segment {
        // SAFETY: a live mbuf of the frame.
        unsafe {
            let m = m.as_ref();
            put(m.buf_addr.cast::<u8>().add(m.data_off.into()), m.data_len.into());
            segment = NonNull::new(m.next);
        }
    }
}

/// Returns the virtio header of a frame that lies in `chains` chains (virtio 1.2 §5.1.6).
#[inline]
fn header(frame: &sys::rte_mbuf, chains: u16) -> [u8; HEADER] {
    const NEEDS_CHECKSUM: u8 = 1;
    const TCP_IN_IPV4: u8 = 1;
    const TCP_IN_IPV6: u8 = 4;
    let flags = frame.ol_flags;
    // SAFETY: a number in any case: the lengths of the frame's headers, and that of its segments.
    let lengths = unsafe { frame.__bindgen_anon_3.tx_offload };
    let before_tcp = (lengths & 0x7f) + (lengths >> 7 & 0x1ff);
    let (mut kind, mut segment, mut headers) = (0, 0, 0);
    if flags & sys::RTE_MBUF_F_TX_TCP_SEG != 0 {
        kind = if flags & sys::RTE_MBUF_F_TX_IPV6 != 0 { TCP_IN_IPV6 } else { TCP_IN_IPV4 };
        segment = (lengths >> 24) as u16;
        headers = (before_tcp + (lengths >> 16 & 0xff)) as u16;
    }
    let (mut needs, mut start, mut offset) = (0, 0, 0);
    if flags & (sys::RTE_MBUF_F_TX_TCP_CKSUM | sys::RTE_MBUF_F_TX_TCP_SEG) != 0 {
        (needs, start, offset) = (NEEDS_CHECKSUM, before_tcp as u16, CHECKSUM);
    }
    let words = [headers, segment, start, offset, chains].map(u16::to_le_bytes);
    let mut header = [needs, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[2..].copy_from_slice(words.as_flattened());
    header
}

#[cfg(test)]
mod tests;
