//! TCP checksums that NICs compute and verify.
//!
//! Sending: the stack leaves the sum of the pseudo-header in the field, and the mbuf says where the layers are
//! (`rte_mbuf_core.h`, `RTE_MBUF_F_TX_TCP_CKSUM`). Before each burst, DPDK requires a call that lets the driver prepare
//! and check the frames (`rte_eth_tx_prepare`, `rte_ethdev.h`): some drivers write their own sum of the pseudo-header,
//! and some refuse frames that their NIC cannot handle. A refused frame is copied into a single mbuf, with its
//! checksum computed here, and the copy is sent. The header checksum of IPv4 is never left to the NIC.
//!
//! Receiving: if the NIC reports the checksum of a whole TCP segment as right, it is trusted. If the NIC reports a
//! wrong checksum or none, the stack verifies it.

use std::ffi::CStr;
use std::ptr::NonNull;

use dpdk_sys as sys;

use super::NicChecksums;
use crate::checksum::is_complete;
use crate::layers::Layers;
use crate::{Mbuf, Pool, fill_checksum};

#[cfg(test)]
mod tests;

const TCP: u8 = 6;

/// Returns whether the driver uses `RTE_MBUF_F_RX_L4_CKSUM_NONE` for frames that need no check. Drivers, here by DPDK's
/// names for them, differ in what they report:
///
/// * `net_virtio` reports `RTE_MBUF_F_RX_L4_CKSUM_NONE`, "not correct in the packet data, but the integrity of the data
///   is verified", for a frame with an unfilled checksum that has crossed memory only. No other driver's report of
///   this kind is trusted, because an unfilled checksum makes no sense in a frame from a cable.
/// * `net_e1000_em` reports bad checksums, never good ones.
/// * `net_vmxnet3` in QEMU reports nothing, although it claims the capability.
fn vouches_for_unfilled(driver: &CStr) -> bool {
    driver == c"net_virtio"
}

/// A port's NIC: which of its reports are trusted, and counters of its checksum work.
#[derive(Debug)]
pub(super) struct Nic {
    vouches_for_unfilled: bool,
    pub(super) counts: NicChecksums,
}

impl Nic {
    pub(super) fn new(driver: &CStr) -> Self {
        Self { vouches_for_unfilled: vouches_for_unfilled(driver), counts: NicChecksums::default() }
    }

    /// Removes the NIC's verdict from a received frame unless the verdict can be trusted.
    #[inline(never)]
    pub(super) fn judge(&mut self, frame: &mut Mbuf) {
        if !self.believes(frame.checksum_flags(), frame.data()) {
            frame.distrust_checksum();
        }
    }

    fn believes(&mut self, verdict: u64, frame: &[u8]) -> bool {
        match verdict {
            sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD => {}
            sys::RTE_MBUF_F_RX_L4_CKSUM_NONE if self.vouches_for_unfilled => {}
            sys::RTE_MBUF_F_RX_L4_CKSUM_BAD => {
                self.counts.rx_bad += 1;
                return false;
            }
            _ => return false,
        }
        let believed = is_whole_segment(frame);
        self.counts.rx_good += u64::from(believed);
        believed
    }

    /// Makes the driver prepare and send frames. A frame that the driver refuses is sent as a linear copy in an mbuf of
    /// `pool`, or is lost if it cannot be copied. Returns how many frames from the front were sent or lost.
    ///
    /// # Safety
    /// `frames` points to `n` live frames that the caller owns. `ops` are the functions of a started device, and only
    /// the caller uses its queue `queue`. The caller no longer owns the frames that were sent or lost.
    #[inline(never)]
    pub(super) unsafe fn send(
        &mut self,
        (ops, queue): (*const sys::rte_eth_fp_ops, u16),
        frames: *mut *mut sys::rte_mbuf,
        n: u16,
        pool: &mut Pool,
    ) -> u16 {
        // SAFETY: as the caller promises; a refused frame is not used afterwards.
        unsafe {
            self.offer((ops, queue), frames, n, |refused| {
                let own = in_software(refused, pool);
                sys::rte_pktmbuf_free(refused);
                own.map(|own| own.into_raw().as_ptr())
            })
        }
    }

    /// Does the work of [`send`](Self::send). `instead` takes a frame that the driver refuses, and returns the frame to
    /// send in its place; `None`: the frame is lost.
    ///
    /// # Safety
    /// As for `send`.
    #[inline]
    unsafe fn offer(
        &mut self,
        (ops, queue): (*const sys::rte_eth_fp_ops, u16),
        frames: *mut *mut sys::rte_mbuf,
        n: u16,
        mut instead: impl FnMut(*mut sys::rte_mbuf) -> Option<*mut sys::rte_mbuf>,
    ) -> u16 {
        // SAFETY: as the caller promises; `taken` stays within `n`.
        unsafe {
            let Some(burst) = (*ops).tx_pkt_burst else { return 0 };
            let queue = *(*ops).txq.data.add(queue.into());
            let mut taken = 0;
            while taken < n {
                let (at, rest) = (frames.add(taken.into()), n - taken);
                // Drivers without anything to prepare have no such function.
                let ready = (*ops).tx_pkt_prepare.map_or(rest, |prepare| prepare(queue, at, rest));
                let left = left_to_nic(at, ready);
                let sent = if ready > 0 { burst(queue, at, ready) } else { 0 };
                self.counts.tx_filled += left - left_to_nic(at.add(sent.into()), ready - sent);
                taken += sent;
                if sent < ready || taken == n {
                    break;
                }
                let refused = frames.add(taken.into());
                taken += 1;
                match instead(*refused) {
                    Some(own) => {
                        self.counts.tx_refused += 1;
                        *refused = own;
                        // If the queue has no room for the copy, the caller owns it in the place of the refused frame.
                        if burst(queue, refused, 1) == 0 {
                            taken -= 1;
                            break;
                        }
                    }
                    // The frame is lost, as if on the wire, and TCP retransmits it.
                    None => self.counts.tx_unsent += 1,
                }
            }
            taken
        }
    }
}

/// Returns whether a frame is a whole TCP segment, so that the NIC can have verified it. In an IPv4 packet, the header
/// checksum must be right as well (RFC 1122 §3.2.1.2), because the NIC's verdict covers only TCP.
fn is_whole_segment(frame: &[u8]) -> bool {
    let Some(l) = Layers::of(frame).filter(|l| l.protocol == TCP && l.payload + l.len <= frame.len()) else {
        return false;
    };
    l.v6 || frame.get(l.ip..l.payload).is_some_and(is_complete)
}

/// Returns how many of `n` frames leave their checksum to the NIC.
///
/// # Safety
/// The frames are live.
unsafe fn left_to_nic(frames: *const *mut sys::rte_mbuf, n: u16) -> u64 {
    // SAFETY: as the caller promises.
    let is_left = |&i: &usize| unsafe { (**frames.add(i)).ol_flags & sys::RTE_MBUF_F_TX_TCP_CKSUM != 0 };
    (0..usize::from(n)).filter(is_left).count() as u64
}

/// Copies a frame into a single mbuf with a full checksum, which needs no work of a NIC. Returns `None` if the pool is
/// empty or the frame does not fit.
///
/// # Safety
/// `m` is a live frame.
unsafe fn in_software(m: *const sys::rte_mbuf, pool: &mut Pool) -> Option<Mbuf> {
    let mut own = pool.mbuf()?;
    // SAFETY: as the caller promises.
    let (len, flags) = unsafe { ((*m).pkt_len as usize, (*m).ol_flags) };
    let out = own.append(len)?;
    // SAFETY: as above.
    unsafe { gather(NonNull::new(m.cast_mut()), out) };
    if flags & sys::RTE_MBUF_F_TX_TCP_CKSUM != 0 {
        fill_checksum(out);
    }
    Some(own)
}

/// Copies the segments of a frame one after the other, as far as there is room.
///
/// # Safety
/// The segments are live, and `out` overlaps none of them.
unsafe fn gather(mut m: Option<NonNull<sys::rte_mbuf>>, mut out: &mut [u8]) {
    while let Some(segment) = m {
        // SAFETY: as the caller promises; a segment's data lies in its buffer, which may be memory that a program
        // writes to.
        unsafe {
            let segment = segment.as_ref();
            let n = usize::from(segment.data_len).min(out.len());
            let from = segment.buf_addr.cast::<u8>().add(segment.data_off.into());
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), n);
            out = &mut out[n..];
            m = NonNull::new(segment.next);
        }
    }
}
