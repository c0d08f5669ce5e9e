//! Memory windows: parts of regions that peers may use for a while.

use std::sync::atomic::{AtomicU8, Ordering};

use super::mr::Mr;
use crate::api::pd::Pd;
use crate::api::qp::Qp;
use crate::shared::error::{PostError, Result};
use crate::shared::memory::{Access, MwKind};
use crate::shared::wr::{SendFlags, SendOp, SendWr};

/// A memory window. Dropping it withdraws the access that it grants.
///
/// ```
/// # use urnic::simulation::{Options, Simulation};
/// # use urnic::*;
/// # use std::net::SocketAddrV4;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut simulation = Simulation::new(&Options::default())?;
/// # let device = simulation.device(0);
/// # let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None)?);
/// # let init = QpInit {
/// #     send_cq: &cq, recv_cq: &cq, max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1,
/// #     max_inline: 0, signal_all: false,
/// # };
/// # let (qp, peer) = (pd.create_qp(&init)?, pd.create_qp(&init)?);
/// # let (events, peer_events) = (device.create_event_channel()?, device.create_event_channel()?);
/// # let _listener = peer_events.listen(7000, 1)?;
/// # let to = SocketAddrV4::new(Simulation::address(0), 7000);
/// # let _connection = events.connect(&qp, to, &ConnParam::default())?;
/// # let limit = std::time::Duration::from_secs(1);
/// # simulation.run(limit, || {
/// #     if let Some(CmEvent::ConnectRequest(request)) = peer_events.poll() {
/// #         request.accept(&peer, &ConnParam::default()).unwrap();
/// #     }
/// #     qp.state() == QpState::Rts
/// # });
/// // `pd` and `qp` exist, and the queue pair is connected.
/// let table = pd.alloc_mr(1 << 20, Access::LOCAL_WRITE)?;
/// let window = pd.alloc_mw(MwKind::Two)?;
/// // The peer may write 4 KiB of the table, until the window is invalidated.
/// let (rkey, addr) = (window.fresh_rkey(), table.addr() + 8192);
/// let access = Access::REMOTE_WRITE;
/// let op = SendOp::BindMw { rkey, lkey: table.lkey(), addr, len: 4096, access };
/// qp.post_send(&SendWr { wr_id: 1, op, sges: &[], flags: SendFlags::empty() })?;
/// // A Send that tells the peer `rkey` and `addr` may follow at once. To take the access back later:
/// let op = SendOp::LocalInv(rkey);
/// qp.post_send(&SendWr { wr_id: 2, op, sges: &[], flags: SendFlags::SIGNALED })?;
/// // When this request has completed, the peer can no longer change the 4 KiB.
/// # let mut wc = [Wc::default()];
/// # assert!(simulation.run(limit, || cq.poll(&mut wc) == 1));
/// # assert_eq!((wc[0].wr_id, wc[0].status), (2, WcStatus::Success));
/// # Ok(())
/// # }
/// ```
pub struct Mw {
    stag: u32,
    /// Key octet of the latest [`bind`](Self::bind) or [`fresh_rkey`](Self::fresh_rkey).
    key: AtomicU8,
    kind: MwKind,
    pd: Pd,
}

/// The part of a region to which [`Mw::bind`] binds a window.
#[derive(Clone, Copy, Debug)]
pub struct MwBind<'a> {
    /// The region, which must not be [`Access::ZERO_BASED`].
    pub mr: &'a Mr,
    /// First byte, counted from the start of the region.
    pub offset: u64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// Remote rights, and [`Access::ZERO_BASED`] if the peer counts the bytes from 0.
    pub access: Access,
}

impl Mw {
    pub(crate) fn allocate(pd: &Pd, kind: MwKind) -> Result<Self> {
        let scope = pd.shared.scope;
        let stag = pd.shared.device.table.insert_window(kind, scope)?;
        Ok(Self { stag, key: AtomicU8::new(stag as u8), kind, pd: pd.clone() })
    }

    /// Returns the STag that [`bind`](Self::bind) or [`fresh_rkey`](Self::fresh_rkey) returned last; before the first
    /// such call, the STag that the window was allocated with.
    pub fn rkey(&self) -> u32 {
        self.stag & !0xff | u32::from(self.key.load(Ordering::Relaxed))
    }

    /// Returns a new STag for the next [`SendOp::BindMw`] of this window. An STag is repeated only after all other
    /// values of the key octet were used.
    pub fn fresh_rkey(&self) -> u32 {
        let key = self.key.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        match self.stag & !0xff | u32::from(key) {
            // STag 0 never names a window.
            0 => self.fresh_rkey(),
            rkey => rkey,
        }
    }

    /// Posts a request to `qp` that binds the window, and returns the window's new STag. Requests posted later may
    /// use the STag at once; peers may use it once the request has completed.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then. A binding that is not possible fails later, when the request is
    /// executed: [`WcStatus::MemoryManagement`](crate::WcStatus::MemoryManagement).
    pub fn bind(&self, qp: &Qp, wr_id: u64, flags: SendFlags, bind: &MwBind<'_>) -> Result<u32, PostError> {
        let before = self.key.load(Ordering::Relaxed);
        let rkey = self.fresh_rkey();
        let MwBind { mr, offset, len, access } = *bind;
        let addr = mr.addr().wrapping_add(offset);
        let op = SendOp::BindMw { rkey, lkey: mr.lkey(), addr, len, access };
        let posted = qp.post_send(&SendWr { wr_id, op, sges: &[], flags });
        if posted.is_err() {
            // The window keeps its STag, unless another thread has taken a new one meanwhile.
            let _ = self.key.compare_exchange(rkey as u8, before, Ordering::Relaxed, Ordering::Relaxed);
        }
        posted.map(|()| rkey)
    }

    /// Returns the kind.
    pub fn kind(&self) -> MwKind {
        self.kind
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        let device = &self.pd.shared.device;
        let withdrawn = device.table.withdraw(self.stag).and_then(|()| device.await_passes());
        // An STag that passes may still use is not released.
        let _ = withdrawn.and_then(|()| device.table.release(self.stag));
    }
}

impl std::fmt::Debug for Mw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mw")
            .field("kind", &self.kind)
            .field("rkey", &format_args!("{:#010x}", self.rkey()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Mw, MwKind};
    use crate::api::fake;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU8;
    use urnic_config::Progress;

    /// A key is repeated only after all others were used.
    #[test]
    fn a_fresh_key_is_never_0() {
        let (device, _) = fake::device(Progress::Inline);
        for slot in [0, 7 << 8] {
            let window = Mw { stag: slot, key: AtomicU8::new(9), kind: MwKind::Two, pd: device.alloc_pd() };
            let all = if slot == 0 { 255 } else { 256 };
            let keys: HashSet<u32> = (0..all).map(|_| window.fresh_rkey()).collect();
            assert_eq!((keys.len(), keys.contains(&0)), (all, false));
            assert!(keys.iter().all(|rkey| rkey & !0xff == slot) && keys.contains(&window.rkey()));
        }
    }
}
