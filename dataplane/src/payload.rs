//! Bytes to send, shared between the stack, which may have to send them again, and the port's queues.
//!
//! A [`TxBuf`] is written, then frozen into a [`TxPayload`]. Its first transmission puts the headers in front of it, in
//! the same mbuf, so that the frame is linear. While any queue may still refer to that frame, a further transmission
//! takes an mbuf for its headers and an indirect mbuf for the range of the payload: the reference count of the mbuf
//! tells which, as the headers in front of a payload are never touched while someone else may read them.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering, fence};

use dpdk_sys as sys;

use crate::{Mbuf, Pool};

/// A buffer being filled with payload; headroom for headers is kept before it.
#[derive(Debug)]
pub struct TxBuf(Mbuf);

impl TxBuf {
    pub(crate) fn new(m: Mbuf) -> Self {
        Self(m)
    }

    /// What is written so far.
    pub fn data(&self) -> &[u8] {
        self.0.data()
    }

    /// Bytes written so far.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is written yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that still fit.
    #[inline]
    pub fn tailroom(&self) -> usize {
        self.0.tailroom()
    }

    /// Grows the buffer by `n` bytes to be overwritten; `None` if they do not fit.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        self.0.append(n)
    }

    /// Takes back what was appended behind the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Ends the writing.
    #[inline]
    pub fn freeze(self) -> TxPayload {
        let m = self.0.into_raw();
        // SAFETY: the mbuf is ours and alive.
        let (off, len) = unsafe { (m.as_ref().data_off, m.as_ref().data_len) };
        TxPayload { m, off, len }
    }
}

/// Immutable bytes, shared by reference count. A clone costs a reference.
#[derive(Debug)]
pub struct TxPayload {
    m: NonNull<sys::rte_mbuf>,
    /// Where the payload starts in the buffer. The mbuf's own offset and length describe its latest frame.
    off: u16,
    len: u16,
}

impl TxPayload {
    /// The bytes.
    #[inline]
    pub fn data(&self) -> &[u8] {
        // SAFETY: the range was written before the freeze; since then only bytes before it change.
        unsafe {
            let start = self.m.as_ref().buf_addr.cast::<u8>().add(self.off.into());
            std::slice::from_raw_parts(start, self.len.into())
        }
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether nobody else refers to the mbuf: no clone, no queue of a port, no frame. What others did with it before
    /// has then happened.
    #[inline]
    pub fn is_unshared(&self) -> bool {
        let unshared = refcnt(self.m).load(Ordering::Relaxed) == 1;
        fence(Ordering::Acquire);
        unshared
    }

    /// Whether the bytes are in memory of someone else, attached to the mbuf.
    fn is_attached(&self) -> bool {
        // SAFETY: alive; the flags of a shared mbuf are only changed by us.
        unsafe { self.m.as_ref().ol_flags & crate::frame::ATTACHED != 0 }
    }

    /// Another reference to the mbuf, to be given to a frame.
    #[inline]
    fn retain(&self) -> NonNull<sys::rte_mbuf> {
        let count = refcnt(self.m);
        if self.is_unshared() {
            count.store(2, Ordering::Relaxed);
        } else {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.m
    }

    /// A frame of `headers` and the first `len` bytes of this payload in one segment, written in front of the payload.
    /// `None` while anyone else refers to the mbuf, or if there is no room for the headers or fewer bytes.
    #[inline]
    pub(crate) fn prepend(&self, headers: &[u8], len: usize) -> Option<NonNull<sys::rte_mbuf>> {
        if headers.len() > self.off.into() || len > self.len() || self.is_attached() || !self.is_unshared() {
            return None;
        }
        let mut m = self.retain();
        // SAFETY: nobody but us refers to the mbuf, so its fields and its headroom are ours to write; both ranges are
        // within the buffer. `&[u8]`s from `data` do not reach before `off`.
        unsafe {
            let mbuf = m.as_mut();
            mbuf.data_off = self.off - headers.len() as u16;
            mbuf.data_len = (headers.len() + len) as u16;
            mbuf.pkt_len = mbuf.data_len.into();
            mbuf.ol_flags = 0;
            mbuf.nb_segs = 1;
            mbuf.next = ptr::null_mut();
            let at = mbuf.buf_addr.cast::<u8>().add(mbuf.data_off.into());
            ptr::copy_nonoverlapping(headers.as_ptr(), at, headers.len());
        }
        Some(m)
    }

    /// A segment that shows `range` of this payload: the mbuf itself while nobody else refers to it, else an indirect
    /// one. `None` if the range is beyond the payload or the pool is empty.
    #[inline]
    pub(crate) fn segment(&self, pool: &mut Pool, range: Range<usize>) -> Option<NonNull<sys::rte_mbuf>> {
        if range.start > range.end || range.end > self.len() {
            return None;
        }
        let mut m = if self.is_unshared() {
            self.retain()
        } else {
            let indirect = pool.take()?;
            // SAFETY: a fresh mbuf; attaching takes a reference of what it shows and copies its address and flags.
            unsafe { sys::rte_pktmbuf_attach(indirect.as_ptr(), self.m.as_ptr()) };
            indirect
        };
        // SAFETY: nobody else refers to `m`; the range lies within the buffer.
        unsafe {
            let mbuf = m.as_mut();
            mbuf.data_off = self.off + range.start as u16;
            mbuf.data_len = (range.end - range.start) as u16;
            mbuf.pkt_len = mbuf.data_len.into();
            mbuf.ol_flags &= crate::frame::ATTACHED;
            mbuf.nb_segs = 1;
            mbuf.next = ptr::null_mut();
        }
        Some(m)
    }

    /// Wraps an mbuf to which foreign memory has just been attached.
    ///
    /// # Safety
    /// `m` is an unshared mbuf with an external buffer of `len` initialised bytes that nobody writes.
    pub(crate) unsafe fn attached(m: NonNull<sys::rte_mbuf>, len: u16) -> Self {
        Self { m, off: 0, len }
    }
}

impl Clone for TxPayload {
    #[inline]
    fn clone(&self) -> Self {
        Self { m: self.retain(), off: self.off, len: self.len }
    }
}

impl Drop for TxPayload {
    #[inline]
    fn drop(&mut self) {
        // The next segment, if any, belongs to a frame that a queue has or had: only this segment is released.
        // SAFETY: our reference, not used afterwards.
        unsafe { sys::rte_pktmbuf_free_seg(self.m.as_ptr()) }
    }
}

/// The reference count, as DPDK itself accesses it.
#[inline]
fn refcnt<'a>(m: NonNull<sys::rte_mbuf>) -> &'a AtomicU16 {
    // SAFETY: the callers hold a reference, so the mbuf is alive for as long as they use the result; DPDK accesses
    // the field by atomic operations of the same width.
    unsafe { AtomicU16::from_ptr(&raw mut (*m.as_ptr()).refcnt) }
}

/// What keeps the memory of an external buffer alive.
struct External<T> {
    info: sys::rte_mbuf_ext_shared_info,
    owner: ManuallyDrop<T>,
}

impl Pool {
    /// Payload in memory of its own, which is not copied: an mbuf that shows `len` bytes at `data`. `owner` is dropped
    /// when the last frame, clone or queue that refers to them is gone, which may be long after the peer has the
    /// bytes. `None` if the pool is empty or `len` is more than 65,535; see
    /// [`Capabilities::external_tx`](crate::Capabilities) for the memory that a port can send from.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until `owner` is dropped, and are memory that the port can send.
    pub unsafe fn external<T: Send + 'static>(
        &mut self,
        data: NonNull<u8>,
        len: usize,
        owner: T,
    ) -> Option<TxPayload> {
        let len = u16::try_from(len).ok()?;
        let m = self.take()?;
        let external = Box::into_raw(Box::new(External {
            info: sys::rte_mbuf_ext_shared_info {
                free_cb: Some(release::<T>),
                fcb_opaque: ptr::null_mut(),
                refcnt: 1,
            },
            owner: ManuallyDrop::new(owner),
        }));
        // SAFETY: a fresh mbuf; the shared information lives until its callback has run; addresses are virtual ones
        // (--iova-mode=va).
        unsafe {
            (*external).info.fcb_opaque = external.cast();
            let info = &raw mut (*external).info;
            sys::rte_pktmbuf_attach_extbuf(m.as_ptr(), data.as_ptr().cast(), data.as_ptr() as u64, len, info);
            Some(TxPayload::attached(m, len))
        }
    }
}

/// The last reference to an external buffer is gone.
unsafe extern "C" fn release<T>(_: *mut std::ffi::c_void, external: *mut std::ffi::c_void) {
    // SAFETY: made by Box::into_raw in `external`, and called once.
    let mut external = unsafe { Box::from_raw(external.cast::<External<T>>()) };
    // SAFETY: dropped here only.
    unsafe { ManuallyDrop::drop(&mut external.owner) }
}
