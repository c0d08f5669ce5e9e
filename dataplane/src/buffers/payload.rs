//! Payload bytes to send, shared between the stack, which may have to send them again, and the port's queues.
//!
//! A [`TxBuf`] is written, then frozen into a [`TxPayload`]. The first transmission puts the headers in front of the
//! payload, in the same mbuf, so that the frame is linear. Headers in front of a payload must not be overwritten
//! while a queue may still read them. So while the mbuf [has another user](super::references), a further transmission
//! takes one mbuf for its headers and an indirect mbuf for the range of the payload.
//!
//! Memory that belongs to a lender can become part of a payload without a copy ([`TxBuf::lend`]). Such a payload is a
//! chain of mbufs. The payload keeps the chain together for as long as it lives: DPDK unlinks a frame's chain only
//! when its mbufs have no other users.

use std::ops::Range;
use std::ptr::{self, NonNull};

use dpdk_sys as sys;

use super::mbuf::prefetch_for_writing;
use super::references::{attach, is_alone, retain, retain_counted};
use super::{ATTACHED, Mbuf, Pool, pool};

/// A buffer that is being filled with payload, with headroom for headers in front of the payload.
///
/// The number of bytes is in the first mbuf, because a buffer is often moved right after it was written to. A move is a
/// wide load, and the processor cannot serve it from its store buffer if a field of it was stored last.
#[derive(Debug)]
pub struct TxBuf {
    /// The first mbuf. Its `pkt_len` counts the bytes of the whole chain.
    head: NonNull<sys::rte_mbuf>,
    /// The mbuf that is written to: `head`, or the last of its chain.
    last: NonNull<sys::rte_mbuf>,
}

impl TxBuf {
    pub(crate) fn new(m: Mbuf) -> Self {
        let head = m.into_raw();
        let mut buffer = Self { head, last: head };
        // SAFETY: the mbuf is ours.
        buffer.set_len(unsafe { head.as_ref().data_len }.into());
        buffer
    }

    /// Returns the number of bytes written or lent so far.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: alive and ours.
        unsafe { self.head.as_ref().pkt_len as usize }
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        // SAFETY: alive and ours.
        unsafe { self.head.as_mut().pkt_len = len as u32 }
    }

    /// Returns whether nothing is written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many bytes can still be written in one piece.
    #[inline]
    pub fn tailroom(&self) -> usize {
        // SAFETY: alive and ours.
        let m = unsafe { self.last.as_ref() };
        if m.ol_flags & ATTACHED != 0 {
            return 0; // lent memory
        }
        usize::from(m.buf_len) - usize::from(m.data_off) - usize::from(m.data_len)
    }

    /// Grows the buffer by `n` bytes and returns these, to be overwritten; `None` if they do not fit.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        let len = self.len();
        self.set_len(len + n);
        // SAFETY: the mbufs are ours alone; n bytes behind the data are within the buffer, so fit 16 bits.
        unsafe {
            let m = self.last.as_mut();
            let at = m.buf_addr.cast::<u8>().add(usize::from(m.data_off) + usize::from(m.data_len));
            m.data_len += n as u16;
            if len > 0 {
                // FPDUs often have the size of the one before.
                let room = usize::from(m.buf_len) - usize::from(m.data_off) - usize::from(m.data_len);
                prefetch_for_writing(at.add(n), n.min(room).min(pool::FORESEEN));
            }
            Some(std::slice::from_raw_parts_mut(at, n))
        }
    }

    /// Appends `len` bytes at `data` without copying them. Takes two mbufs of `pool`: one refers to the lent bytes,
    /// and one receives the bytes that are written next. Returns `false` and changes nothing if the pool has fewer
    /// than two mbufs, or if `len` is zero or more than 65,535.
    ///
    /// # Safety
    /// The bytes must be memory that the port can send ([`Capabilities::external_tx`](crate::Capabilities)). They
    /// must stay readable until no payload and no frame made from this buffer is left, or until
    /// [`TxPayload::copy_lent`] has been called on each payload and the frames are gone. A frame carries the bytes as
    /// they are when the port reads them.
    #[inline]
    pub unsafe fn lend(&mut self, pool: &mut Pool, data: NonNull<u8>, len: usize) -> bool {
        let Ok(size @ 1..) = u16::try_from(len) else { return false };
        let Some(rest) = pool.mbuf() else { return false };
        let Some(mut shown) = pool.take() else { return false };
        let rest = rest.into_raw();
        // SAFETY: both mbufs are fresh, and the end of the chain is ours. This does what rte_pktmbuf_attach_extbuf
        // does; addresses are virtual ones (--iova-mode=va).
        unsafe {
            let m = shown.as_mut();
            m.buf_addr = data.as_ptr().cast();
            m.buf_iova = data.as_ptr() as u64;
            m.buf_len = size;
            m.data_off = 0;
            m.data_len = size;
            m.ol_flags = sys::RTE_MBUF_F_EXTERNAL;
            m.shinfo = pool::lent();
            m.next = rest.as_ptr();
            self.last.as_mut().next = shown.as_ptr();
        }
        self.last = rest;
        self.set_len(self.len() + len);
        true
    }

    /// Keeps the first `len` bytes and drops all bytes after them.
    pub fn truncate(&mut self, len: usize) {
        let mut keep = len.min(self.len()) as u32;
        self.set_len(keep as usize);
        let mut m = self.head;
        // SAFETY: the chain is ours alone.
        unsafe {
            while u32::from(m.as_ref().data_len) < keep {
                keep -= u32::from(m.as_ref().data_len);
                let Some(next) = NonNull::new(m.as_ref().next) else { break };
                m = next;
            }
            m.as_mut().data_len = m.as_ref().data_len.min(keep as u16);
            let cut = std::mem::replace(&mut m.as_mut().next, ptr::null_mut());
            if !cut.is_null() {
                sys::rte_pktmbuf_free(cut);
            }
        }
        self.last = m;
    }

    /// Makes the payload immutable.
    #[inline]
    pub fn freeze(self) -> TxPayload {
        let m = self.head;
        // SAFETY: the mbuf is ours and alive.
        let (off, first) = unsafe { (m.as_ref().data_off, m.as_ref().data_len) };
        let len = self.len() as u32;
        // SAFETY: an mbuf of the pool of the port that sends it, which only this thread uses.
        unsafe { pool::foresee_next(m, first.into()) };
        std::mem::forget(self);
        TxPayload { m, len, off, first }
    }
}

impl Drop for TxBuf {
    fn drop(&mut self) {
        // SAFETY: the chain is ours alone, not used afterwards.
        unsafe { sys::rte_pktmbuf_free(self.head.as_ptr()) }
    }
}

/// Payload bytes, shared by reference count. They no longer change, except for lent bytes, which the lender may change.
/// A clone takes a reference and copies nothing.
#[derive(Debug)]
pub struct TxPayload {
    m: NonNull<sys::rte_mbuf>,
    /// Bytes of all mbufs.
    len: u32,
    /// Offset of the payload in the first buffer. The first mbuf's own offset and length describe the latest frame that
    /// was made in it.
    off: u16,
    /// Bytes of the payload in the first buffer. The rest, if any, is in the mbufs that follow; these also belong to
    /// the payload.
    first: u16,
}

/// A part of a payload within one mbuf.
struct Place {
    m: NonNull<sys::rte_mbuf>,
    /// Offset of the part in the mbuf's buffer.
    off: u16,
    len: u16,
}

impl Place {
    /// Returns the address of the part's first byte.
    fn start(&self) -> *const u8 {
        // SAFETY: the mbuf is alive; the offset is within its buffer.
        unsafe { self.m.as_ref().buf_addr.cast::<u8>().add(self.off.into()) }
    }
}

/// The mbufs of a payload.
struct Places {
    next: Option<Place>,
    /// Number of bytes after the bytes of `next`.
    left: u32,
}

impl Iterator for Places {
    type Item = Place;

    #[inline]
    fn next(&mut self) -> Option<Place> {
        let place = self.next.take()?;
        if self.left > 0 {
            // SAFETY: the mbuf is alive, and so is its successor while bytes are left; after the first mbuf, the
            // fields that are read here never change.
            self.next = NonNull::new(unsafe { place.m.as_ref().next }).map(|m| {
                // SAFETY: as above.
                let (off, len) = unsafe { (m.as_ref().data_off, m.as_ref().data_len) };
                self.left = self.left.saturating_sub(len.into());
                Place { m, off, len }
            });
        }
        Some(place)
    }
}

impl TxPayload {
    #[inline]
    fn places(&self) -> Places {
        let place = Place { m: self.m, off: self.off, len: self.first };
        Places { next: Some(place), left: self.len - u32::from(self.first) }
    }

    /// Calls `f` with the address and length of each piece of `range`; does nothing if the range is out of bounds.
    /// The lender may change lent pieces while `f` reads them.
    pub fn pieces(&self, range: Range<usize>, mut f: impl FnMut(*const u8, usize)) {
        if range.end > self.len() {
            return;
        }
        let mut at = 0;
        for place in self.places() {
            let end = at + usize::from(place.len);
            let (from, to) = (range.start.max(at), range.end.min(end));
            if from < to {
                f(place.start().wrapping_add(from - at), to - from);
            }
            at = end;
        }
    }

    /// Appends the bytes of `range` to `out`. Returns `None` and leaves `out` unchanged if the range is out of
    /// bounds.
    pub fn append_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> Option<()> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= self.len())?;
        out.reserve(len);
        self.pieces(range, |from, n| {
            // SAFETY: room for all pieces has been reserved, and they do not overlap it.
            unsafe {
                ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(out.len()), n);
                out.set_len(out.len() + n);
            }
        });
        Some(())
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the place of what is read when the payload is dropped.
    #[inline]
    pub fn place(&self) -> *const u8 {
        self.m.as_ptr().cast_const().cast()
    }

    /// Returns whether the payload takes more than one mbuf.
    #[inline]
    fn is_chain(&self) -> bool {
        u32::from(self.first) != self.len
    }

    /// Returns whether the payload's mbufs have no other user: no clone, no queue of a port, no frame. If so, all
    /// accesses by former users have ended.
    #[inline]
    pub fn is_unshared(&self) -> bool {
        // SAFETY: the payload holds a reference to each of its mbufs.
        unsafe { is_alone(self.m) && (!self.is_chain() || self.places().all(|place| is_alone(place.m))) }
    }

    /// Takes another reference to each mbuf, for a frame or a clone. Returns the first mbuf and the number of mbufs.
    #[inline]
    fn retain(&self) -> (NonNull<sys::rte_mbuf>, u16) {
        let mut mbufs = 1;
        // SAFETY: the payload holds a reference to each of its mbufs, and only this thread uses their pool.
        unsafe {
            if self.is_chain() {
                mbufs = self.places().map(|place| retain_counted(place.m)).count() as u16;
            } else {
                retain(self.m);
            }
        }
        (self.m, mbufs)
    }

    /// Makes a frame of `headers` and the first `len` bytes of this payload, with the headers written in front of the
    /// payload. The frame has one segment, or all segments of the payload if the payload is a chain. Returns `None` in
    /// these cases:
    /// * The first mbuf has another user. (Other users of the rest of a chain do not matter.)
    /// * The headers do not fit in front of the payload.
    /// * `len` exceeds the payload's length; or the payload is a chain, and `len` is not exactly its length.
    #[inline]
    pub(crate) fn prepend(&self, headers: &[u8], len: usize) -> Option<NonNull<sys::rte_mbuf>> {
        let chain = self.is_chain();
        let fits = headers.len() <= self.off.into() && len <= self.len();
        // SAFETY: the payload holds a reference.
        if !fits || chain && len != self.len() || unsafe { !is_alone(self.m) } {
            return None;
        }
        let (mut m, segments) = self.retain();
        // SAFETY: we are the only user of the first mbuf, so its fields and its headroom are ours to write; both
        // ranges are within the buffer. No one reads what lies before `off`. The rest of the chain is as it was when
        // it was frozen.
        unsafe {
            let mbuf = m.as_mut();
            mbuf.data_off = self.off - headers.len() as u16;
            mbuf.data_len = headers.len() as u16 + if chain { self.first } else { len as u16 };
            mbuf.pkt_len = (headers.len() + len) as u32;
            mbuf.ol_flags = 0;
            mbuf.nb_segs = segments;
            if !chain {
                mbuf.next = ptr::null_mut();
            }
            let at = mbuf.buf_addr.cast::<u8>().add(mbuf.data_off.into());
            ptr::copy_nonoverlapping(headers.as_ptr(), at, headers.len());
        }
        Some(m)
    }

    /// Returns whether a frame that starts with all of this payload, in place, may continue with other segments. A
    /// chain may not, because its mbufs must keep their links.
    pub(crate) fn can_be_continued(&self) -> bool {
        !self.is_chain()
    }

    /// Calls `f` with the segments that hold `range` of this payload: the mbuf itself if it is the only one and has
    /// no other user, else indirect mbufs. Returns `None` if the range ends after the payload or the pool is empty;
    /// `f` keeps the segments that it got before.
    #[inline]
    pub(crate) fn segments(
        &self,
        pool: &mut Pool,
        range: Range<usize>,
        mut f: impl FnMut(NonNull<sys::rte_mbuf>),
    ) -> Option<()> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let mut at = 0;
        for place in self.places() {
            let end = at + usize::from(place.len);
            let (from, to) = (range.start.max(at), range.end.min(end));
            let only = !self.is_chain();
            if from < to || only {
                let mut m = if only && self.is_unshared() {
                    self.retain().0
                } else {
                    let indirect = pool.take()?;
                    // SAFETY: a fresh mbuf; the payload holds a reference to those of its places.
                    unsafe { attach(indirect, place.m) };
                    indirect
                };
                // SAFETY: `m` has no other user; the range lies within the buffer.
                unsafe {
                    let mbuf = m.as_mut();
                    mbuf.data_off = place.off + (from - at) as u16;
                    mbuf.data_len = (to - from) as u16;
                    mbuf.pkt_len = mbuf.data_len.into();
                    mbuf.ol_flags &= ATTACHED;
                    mbuf.nb_segs = 1;
                    mbuf.next = ptr::null_mut();
                }
                f(m);
            }
            at = end;
        }
        Some(())
    }

    /// Returns whether the payload contains lent memory at addresses within `range`.
    pub fn shows(&self, range: &Range<usize>) -> bool {
        self.is_chain()
            && self.places().any(|place| {
                let at = place.start() as usize;
                // SAFETY: alive; these flags do not change while the payload lives.
                let lent = unsafe { place.m.as_ref().ol_flags & ATTACHED != 0 };
                lent && at < range.end && range.start < at + usize::from(place.len)
            })
    }

    /// Copies the lent bytes, so that the lender may take its memory back: this payload no longer refers to it.
    /// Frames made earlier still do. Returns `false` and changes nothing if the pool is empty or its mbufs are too
    /// small.
    pub fn copy_lent(&mut self, pool: &mut Pool) -> bool {
        if !self.is_chain() {
            return true;
        }
        let Some(mut own) = pool.buffer() else { return false };
        let Some(out) = own.append(self.len()) else { return false };
        let mut at = out.as_mut_ptr();
        self.pieces(0..self.len(), |from, n| {
            // SAFETY: `out` has room for all pieces, and does not overlap any.
            unsafe {
                ptr::copy_nonoverlapping(from, at, n);
                at = at.add(n);
            }
        });
        *self = own.freeze();
        true
    }
}

impl Clone for TxPayload {
    #[inline]
    fn clone(&self) -> Self {
        Self { m: self.retain().0, ..*self }
    }
}

impl Drop for TxPayload {
    #[inline(always)]
    fn drop(&mut self) {
        // By value, so that a payload need not be in memory when it is moved.
        // SAFETY: our references, which end here.
        unsafe { release(self.m, self.len, self.first) };
    }
}

/// Drops a payload's reference to each of its mbufs.
///
/// # Safety
/// The references are the caller's, who no longer uses the mbufs.
#[inline(never)]
unsafe fn release(m: NonNull<sys::rte_mbuf>, len: u32, first: u16) {
    // If the payload is one mbuf, the next segment, if any, belongs to a frame that is or was in a queue. Each mbuf's
    // link is read before the mbuf is released.
    let places = Places { next: Some(Place { m, off: 0, len: first }), left: len - u32::from(first) };
    for place in places {
        // SAFETY: as the caller promises; if the reference is the last one, the mbuf has no other user.
        unsafe { pool::release_segment(place.m) };
    }
}
