//! Queue pairs.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::api::batch::{RecvBatch, SendBatch, up_to_refused};
use crate::api::cq::Cq;
use crate::api::pd::Pd;
use crate::api::srq::Srq;
use crate::drive::shard::Shard;
use crate::shared::doorbell::{Awaited, Bell};
use crate::shared::engines::Owner;
use crate::shared::error::{Error, PostError, PostListError, Result};
use crate::shared::events::Object;
use crate::shared::numbers::{MAX_INLINE, MAX_SGE, MAX_WR};
use crate::shared::qp::{QpConnection, QpShared, QpState, Receives, TerminateInfo};
use crate::shared::queue::{Payload, RecvQueue, SendQueue};
use crate::shared::sabotage::{Rule, broken};
use crate::shared::scope::Scopes;
use crate::shared::wr::{RecvWr, SendWr};

/// What a queue pair is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// The state.
    pub state: QpState,
    /// The Terminate message that ended the connection, if one did.
    pub terminate: Option<TerminateInfo>,
    /// The connection, while there is one in RDMA mode.
    pub connection: Option<QpConnection>,
    /// Send requests that fit the queue.
    pub max_send_wr: u32,
    /// Receives that fit the queue; 0 if they come from a shared one.
    pub max_recv_wr: u32,
    /// Scatter-gather elements of a send request.
    pub max_send_sge: u8,
    /// Scatter-gather elements of a receive; 0 if they come from a shared queue.
    pub max_recv_sge: u8,
    /// Inline bytes of a send request.
    pub max_inline: u32,
    /// Every send request is reported.
    pub signal_all: bool,
    /// The shared receive queue.
    pub srqn: Option<u32>,
}

/// What a new queue pair is like.
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// Where send requests complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// Send requests that can be outstanding; rounded up to a power of two.
    pub max_send_wr: u32,
    /// Receives that can be outstanding; rounded up to a power of two.
    pub max_recv_wr: u32,
    /// Scatter-gather elements of a send request.
    pub max_send_sge: u8,
    /// Scatter-gather elements of a receive.
    pub max_recv_sge: u8,
    /// Inline bytes of a send request.
    pub max_inline: u32,
    /// Report every send request, not only those marked [`SendFlags::SIGNALED`](crate::SendFlags::SIGNALED).
    pub signal_all: bool,
}

/// A queue pair. Dropping it destroys it: its connection, if any, ends, and nothing completes any more.
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
            return Err(Error::Invalid("too many work requests"));
        }
        if init.max_send_sge > MAX_SGE || max_recv_sge > MAX_SGE {
            return Err(Error::Invalid("too many scatter-gather elements"));
        }
        if init.max_inline > MAX_INLINE {
            return Err(Error::Invalid("too many inline bytes"));
        }
        let device = &pd.shared.device;
        let qpn = device.qpns.take().ok_or(Error::Exhausted("queue pairs"))?;
        let home = init.send_cq.shared.home;
        let shared = Arc::new(QpShared {
            qpn,
            owner: Owner::new(home),
            scopes: Scopes { pd: pd.shared.scope, qp: device.next_scope() },
            send: SendQueue::new(init.max_send_wr, init.max_send_sge, init.max_inline),
            recv: match srq {
                Some(srq) => Receives::Shared(srq.shared.clone()),
                None => Receives::Own(RecvQueue::new(max_recv_wr, max_recv_sge)),
            },
            send_cq: init.send_cq.shared.clone(),
            recv_cq: init.recv_cq.shared.clone(),
            state: AtomicU8::new(QpState::Idle as u8),
            bell: Bell::default(),
            awaited: Awaited::default(),
            signal_all: init.signal_all,
            terminate: Mutex::new(None),
            events: device.events.clone(),
        });
        match device.shards.of(home).arrange(|engine| engine.attach_qp(shared.clone())) {
            Ok(()) => Ok(Self { shared, pd: pd.clone() }),
            Err(error) => {
                device.qpns.give_back(qpn);
                Err(error)
            }
        }
    }

    /// The number of this queue pair.
    pub fn qpn(&self) -> u32 {
        self.shared.qpn
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Its state at this moment.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// The Terminate message that ended the connection, if one did.
    pub fn terminate(&self) -> Option<TerminateInfo> {
        *self.shared.terminate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Send requests that fit the queue.
    pub fn max_send_wr(&self) -> u32 {
        self.shared.send.capacity()
    }

    /// Receives that fit the queue; 0 if they come from a shared one.
    pub fn max_recv_wr(&self) -> u32 {
        match &self.shared.recv {
            Receives::Own(queue) => queue.capacity(),
            Receives::Shared(_) => 0,
        }
    }

    /// Scatter-gather elements of a send request.
    pub fn max_send_sge(&self) -> u8 {
        self.shared.send.max_sge()
    }

    /// Scatter-gather elements of a receive; 0 if they come from a shared queue.
    pub fn max_recv_sge(&self) -> u8 {
        match &self.shared.recv {
            Receives::Own(queue) => queue.max_sge(),
            Receives::Shared(_) => 0,
        }
    }

    /// Inline bytes of a send request.
    pub fn max_inline(&self) -> u32 {
        self.shared.send.max_inline()
    }

    /// Posts a send request. In the error state it completes as flushed.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    #[inline]
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post(wr, Payload::Listed(&self.pd.shared.regions))?;
        self.ring();
        Ok(())
    }

    /// Posts under the queue's lock. A queue that seems full is looked at again after the pass of the engine that may be
    /// under way: a completion is seen before the slot is free, and whoever runs that pass may have lost its core in
    /// between.
    #[inline]
    fn post(&self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        let answer = self.shared.send.poster().push(wr, payload);
        if answer == Err(PostError::QueueFull) { self.post_after_pass(wr, payload) } else { answer }
    }

    #[cold]
    fn post_after_pass(&self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        let _ = self.shard().await_pass();
        self.shared.send.poster().push(wr, payload)
    }

    /// Posts send requests in order, up to the first that is refused.
    ///
    /// # Errors
    /// [`PostListError`] says how many were posted.
    pub fn post_send_list(&self, wrs: &[SendWr<'_>]) -> Result<(), PostListError> {
        let mut batch = self.send_batch();
        let outcome = up_to_refused(wrs, |wr| batch.push(wr));
        batch.post();
        outcome
    }

    /// Begins a batch of send requests.
    #[inline]
    pub fn send_batch(&self) -> SendBatch<'_> {
        SendBatch::new(self)
    }

    /// Posts a Send or Write of these bytes, which need no registration. The request's own list is not looked
    /// at, and [`SendFlags::INLINE`](crate::SendFlags::INLINE) is implied.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    pub fn post_send_inline(&self, wr: &SendWr<'_>, bytes: &[u8]) -> Result<(), PostError> {
        self.post(wr, Payload::Bytes(bytes))?;
        self.ring();
        Ok(())
    }

    /// Posts a receive. In the error state it completes as flushed.
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

    /// Begins a batch of receives.
    ///
    /// # Errors
    /// [`PostError::SharedReceives`] if they come from a shared queue.
    #[inline]
    pub fn recv_batch(&self) -> Result<RecvBatch<'_>, PostError> {
        let Receives::Own(queue) = &self.shared.recv else { return Err(PostError::SharedReceives) };
        Ok(RecvBatch::of_qp(self, queue.poster()))
    }

    /// Posts receives in order, up to the first that is refused.
    ///
    /// # Errors
    /// [`PostListError`] says how many were posted.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostListError> {
        let mut batch = self.recv_batch().map_err(|error| PostListError { posted: 0, error })?;
        let outcome = up_to_refused(wrs, |wr| batch.push(wr));
        batch.post();
        outcome
    }

    /// What it is like now.
    ///
    /// # Errors
    /// [`Error::Forked`].
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

    /// Closes gracefully, as [`Connection::disconnect`](crate::Connection::disconnect) does, and has an
    /// [`AsyncEvent::SendQueueDrained`](crate::AsyncEvent::SendQueueDrained) tell when all send requests posted so
    /// far are done. (iWARP has no state in which a send queue pauses; what other transports call "send queue
    /// drain" is its closing state.)
    ///
    /// # Errors
    /// [`Error::QpState`] if the queue pair is not ready to send.
    pub fn drain(&self) -> Result<()> {
        self.pd.shared.device.control_qp(&self.shared, |engine| engine.drain(self.shared.qpn))
    }

    /// Moves a queue pair in the error state back to idle: it can be connected again. What is left in its queues is
    /// flushed first; completions stay where they are. In the idle state this does nothing.
    ///
    /// # Errors
    /// [`Error::QpState`] in other states. In the terminate state, wait for the error state or call
    /// [`to_error`](Self::to_error).
    pub fn to_idle(&self) -> Result<()> {
        self.pd.shared.device.control_qp(&self.shared, |engine| engine.modify_to_idle(self.shared.qpn))
    }

    /// Moves the queue pair to the error state, from whatever state: the connection is reset, outstanding work is
    /// flushed.
    pub fn to_error(&self) {
        let _ = self.pd.shared.device.control_qp(&self.shared, |engine| {
            engine.modify_to_error(self.shared.qpn);
            Ok(())
        });
    }

    /// The shard of the engine that it belongs to.
    #[inline]
    pub(super) fn shard(&self) -> &Shard {
        self.pd.shared.device.shards.of(self.shared.owner.get())
    }

    /// Tells the engine that there is work; what need not wait for anything leaves before this returns.
    #[inline]
    pub(super) fn ring(&self) {
        let shard = self.shard();
        // Who has rung already waits for a pass.
        if !self.shared.bell.is_ringing() && !broken(Rule::Doorbell) && shard.kick(self.shared.qpn) {
            return;
        }
        if self.shared.bell.ring() && !broken(Rule::Doorbell) {
            shard.ring(self.shared.qpn);
        }
        if self.is_over() {
            self.shared.send_cq.ask(self.shared.owner.get());
        }
    }

    /// Whether what is posted is flushed.
    #[inline]
    fn is_over(&self) -> bool {
        self.shared.state.load(Ordering::Relaxed) > QpState::Rts as u8
    }

    /// A receive needs the engine only if it is to be flushed, or if a Send waits for it. The fence of the latter pairs with that of
    /// `set_state`, too: either this sees the state, or the engine sees the receive.
    #[inline]
    pub(super) fn ring_for_receives(&self) {
        let awaited = self.shared.awaited.seen_after_post();
        let over = self.is_over();
        if over {
            self.shared.recv_cq.ask(self.shared.owner.get());
        }
        if (over || awaited) && self.shared.bell.ring() {
            self.shard().ring(self.shared.qpn);
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
        // Also where it was before it moved.
        let forgotten = detached.and_then(|()| {
            device.shards.iter().try_for_each(|shard| {
                shard.arrange(|_| {
                    shard.doorbells.forget(self.shared.qpn);
                    Ok(())
                })
            })
        });
        if matches!(forgotten, Err(Error::Interrupted)) {
            return; // the engine has it, and with it its number
        }
        device.events.forget(Object::Qp(self.shared.qpn));
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
