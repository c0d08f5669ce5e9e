//! Asynchronous events: what happens to a device and its objects that no completion tells of.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::error::Result;
use super::eventfd::EventFd;
use super::qp::TerminateInfo;
use super::quiet::deliver;

/// What made a queue pair fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultCause {
    /// The peer sent what it must not send.
    #[error("what the peer sent is wrong")]
    Peer,
    /// The peer sent a Terminate, and no send request was outstanding that it could be about.
    #[error("the peer sent a Terminate")]
    Terminated,
    /// The memory that the peer is reading was deregistered or invalidated meanwhile.
    #[error("the memory that the peer is reading is gone")]
    ReadSource,
    /// The peer closed the connection while requests of either side were not done.
    #[error("the peer closed the connection while work was left")]
    WorkLeft,
    /// An FPDU of the peer was not whole, memory for such was short, and the peer's address had most of it.
    #[error("the peer left an FPDU unfinished while memory for unfinished ones was short")]
    Displaced,
    /// The peer acknowledged nothing for a while, memory for such octets was short, and its address had most of it.
    #[error("the peer acknowledged nothing while memory for what is sent was short")]
    Unacknowledged,
    /// A completion found no room in its queue.
    #[error("a completion queue is full")]
    CqOverflow,
}

/// How a queue pair failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpFault {
    /// The queue pair. It is in the terminate or the error state.
    pub qpn: u32,
    /// The other end of its connection, if it had one.
    pub peer: Option<SocketAddr>,
    /// Why.
    pub cause: FaultCause,
    /// The same in words, with addresses and lengths where there are some.
    pub detail: String,
    /// The Terminate message that was sent, is about to be, or was received.
    pub terminate: Option<TerminateInfo>,
}

impl fmt::Display for QpFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.peer.map_or(String::new(), |peer| format!(", connected with {peer}"));
        write!(f, "queue pair {}{peer}: {}", self.qpn, self.detail)?;
        self.terminate.map_or(Ok(()), |terminate| write!(f, "; {terminate}"))
    }
}

/// Something that happened to a device or one of its objects. Objects are named by their numbers.
///
/// The names of the C interface:
///
/// | here | there |
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
/// What a completion reports with a status of its own (other than flushed) raises no event in addition, nor does
/// what the application asked for. The end of a connection as such is told by
/// [`CmEvent::Disconnected`](crate::CmEvent::Disconnected).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The stream cannot go on: framing, CRC, order, a Terminate of the peer, or a completion queue that is full.
    QpFatal(QpFault),
    /// The peer asked for something that this queue pair does not do, or sent more than was provided for.
    QpRequestError(QpFault),
    /// The peer tried to access memory that it may not access.
    QpAccessError(QpFault),
    /// All send requests posted before [`Qp::drain`](crate::Qp::drain) are done.
    SendQueueDrained {
        /// The queue pair.
        qpn: u32,
    },
    /// A queue pair with a shared receive queue failed: it takes no more receives, and those it had taken are
    /// reported.
    LastWqeReached {
        /// The queue pair.
        qpn: u32,
    },
    /// A completion was lost because the queue was full.
    CqError {
        /// The completion queue.
        cqn: u32,
    },
    /// A shared receive queue holds fewer receives than its limit says. The limit is now off.
    SrqLimitReached {
        /// The shared receive queue.
        srqn: u32,
    },
    /// The link has come up.
    PortActive,
    /// The link has gone down.
    PortError,
    /// The device does not work any more. No port of today finds that out.
    DeviceFatal,
}

/// What an event is about.
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

/// The events of a device that nobody has read. There is at most one of each kind for each object that exists, so
/// that they need no limit.
pub(crate) struct AsyncQueue {
    unread: Mutex<Unread>,
    pub(crate) fd: EventFd,
    sink: OnceLock<AsyncSink>,
}

/// Takes events at once; see [`Device::sink_async_events`](crate::Device::sink_async_events).
pub type AsyncSink = Box<dyn Fn(AsyncEvent) + Send + Sync>;

#[derive(Default)]
struct Unread {
    next: u64,
    in_order: BTreeMap<u64, AsyncEvent>,
    by_object: HashMap<Object, Vec<u64>>,
}

impl Unread {
    /// True if this is one more event; otherwise it takes the place of an older one.
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

    /// Tells of an event. An unread one of the same kind and object gives way to it.
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

    /// From now on `sink` takes the events.
    pub(crate) fn divert(&self, sink: AsyncSink) {
        {
            let _order = self.unread();
            let _ = self.sink.set(sink);
        }
        while let (Some(event), Some(sink)) = (self.take(), self.sink.get()) {
            sink(event);
        }
    }

    /// The next event. The descriptor counts what is unread, always.
    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut unread = self.unread();
        let event = unread.pop()?;
        self.fd.take();
        Some(event)
    }

    /// The object is gone, and with it what nobody has read about it.
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
