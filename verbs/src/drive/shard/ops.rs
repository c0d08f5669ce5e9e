//! What the shard and the control verbs need of an engine.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use urnic_config::Cidr;
use urnic_dataplane::Capabilities;
use urnic_tcp::{BindId, Bound, Patience};

use crate::drive::wakeup::Wakeup;
use crate::shared::clock::DeviceClock;
use crate::shared::cm::{ConnParam, EventQueue, RequestId};
use crate::shared::connection::ConnectionAttr;
use crate::shared::convert::Handover;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, Result};
use crate::shared::memory::MrTable;
use crate::shared::qp::{QpConnection, QpShared};
use crate::shared::waiting::Waiting;

/// Where a connection goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The reserved address it comes from; `None`: any port.
    pub(crate) from: Option<BindId>,
    pub(crate) to: SocketAddr,
}

/// Something to be done once.
pub(crate) type Deed = Box<dyn FnOnce() + Send>;

/// Something that goes from one engine of a device to another, which knows what it is.
pub(crate) type Parcel = Box<dyn Any + Send>;

/// What a device has in common with its engines, beside the objects.
#[derive(Clone)]
pub(crate) struct Ties {
    pub(crate) commons: Arc<Commons>,
    /// Memory regions and windows.
    pub(crate) table: Arc<MrTable>,
    pub(crate) clock: DeviceClock,
}

/// Facts about an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineAttr {
    pub(crate) mac: [u8; 6],
    /// The main one first.
    pub(crate) addresses: Vec<Cidr>,
    /// Bytes of an IP packet.
    pub(crate) mtu: u16,
    /// Kind of port, as in the configuration.
    pub(crate) port: String,
    pub(crate) link_up: bool,
    /// What the port can do; none of a simulated one.
    pub(crate) capabilities: Option<Capabilities>,
    /// Octets of payload that a frame may carry to the peer that is there now as several segments, or zero.
    pub(crate) gso_max: usize,
    /// Most Reads of a QP, inbound and outbound.
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// Names and values, in the order to show them.
    pub(crate) counters: Vec<(&'static str, u64)>,
}

impl EngineAttr {
    /// The main address.
    pub(crate) fn main(&self) -> IpAddr {
        self.addresses.first().map_or(IpAddr::from([0; 4]), |a| a.address)
    }
}

/// What an engine has at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Population {
    pub(crate) queue_pairs: usize,
    /// Those that begin or end included.
    pub(crate) connections: usize,
}

/// An engine, used by the holder of its shard's lock.
pub(crate) trait EngineOps: Send {
    /// One bounded pass.
    ///
    /// True if something was received, sent or completed, or there is more to do now.
    fn pass(&mut self) -> bool;
    /// Sends at once what was posted to a QP whose connection has nothing under way, and nobody else waits. False, and
    /// nothing happened, otherwise: what is posted then goes in company, when its doorbell is answered.
    fn kick(&mut self, qpn: u32) -> bool;
    /// When the engine wants a pass even if nothing happens, from now. For callers that may wait.
    fn next_deadline(&mut self) -> Option<Duration>;
    /// Lets what arrives from now on end a nap, if the port can. The caller makes a pass before the nap.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>>;
    /// Whether much memory has become free since this last returned true: the caller gives it back to the system when
    /// it has let go of the engine.
    fn has_freed_much(&mut self) -> bool {
        false
    }
    /// Does something once, after a time; never if the device ends before. It is quick and does not use the engine.
    fn after(&mut self, time: Duration, deed: Deed);
    /// What the device has in common with it.
    fn ties(&self) -> Ties;
    /// From now on nothing that is under way reads memory within `range` (addresses). What names it was revoked before.
    fn take_back(&mut self, range: &Range<usize>);

    /// Takes a new QP, in the idle state.
    fn attach_qp(&mut self, qp: Arc<QpShared>) -> Result<()>;
    /// Whether a QP has completed anything, here or elsewhere.
    fn has_completed(&self, _qpn: u32) -> bool {
        true
    }
    /// Parts with an idle QP, which goes to another engine. Doorbells that ring here are forwarded to it.
    fn release_qp(&mut self, qpn: u32, _to: EngineNumber) -> Result<Parcel> {
        Err(Error::UnknownQp(qpn))
    }
    /// Takes in a QP that another engine has released.
    fn admit_qp(&mut self, _parcel: Parcel) -> Result<()> {
        Ok(())
    }
    /// Destroys a QP: ends its connection if any; no completions of it follow.
    fn detach_qp(&mut self, qpn: u32);
    /// Resets the connection if any and flushes.
    fn modify_to_error(&mut self, qpn: u32);
    /// From the error state: as new.
    fn modify_to_idle(&mut self, qpn: u32) -> Result<()>;
    /// Closes gracefully; an event tells when the send queue is empty.
    fn drain(&mut self, qpn: u32) -> Result<()>;
    /// The QP's connection in RDMA mode.
    fn connection(&mut self, qpn: u32) -> Result<Option<QpConnection>>;

    /// Reserves a TCP port of a local address.
    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound>;
    /// Enters a reservation that another engine of the device has made. It has the same name here.
    fn bind_too(&mut self, _bound: Bound, _v6only: bool) -> Result<()> {
        Err(Error::Exhausted("engines of this transport"))
    }
    /// Returns the engine of the device that must open a connection from a reserved address to `to`, if not any can.
    fn home_of(&self, _from: BindId, _to: SocketAddr) -> Option<EngineNumber> {
        None
    }
    /// Gives a reservation back. If it listens that stops, and requests without an answer are rejected.
    fn unbind(&mut self, id: BindId);
    /// Starts to listen on a reserved address.
    /// `places` are for requests that the application has not answered.
    fn listen(
        &mut self,
        at: BindId,
        backlog: u32,
        places: Arc<Waiting>,
        events: Arc<EventQueue>,
    ) -> Result<()>;
    /// Starts to connect an idle QP; the outcome is an event.
    fn connect(&mut self, qpn: u32, way: Way, param: &ConnParam, events: Arc<EventQueue>) -> Result<()>;
    /// Makes a connected socket the connection of an idle QP; the outcome is an event.
    fn convert(
        &mut self,
        _qpn: u32,
        _handover: Handover<'_>,
        _param: &ConnParam,
        _events: Arc<EventQueue>,
    ) -> Result<()> {
        Err(Error::NoConversion)
    }
    /// Parts with the connection of a request, for another engine of the device; `None` if its transport can't.
    fn part_with(&mut self, _request: RequestId) -> Result<Option<Parcel>> {
        Ok(None)
    }
    /// Takes in what another engine has parted with: the request has a new name.
    fn take_in(&mut self, _parcel: Parcel) -> Result<RequestId> {
        Err(Error::RequestGone)
    }
    /// Accepts a request with an idle QP; an event follows when the connection stands.
    fn accept(&mut self, request: RequestId, qpn: u32, param: &ConnParam) -> Result<()>;
    /// Which address and port of ours a request has come to.
    fn local(&mut self, request: RequestId) -> Result<SocketAddr>;
    /// Refuses a request.
    fn reject(&mut self, request: RequestId, private_data: &[u8]) -> Result<()>;
    /// Closes a connection gracefully; an event follows when it is closed.
    fn disconnect(&mut self, qpn: u32) -> Result<()>;

    /// When the silent peer of a QP counts as dead.
    fn set_patience(&mut self, qpn: u32, patience: Option<Patience>) -> Result<()>;

    /// Everything sent is acknowledged and every connection is closed.
    fn drained(&self) -> bool;
    /// Starts to close all connections gracefully.
    fn shutdown(&mut self);

    /// Completes what is written besides frames: the process is about to end.
    fn finish(&mut self) {}

    /// The address of ours that a connection to `to` comes from, if there is a way to it.
    fn source_for(&mut self, to: SocketAddr) -> Result<Option<IpAddr>>;
    /// Facts to show.
    fn attributes(&self) -> EngineAttr;
    /// Counts what the engine has.
    fn population(&self) -> Population {
        Population::default()
    }
    /// The TCP connections that there are.
    fn connections(&self) -> Vec<ConnectionAttr>;
}
