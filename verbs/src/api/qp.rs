//! Queue pairs: creation, posting, state.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::api::batch::{RecvBatch, SendBatch, up_to_refused};
use crate::api::cq::Cq;
use crate::api::pd::Pd;
use crate::api::srq::Srq;
use crate::drive::shard::Shard;
use crate::shared::doorbell::Awaited;
use crate::shared::engines::Owner;
use crate::shared::error::{Error, PostError, PostListError, Result};
use crate::shared::events::Object;
use crate::shared::numbers::{MAX_INLINE, MAX_SGE, MAX_WR};
use crate::shared::qp::{QpConnection, QpShared, QpState, Receives, TerminateInfo};
use crate::shared::queue::{Payload, RecvQueue, SendQueue};
use crate::shared::sabotage::{Rule, broken};
use crate::shared::scope::Scopes;
use crate::shared::wr::{RecvWr, SendWr};

/// Attributes of a queue pair: see [`Qp::query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// Present state.
    pub state: QpState,
    /// The Terminate message that ended the connection; `None` if none did.
    pub terminate: Option<TerminateInfo>,
    /// The connection; `None` if there is none in RDMA mode.
    pub connection: Option<QpConnection>,
    /// Capacity of the send queue, in requests.
    pub max_send_wr: u32,
    /// Capacity of the receive queue, in receives; 0 if the queue pair uses a shared receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of scatter-gather elements of a send request.
    pub max_send_sge: u8,
    /// Maximum number of scatter-gather elements of a receive; 0 if the queue pair uses a shared receive queue.
    pub max_recv_sge: u8,
    /// Maximum inline data of a send request, in bytes.
    pub max_inline: u32,
    /// Whether every send request is reported.
    pub signal_all: bool,
    /// Number of the shared receive queue; `None` if the queue pair has receives of its own.
    pub srqn: Option<u32>,
}

/// Parameters of a new queue pair.
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// Completion queue of send requests.
    pub send_cq: &'a Cq,
    /// Completion queue of receives.
    pub recv_cq: &'a Cq,
    /// Capacity of the send queue, in requests; rounded up to a power of two, at least 2.
    pub max_send_wr: u32,
    /// Capacity of the receive queue, in receives; rounded up to a power of two, at least 2.
    pub max_recv_wr: u32,
    /// Maximum number of scatter-gather elements of a send request.
    pub max_send_sge: u8,
    /// Maximum number of scatter-gather elements of a receive.
    pub max_recv_sge: u8,
    /// Maximum inline data of a send request, in bytes.
    pub max_inline: u32,
    /// Whether to report every send request, not only those marked
    /// [`SendFlags::SIGNALED`](crate::SendFlags::SIGNALED).
    pub signal_all: bool,
}

/// A queue pair. Dropping it destroys it: its connection, if any, ends, and its outstanding work no longer
/// completes.
pub struct Qp {
    pub(crate) shared: Arc<QpShared>,
    pub(super) pd: Pd,
}

impl Qp {
    pub(crate) fn create(pd: &Pd, init: &QpInit<'_>, srq: Option<&Srq>) -> Result<Self> {
        let (max_recv_wr, max_recv_sge) = match srq {
            Some(_) => (0, 0),
            None => (init.max_recv_wr, init.max_recv_sge),
        };
        if init.max_send_wr > MAX_WR || max_recv_wr > MAX_WR {
            return Err(Error::Invalid("max_send_wr or max_recv_wr is beyond the device's limit, max_qp_wr"));
        }
        if init.max_send_sge > MAX_SGE || max_recv_sge > MAX_SGE {
            return Err(Error::Invalid("max_send_sge or max_recv_sge is beyond the device's limit, max_sge"));
        }
        if init.max_inline > MAX_INLINE {
            return Err(Error::Invalid("max_inline is beyond the device's limit"));
        }
        let device = &pd.shared.device;
        let qpn = device.qpns.take().ok_or(Error::Exhausted("queue pairs"))?;
        let home = init.send_cq.shared.home;
        let memory = &device.qp_memory;
        let shared = memory.share(QpShared {
            qpn,
            owner: Owner::new(home),
            scopes: Scopes { pd: pd.shared.scope, qp: device.scopes.take() },
            send: SendQueue::new(memory.ring(init.max_send_wr), init.max_send_sge, init.max_inline),
            recv: match srq {
                Some(srq) => Receives::Shared(srq.shared.clone()),
                None => Receives::Own(RecvQueue::new(max_recv_wr, max_recv_sge)),
            },
            send_cq: init.send_cq.shared.clone(),
            recv_cq: init.recv_cq.shared.clone(),
            state: AtomicU8::new(QpState::Idle as u8),
            awaited: Awaited::default(),
            signal_all: init.signal_all,
            terminate: Mutex::new(None),
            events: device.events.clone(),
        });
        match device.shards.of(home).arrange(|engine| engine.attach_qp(shared.clone())) {
            Ok(()) => Ok(Self { shared, pd: pd.clone() }),
            Err(error) => {
                device.scopes.give_back(shared.scopes.qp);
                device.qpns.give_back(qpn);
                Err(error)
            }
        }
    }

    /// Returns the number of this queue pair.
    pub fn qpn(&self) -> u32 {
        self.shared.qpn
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Returns the present state.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Returns the Terminate message that ended the connection; `None` if none did.
    pub fn terminate(&self) -> Option<TerminateInfo> {
        *self.shared.terminate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the capacity of the send queue, in requests.
    pub fn max_send_wr(&self) -> u32 {
        self.shared.send.capacity()
    }

    /// Returns the capacity of the receive queue, in receives; 0 if the queue pair uses a shared receive queue.
    pub fn max_recv_wr(&self) -> u32 {
        match &self.shared.recv {
            Receives::Own(queue) => queue.capacity(),
            Receives::Shared(_) => 0,
        }
    }

    /// Returns the maximum number of scatter-gather elements of a send request.
    pub fn max_send_sge(&self) -> u8 {
        self.shared.send.max_sge()
    }

    /// Returns the maximum number of scatter-gather elements of a receive; 0 if the queue pair uses a shared
    /// receive queue.
    pub fn max_recv_sge(&self) -> u8 {
        match &self.shared.recv {
            Receives::Own(queue) => queue.max_sge(),
            Receives::Shared(_) => 0,
        }
    }

    /// Returns the maximum inline data of a send request, in bytes.
    pub fn max_inline(&self) -> u32 {
        self.shared.send.max_inline()
    }

    /// Posts a send request. In the terminate and error states it completes as flushed. In the closing state it is done
    /// or flushed.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.shared.send.foresee_poster();
        let far = self.shard().is_far();
        let rung = self.post(wr, Payload::Listed(&self.pd.shared.regions), far)?;
        self.ring(far, rung);
        Ok(())
    }

    /// Posts a request, and returns whether the bell [has rung](SendQueue::post). If the queue seems full, waits for the
    /// pass that may be under way and tries once more: a completion becomes visible before the request's slot is free,
    /// and the thread that runs the pass may have lost its core in between.
    #[inline]
    fn post(&self, wr: &SendWr<'_>, payload: Payload<'_>, far: bool) -> Result<bool, PostError> {
        match self.shared.send.post(wr, payload, far) {
            Err(PostError::QueueFull) => self.post_after_pass(wr, payload, far),
            answer => answer,
        }
    }

    #[cold]
    fn post_after_pass(&self, wr: &SendWr<'_>, payload: Payload<'_>, far: bool) -> Result<bool, PostError> {
        let _ = self.shard().await_pass();
        self.shared.send.post(wr, payload, far)
    }

    /// Posts send requests in order, and stops at the first that is refused.
    ///
    /// # Errors
    /// [`PostListError`] with the number of requests that were posted.
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), PostListError> {
        let mut batch = self.send_batch();
        let outcome = up_to_refused(wrs, |wr| batch.push(wr));
        batch.post();
        outcome
    }

    /// Begins a batch of send requests, which are posted together.
    #[inline]
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch::new(self)
    }

    /// Posts a Send or Write of `bytes`, which need not be registered. The request's own list of elements is
    /// ignored, and [`SendFlags::INLINE`](crate::SendFlags::INLINE) is implied.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    pub fn post_send_inline(&self, wr: &SendWr<'_>, bytes: &[u8]) -> Result<(), PostError> {
        self.shared.send.foresee_poster();
        let far = self.shard().is_far();
        let rung = self.post(wr, Payload::Bytes(bytes), far)?;
        self.ring(far, rung);
        Ok(())
    }

    /// Posts a receive. In the terminate and error states it completes as flushed.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let Receives::Own(queue) = &self.shared.recv else { return Err(PostError::SharedReceives) };
        queue.poster().push(wr)?;
        self.ring_for_receives();
        Ok(())
    }

    /// Begins a batch of receives, which are posted together.
    ///
    /// # Errors
    /// [`PostError::SharedReceives`] if the queue pair uses a shared receive queue.
    #[inline]
    pub fn recv_batch(&self) -> Result<RecvBatch<'_>, PostError> {
        let Receives::Own(queue) = &self.shared.recv else { return Err(PostError::SharedReceives) };
        Ok(RecvBatch::of_qp(self, queue.poster()))
    }

    /// Posts receives in order, and stops at the first that is refused.
    ///
    /// # Errors
    /// [`PostListError`] with the number of receives that were posted.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostListError> {
        let mut batch = self.recv_batch().map_err(|error| PostListError { posted: 0, error })?;
        let outcome = up_to_refused(wrs, |wr| batch.push(wr));
        batch.post();
        outcome
    }

    /// Returns the present attributes.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Interrupted`].
    pub fn query(&self) -> Result<QpAttr> {
        let qpn = self.shared.qpn;
        let connection = self.pd.shared.device.arrange_qp(&self.shared, |engine| engine.connection(qpn))?;
        Ok(QpAttr {
            state: self.state(),
            terminate: self.terminate(),
            connection,
            max_send_wr: self.max_send_wr(),
            max_recv_wr: self.max_recv_wr(),
            max_send_sge: self.max_send_sge(),
            max_recv_sge: self.max_recv_sge(),
            max_inline: self.max_inline(),
            signal_all: self.shared.signal_all,
            srqn: match &self.shared.recv {
                Receives::Own(_) => None,
                Receives::Shared(srq) => Some(srq.number()),
            },
        })
    }

    /// Closes gracefully, as [`Connection::disconnect`](crate::Connection::disconnect) does. When all send requests
    /// posted so far are done, [`AsyncEvent::SendQueueDrained`](crate::AsyncEvent::SendQueueDrained) is raised.
    /// (iWARP has no state in which a send queue pauses; its closing state corresponds to the "send queue drained"
    /// state of other transports.)
    ///
    /// # Errors
    /// [`Error::QpState`] if the queue pair is not ready to send.
    pub fn drain(&self) -> Result<()> {
        self.pd.shared.device.control_qp(&self.shared, |engine| engine.drain(self.shared.qpn))
    }

    /// Moves a queue pair from the error state back to idle, from which it can be connected again. Work left in its
    /// queues is flushed first. Completions stay in the completion queues. In the idle state this does nothing.
    ///
    /// # Errors
    /// [`Error::QpState`] in other states. In the terminate state, wait for the error state or call
    /// [`to_error`](Self::to_error).
    pub fn to_idle(&self) -> Result<()> {
        self.pd.shared.device.control_qp(&self.shared, |engine| engine.modify_to_idle(self.shared.qpn))
    }

    /// Moves the queue pair to the error state, from any state: its connection is reset, and outstanding work is
    /// flushed. If the queue pair is connecting and has sent its MPA Request, the connection is not reset: a Terminate
    /// follows if the peer accepts.
    pub fn to_error(&self) {
        let _ = self.pd.shared.device.control_qp(&self.shared, |engine| {
            engine.modify_to_error(self.shared.qpn);
            Ok(())
        });
    }

    /// Returns the shard of the engine that the queue pair belongs to.
    #[inline]
    pub(super) fn shard(&self) -> &Shard {
        self.pd.shared.device.shards.of(self.shared.owner.get())
    }

    /// Tells the engine that there is work. If nothing keeps the request waiting and no other thread drives the engine,
    /// the request is sent before this returns. If the engine [is `far`](Shard::is_far), the request is left to the
    /// thread that drives it even between two passes, because sending it here would move the engine's data to this core
    /// and back. If the bell [has `rung`](SendQueue::post), the request waits for the next pass with those before it.
    #[inline]
    pub(super) fn ring(&self, far: bool, rung: bool) {
        let shard = self.shard();
        let kicks = !rung && !far && !self.shared.send.bell.has_rung() && !broken(Rule::Doorbell);
        if kicks && shard.kick(self.shared.qpn) {
            return;
        }
        if rung || !self.shared.send.bell.ring() {
            shard.doorbells.join();
        } else if !broken(Rule::Doorbell) {
            shard.ring(self.shared.qpn);
        }
        if self.is_over() {
            self.shared.send_cq.ask(self.shared.owner.get());
        }
    }

    /// Returns whether the engine may flush posted work: in the closing, terminate and error states.
    #[inline]
    fn is_over(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) > QpState::Rts as u8
    }

    /// Tells the engine about new receives if it must flush them, or if a Send waits for one. The fence in
    /// `seen_after_post` also pairs with that of `set_state`: either this thread sees the state, or the engine
    /// sees the receive.
    #[inline]
    pub(super) fn ring_for_receives(&self) {
        let awaited = self.shared.awaited.seen_after_post();
        let over = self.is_over();
        if over {
            self.shared.recv_cq.ask(self.shared.owner.get());
        }
        if over || awaited {
            let shard = self.shard();
            match self.shared.send.bell.ring() {
                true => shard.ring(self.shared.qpn),
                // The queue pair's requests may wait for a burst, but receives must not.
                false => shard.ring_receives(),
            }
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let device = &self.pd.shared.device;
        let detached = device.control_qp(&self.shared, |engine| {
            engine.detach_qp(self.shared.qpn);
            Ok(())
        });
        // The queue pair may have moved, and its doorbell at an old engine must go as well.
        let forgotten = detached.and_then(|()| {
            device.shards.iter().try_for_each(|shard| {
                shard.arrange(|_| {
                    shard.doorbells.forget(self.shared.qpn);
                    Ok(())
                })
            })
        });
        if matches!(forgotten, Err(Error::Interrupted)) {
            return; // the engine still has the queue pair, and with it the number and the scope
        }
        device.events.forget(Object::Qp(self.shared.qpn));
        device.scopes.give_back(self.shared.scopes.qp);
        device.qpns.give_back(self.shared.qpn);
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.qpn()).field("state", &self.state()).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
