//! The engine: one transport, and the queue pairs whose connections run over it.
//!
//! The holder of the shard's lock drives the engine ([`crate::drive::shard`]). One [`Engine::pass`] handles due
//! alarms, gives one turn to each of a limited number of queue pairs that have work, hands their data to the
//! wire, fires TCP's due timers, and receives at most one burst of frames (more after a pause). Inside a pass,
//! no other thread accesses the engine, and nothing blocks. The transport and the clock are type parameters, so
//! that a test can run whole RNICs against each other in virtual time.

mod alarms;
mod atomic;
mod connect;
mod convert;
mod crowd;
mod endpoint;
mod foresee;
mod fpdu;
mod inbound;
mod incomplete;
mod later;
mod lent;
mod names;
mod outbound;
mod peers;
mod posting;
mod qp;
mod read_list;
mod relocate;
mod rooms;
mod senders;
mod stags;
mod teardown;
mod turns;
mod unready;

pub(crate) use incomplete::INCOMPLETE_MAX;
pub(crate) use senders::ASIDE_MAX;

use crate::drive::clock::Clock;
use crate::drive::shard::{Deed, EngineAttr, EngineOps, Occasion, Parcel, Population, Ties, Way};
use crate::drive::transport::{Data, StreamFacts, Transport};
use crate::drive::wakeup::Wakeup;
use crate::shared::cm::{ConnParam, EventQueue, RequestId};
use crate::shared::connection::ConnectionAttr;
use crate::shared::convert::Handover;
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, KERNEL_MEMORY};
use crate::shared::memory::MrFault;
use crate::shared::qp::{QpConnection, QpShared, QpState, Receives};
use crate::shared::quiet::deliver;
use crate::shared::turns::Turns;
use crate::shared::waiting::Waiting;
use alarms::Alarms;
use arrayvec::ArrayVec;
use connect::Listener;
use endpoint::{Endpoint, Farewell, Phase};
use incomplete::Stopped;
use later::Later;
use names::{EndpointIndex, QpIndex, Qpn};
use posting::Posting;
use qp::{QpCore, ReadLimits, Spares};
use relocate::Whereabouts;
use rooms::Rooms;
use senders::Shares;
use stags::Stags;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use teardown::Why;
use turns::Pace;
use unready::Unready;
use urnic_config::{Cidr, Config, RtrChoice};
use urnic_iwarp::{AccessFault, Budget, Stream};
use urnic_tcp::rows::BoxRows;
use urnic_tcp::slab::Slab;
use urnic_tcp::{BindError, BindId, Bound, ConnId, Patience, Time};

/// Time that a connection may take to close. Then it is reset, unless it waits for a slow peer.
const TEARDOWN_WITHIN: Duration = Duration::from_secs(5);
/// Additional time to close for a slow peer, which is alive but has not taken all data. Kernels probe a shut window for
/// about as long after the program has closed the socket.
const LINGER_WITHIN: Duration = Duration::from_secs(300);
/// A peer is slow, not silent, if it keeps its window shut or has acknowledged something within this time.
const MOVES_WITHIN: Duration = Duration::from_millis(2500);
/// How long a device that ends waits for the FINs of peers that have acknowledged the device's FIN.
const FIN_WITHIN: Duration = Duration::from_millis(250);
/// While passes find no work, one in this many passes reads the clock.
const CLOCK_EVERY: u32 = 8;
/// If TCP's timers were not checked for this long, the next pass receives up to `BURSTS_AFTER_PAUSE` bursts of
/// frames before these timers fire.
const PAUSE: Duration = Duration::from_micros(200);
const BURSTS_AFTER_PAUSE: usize = 32;

/// MPA settings of an engine.
#[derive(Clone, Debug)]
pub struct MpaConfig {
    /// Highest MPA revision to speak: 1 or 2.
    pub rev: u8,
    /// Whether to ask for CRCs. They are off only if neither side asks for them.
    pub crc: bool,
    /// Whether to ask peers to send markers.
    pub markers: bool,
    /// Ready-to-receive message (RTR), if any, that an initiator sends first, unless the application chooses one.
    pub rtr: RtrChoice,
    /// Maximum number of outstanding inbound Reads and Atomics per queue pair.
    pub ird: u16,
    /// Maximum number of outstanding outbound Reads and Atomics per queue pair.
    pub ord: u16,
    /// Time that a peer may take to send its MPA Request, and its RTR after our Reply.
    pub startup_timeout: Duration,
    /// Maximum octets of incomplete FPDUs that are kept for all peers together; at least 128 KiB.
    pub incomplete_max: usize,
    /// Maximum octets of unacknowledged data that may be put aside, that is, copied to ordinary memory, so that other
    /// connections get send buffers.
    pub aside_max: usize,
}

impl MpaConfig {
    /// Returns the settings that a configuration contains, with the default memory limits.
    pub(crate) fn of(config: &Config) -> Self {
        let mpa = &config.mpa;
        Self {
            rev: mpa.rev,
            crc: mpa.crc,
            markers: mpa.markers,
            rtr: mpa.rtr,
            ird: mpa.ird,
            ord: mpa.ord,
            startup_timeout: mpa.startup_timeout,
            incomplete_max: INCOMPLETE_MAX,
            aside_max: ASIDE_MAX,
        }
    }
}

/// The engine's place in its device.
pub(crate) struct Berth {
    pub(crate) number: EngineNumber,
    pub(crate) commons: Arc<Commons>,
    /// Doorbells of the shard that will drive the engine.
    pub(crate) doorbells: Arc<Doorbells>,
}

/// An engine: an RNIC on a transport.
pub(crate) struct Engine<T: Transport, C: Clock> {
    transport: T,
    clock: C,
    core: Core<T::Data>,
    drafts: ArrayVec<T::Draft, 2>,
    spares: Spares,
    doorbells: Arc<Doorbells>,
    later: Later,
    attributes: EngineAttr,
    posting: Posting,
    /// The queue pair for which [`foresee_waiting`](Self::foresee_waiting) was last called.
    waiting: Option<QpIndex>,
    /// Number of idle passes since the clock was read. At [`CLOCK_EVERY`] or more, the next pass reads the clock.
    idle_passes: u32,
    /// Whether the last pass received anything that the next pass may have to acknowledge.
    owes_acks: bool,
    /// The bound of passes beside short messages.
    pace: Pace,
    /// Time at which TCP's timers were last checked.
    advanced: Time,
    /// Whether nothing was received since the engine last waited in vain for a peer that
    /// [reads late](Self::await_reading).
    peer_sleeps: bool,
    /// Time at which the transport wants [`Transport::check`].
    check_at: Time,
    /// Time at which the device began to end; `None`: the device has not begun to end.
    shutdown_at: Option<Time>,
}

/// The parts of an engine to which its transport reports events.
struct Core<D: Data> {
    table: Stags,
    endpoints: Slab<Endpoint, EndpointIndex>,
    qps: Slab<Box<QpCore<D>>, QpIndex>,
    /// Memory for queue pairs, and for their streams.
    cores: BoxRows<QpCore<D>>,
    streams: BoxRows<Stream<D>>,
    /// Where queue pairs are, indexed by their numbers, which are small and dense.
    by_qpn: Vec<Whereabouts>,
    /// Endpoints that want a turn.
    ready: Turns<EndpointIndex>,
    /// Endpoints that may have lent memory to TCP.
    lenders: Vec<EndpointIndex>,
    shares: Shares,
    listeners: HashMap<BindId, Listener>,
    rooms: Rooms,
    alarms: Alarms,
    /// The number of this engine.
    number: EngineNumber,
    commons: Arc<Commons>,
    mpa: MpaConfig,
    /// Earliest time at which `Engine::tend` may have something to do.
    tend_at: Time,
    /// Memory for incomplete FPDUs.
    budget: Budget,
    stopped: Stopped,
    unready: Unready,
    /// Number of connections that were ended to free memory for incomplete FPDUs.
    displaced: u64,
    /// The time of this pass.
    now: Time,
}

impl<D: Data> Core<D> {
    /// Returns the endpoint with this tag; `None` if it no longer exists.
    #[inline]
    fn endpoint_of(&self, tag: u64) -> Option<EndpointIndex> {
        self.endpoints.find(names::tagged(tag))
    }

    /// Returns the index of a queue pair; `None` if it is not at this engine.
    #[inline]
    fn index_of(&self, qpn: Qpn) -> Option<QpIndex> {
        match self.by_qpn.get(qpn.0 as usize)? {
            Whereabouts::Here(index) => Some(*index),
            Whereabouts::Unknown | Whereabouts::Away(_) => None,
        }
    }

    /// Returns the index of a queue pair, or an error if it is not at this engine.
    fn known(&self, qpn: Qpn) -> Result<QpIndex, Error> {
        self.index_of(qpn).ok_or(Error::UnknownQp(qpn.0))
    }

    /// Puts an endpoint into the ready list.
    fn schedule(&mut self, index: EndpointIndex) {
        if let Some(endpoint) = self.endpoints.get_mut(index)
            && !std::mem::replace(&mut endpoint.queued, true)
        {
            let greedy = endpoint.greedy;
            self.ready.push(index, greedy);
        }
    }

    /// Handles the doorbell of a queue pair: schedules its work, or flushes the work if the queue pair is in an
    /// error state. If the queue pair has moved to another engine, rings the doorbell there. Returns whether the
    /// number must be entered again: see [`answer`](crate::shared::queue::SendQueue::answer).
    #[must_use]
    fn doorbell(&mut self, qpn: Qpn) -> bool {
        let Some(index) = self.index_of(qpn) else {
            self.forward(qpn);
            return false;
        };
        let Some(qp) = self.qps.get_mut(index) else { return false };
        let again = qp.shared.send.answer();
        match qp.endpoint {
            _ if qp.is_over() => qp.flush(None, crate::shared::wc::WcStatus::Flushed),
            Some(endpoint) => {
                // Receives of a shared queue ring no doorbell of a queue pair, and go to the endpoints in turn.
                if qp.awaits.is_waiting() && matches!(qp.shared.recv, Receives::Own(_)) {
                    self.note_may_continue(endpoint);
                }
                self.schedule(endpoint);
            }
            None => {}
        }
        again
    }
}

/// Returns whether the peer of a connection is alive but has not taken all data.
fn is_slow(transport: &impl Transport, now: Time, conn: ConnId) -> bool {
    let moves = |since| now < since + MOVES_WITHIN;
    transport.is_held_up(conn) || transport.stalled_since(conn).is_some_and(moves)
}

/// Returns the error for an address that could not be reserved.
fn bind_error(error: BindError) -> Error {
    match error {
        BindError::NotOurs(ip) => Error::NotOurAddress(ip),
        BindError::InUse(port) => Error::PortInUse(port),
        BindError::Forbidden(port) => Error::PortForbidden(port),
        BindError::OutOfStep => Error::Invalid(
            "this engine cannot share the address that another engine of the device has reserved: the transport \
             supports only one engine, or this engine has seen the device's reservations in another order",
        ),
        BindError::Exhausted => Error::Exhausted("TCP ports"),
        BindError::NoDescriptor => Error::NoDescriptor,
        BindError::NoMemory => Error::Exhausted(KERNEL_MEMORY),
    }
}

/// Returns the RDMAP fault for an inbound access whose memory is not available.
fn access_fault(fault: MrFault) -> AccessFault {
    match fault {
        MrFault::InvalidStag => AccessFault::InvalidStag,
        MrFault::NotAssociated => AccessFault::NotAssociated,
        MrFault::NoRight => AccessFault::NoRight,
        MrFault::Bounds => AccessFault::Bounds,
        MrFault::Wrap => AccessFault::Wrap,
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Makes an engine on `transport`. `berth` is the engine's place in the device. `seed` must be secret,
    /// because the STags follow from it.
    pub(crate) fn new(
        transport: T,
        clock: C,
        seed: u64,
        mpa: MpaConfig,
        berth: Berth,
        attributes: EngineAttr,
    ) -> Self {
        let Berth { number, commons, doorbells } = berth;
        let now = clock.now();
        let budget = Budget::new(mpa.incomplete_max, transport.pinnable());
        Engine {
            core: Core {
                table: Stags::new(commons.table(seed), number),
                endpoints: Slab::new(),
                qps: Slab::new(),
                cores: BoxRows::default(),
                streams: BoxRows::default(),
                by_qpn: Vec::new(),
                ready: Turns::default(),
                lenders: Vec::new(),
                shares: Shares::default(),
                listeners: HashMap::new(),
                rooms: Rooms::new(transport.max_connections()),
                alarms: Alarms::default(),
                number,
                commons,
                mpa,
                tend_at: Time::MAX,
                budget,
                stopped: Stopped::default(),
                unready: Unready::default(),
                displaced: 0,
                now,
            },
            transport,
            clock,
            drafts: ArrayVec::new(),
            spares: Spares::default(),
            doorbells,
            later: Later::default(),
            attributes,
            posting: Posting::default(),
            waiting: None,
            idle_passes: CLOCK_EVERY,
            owes_acks: false,
            pace: Pace::default(),
            advanced: now,
            peer_sleeps: false,
            check_at: now,
            shutdown_at: None,
        }
    }

    /// Reads the clock for a pass if there is work or the clock is due, and returns whether it did. Most idle passes
    /// neither read the clock nor check timers, because both cost more than the rest of an idle pass, and timers of
    /// milliseconds may fire a microsecond late.
    #[inline]
    fn looks_at_the_clock(&mut self) -> bool {
        let busy = self.owes_acks || !self.core.ready.is_empty() || !self.doorbells.is_empty();
        let looks = busy || self.idle_passes >= CLOCK_EVERY;
        if looks {
            self.idle_passes = 0;
            self.core.now = self.clock.now();
        }
        looks
    }

    /// Reads the clock outside of passes. The next pass reads it again, because that pass may come much later.
    fn now(&mut self) -> Time {
        self.set_now(self.clock.now())
    }

    /// Notes the time that was just read outside of passes, and returns it.
    #[inline]
    fn set_now(&mut self, now: Time) -> Time {
        self.idle_passes = CLOCK_EVERY;
        self.core.now = now;
        now
    }

    /// Receives, and handles all that has been received.
    fn receive(&mut self, now: Time) -> bool {
        let received = self.receive_data_first(now);
        self.transport.settle_acks(&mut self.core);
        received
    }

    /// Like [`receive`](Self::receive), but an ACK that came with data may wait for
    /// [`settle_acks`](Transport::settle_acks).
    fn receive_data_first(&mut self, now: Time) -> bool {
        let received = self.transport.receive(now, &mut self.core);
        if received {
            self.peer_sleeps = false;
            if self.core.rooms.has_ending() {
                self.part(now);
            }
        }
        received
    }

    /// Handles what is rarely due: connections that must end, streams that have stopped, endpoints that wait for
    /// buffers, and functions that must be called at a certain time ([`EngineOps::after`]).
    #[cold]
    fn tend(&mut self, now: Time) {
        let transport = &self.transport;
        self.core.clear_rooms(|conn| is_slow(transport, now, conn));
        self.part(now);
        if !self.core.stopped.is_empty() {
            self.try_stopped(now);
        }
        if self.core.shares.next().is_some() {
            self.try_bufferless(now);
        }
        while let Some(deed) = self.later.due(now) {
            deliver(deed);
        }
        let core = &self.core;
        let next = [core.rooms.next(), core.stopped.next(), core.shares.next(), self.later.next()];
        self.core.tend_at = next.into_iter().flatten().min().unwrap_or(Time::MAX);
    }

    /// Ends the connections that the last burst of frames or a timeout has marked.
    #[cold]
    fn part(&mut self, now: Time) {
        while let Some(index) = self.core.rooms.next_ending() {
            if self.service(index, now) {
                self.core.schedule(index);
            }
        }
    }

    /// Returns whether no thread has driven the engine for a while.
    #[inline]
    fn has_paused(&self, now: Time) -> bool {
        now >= self.advanced + PAUSE
    }

    /// Receives before timers fire, because no thread has driven the engine for a while. What the timers wait for may
    /// have arrived meanwhile. If they fired first, TCP would probe and retransmit needlessly, and connections whose
    /// peers have answered in time would end.
    #[cold]
    fn receive_before_timers(&mut self, now: Time) {
        for _ in 0..BURSTS_AFTER_PAUSE {
            if !self.receive(now) {
                break;
            }
        }
    }
}

impl<T: Transport, C: Clock> EngineOps for Engine<T, C> {
    /// A pass sends first and receives last. So newly posted data leaves at once, and carries the ACKs for the data
    /// that the previous pass received. ACKs that no data has carried are sent afterwards.
    fn pass(&mut self, occasion: Occasion) -> bool {
        self.transport.settle_acks(&mut self.core);
        let looks = self.looks_at_the_clock();
        let now = self.core.now;
        if looks {
            if now >= self.check_at {
                self.check_at = self.transport.check(now, &mut self.core);
            }
            if now >= self.core.next_time_out() && self.has_paused(now) {
                self.receive_before_timers(now);
            }
            let transport = &self.transport;
            self.core.ring_alarms(|conn| is_slow(transport, now, conn));
            if now >= self.core.tend_at {
                self.tend(now);
            }
        }
        let polled = occasion == Occasion::Poll;
        let holds = polled && self.holds_posts(now);
        let served = !holds && self.has_work() && self.serve(now);
        if served {
            self.transport.flush();
        }
        if !holds {
            self.posting.judge(now, polled);
        }
        if looks || served {
            if self.has_paused(now) {
                self.receive_before_timers(now);
            }
            self.advanced = now;
            self.transport.advance(now, &mut self.core);
        }
        self.transport.flush();
        self.pace.measure(|| self.clock.now());
        let received = self.receive_data_first(now);
        self.owes_acks = received;
        if polled {
            self.posting.note_end(now, received || served, || self.clock.now());
        }
        self.idle_passes = if received || served { CLOCK_EVERY } else { self.idle_passes + 1 };
        received || served || holds || !self.core.ready.is_empty()
    }

    fn kick(&mut self, qpn: u32) -> bool {
        self.posted_to(Qpn(qpn))
    }

    fn next_deadline(&mut self) -> Option<Duration> {
        if self.owes_acks || !self.core.ready.is_empty() || self.core.unready.is_due() {
            return Some(Duration::ZERO);
        }
        let next = self.transport.next_deadline().unwrap_or(Time::MAX).min(self.core.next_time_out());
        if next == Time::MAX {
            return None;
        }
        Some(Duration::from_nanos(next.0.saturating_sub(self.now().0)))
    }

    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        let now = self.now();
        self.transport.flush_late(now);
        self.transport.arm()
    }

    fn has_freed_much(&mut self) -> bool {
        self.core.has_freed_much(self.transport.aside())
    }

    fn after(&mut self, time: Duration, deed: Deed) {
        let at = self.now() + time;
        self.later.set(at, deed);
        self.core.tend_at = self.core.tend_at.min(at);
    }

    fn ties(&self) -> Ties {
        let clock = self.clock.clone();
        Ties {
            commons: self.core.commons.clone(),
            table: self.core.table.shared().clone(),
            clock: Arc::new(move || clock.now().0),
        }
    }

    fn take_back(&mut self, range: &Range<usize>) {
        self.take_back_range(range);
    }

    fn attach_qp(&mut self, qp: Arc<QpShared>) -> Result<(), Error> {
        let core = &mut self.core;
        let qp = core.cores.boxed(QpCore::new(qp, core.number));
        core.house(qp);
        Ok(())
    }

    fn has_completed(&self, qpn: u32) -> bool {
        let qp = self.core.index_of(Qpn(qpn)).and_then(|index| self.core.qps.get(index));
        qp.is_some_and(|qp| qp.has_completed())
    }

    fn release_qp(&mut self, qpn: u32, to: EngineNumber) -> Result<Parcel, Error> {
        self.now();
        self.core.release_idle_qp(Qpn(qpn), to)
    }

    fn admit_qp(&mut self, parcel: Parcel) -> Result<(), Error> {
        self.now();
        if let Some(qpn) = self.core.admit_qp(parcel)? {
            self.doorbells.ring(qpn.0);
        }
        Ok(())
    }

    fn detach_qp(&mut self, qpn: u32) {
        self.now();
        if let Some(index) = self.core.index_of(Qpn(qpn)) {
            if let Some(endpoint) = self.core.qps.get(index).and_then(|qp| qp.endpoint) {
                self.take_back_at_once(endpoint);
            }
            self.core.remove_qp(index);
        }
    }

    fn modify_to_error(&mut self, qpn: u32) {
        self.now();
        let Some(index) = self.core.index_of(Qpn(qpn)) else { return };
        if let Some(endpoint) = self.core.qps.get(index).and_then(|qp| qp.endpoint) {
            self.take_back_at_once(endpoint);
        }
        let endpoint = self.core.qps.get(index).and_then(|qp| qp.endpoint);
        let requesting = endpoint.is_some_and(|endpoint| self.core.requesting(endpoint));
        // An endpoint that awaits its TCP connection or the peer's Request has sent nothing of MPA.
        let silent = endpoint.filter(|of| self.core.connecting(*of) || self.core.expecting(*of));
        if let Some(endpoint) = silent {
            self.core.give_up_connecting(endpoint);
        }
        let endpoint = endpoint.filter(|_| silent.is_none());
        let Some(qp) = self.core.qps.get_mut(index) else { return };
        match endpoint {
            // The Request has been sent. If the peer accepts, this side answers with a Terminate (MPAE-31).
            Some(_) if requesting => qp.end(QpState::Error, None, crate::shared::wc::WcStatus::Flushed),
            // Abort: the connection is reset, because the application moves the queue pair from RTS to Error.
            Some(endpoint) => {
                self.core.fail(index, None, Why::Requested);
                self.core.enter_error(index);
                self.core.farewell(endpoint, Farewell::Reset);
            }
            None => qp.end(QpState::Error, None, crate::shared::wc::WcStatus::Flushed),
        }
    }

    fn modify_to_idle(&mut self, qpn: u32) -> Result<(), Error> {
        self.now();
        self.core.reuse_qp(Qpn(qpn))
    }

    fn drain(&mut self, qpn: u32) -> Result<(), Error> {
        self.now();
        self.core.drain_qp(Qpn(qpn))
    }

    fn connection(&mut self, qpn: u32) -> Result<Option<QpConnection>, Error> {
        let index = self.core.known(Qpn(qpn))?;
        let Some(qp) = self.core.qps.get(index) else { return Ok(None) };
        let Some(endpoint) = qp.endpoint.and_then(|e| self.core.endpoints.get(e)) else { return Ok(None) };
        let ReadLimits { ird, ord } = qp.reads;
        Ok(qp.stream.is_some().then_some(QpConnection { peer: endpoint.peer, ird, ord }))
    }

    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, Error> {
        self.transport.bind(address, v6only).map_err(bind_error)
    }

    fn unbind(&mut self, id: BindId) {
        self.now();
        self.stop_listening(id);
        self.transport.unbind(id);
    }

    fn enter_binding(&mut self, bound: Bound, v6only: bool) -> Result<(), Error> {
        self.transport.enter_binding(bound, v6only).map_err(bind_error)
    }

    fn listen(
        &mut self,
        at: BindId,
        backlog: u32,
        places: Arc<Waiting>,
        events: Arc<EventQueue>,
    ) -> Result<(), Error> {
        self.start_listening(at, backlog, places, events)
    }

    fn home_of(&self, from: BindId, to: SocketAddr) -> Option<EngineNumber> {
        self.transport.home_of(from, to).and_then(EngineNumber::new)
    }

    fn connect(
        &mut self,
        qpn: u32,
        way: Way,
        param: &ConnParam,
        events: Arc<EventQueue>,
    ) -> Result<(), Error> {
        self.start_connect(Qpn(qpn), way, param, events)
    }

    fn convert(
        &mut self,
        qpn: u32,
        handover: Handover<'_>,
        param: &ConnParam,
        events: Arc<EventQueue>,
    ) -> Result<(), Error> {
        self.start_conversion(Qpn(qpn), handover, param, events)
    }

    fn part_with(&mut self, request: RequestId) -> Result<Option<Parcel>, Error> {
        self.part_with_request(request)
    }

    fn take_in(&mut self, parcel: Parcel) -> Result<RequestId, Error> {
        self.take_in_request(parcel)
    }

    fn accept(&mut self, request: RequestId, qpn: u32, param: &ConnParam) -> Result<(), Error> {
        self.now();
        self.accept_request(request, Qpn(qpn), param)
    }

    fn local(&mut self, request: RequestId) -> Result<SocketAddr, Error> {
        let endpoint = self.core.endpoints.get(self.core.pending(request)?);
        let conn = endpoint.and_then(|endpoint| endpoint.conn);
        conn.and_then(|conn| self.transport.local(conn)).ok_or(Error::RequestGone)
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) -> Result<(), Error> {
        self.now();
        self.reject_request(request, private_data)
    }

    fn disconnect(&mut self, qpn: u32) -> Result<(), Error> {
        self.now();
        let index = self.core.known(Qpn(qpn))?;
        let qp = self.core.qps.get(index).ok_or(Error::UnknownQp(qpn))?;
        match qp.endpoint {
            None => return Err(Error::NotConnected),
            Some(endpoint) if qp.state() == QpState::Idle => self.core.give_up_connecting(endpoint),
            Some(_) => self.core.disconnect_qp(index),
        }
        Ok(())
    }

    fn set_patience(&mut self, qpn: u32, patience: Option<Patience>) -> Result<(), Error> {
        let index = self.core.known(Qpn(qpn))?;
        let qp = self.core.qps.get(index).ok_or(Error::UnknownQp(qpn))?;
        let endpoint = qp.endpoint.and_then(|e| self.core.endpoints.get(e)).ok_or(Error::NotConnected)?;
        self.transport.set_patience(endpoint.conn.ok_or(Error::NotConnected)?, patience);
        Ok(())
    }

    fn shutdown(&mut self) {
        self.shutdown_at = Some(self.now());
        let all: Vec<EndpointIndex> = self.core.endpoints.iter().map(|(index, _)| index).collect();
        for index in all {
            match self.core.endpoints.get(index).map(|e| &e.phase) {
                Some(&Phase::Open { qp }) => self.core.disconnect_qp(qp),
                Some(Phase::Dismissed | Phase::Closing) | None => {}
                Some(_) => self.core.end_startup(index, Farewell::Reset, None),
            }
        }
    }

    fn drained(&self) -> bool {
        if self.transport.only_peer_has_ended() {
            return true; // no peer exists that could acknowledge anything
        }
        // A connection is done when it no longer exists, or when the peer has acknowledged our FIN and so all data.
        // Until `FIN_WITHIN` has passed, only the first case counts, so that the FINs of the peers are
        // acknowledged while this process exists. Peers that notice the end of this process do not need that.
        let waited = self.shutdown_at.is_none_or(|at| self.clock.now() >= at + FIN_WITHIN);
        if !waited && !self.transport.peers_notice_end() && self.core.endpoints.iter().next().is_some() {
            return false;
        }
        let has_ended = |conn| self.transport.has_ended(conn);
        self.core.endpoints.iter().all(|(_, endpoint)| endpoint.conn.is_some_and(has_ended))
    }

    fn finish(&mut self) {
        self.transport.finish();
    }

    fn connections(&self) -> Vec<ConnectionAttr> {
        let qpns: HashMap<ConnId, u32> = self
            .core
            .endpoints
            .iter()
            .filter_map(|(_, endpoint)| match (endpoint.conn, &endpoint.phase) {
                (Some(conn), &Phase::Open { qp }) => Some((conn, self.core.qps.get(qp)?.shared.qpn)),
                _ => None,
            })
            .collect();
        let attributes = |facts: StreamFacts| ConnectionAttr {
            qpn: qpns.get(&facts.conn).copied(),
            local: facts.local,
            peer: facts.peer,
            tcp: facts.tcp,
        };
        self.transport.connections().into_iter().map(attributes).collect()
    }

    fn source_for(&mut self, to: SocketAddr) -> Result<Option<IpAddr>, Error> {
        let now = self.now();
        self.transport.source_for(now, self.transport.destination(to))
    }

    fn population(&self) -> Population {
        Population { queue_pairs: self.core.qps.len(), connections: self.core.endpoints.len() }
    }

    fn attributes(&self) -> EngineAttr {
        let facts = self.transport.facts();
        let mut attributes = self.attributes.clone();
        attributes.link_up = facts.link_up;
        attributes.gso_max = facts.gso_max;
        if !facts.addresses.is_empty() {
            let cidr = |a: &urnic_tcp::Address| Cidr { address: a.ip, prefix: a.prefix_len };
            attributes.addresses = facts.addresses.iter().map(cidr).collect();
        }
        attributes.counters = facts.counters;
        attributes.counters.extend([
            ("incomplete_octets", self.core.budget.reserved() as u64),
            ("incomplete_displaced", self.core.displaced),
            ("waited_for_receives", self.core.unready.waited),
            ("waited_for_bursts", self.posting.holds),
            ("waiting_for_buffers", self.core.shares.waiting() as u64),
            ("aside_displaced", self.core.shares.displaced),
        ]);
        attributes
    }
}
