//! Asynchronous events: changes of a device and its objects that no completion reports.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::error::Result;
use super::eventfd::EventFd;
use super::qp::TerminateInfo;
use super::quiet::deliver;

/// The cause of a queue pair's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultCause {
    /// The peer broke the protocol.
    #[error("the peer broke the protocol")]
    Peer,
    /// The peer sent a Terminate that does not concern any outstanding send request.
    #[error("the peer sent a Terminate")]
    Terminated,
    /// Memory was deregistered or invalidated while the peer was reading it.
    #[error("the memory that the peer is reading is gone")]
    ReadSource,
    /// The peer closed the connection while one of the sides had unfinished requests.
    #[error("the peer closed the connection while requests were unfinished")]
    WorkLeft,
    /// The peer left an FPDU unfinished while memory for unfinished FPDUs was short, and the peer's address had
    /// most of it.
    #[error("the peer left an FPDU unfinished while memory for unfinished FPDUs was short")]
    Displaced,
    /// The peer acknowledged nothing for a while, memory for unacknowledged octets was short, and the peer's
    /// address had most of it.
    #[error("the peer acknowledged nothing while memory for unacknowledged data was short")]
    Unacknowledged,
    /// A completion queue had no room for a completion.
    #[error("a completion queue is full: make it deeper, or poll it more often")]
    CqOverflow,
}

/// The failure of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpFault {
    /// Number of the queue pair, which is in the terminate or the error state.
    pub qpn: u32,
    /// Address of the peer; `None` if the queue pair had no connection.
    pub peer: Option<SocketAddr>,
    /// The cause.
    pub cause: FaultCause,
    /// The cause in words, with addresses and lengths if there are any.
    pub detail: String,
    /// The Terminate message that was sent, is about to be sent, or was received; `None` if there is none.
    pub terminate: Option<TerminateInfo>,
}

impl fmt::Display for QpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.peer.map_or(String::new(), |peer| format!(", connected with {peer}"));
        write!(f, "queue pair {}{peer}: {}", self.qpn, self.detail)?;
        self.terminate.map_or(Ok(()), |terminate| write!(f, "; {terminate}"))
    }
}

/// An event about a device or one of its objects. Objects are named by their numbers.
///
/// The C interface has these names:
///
/// | urnic | libibverbs |
/// |---|---|
/// | [`QpFatal`](Self::QpFatal) | `IBV_EVENT_QP_FATAL` |
/// | [`QpRequestError`](Self::QpRequestError) | `IBV_EVENT_QP_REQ_ERR` |
/// | [`QpAccessError`](Self::QpAccessError) | `IBV_EVENT_QP_ACCESS_ERR` |
/// | [`SendQueueDrained`](Self::SendQueueDrained) | `IBV_EVENT_SQ_DRAINED` |
/// | [`LastWqeReached`](Self::LastWqeReached) | `IBV_EVENT_QP_LAST_WQE_REACHED` |
/// | [`CqError`](Self::CqError) | `IBV_EVENT_CQ_ERR` |
/// | [`SrqLimitReached`](Self::SrqLimitReached) | `IBV_EVENT_SRQ_LIMIT_REACHED` |
/// | [`PortActive`](Self::PortActive) | `IBV_EVENT_PORT_ACTIVE` |
/// | [`PortError`](Self::PortError) | `IBV_EVENT_PORT_ERR` |
/// | [`DeviceFatal`](Self::DeviceFatal) | `IBV_EVENT_DEVICE_FATAL` |
///
/// A failure raises no event if the status of a completion reports it; the status `Flushed` does not count as such a
/// report. A change that the application has asked for raises no event either, except for
/// [`LastWqeReached`](Self::LastWqeReached) and [`SendQueueDrained`](Self::SendQueueDrained). The end of a connection
/// is not an event of this type, but a [`CmEvent::Disconnected`](crate::CmEvent::Disconnected).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The stream cannot continue, for example because of an error of framing, CRC or order, a Terminate of the peer,
    /// or a full completion queue. [`QpFault::cause`] names the cause.
    QpFatal(QpFault),
    /// The peer requested an operation that this queue pair does not support, or sent a message for which this end has
    /// no room: a Send without a receive, or more Reads than the IRD allows.
    QpRequestError(QpFault),
    /// The peer tried to access memory without the right to do so.
    QpAccessError(QpFault),
    /// All send requests posted before [`Qp::drain`](crate::Qp::drain) are done.
    SendQueueDrained {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A queue pair with a shared receive queue entered the terminate or the error state, for whatever reason. It takes
    /// no more receives, and those it had taken are reported.
    LastWqeReached {
        /// Number of the queue pair.
        qpn: u32,
    },
    /// A completion was lost because the completion queue was full.
    CqError {
        /// Number of the completion queue.
        cqn: u32,
    },
    /// A shared receive queue holds fewer receives than its limit. The limit is now off.
    SrqLimitReached {
        /// Number of the shared receive queue.
        srqn: u32,
    },
    /// The link has come up.
    PortActive,
    /// The link has gone down.
    PortError,
    /// The device no longer works. So far, no kind of port reports this.
    DeviceFatal,
}

/// The object of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Qp(u32),
    Cq(u32),
    Srq(u32),
    Device,
}

impl AsyncEvent {
    fn object(&self) -> Object {
        match *self {
            Self::QpFatal(QpFault { qpn, .. })
            | Self::QpRequestError(QpFault { qpn, .. })
            | Self::QpAccessError(QpFault { qpn, .. })
            | Self::SendQueueDrained { qpn }
            | Self::LastWqeReached { qpn } => Object::Qp(qpn),
            Self::CqError { cqn } => Object::Cq(cqn),
            Self::SrqLimitReached { srqn } => Object::Srq(srqn),
            Self::PortActive | Self::PortError | Self::DeviceFatal => Object::Device,
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// The unread events of a device. Their number needs no limit, because there is at most one of each kind for each
/// object that exists.
pub(crate) struct AsyncQueue {
    unread: Mutex<Unread>,
    pub(crate) fd: EventFd,
    sink: OnceLock<AsyncSink>,
}

/// A callback for asynchronous events; see [`Device::sink_async_events`](crate::Device::sink_async_events).
pub type AsyncSink = Box<dyn Fn(AsyncEvent) + Send + Sync>;

#[derive(Default)]
struct Unread {
    next: u64,
    in_order: BTreeMap<u64, AsyncEvent>,
    by_object: HashMap<Object, Vec<u64>>,
}

impl Unread {
    /// Adds an event. Returns true if it is an additional one, and false if it replaces an older one.
    fn insert(&mut self, event: AsyncEvent) -> bool {
        let number = self.next;
        self.next += 1;
        let numbers = self.by_object.entry(event.object()).or_default();
        let older = numbers.iter().position(|n| self.in_order.get(n).is_some_and(|e| e.is_like(&event)));
        if let Some(older) = older {
            self.in_order.remove(&numbers.remove(older));
        }
        numbers.push(number);
        self.in_order.insert(number, event);
        older.is_none()
    }

    fn pop(&mut self) -> Option<AsyncEvent> {
        let (number, event) = self.in_order.pop_first()?;
        let object = event.object();
        if let Some(numbers) = self.by_object.get_mut(&object) {
            numbers.retain(|n| *n != number);
            if numbers.is_empty() {
                self.by_object.remove(&object);
            }
        }
        Some(event)
    }
}

impl AsyncQueue {
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { unread: Mutex::default(), fd: EventFd::new()?, sink: OnceLock::new() }))
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises an event. It replaces an unread one of the same kind about the same object.
    #[cold]
    pub(crate) fn raise(self: &Arc<Self>, event: AsyncEvent) {
        let queue = self.clone();
        deliver(move || queue.give(event));
    }

    fn give(&self, event: AsyncEvent) {
        let mut unread = self.unread();
        if let Some(sink) = self.sink.get() {
            drop(unread);
            return sink(event);
        }
        if unread.insert(event) {
            self.fd.signal();
        }
    }

    /// Passes the unread events to `sink`, and from now on all others.
    pub(crate) fn divert(&self, sink: AsyncSink) {
        {
            // The sink is set under this lock, so that no event is lost: an event that does not go to the sink
            // is already unread here, and is passed on below.
            let _order = self.unread();
            let _ = self.sink.set(sink);
        }
        while let (Some(event), Some(sink)) = (self.take(), self.sink.get()) {
            sink(event);
        }
    }

    /// Returns the next event. The count of the descriptor always equals the number of unread events.
    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut unread = self.unread();
        let event = unread.pop()?;
        self.fd.take();
        Some(event)
    }

    /// Discards the unread events about an object that no longer exists.
    pub(crate) fn forget(&self, object: Object) {
        let mut unread = self.unread();
        for number in unread.by_object.remove(&object).into_iter().flatten() {
            unread.in_order.remove(&number);
            self.fd.take();
        }
    }
}

#[cfg(test)]
mod tests;
