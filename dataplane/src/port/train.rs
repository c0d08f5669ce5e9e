//! Splits received frames that hold several TCP segments and are longer than an mbuf.
//!
//! Peers that have negotiated segmentation offload may send frames of up to 64 KiB, which the driver delivers as a
//! chain of mbufs. The stack takes only linear frames, so each mbuf of the chain becomes a frame with headers of its
//! own, as if the sender had cut the frame there. urnic itself never sends frames that are longer than an mbuf.

use std::ops::Range;
use std::ptr::{self, NonNull};

use arrayvec::ArrayVec;
use dpdk_sys as sys;

use super::BURST;
use crate::layers::Layers;
use crate::{HEADROOM, Mbuf};

const TCP: u8 = 6;
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;

/// The headers of a TCP frame, and the offsets of its layers.
struct Headers {
    bytes: ArrayVec<u8, HEADROOM>,
    layers: Layers,
}

impl Headers {
    fn of(frame: &[u8]) -> Option<Self> {
        let layers = Layers::of(frame).filter(|l| l.protocol == TCP)?;
        let tcp = layers.payload;
        let len = tcp + usize::from(frame.get(tcp + 12)? >> 4) * 4;
        let bytes = ArrayVec::try_from(frame.get(..len)?).ok()?;
        (len >= tcp + 20).then_some(Self { bytes, layers })
    }

    fn put(&mut self, at: Range<usize>, value: &[u8]) {
        if let Some(field) = self.bytes.get_mut(at) {
            field.copy_from_slice(value);
        }
    }

    /// Returns the headers for `len` bytes of payload that start `offset` bytes into the frame's payload.
    fn describe(&self, offset: u32, len: usize, last: bool) -> ArrayVec<u8, HEADROOM> {
        let Layers { ip, payload: tcp, v6, .. } = self.layers;
        let mut h = Self { bytes: self.bytes.clone(), layers: self.layers };
        // IPv6's length does not include its own header. IPv4's header checksum stays as it was, because frames of
        // this kind come with their checksums trusted.
        let (from, at) = if v6 { (tcp, ip + 4) } else { (ip, ip + 2) };
        h.put(at..at + 2, &((self.bytes.len() - from + len) as u16).to_be_bytes());
        let mut seq = [0; 4];
        seq.copy_from_slice(&self.bytes[tcp + 4..tcp + 8]);
        h.put(tcp + 4..tcp + 8, &u32::from_be_bytes(seq).wrapping_add(offset).to_be_bytes());
        if !last {
            let flags = self.bytes[tcp + 13] & !(FIN | PSH);
            h.put(tcp + 13..tcp + 14, &[flags]);
        }
        h.bytes
    }
}

/// Splits the chain at `head` into `frames`. Returns how many frames were lost. That is one if the chain does not
/// consist of TCP segments; otherwise, one for each mbuf without room for the headers or without a place in `frames`.
///
/// # Safety
/// `head` is a received chain of direct mbufs that only we use.
pub(super) unsafe fn split<F: From<Mbuf>>(
    head: NonNull<sys::rte_mbuf>,
    frames: &mut ArrayVec<F, BURST>,
) -> u64 {
    // SAFETY: the chain is ours, and each of its mbufs is handled once; the headers are written into the room before
    // the data, or over the old headers.
    unsafe {
        let flags = head.as_ref().ol_flags;
        let first = head.as_ref().buf_addr.cast::<u8>().add(head.as_ref().data_off.into());
        let linear = std::slice::from_raw_parts(first, head.as_ref().data_len.into());
        let headers = Headers::of(linear).filter(|_| flags & sys::RTE_MBUF_F_RX_LRO != 0);
        let Some(headers) = headers else {
            sys::rte_pktmbuf_free(head.as_ptr());
            return 1;
        };
        let size = headers.bytes.len() as u16;
        let (mut lost, mut offset, mut next) = (0, 0, Some(head));
        while let Some(mut m) = next {
            let mbuf = m.as_mut();
            next = NonNull::new(mbuf.next);
            mbuf.next = ptr::null_mut();
            mbuf.nb_segs = 1;
            if m == head {
                mbuf.data_off += size;
                mbuf.data_len -= size;
            }
            let payload = mbuf.data_len;
            if mbuf.data_off < size || frames.is_full() {
                lost += 1;
                offset += u32::from(payload);
                sys::rte_pktmbuf_free_seg(m.as_ptr());
                continue;
            }
            let own = headers.describe(offset, payload.into(), next.is_none());
            offset += u32::from(payload);
            mbuf.data_off -= size;
            mbuf.data_len += size;
            mbuf.pkt_len = mbuf.data_len.into();
            mbuf.ol_flags = flags & sys::RTE_MBUF_F_RX_L4_CKSUM_MASK;
            let at = mbuf.buf_addr.cast::<u8>().add(mbuf.data_off.into());
            ptr::copy_nonoverlapping(own.as_ptr(), at, own.len());
            frames.push(F::from(Mbuf::from_raw(m)));
        }
        lost
    }
}
