//! The interface of an engine to its shard and to the control verbs.

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

/// The two ends of a connection to be opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The reserved local address; `None`: any address and port.
    pub(crate) from: Option<BindId>,
    pub(crate) to: SocketAddr,
}

/// A function that is called once, at a later time.
pub(crate) type Deed = Box<dyn FnOnce() + Send>;

/// A queue pair or connection on its way from one engine of a device to another. Only the engines know its type.
pub(crate) type Parcel = Box<dyn Any + Send>;

/// Parts that a device and its engines share, besides queue pairs and completion queues.
#[derive(Clone)]
pub(crate) struct Ties {
    pub(crate) commons: Arc<Commons>,
    /// The table of memory regions and windows.
    pub(crate) table: Arc<MrTable>,
    pub(crate) clock: DeviceClock,
}

/// Attributes of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineAttr {
    pub(crate) mac: [u8; 6],
    /// All present addresses, the main one first.
    pub(crate) addresses: Vec<Cidr>,
    /// Largest IP packet, in bytes.
    pub(crate) mtu: u16,
    /// Kind of port, as the configuration names it.
    pub(crate) port: String,
    pub(crate) link_up: bool,
    /// Port capabilities; `None` if the engine has no DPDK port.
    pub(crate) capabilities: Option<Capabilities>,
    /// Maximum payload octets of a frame that carries several segments to the present peer; 0 if frames cannot carry
    /// several segments.
    pub(crate) gso_max: usize,
    /// Maximum number of outstanding Reads and Atomics of a queue pair: inbound (`ird`) and outbound (`ord`).
    pub(crate) ird: u16,
    pub(crate) ord: u16,
    /// Counters: names and values, in display order.
    pub(crate) counters: Vec<(&'static str, u64)>,
}

impl EngineAttr {
    /// Returns the main address; 0.0.0.0 if there is none.
    pub(crate) fn main(&self) -> IpAddr {
        self.addresses.first().map_or(IpAddr::from([0; 4]), |a| a.address)
    }
}

/// How many objects an engine has at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Population {
    pub(crate) queue_pairs: usize,
    /// Number of connections, including those in start-up or teardown.
    pub(crate) connections: usize,
}

/// The reason for a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// A program polls, and will poll again. If it is busy posting, its requests may wait for further polls.
    Poll,
    /// All others.
    Other,
}

/// An engine. Only the holder of its shard's lock uses it.
pub(crate) trait EngineOps: Send {
    /// Runs one bounded pass.
    ///
    /// Returns true if something was received, sent or completed, or if there is more to do now.
    fn pass(&mut self, occasion: Occasion) -> bool;
    /// Sends at once what was posted to a queue pair, and returns true. Returns false without sending if the
    /// queue pair's connection has unsent data, another connection waits, or more posts are likely to follow
    /// soon. Unless this is the first post since the last pass, returns false also if the connection has
    /// unacknowledged data. If the result is false, the caller must ring the queue pair's doorbell, and a later pass
    /// sends the work together with other work.
    fn kick(&mut self, qpn: u32) -> bool;
    /// Returns the time until the engine wants a pass even if nothing happens; `None`: it does not want one. For
    /// callers that may sleep.
    fn next_deadline(&mut self) -> Option<Duration>;
    /// Arms the port to signal frames that arrive from now on, and returns the event that signals them; `None`: the
    /// port cannot signal. The caller must run one more pass before it sleeps.
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>>;
    /// Returns whether much memory has become free since this function last returned true. The caller returns the
    /// memory to the system after it has released the engine.
    fn has_freed_much(&mut self) -> bool {
        false
    }
    /// Calls `deed` once when `time` has passed, unless the device ends before. `deed` must be quick and must not use
    /// the engine.
    fn after(&mut self, time: Duration, deed: Deed);
    /// Returns the parts that the device and this engine share.
    fn ties(&self) -> Ties;
    /// Makes all work under way stop reading memory within `range` (addresses). The caller must have revoked the
    /// range's STags before.
    fn take_back(&mut self, range: &Range<usize>);

    /// Takes in a new, idle queue pair.
    fn attach_qp(&mut self, qp: Arc<QpShared>) -> Result<()>;
    /// Returns whether a queue pair has completed any request, at this engine or before it moved here.
    fn has_completed(&self, _qpn: u32) -> bool {
        true
    }
    /// Removes an idle queue pair that moves to engine `to`. Doorbells that ring here later are forwarded to that
    /// engine.
    fn release_qp(&mut self, qpn: u32, _to: EngineNumber) -> Result<Parcel> {
        Err(Error::UnknownQp(qpn))
    }
    /// Takes in a queue pair that another engine has released.
    fn admit_qp(&mut self, _parcel: Parcel) -> Result<()> {
        Ok(())
    }
    /// Destroys a queue pair, and ends its connection, if any. The queue pair produces no further completions.
    fn detach_qp(&mut self, qpn: u32);
    /// Resets the connection of a queue pair, if any, and flushes its work. If the connection awaits the MPA Reply, it
    /// stays until the peer answers or the time for the start-up is over. If the peer accepts, the engine sends a
    /// Terminate (MPAE-31).
    fn modify_to_error(&mut self, qpn: u32);
    /// Moves a queue pair from the error state to the idle state of a new queue pair.
    fn modify_to_idle(&mut self, qpn: u32) -> Result<()>;
    /// Closes the connection of a queue pair gracefully. An event reports when the send queue is empty.
    fn drain(&mut self, qpn: u32) -> Result<()>;
    /// Returns the connection of a queue pair; `None` if the queue pair has no connection in RDMA mode.
    fn connection(&mut self, qpn: u32) -> Result<Option<QpConnection>>;

    /// Reserves a TCP port of a local address.
    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound>;
    /// Enters a reservation that another engine of the device has made, with the id that it has there.
    fn enter_binding(&mut self, _bound: Bound, _v6only: bool) -> Result<()> {
        Err(Error::Exhausted(
            "engines that can share a reserved address: this transport supports only one engine",
        ))
    }
    /// Returns the engine of the device that must open a connection from a reserved address to `to`; `None` if any
    /// engine may open it, or no engine can.
    fn home_of(&self, _from: BindId, _to: SocketAddr) -> Option<EngineNumber> {
        None
    }
    /// Ends a reservation. If the address has a listener, listening stops, and the connections of unanswered requests
    /// are reset.
    fn unbind(&mut self, id: BindId);
    /// Starts to listen on a reserved address. `places` limits the number of requests that the application has not
    /// answered.
    fn listen(
        &mut self,
        at: BindId,
        backlog: u32,
        places: Arc<Waiting>,
        events: Arc<EventQueue>,
    ) -> Result<()>;
    /// Starts to connect an idle queue pair. An event reports the outcome.
    fn connect(&mut self, qpn: u32, way: Way, param: &ConnParam, events: Arc<EventQueue>) -> Result<()>;
    /// Makes a connected socket the connection of an idle queue pair. An event reports the outcome.
    fn convert(
        &mut self,
        _qpn: u32,
        _handover: Handover<'_>,
        _param: &ConnParam,
        _events: Arc<EventQueue>,
    ) -> Result<()> {
        Err(Error::NoConversion)
    }
    /// Removes the connection of a request, and returns it for another engine of the device; `None` if the transport
    /// cannot part with connections.
    fn part_with(&mut self, _request: RequestId) -> Result<Option<Parcel>> {
        Ok(None)
    }
    /// Takes in the connection of a request, which another engine has removed. Returns the new id of the request.
    fn take_in(&mut self, _parcel: Parcel) -> Result<RequestId> {
        Err(Error::RequestGone)
    }
    /// Accepts a request with an idle queue pair. An event follows when the connection is established.
    fn accept(&mut self, request: RequestId, qpn: u32, param: &ConnParam) -> Result<()>;
    /// Returns the local address and port at which a request came in.
    fn local(&mut self, request: RequestId) -> Result<SocketAddr>;
    /// Rejects a request.
    fn reject(&mut self, request: RequestId, private_data: &[u8]) -> Result<()>;
    /// Closes a connection gracefully, or resets it if it is still in start-up. An event follows when it is
    /// closed.
    fn disconnect(&mut self, qpn: u32) -> Result<()>;

    /// Sets when TCP gives up on the silent peer of a queue pair; `None`: as configured.
    fn set_patience(&mut self, qpn: u32, patience: Option<Patience>) -> Result<()>;

    /// Returns whether no connection needs the engine after a [`shutdown`](Self::shutdown): each peer has acknowledged
    /// all data and the FIN, or the only possible peer has ended.
    fn drained(&self) -> bool;
    /// Starts to close all connections gracefully, and resets those that are still in start-up.
    fn shutdown(&mut self);

    /// Completes output that is not finished, such as packet captures, because the process is about to end.
    fn finish(&mut self) {}

    /// Returns the local address from which a connection to `to` would come; `None` if no route leads to `to`.
    fn source_for(&mut self, to: SocketAddr) -> Result<Option<IpAddr>>;
    /// Returns the engine's present attributes.
    fn attributes(&self) -> EngineAttr;
    /// Returns how many objects the engine has at present.
    fn population(&self) -> Population {
        Population::default()
    }
    /// Returns the present TCP connections.
    fn connections(&self) -> Vec<ConnectionAttr>;
}
