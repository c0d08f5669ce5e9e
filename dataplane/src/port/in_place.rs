//! Reception of a `vhost` port in place: long TCP frames stay in the memory of their sender. [`send`] is the way back.
//!
//! The driver of `vhost` copies each frame from the peer's memory into an mbuf, and the engine copies its payload from
//! there to where it belongs. Here the first of these copies is left out. Headers are copied, because they must not
//! change while they are being checked. The payload of a long TCP segment is [lent](crate::buffers::borrowed) by the
//! peer until the next burst is received. All other frames are copied whole.
//!
//! Where the peer's ring is not one that [`ring`] serves (guests of virtual machines), the driver receives as before.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use self::lane::{Bell, Lane};
use self::link::{QUEUES, to_us};
use self::ring::{HEADER, Offered, Taken, Used, prefetch};
use super::{BURST, ETHERNET};
use crate::buffers::Pool;
use crate::buffers::borrowed::{self, Piece};
use crate::layers::Layers;

mod lane;
pub(super) mod link;
mod memory;
mod ring;
mod send;
#[cfg(test)]
mod tests;

pub(super) use self::link::Link;
pub(super) use self::send::{Outlet, Sent};

/// Length of a frame from which it stays in place. The bookkeeping of a shorter one costs more than its copy.
const LONG: usize = 512;

/// Length of the headers of an FPDU up to which they are copied with the frame's headers, if the payload is elsewhere.
const SHORT: usize = 64;

/// Octets of a long frame that are copied to look at them: the headers of Ethernet with a tag, of IPv6, of TCP with all
/// options, and of an FPDU.
const START: usize = ETHERNET + 40 + 60 + SHORT;

/// Length of the longest frame: that of the longest IP packet, with the headers of Ethernet.
const LONGEST: usize = ETHERNET + u16::MAX as usize;

/// Number of frames that are on their way from the ring at the same time.
const AHEAD: usize = 4;

/// Cache lines of a frame that are fetched before its headers are copied.
const HEAD_LINES: usize = 3;

/// Number of chains of short frames that are given back together, or fewer if the ring is small. The peer's driver does
/// not look for them while it has other buffers. So its next frame need not wait for the cache line in which we say how
/// many there are.
const RETURNS: usize = 32;

/// Number of times that nothing is offered, after which all chains are given back.
const IDLE: u16 = 1000;

const TCP: u8 = 6;
/// Offset of the checksum in TCP's header.
const CHECKSUM: u16 = 16;

/// A chain to give back when the next burst is received.
#[derive(Debug)]
struct Lent {
    chain: u16,
    /// The frame whose payload is in the chain; `None` if the chain only waits for others, because chains are given
    /// back in the order in which they came (VIRTIO_F_IN_ORDER, virtio 1.2 §2.7.9).
    mbuf: Option<NonNull<sys::rte_mbuf>>,
}

/// The rings that one queue of a port receives from.
#[derive(Debug)]
pub(super) struct InPlace {
    link: Arc<Link>,
    version: u32,
    lanes: [(Lane, u64); QUEUES],
    /// Chains of short frames that are not given back yet, the chains of the last burst since the first one that is
    /// lent, and the queue whose ring all of them came from.
    returns: ArrayVec<Used, { RETURNS + BURST }>,
    lent: ArrayVec<Lent, BURST>,
    lender: usize,
    /// Number of times that nothing was offered since chains have waited to be given back.
    idle: u16,
    /// Whether chains were given back since the peer was asked, for certain, whether it wants a notification.
    is_to_ask: bool,
    slots: [Offered; AHEAD],
    bell: Option<Bell>,
    /// Frames received, their bytes, and frames dropped.
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
}

/// Who has received a burst.
pub(super) enum Received {
    /// The driver must be asked.
    ByDriver,
    /// This many frames were received in place.
    InPlace(usize),
}

impl InPlace {
    pub(super) fn new(link: Arc<Link>) -> Self {
        InPlace {
            version: link.version().wrapping_sub(1),
            link,
            lanes: Default::default(),
            returns: ArrayVec::new(),
            lent: ArrayVec::new(),
            lender: 0,
            idle: 0,
            is_to_ask: false,
            slots: Default::default(),
            bell: None,
            frames: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Receives at most `most` frames from the peer's ring `queue` into `burst`.
    ///
    /// # Safety
    /// `pool` is the pool that all earlier frames of this port came from. No octets of the peer's memory are in use.
    #[inline]
    pub(super) unsafe fn receive(
        &mut self,
        queue: u16,
        pool: &mut Pool,
        most: usize,
        burst: &mut ArrayVec<*mut sys::rte_mbuf, BURST>,
    ) -> Received {
        let queue = usize::from(queue);
        let is_changed = self.version != self.link.version();
        if !self.lent.is_empty() || !self.returns.is_empty() && (is_changed || self.lender != queue) {
            // SAFETY: as the caller promises.
            unsafe { self.settle() };
        }
        if self.is_to_ask && (is_changed || self.lender != queue) {
            self.ask();
        }
        if is_changed || matches!(self.lanes.get(queue), Some((Lane::Unopened, _))) {
            self.renew(queue);
        }
        match self.lanes.get_mut(queue) {
            Some((Lane::InPlace(ring), _)) => match ring.offered() {
                0 => {
                    if self.is_to_ask {
                        self.ask();
                    }
                    if !self.returns.is_empty() {
                        self.rest();
                    }
                    Received::InPlace(0)
                }
                // SAFETY: as the caller promises.
                offered => unsafe { self.take(queue, most.min(offered.into()), pool, burst) },
            },
            Some((Lane::Paused(_), _)) => Received::InPlace(0),
            _ => Received::ByDriver,
        }
    }

    /// Gives chains back if nothing has been offered for a while. Nothing is lent.
    #[inline]
    fn rest(&mut self) {
        self.idle += 1;
        if self.idle >= IDLE {
            // SAFETY: nothing is lent.
            unsafe { self.settle() };
        }
    }

    /// Asks the peer whether it wants to be notified of chains that were given back before. While frames come, the peer
    /// is asked whenever some are taken.
    #[inline(never)]
    fn ask(&mut self) {
        self.is_to_ask = false;
        let Some((Lane::InPlace(ring) | Lane::Paused(Some(ring)), _)) = self.lanes.get(self.lender) else {
            return;
        };
        // As for frames that are sent, see `Outlet::ask`.
        fence(Ordering::SeqCst);
        if ring.wants_notification()
            && let Some(bell) = self.bell
        {
            bell.ring(&self.link, to_us(self.lender));
        }
    }

    /// Gives back the chains that wait to be given back, because nothing is going to be received for a while.
    pub(super) fn pause(&mut self) {
        if self.lent.is_empty() && !self.returns.is_empty() {
            // SAFETY: nothing is lent.
            unsafe { self.settle() };
        }
    }

    /// Takes `n` offered frames.
    ///
    /// # Safety
    /// As [`receive`](Self::receive).
    #[inline(never)]
    unsafe fn take(
        &mut self,
        queue: usize,
        n: usize,
        pool: &mut Pool,
        burst: &mut ArrayVec<*mut sys::rte_mbuf, BURST>,
    ) -> Received {
        let Some((Lane::InPlace(ring), _)) = self.lanes.get_mut(queue) else { return Received::ByDriver };
        let Some(progress) = self.link.progress.get(to_us(queue)) else { return Received::ByDriver };
        progress.enter();
        if self.version != self.link.version() {
            progress.leave();
            return Received::InPlace(0);
        }
        self.lender = queue;
        let n = n.min(BURST).min(burst.remaining_capacity()).min(pool.available());
        self.idle = 0;
        // What a step needs was fetched some steps before: first the descriptors of a frame, then its headers.
        (0..n.min(AHEAD)).for_each(|ahead| ring.foresee(ahead as u16));
        let mut taken = ArrayVec::<Taken, BURST>::new();
        for i in 0..n + AHEAD {
            if let Some(frame) = self.slots.get_mut(i % AHEAD)
                && let Some(Taken { chain, is_sound }) =
                    i.checked_sub(AHEAD).and_then(|i| taken.get(i).copied())
            {
                // SAFETY: the pieces are readable until the chain is given back, which `settle` does if they are
                // borrowed.
                let accepted = if is_sound { unsafe { accept(frame, pool) } } else { None };
                let mut is_lent = None;
                match accepted {
                    Some((mbuf, is_borrowed)) => {
                        // SAFETY: a fresh mbuf of ours.
                        self.bytes += u64::from(unsafe { mbuf.as_ref().pkt_len });
                        self.frames += 1;
                        burst.push(mbuf.as_ptr());
                        is_lent = is_borrowed.then_some(mbuf);
                    }
                    None => self.dropped += 1,
                }
                if is_lent.is_none() && self.lent.is_empty() {
                    self.returns.push(Used { chain, written: 0 });
                } else {
                    self.lent.push(Lent { chain, mbuf: is_lent });
                }
            }
            if i < n
                && taken.len() == i
                && let Some(frame) = self.slots.get_mut(i % AHEAD)
                && let Some(chain) = ring.take(frame)
            {
                taken.push(chain);
                if let Some(first) = frame.pieces.first() {
                    prefetch(first.at, HEAD_LINES);
                }
                if i + AHEAD < n {
                    ring.foresee(AHEAD as u16 - 1);
                }
            }
        }
        let mut notify = false;
        let wants = ring.wants_notification();
        if wants || self.returns.len() >= RETURNS.min(usize::from(ring.size() / 4)) {
            notify = wants && !self.returns.is_empty();
            self.is_to_ask |= !wants;
            ring.give(&self.returns);
            self.returns.clear();
        }
        progress.leave_at(ring.positions().given);
        if notify && let Some(bell) = self.bell {
            bell.ring(&self.link, to_us(queue));
        }
        Received::InPlace(burst.len())
    }

    /// Ends the use of the peer's memory by the frames of the last burst, and gives all chains back.
    ///
    /// # Safety
    /// As [`receive`](Self::receive).
    #[inline]
    pub(super) unsafe fn settle(&mut self) {
        let mut chains: ArrayVec<Used, { RETURNS + 2 * BURST }> = self.returns.drain(..).collect();
        for Lent { chain, mbuf } in self.lent.drain(..) {
            if let Some(mbuf) = mbuf {
                // SAFETY: the mbuf was borrowed in the last burst. No octets of the peer's memory are in use.
                unsafe { borrowed::settle(mbuf) };
            }
            chains.push(Used { chain, written: 0 });
        }
        let index = to_us(self.lender);
        let (Some((Lane::InPlace(ring) | Lane::Paused(Some(ring)), number)), Some(progress)) =
            (self.lanes.get_mut(self.lender), self.link.progress.get(index))
        else {
            return;
        };
        progress.enter();
        let mut state = None;
        if self.version != self.link.version() {
            progress.leave();
            // The chains of a ring that the peer has given up mean nothing any more. No ring is withdrawn meanwhile.
            let locked = self.link.state();
            if locked.rings.get(index).is_none_or(|ring| ring.number != *number) {
                return;
            }
            state = Some(locked);
        }
        ring.give(&chains);
        progress.leave_at(ring.positions().given);
        drop(state);
        self.is_to_ask = true;
        if ring.wants_notification()
            && let Some(bell) = self.bell
        {
            self.is_to_ask = false;
            bell.ring(&self.link, index);
        }
    }

    /// Takes note of changes. Queue `turn` is going to receive. Nothing may be [lent](Self::settle).
    #[cold]
    fn renew(&mut self, turn: usize) {
        // While the state is locked, the library does not forget the peer.
        let state = self.link.state();
        self.version = self.link.version();
        self.bell = state.peer.map(|vid| Bell::of(&self.link, vid));
        for (queue, (lane, number)) in self.lanes.iter_mut().enumerate() {
            let index = to_us(queue);
            let Some(ring) = state.rings.get(index).cloned() else { continue };
            let before = std::mem::replace(number, ring.number);
            *lane = std::mem::take(lane).renewed(&self.link, state.peer, index, ring, before, queue == turn);
        }
    }
}

/// Makes a received frame. Returns whether it is borrowed; `None`: there are too few mbufs, or the frame is longer than
/// any frame may be.
///
/// # Safety
/// The pieces are readable, and stay so until a borrowed frame is [settled](borrowed::settle).
#[inline]
unsafe fn accept(frame: &mut Offered, pool: &mut Pool) -> Option<(NonNull<sys::rte_mbuf>, bool)> {
    let len = frame.pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len));
    if len > LONGEST {
        return None;
    }
    let mut m = pool.take()?;
    let first = match &frame.pieces[..] {
        _ if len < LONG => len,
        // The next piece is payload, which would have to be fetched.
        [first, _, ..] if first.len >= ETHERNET => first.len.min(START),
        _ => START,
    };
    // SAFETY: a fresh mbuf of ours, which has room for the start of any frame, and readable pieces.
    unsafe {
        let data = m.as_ref().buf_addr.cast::<u8>().add(m.as_ref().data_off.into());
        copy(data, first, &frame.pieces);
        // The compiler must not read the peer's memory where the copy is read.
        compiler_fence(Ordering::SeqCst);
        let headers = headers(&frame.header, std::slice::from_raw_parts(data, first));
        let own =
            if first == len { len } else { headers.map_or(first, |headers| head(&frame.pieces, headers)) };
        let mbuf = m.as_mut();
        (mbuf.data_len, mbuf.pkt_len) = (own as u16, own as u32);
        if headers.is_some() {
            mbuf.ol_flags = sys::RTE_MBUF_F_RX_L4_CKSUM_NONE;
        }
        if own == len {
            return Some((m, false));
        }
        cut(&mut frame.pieces, own);
        if headers.is_some() && borrowed::borrow(m, &frame.pieces) {
            return Some((m, true));
        }
        append(m, frame, pool).then_some((m, false))
    }
}

/// Copies the first `len` octets of `pieces` to `to`.
///
/// # Safety
/// The pieces are readable and have as many octets, and `to` has room for them.
#[inline]
unsafe fn copy(mut to: *mut u8, mut len: usize, pieces: &[Piece]) {
    for piece in pieces {
        let n = piece.len.min(len);
        // SAFETY: as the caller promises.
        unsafe {
            to.copy_from_nonoverlapping(piece.at, n);
            to = to.add(n);
        }
        len -= n;
        if len == 0 {
            return;
        }
    }
}

/// Returns the length of the headers of a TCP segment whose sender leaves its checksum to the link; `None` for any
/// other frame, and if the headers are not complete. `header` is the frame's virtio header, `start` its first octets.
#[inline]
fn headers(header: &[u8; HEADER], start: &[u8]) -> Option<usize> {
    const NEEDS_CHECKSUM: u8 = 1;
    let &[flags, _, _, _, _, _, start_low, start_high, offset_low, offset_high, ..] = header;
    if flags & NEEDS_CHECKSUM == 0 {
        return None;
    }
    let (from, offset) = ([start_low, start_high], [offset_low, offset_high]);
    let layers = Layers::of(start).filter(|layers| layers.protocol == TCP)?;
    let is_tcps =
        usize::from(u16::from_le_bytes(from)) == layers.payload && u16::from_le_bytes(offset) == CHECKSUM;
    let len = layers.payload + usize::from(start.get(layers.payload + 12)? >> 4) * 4;
    (is_tcps && len >= layers.payload + 20 && len <= start.len()).then_some(len)
}

/// Returns how many octets of a frame are copied, if its headers are `headers` octets long: these, and the headers of
/// an FPDU whose payload is elsewhere. At most [`START`], because no more were copied to look at them: IPv4 with
/// options has longer headers than IPv6.
#[inline]
fn head(pieces: &[Piece], headers: usize) -> usize {
    match pieces {
        [first, _, ..] if first.len > headers && first.len - headers <= SHORT => first.len.min(START),
        _ => headers,
    }
}

/// Appends a copy of the pieces to the frame that begins in `m`, with further mbufs if `m` has too little room. Returns
/// `false` if there are too few of them, and frees the frame then.
///
/// # Safety
/// `m` is a fresh mbuf of ours. The pieces are readable.
#[cold]
unsafe fn append(m: NonNull<sys::rte_mbuf>, frame: &mut Offered, pool: &mut Pool) -> bool {
    let (mut last, mut segments) = (m, 1);
    // SAFETY: all mbufs are ours.
    unsafe {
        loop {
            let mbuf = last.as_mut();
            let room = mbuf.buf_len - mbuf.data_off - mbuf.data_len;
            let left = frame.pieces.iter().map(|piece| piece.len).sum::<usize>();
            let n = left.min(room.into());
            let end = usize::from(mbuf.data_off) + usize::from(mbuf.data_len);
            copy(mbuf.buf_addr.cast::<u8>().add(end), n, &frame.pieces);
            mbuf.data_len += n as u16;
            (*m.as_ptr()).pkt_len += n as u32;
            cut(&mut frame.pieces, n);
            if n == left {
                break;
            }
            let Some(next) = pool.take() else {
                sys::rte_pktmbuf_free(m.as_ptr());
                return false;
            };
            last.as_mut().next = next.as_ptr();
            last = next;
            segments += 1;
            (*m.as_ptr()).nb_segs = segments;
        }
        // A frame of several segments, which may have to be split.
        let is_train = frame.header[1] != 0;
        let mbuf = &mut *m.as_ptr();
        if is_train && mbuf.ol_flags != 0 {
            mbuf.ol_flags |= sys::RTE_MBUF_F_RX_LRO;
        }
    }
    true
}

/// Takes the first `n` octets away from `pieces`.
#[inline]
fn cut(pieces: &mut ArrayVec<Piece, { ring::LONGEST_CHAIN }>, mut n: usize) {
    let mut whole = 0;
    for piece in pieces.iter_mut() {
        if n < piece.len {
            piece.at = piece.at.wrapping_add(n);
            piece.len -= n;
            break;
        }
        n -= piece.len;
        whole += 1;
    }
    if whole > 0 {
        pieces.drain(..whole);
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        // SAFETY: the pool lives longer than this. Whoever uses frames after the end of their port uses copies.
        unsafe { self.settle() }
    }
}
