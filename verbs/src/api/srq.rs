//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use crate::api::batch::RecvBatch;
use crate::api::pd::Pd;
use crate::shared::engines::EngineNumber;
use crate::shared::error::{Error, PostError, PostListError, Result};
use crate::shared::numbers::{MAX_SGE, MAX_WR, Number};
use crate::shared::queue::RecvQueue;
use crate::shared::srq::SrqShared;
use crate::shared::wr::RecvWr;

/// Parameters of a new shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Capacity, in receives; rounded up to a power of two, at least 2.
    pub max_wr: u32,
    /// Maximum number of scatter-gather elements of a receive.
    pub max_sge: u8,
    /// The limit of [`Srq::set_limit`], in receives; 0: no limit.
    pub limit: u32,
}

/// Attributes of a shared receive queue: see [`Srq::attributes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Capacity, in receives.
    pub max_wr: u32,
    /// Maximum number of scatter-gather elements of a receive.
    pub max_sge: u8,
    /// The limit, in receives, until its event is raised; 0: no event is requested.
    pub limit: u32,
}

/// A shared receive queue: receives for the messages of many queue pairs.
///
/// A message takes the oldest receive when its first segment arrives. Receives are therefore taken in the order
/// in which they were posted, and each queue pair completes its receives in the order of its messages. A
/// message that finds no receive ends its connection with a Terminate (RFC 5041 §7.1), unless
/// [`ConnParam::rnr_retry`](crate::ConnParam::rnr_retry) lets it wait for one.
///
/// A queue pair that fails reports the receive that it had taken, if any, and raises
/// [`AsyncEvent::LastWqeReached`](crate::AsyncEvent::LastWqeReached). Receives that still wait in the queue remain
/// for the other queue pairs. After the handle is dropped, nothing more can be posted, but the queue pairs still
/// take the receives that are there.
///
/// ```
/// use urnic::simulation::{Options, Simulation};
/// use urnic::*;
///
/// let simulation = Simulation::new(&Options::default())?;
/// let device = simulation.device(0);
/// let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None)?);
/// let srq = pd.create_srq(&SrqInit { max_wr: 64, max_sge: 1, limit: 16 })?;
/// let buffers = pd.alloc_mr(64 * 256, Access::LOCAL_WRITE)?;
/// for i in 0..64 {
///     srq.post_recv(&RecvWr { wr_id: i, sges: &[Sge::of(&buffers, i * 256, 256)] })?;
/// }
/// let init = QpInit {
///     send_cq: &cq,
///     recv_cq: &cq,
///     max_send_wr: 8,
///     max_recv_wr: 0,
///     max_send_sge: 1,
///     max_recv_sge: 0,
///     max_inline: 0,
///     signal_all: false,
/// };
/// let clients = [pd.create_qp_with_srq(&init, &srq)?, pd.create_qp_with_srq(&init, &srq)?];
/// # drop(clients);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Srq {
    pub(crate) shared: Arc<SrqShared>,
    pd: Pd,
}

impl Srq {
    pub(crate) fn create(pd: &Pd, init: &SrqInit) -> Result<Self> {
        if init.max_wr == 0 || init.max_wr > MAX_WR {
            return Err(Error::Invalid("max_wr is 0 or beyond the device's limit, max_srq_wr"));
        }
        if init.max_sge > MAX_SGE {
            return Err(Error::Invalid("max_sge is beyond the device's limit, max_srq_sge"));
        }
        if init.limit > init.max_wr {
            return Err(Error::Invalid("the limit is beyond the size of the shared receive queue"));
        }
        let device = &pd.shared.device;
        let number = Number::take(&device.srqns).ok_or(Error::Exhausted("shared receive queues"))?;
        let queue = RecvQueue::new(init.max_wr, init.max_sge);
        let (scope, events) = (pd.shared.scope, device.events.clone());
        let shared = SrqShared::new(number, scope, queue, init.limit, events, device.commons.engines());
        Ok(Self { shared: Arc::new(shared), pd: pd.clone() })
    }

    /// Returns the number of this queue, which events about it carry.
    pub fn srqn(&self) -> u32 {
        self.shared.number()
    }

    /// Returns the protection domain, to which the memory of the receives belongs.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the present attributes.
    pub fn attributes(&self) -> SrqAttr {
        let queue = &self.shared.queue;
        SrqAttr { max_wr: queue.capacity(), max_sge: queue.max_sge(), limit: self.shared.limit() }
    }

    /// Requests one [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) for the moment when fewer
    /// than `limit` receives wait in the queue, which may be at once. 0 cancels the request.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a limit beyond the capacity of the queue; [`Error::Forked`]; [`Error::Interrupted`].
    pub fn set_limit(&self, limit: u32) -> Result<()> {
        if limit > self.shared.queue.capacity() {
            return Err(Error::Invalid("the limit is beyond the size of the shared receive queue"));
        }
        self.pd.shared.device.shards.first().control(|_| {
            self.shared.set_limit(limit);
            Ok(())
        })
    }

    /// Posts a receive. Any thread may post at any time.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.post(std::slice::from_ref(wr)).map_err(|refused| refused.error)?;
        self.ring_if_awaited();
        Ok(())
    }

    /// Begins a batch of receives, which are posted together.
    #[inline]
    pub fn recv_batch(&self) -> RecvBatch<'_> {
        RecvBatch::of_srq(self)
    }

    /// Posts receives in order, and stops at the first that is refused. No other thread's receives come in between.
    ///
    /// # Errors
    /// [`PostListError`] with the number of receives that were posted.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostListError> {
        let outcome = self.shared.post(wrs);
        self.ring_if_awaited();
        outcome
    }

    /// Rings the engines whose messages wait for receives. Other engines look at the queue when a message arrives.
    #[inline]
    pub(super) fn ring_if_awaited(&self) {
        let engines = self.shared.awaited.seen_after_post();
        if engines != 0 {
            self.ring(engines);
        }
    }

    #[cold]
    fn ring(&self, engines: u64) {
        let device = &self.pd.shared.device;
        if !self.shared.several {
            return device.shards.first().ring_receives();
        }
        let fellows = EngineNumber::of_set(engines).filter_map(|engine| device.commons.fellow(engine));
        fellows.for_each(|fellow| fellow.ring_receives());
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq").field("srqn", &self.srqn()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
