//! Frames to send, and the queue in which they wait for a burst.

use std::ops::Range;
use std::ptr::{self, NonNull};

use dpdk_sys as sys;

use crate::layers::{ETHERNET, Layers};
use crate::{Mbuf, Pool, TxPayload};

/// A part of a frame: a range of a payload.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The payload.
    pub payload: &'a TxPayload,
    /// The range of the payload's bytes.
    pub range: Range<usize>,
}

/// A frame to send, of one or more segments. Dropping the frame releases its segments.
#[derive(Debug)]
#[repr(transparent)]
pub struct TxFrame(NonNull<sys::rte_mbuf>);

impl TxFrame {
    /// Puts `headers` in front of the payload in the payload's own mbuf. Does not copy payload. The frame has one
    /// segment; if the payload is a chain, the frame has the payload's segments. Returns `None` in these cases:
    /// * The payload's first mbuf has another user.
    /// * The headroom is too small.
    /// * The range does not start at the payload's first byte, or ends after the payload.
    /// * The payload is a chain, and the range is not all of it.
    #[inline]
    pub fn in_place(headers: &[u8], part: &Part<'_>) -> Option<Self> {
        if part.range.start != 0 {
            return None;
        }
        part.payload.prepend(headers, part.range.end).map(Self)
    }

    /// Puts `headers` into an mbuf of `pool`, followed by a segment for each part; does not copy payload. Returns
    /// `None` if the pool is empty or a range is out of bounds.
    pub fn chain(pool: &mut Pool, headers: &[u8], parts: &[Part<'_>]) -> Option<Self> {
        let mut head = pool.mbuf()?;
        head.append(headers.len())?.copy_from_slice(headers);
        let mut frame = Self::from(head);
        frame.extend(pool, parts)?;
        Some(frame)
    }

    /// Appends a segment for each part. If it returns `None`, the frame is incomplete.
    #[inline]
    fn extend(&mut self, pool: &mut Pool, parts: &[Part<'_>]) -> Option<()> {
        let mut last = self.0;
        for part in parts {
            part.payload.segments(pool, part.range.clone(), |segment| {
                // SAFETY: these fields of the mbufs belong to this frame alone.
                unsafe {
                    last.as_mut().next = segment.as_ptr();
                    self.0.as_mut().nb_segs += 1;
                    self.0.as_mut().pkt_len += u32::from(segment.as_ref().data_len);
                }
                last = segment;
            })?;
        }
        Some(())
    }

    /// Copies `headers` and the parts into one mbuf of `pool`. Returns `None` if the pool is empty, a range is out of
    /// bounds, or the bytes do not fit.
    pub fn copy(pool: &mut Pool, headers: &[u8], parts: &[Part<'_>]) -> Option<Self> {
        pool.copied(headers, parts).map(Self::from)
    }

    /// Makes the frame in the cheapest way possible: by `in_place`, else by `chain` if the port can send chains
    /// (`chains`), else by `copy`. Returns `None` if the pool is empty, a range is out of bounds, or a copy does not
    /// fit.
    #[inline]
    pub(crate) fn assemble(
        pool: &mut Pool,
        headers: &[u8],
        parts: &[Part<'_>],
        chains: bool,
    ) -> Option<Self> {
        let Some((first, rest)) = parts.split_first() else { return Self::copy(pool, headers, parts) };
        if !rest.is_empty() && !chains {
            return Self::copy(pool, headers, parts);
        }
        if (rest.is_empty() || first.payload.can_be_continued())
            && let Some(mut frame) = Self::in_place(headers, first)
        {
            frame.extend(pool, rest)?;
            return Some(frame);
        }
        if chains { Self::chain(pool, headers, parts) } else { Self::copy(pool, headers, parts) }
    }

    /// Leaves the TCP checksum to the port: the field must hold the sum of the pseudo-header. The frame must be a TCP
    /// segment, because [`tcp_layers`] takes some other frames for one.
    #[inline]
    pub(crate) fn leave_checksum(&mut self, headers: &[u8]) {
        let Some((family, lengths)) = tcp_layers(headers) else { return };
        // SAFETY: the first mbuf's flags are this frame's.
        unsafe {
            let m = self.0.as_mut();
            m.ol_flags |= sys::RTE_MBUF_F_TX_TCP_CKSUM | family;
            m.__bindgen_anon_3.tx_offload = lengths;
        }
    }

    /// Marks the frame, which begins with `headers`, as one that holds several TCP segments. Each segment has `size`
    /// bytes of payload, except the last, which may be shorter.
    #[inline]
    pub fn segmented(&mut self, size: u16, headers: &[u8]) {
        self.leave_checksum(headers);
        let before_tcp = if headers.get(12..14) == Some(&[0x08, 0x00]) {
            ETHERNET + 20
        } else {
            Layers::of(headers).map_or(headers.len(), |l| l.payload)
        };
        let tcp = headers.len().saturating_sub(before_tcp) as u64;
        // SAFETY: as in `leave_checksum`; l4_len is in bits 16..24, tso_segsz in bits 24..40.
        unsafe {
            let m = self.0.as_mut();
            m.ol_flags |= sys::RTE_MBUF_F_TX_TCP_SEG;
            m.__bindgen_anon_3.tx_offload |= (tcp & 0xff) << 16 | u64::from(size) << 24;
        }
    }

    /// Returns the length of the frame in bytes.
    pub fn len(&self) -> usize {
        // SAFETY: alive while `self` is.
        unsafe { self.0.as_ref().pkt_len as usize }
    }

    /// Returns whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of the frame's segments.
    pub fn segments(&self) -> usize {
        // SAFETY: alive while `self` is.
        unsafe { self.0.as_ref().nb_segs.into() }
    }

    fn into_raw(self) -> *mut sys::rte_mbuf {
        let m = self.0.as_ptr();
        std::mem::forget(self);
        m
    }
}

impl From<Mbuf> for TxFrame {
    fn from(mut m: Mbuf) -> Self {
        m.keep();
        let mut m = m.into_raw();
        // The flags that reception left have other meanings for transmission.
        // SAFETY: ours alone.
        unsafe { m.as_mut().ol_flags = 0 };
        Self(m)
    }
}

impl Drop for TxFrame {
    fn drop(&mut self) {
        // SAFETY: our reference to each segment, not used afterwards.
        unsafe { sys::rte_pktmbuf_free(self.0.as_ptr()) }
    }
}

impl Pool {
    /// Copies `headers` and the parts into one mbuf that can be handled as a received frame, for frames to ourselves.
    /// Returns `None` if the pool is empty, a range is out of bounds, or the bytes do not fit.
    pub fn copied(&mut self, headers: &[u8], parts: &[Part<'_>]) -> Option<Mbuf> {
        let mut m = self.mbuf()?;
        m.append(headers.len())?.copy_from_slice(headers);
        for part in parts {
            let mut out = m.append(part.range.len())?.as_mut_ptr();
            if part.range.end > part.payload.len() {
                return None;
            }
            part.payload.pieces(part.range.clone(), |from, n| {
                // SAFETY: there is room for all pieces; a fresh buffer overlaps none of them.
                unsafe {
                    ptr::copy_nonoverlapping(from, out, n);
                    out = out.add(n);
                }
            });
        }
        Some(m)
    }
}

/// Returns the flag of the IP family of a TCP segment, and the lengths of the headers before TCP's, encoded for the
/// bit field `tx_offload`: l2_len, including a VLAN tag, in bits 0..7, l3_len in bits 7..16. To be fast, takes every
/// IPv4 packet without a VLAN tag for a TCP segment without IP options. Returns `None` for any other frame that is not
/// a TCP segment.
#[inline(always)]
fn tcp_layers(headers: &[u8]) -> Option<(u64, u64)> {
    // The usual case is IPv4 without a VLAN tag. Our stack writes no IP options, and leaves only TCP checksums to the
    // port.
    let untagged = headers.get(12..14) == Some(&[0x08, 0x00]);
    let (l2, l3, family) = match untagged {
        true => (ETHERNET as u64, 20, sys::RTE_MBUF_F_TX_IPV4),
        false => match Layers::of(headers).filter(|l| l.protocol == 6)? {
            l if l.v6 => (l.ip as u64, 40, sys::RTE_MBUF_F_TX_IPV6),
            l => (l.ip as u64, (l.payload - l.ip) as u64, sys::RTE_MBUF_F_TX_IPV4),
        },
    };
    Some((family, l2 | l3 << 7))
}

/// Frames waiting to be sent, in order.
#[derive(Debug)]
pub struct TxQueue {
    frames: [*mut sys::rte_mbuf; Self::CAPACITY],
    len: usize,
}

impl TxQueue {
    /// The number of frames that a queue can hold.
    pub const CAPACITY: usize = 64;

    /// Creates an empty queue.
    pub fn new() -> Self {
        Self { frames: [ptr::null_mut(); Self::CAPACITY], len: 0 }
    }

    /// Returns how many more frames can be pushed.
    #[inline]
    pub fn room(&self) -> usize {
        Self::CAPACITY - self.len
    }

    /// Returns the number of waiting frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no frame is waiting.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a frame; returns it to the caller if the queue is full.
    #[inline]
    pub fn push(&mut self, frame: TxFrame) -> Result<(), TxFrame> {
        let Some(slot) = self.frames.get_mut(self.len) else { return Err(frame) };
        *slot = frame.into_raw();
        self.len += 1;
        Ok(())
    }

    /// Drops the frames that contain lent memory at addresses within `range`. Returns how many it dropped.
    pub fn drop_containing_lent(&mut self, range: &Range<usize>) -> usize {
        let before = self.len;
        self.len = 0;
        for i in 0..before {
            let m = self.frames[i];
            // SAFETY: each of the first `before` entries is a frame that the queue owns.
            if unsafe { shows(m, range) } {
                // SAFETY: as above; it is not kept.
                unsafe { sys::rte_pktmbuf_free(m) }
            } else {
                self.frames[self.len] = m;
                self.len += 1;
            }
        }
        before - self.len
    }

    /// Takes all frames out as copies in ordinary memory, in order. `each` gets a frame's octets, and whether its TCP
    /// checksum is left to the port.
    pub fn take_copies(&mut self, mut each: impl FnMut(Box<[u8]>, bool)) {
        for &m in self.frames.iter().take(self.len) {
            // SAFETY: each of the first `len` entries is a frame that the queue owns, whose segments are alive;
            // `clear` below releases all of them.
            unsafe {
                let mut octets = Vec::with_capacity((*m).pkt_len as usize);
                let mut segment = m.cast_const();
                while let Some(s) = segment.as_ref() {
                    let at = s.buf_addr.cast::<u8>().add(s.data_off.into());
                    let before = octets.len();
                    octets.resize(before + usize::from(s.data_len), 0);
                    // Not copied as a slice, because a program may write to memory that it has lent.
                    ptr::copy_nonoverlapping(at, octets[before..].as_mut_ptr(), s.data_len.into());
                    segment = s.next;
                }
                each(octets.into(), (*m).ol_flags & sys::RTE_MBUF_F_TX_TCP_CKSUM != 0);
            }
        }
        self.clear();
    }

    /// Drops all frames.
    pub fn clear(&mut self) {
        for &m in self.frames.iter().take(self.len) {
            // SAFETY: each of the first `len` entries is a frame that the queue owns.
            unsafe { sys::rte_pktmbuf_free(m) }
        }
        self.len = 0;
    }

    /// Offers the frames to `send`, which takes ownership of the first ones and returns how many it took.
    #[inline]
    pub(crate) fn offer(&mut self, send: impl FnOnce(*mut *mut sys::rte_mbuf, u16) -> u16) -> usize {
        if self.len == 0 {
            return 0;
        }
        let sent = usize::from(send(self.frames.as_mut_ptr(), self.len as u16)).min(self.len);
        self.frames.copy_within(sent..self.len, 0);
        self.len -= sent;
        sent
    }
}

/// Returns whether a frame contains lent memory at addresses within `range`.
///
/// # Safety
/// `m` is a live frame.
unsafe fn shows(mut m: *const sys::rte_mbuf, range: &Range<usize>) -> bool {
    // SAFETY: the segments of a live frame are alive.
    while let Some(segment) = unsafe { m.as_ref() } {
        let at = segment.buf_addr as usize + usize::from(segment.data_off);
        let lent = segment.ol_flags & sys::RTE_MBUF_F_EXTERNAL != 0;
        if lent && at < range.end && range.start < at + usize::from(segment.data_len) {
            return true;
        }
        m = segment.next;
    }
    false
}

impl Default for TxQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header lengths that drivers read: `rte_mbuf_core.h`, `tx_offload`.
    #[test]
    fn lengths_of_headers() {
        let headers = |kind: [u8; 2], ip: &[u8]| {
            let mut h = vec![2; 12];
            h.extend(kind);
            h.extend(ip);
            h.extend([0; 20]);
            h
        };
        let v4 = |first, len, protocol| {
            let mut ip = vec![first, 0, 0, 100, 0, 0, 0x40, 0, 64, protocol];
            ip.resize(len, 0);
            ip
        };
        let mut v6 = vec![0x60, 0, 0, 0, 0, 80, 6, 64];
        v6.resize(40, 1);
        let tag = |ip: &[u8], kind: [u8; 2]| [&[0, 7], &kind[..], ip].concat();
        let (ip4, ip6, vlan) = ([0x08, 0x00], [0x86, 0xdd], [0x81, 0x00]);
        let (flag4, flag6) = (sys::RTE_MBUF_F_TX_IPV4, sys::RTE_MBUF_F_TX_IPV6);
        for (frame, family, l2, l3) in [
            (headers(ip4, &v4(0x45, 20, 6)), flag4, 14, 20),
            (headers(ip6, &v6), flag6, 14, 40),
            (headers(vlan, &tag(&v4(0x45, 20, 6), ip4)), flag4, 18, 20),
            (headers(vlan, &tag(&v4(0x46, 24, 6), ip4)), flag4, 18, 24),
            (headers(vlan, &tag(&v6, ip6)), flag6, 18, 40),
        ] {
            assert_eq!(tcp_layers(&frame), Some((family, l2 | l3 << 7)), "{frame:x?}");
        }
        for other in [
            headers(vlan, &tag(&v4(0x45, 20, 17), ip4)),
            headers([0x08, 0x06], &[0; 28]),
            headers(ip6, &[0x60; 8]),
            vec![1; 13],
            Vec::new(),
        ] {
            assert_eq!(tcp_layers(&other), None, "{other:x?}");
        }
    }
}
