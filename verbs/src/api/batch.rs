//! Batches: work requests that are posted together, under one lock and with one doorbell.
//!
//! The engine sees nothing of a batch until it is posted. Until then the batch holds the queue's lock: a post by
//! another thread to the same queue waits, and a post by the same thread waits forever. Fill a batch, post it, and do
//! nothing else in between.

use crate::api::qp::Qp;
use crate::api::srq::Srq;
use crate::shared::error::{PostError, PostListError};
use crate::shared::queue::{Payload, RecvPoster, SendPoster};
use crate::shared::wr::{RecvWr, SendWr};

/// Adds requests in order, and stops at the first that is refused.
pub(super) fn up_to_refused<W>(
    wrs: &[W],
    mut push: impl FnMut(&W) -> Result<(), PostError>,
) -> Result<(), PostListError> {
    for (posted, wr) in wrs.iter().enumerate() {
        push(wr).map_err(|error| PostListError { posted, error })?;
    }
    Ok(())
}

/// A batch of send requests to one queue pair, posted together: see [`Qp::send_batch`].
///
/// A batch that is dropped without [`post`](Self::post) posts nothing. While the batch exists, other threads that post
/// to the send queue wait. The thread that has the batch must not post to that queue otherwise: it would wait forever.
///
/// ```no_run
/// # fn two(qp: &urnic::Qp, wrs: [urnic::SendWr<'_>; 2]) -> Result<(), urnic::PostError> {
/// let mut batch = qp.send_batch();
/// for wr in &wrs {
///     batch.push(wr)?; // if one is refused, none is posted
/// }
/// batch.post();
/// # Ok(()) }
/// ```
#[must_use = "nothing is posted before `post`"]
pub struct SendBatch<'a> {
    qp: &'a Qp,
    poster: SendPoster<'a>,
    /// Whether the batch has already waited once for room.
    waited: bool,
}

impl<'a> SendBatch<'a> {
    #[inline]
    pub(super) fn new(qp: &'a Qp) -> Self {
        Self { qp, poster: qp.shared.send.poster(), waited: false }
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`PostError`]; the batch is unchanged then.
    #[inline]
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.write(wr, Payload::Listed(&self.qp.pd.shared.regions))
    }

    /// Adds a Send or Write of `bytes`, which need not be registered: see [`Qp::post_send_inline`].
    ///
    /// # Errors
    /// [`PostError`]; the batch is unchanged then.
    #[inline]
    pub fn push_inline(&mut self, wr: &SendWr<'_>, bytes: &[u8]) -> Result<(), PostError> {
        self.write(wr, Payload::Bytes(bytes))
    }

    #[inline]
    fn write(&mut self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        let answer = self.poster.write(wr, payload);
        if answer == Err(PostError::QueueFull) { self.write_after_pass(wr, payload) } else { answer }
    }

    /// Tries again after the pass that may be under way, because the engine publishes a completion before it frees
    /// the request's slot. Waits for a pass only once for each batch.
    #[cold]
    fn write_after_pass(&mut self, wr: &SendWr<'_>, payload: Payload<'_>) -> Result<(), PostError> {
        if !std::mem::replace(&mut self.waited, true) {
            let _ = self.qp.shard().await_pass();
        }
        self.poster.write(wr, payload)
    }

    /// Posts all requests of the batch.
    #[inline]
    pub fn post(self) {
        let Self { qp, mut poster, .. } = self;
        let posted = poster.publish();
        let far = qp.shard().is_far();
        if far {
            poster.fetch_slots(posted);
        }
        drop(poster);
        if posted > 0 {
            qp.ring(far, false);
        }
    }
}

/// A batch of receives, posted together: see [`Qp::recv_batch`], [`Srq::recv_batch`].
///
/// A batch that is dropped without [`post`](Self::post) posts nothing. While the batch exists, other threads that post
/// to the receive queue wait. The thread that has the batch must not post to that queue otherwise: it would wait
/// forever.
#[must_use = "nothing is posted before `post`"]
pub struct RecvBatch<'a> {
    owner: Owner<'a>,
    poster: RecvPoster<'a>,
}

/// The owner of the receives.
enum Owner<'a> {
    Qp(&'a Qp),
    Srq(&'a Srq),
}

impl<'a> RecvBatch<'a> {
    #[inline]
    pub(super) fn of_qp(qp: &'a Qp, poster: RecvPoster<'a>) -> Self {
        Self { owner: Owner::Qp(qp), poster }
    }

    #[inline]
    pub(super) fn of_srq(srq: &'a Srq) -> Self {
        Self { owner: Owner::Srq(srq), poster: srq.shared.queue.poster() }
    }

    /// Adds a receive.
    ///
    /// # Errors
    /// [`PostError`]; the batch is unchanged then.
    #[inline]
    pub fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        match self.owner {
            Owner::Qp(_) => self.poster.write(wr),
            Owner::Srq(srq) => srq.shared.write(&mut self.poster, wr),
        }
    }

    /// Posts all receives of the batch.
    #[inline]
    pub fn post(self) {
        let Self { owner, mut poster } = self;
        let some = poster.publish();
        drop(poster);
        match owner {
            Owner::Qp(qp) if some => qp.ring_for_receives(),
            Owner::Srq(srq) if some => srq.ring_if_awaited(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
