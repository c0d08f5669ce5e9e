//! Moves queue pairs and connections between the engines of a device: a queue pair while it is idle, and a connection
//! when the program accepts its request with a queue pair of another engine.

use super::endpoint::{Endpoint, Farewell};
use super::names::{self, QpIndex, Qpn};
use super::qp::QpCore;
use super::{Clock, Core, Engine};
use crate::drive::shard::Parcel;
use crate::drive::transport::{Data, Transport};
use crate::shared::cm::RequestId;
use crate::shared::engines::EngineNumber;
use crate::shared::error::Error;
use crate::shared::sabotage::{Rule, broken};
use std::any::Any;

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// The queue pair was never at this engine, or no longer exists.
    #[default]
    Unknown,
    /// In this engine's table.
    Here(QpIndex),
    /// The queue pair moved from this engine to the named engine, which knows where it went next.
    Away(EngineNumber),
}

/// A connection on its way to another engine.
struct Relocated {
    endpoint: Endpoint,
    /// The stream, for the other engine's transport.
    stream: Box<dyn Any + Send>,
}

impl<D: Data + Send + 'static> Core<D> {
    /// Enters a queue pair into this engine's table.
    pub(super) fn house(&mut self, core: Box<QpCore<D>>) {
        let slot = core.shared.qpn as usize;
        let index = self.qps.insert(core).index;
        if self.by_qpn.len() <= slot {
            self.by_qpn.resize(slot + 1, Whereabouts::Unknown);
        }
        self.by_qpn[slot] = Whereabouts::Here(index);
    }

    /// Removes an idle queue pair that moves to engine `to`.
    pub(super) fn release_idle_qp(&mut self, qpn: Qpn, to: EngineNumber) -> Result<Parcel, Error> {
        let index = self.idle_qp(qpn)?;
        let mut core = self.qps.remove(index).ok_or(Error::UnknownQp(qpn.0))?;
        Self::remove_holder(&mut core, index, &mut self.stopped);
        self.by_qpn[qpn.0 as usize] = Whereabouts::Away(to);
        Ok(core)
    }

    /// Takes in a queue pair and looks at its queues, because doorbells that rang here before its arrival were lost.
    /// Returns its number if that must be entered (see [`doorbell`](Self::doorbell)).
    pub(super) fn admit_qp(&mut self, parcel: Parcel) -> Result<Option<Qpn>, Error> {
        let Ok(mut core) = parcel.downcast::<QpCore<D>>() else {
            return Err(Error::Invalid("the queue pair comes from an engine with another transport"));
        };
        let qpn = core.qpn();
        core.join(self.number);
        self.house(core);
        let again = !broken(Rule::LookOnArrival) && self.doorbell(qpn);
        Ok(again.then_some(qpn))
    }
}

impl<D: Data> Core<D> {
    /// Rings the doorbell at the engine to which a queue pair has moved. Does nothing for an unknown queue pair,
    /// which is about to arrive or no longer exists.
    #[cold]
    pub(super) fn forward(&self, qpn: Qpn) {
        if let Some(Whereabouts::Away(to)) = self.by_qpn.get(qpn.0 as usize)
            && !broken(Rule::ForwardDoorbells)
            && let Some(fellow) = self.commons.fellow(*to)
        {
            fellow.ring(qpn.0);
        }
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Removes the connection of a request that the program has not answered, and returns it as a parcel for another
    /// engine; `None` if the transport cannot part with connections.
    pub(super) fn part_with_request(&mut self, request: RequestId) -> Result<Option<Parcel>, Error> {
        self.now();
        let index = self.core.pending(request)?;
        if !self.transport.can_part() {
            return Ok(None);
        }
        let conn = self.core.endpoints.get(index).and_then(|endpoint| endpoint.conn);
        let stream = conn.and_then(|conn| self.transport.part_with(conn)).ok_or(Error::RequestGone)?;
        let endpoint = self.core.endpoints.remove(index).ok_or(Error::RequestGone)?;
        Ok(Some(Box::new(Relocated { endpoint, stream })))
    }

    /// Takes in a connection with an unanswered request, which comes from another engine.
    pub(super) fn take_in_request(&mut self, parcel: Parcel) -> Result<RequestId, Error> {
        let now = self.now();
        let Ok(relocated) = parcel.downcast::<Relocated>() else { return Err(Error::RequestGone) };
        let Relocated { endpoint, stream } = *relocated;
        let listens = endpoint.listener.is_some_and(|id| self.core.listeners.contains_key(&id));
        let id = self.core.endpoints.insert(Endpoint { conn: None, queued: false, ..endpoint });
        let conn = match self.transport.take_in(now, stream, names::tag(id)) {
            Ok(conn) => conn,
            Err(error) => {
                self.core.endpoints.remove(id.index);
                return Err(error);
            }
        };
        if let Some(endpoint) = self.core.endpoints.get_mut(id.index) {
            endpoint.conn = Some(conn);
        }
        if !listens {
            // The listener was closed meanwhile, and so were all its requests at this engine.
            self.core.end_startup(id.index, Farewell::Reset, None);
            return Err(Error::RequestGone);
        }
        Ok(names::request(self.core.number, id))
    }
}
