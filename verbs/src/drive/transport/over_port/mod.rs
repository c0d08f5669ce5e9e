//! The transport that uses urnic's own TCP stack on a port.

#[cfg(feature = "dpdk")]
mod claim;
mod crossing;
mod link;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use urnic_crc::Octets;
use urnic_iwarp::Chunk;
use urnic_tcp::{
    BindError, BindId, Bound, Buffers, CloseReason, ConnId, ConnInfo, ConnectError, Elsewhere, Emit, Handler,
    ListenError, LocalPorts, Patience, PortSpace, SharedPorts, Stack, StackConfig, State, Steering, Time,
    Transmit,
};

use super::{Data, Events, Facts, Sent, StreamFacts, Transport, Wakeup};
use crate::drive::port::{BURST, Freeze, Port, Received, Spread};
use crate::shared::engines::Commons;
use crate::shared::error::{Error, Result};
use crate::shared::prefetch::prefetch;
use crossing::Passage;
use link::Link;

/// Frames that the engine holds may pin at most 1/`PINNED_PART` of the receive buffers.
const PINNED_PART: usize = 8;

/// TCP on a port.
pub(crate) struct OverPort<P: Port> {
    port: P,
    stack: Stack<PortBuffers<P>>,
    link: Link,
    under_pressure: bool,
    /// See [`Transport::hurry`].
    hurries: bool,
    /// The passage to the other engines of the device; `None`: the device has only one engine.
    passage: Option<Passage>,
}

impl<P: Port> OverPort<P> {
    /// Makes the stack that `config` describes, on `port`.
    ///
    /// # Errors
    /// [`Error::Open`] if the stack refuses its configuration.
    pub(crate) fn new(port: P, config: StackConfig, now: Time) -> Result<Self, Error> {
        let ports = Box::new(LocalPorts::new(config.seed));
        Self::with(port, config, ports, None, now)
    }

    /// Makes the stacks of a device, one for each of `queues`, the queues of its port. The stacks share addresses,
    /// TCP ports and secrets, and hand frames to each other. `commons` will contain their engines, in the same order.
    ///
    /// Each connection belongs to one engine, its owner. A secret determines the owner, unless the port itself
    /// chooses the queue in a known way. If the queues of the link are paired, a connection's owners at both
    /// ends have the same number. If a NIC's hash is known, the owner is the engine whose queue the NIC chooses
    /// for the connection's frames.
    ///
    /// # Errors
    /// [`Error::Open`] if the stacks refuse their configuration, if there are too many stacks, or if the NIC's
    /// table of queues has a size that [`Steering::like_nic`] does not support.
    pub(crate) fn of_device(
        queues: Vec<P>,
        config: &StackConfig,
        commons: &Arc<Commons>,
        now: Time,
    ) -> Result<Vec<Self>, Error> {
        let engines = queues.len();
        if engines == 1 {
            return queues.into_iter().map(|port| Self::new(port, config.clone(), now)).collect();
        }
        let spread = queues.first().map_or(Spread::Unknown, Port::spread);
        let passages = Passage::of_all(engines, commons);
        let parts = SharedPorts::new(config.seed, engines).into_iter().zip(passages).enumerate();
        let stack = |(port, (number, (ports, passage)))| {
            let steering = match spread {
                Spread::Paired => Steering::agreed(number, engines),
                Spread::Nic { key, entries } => Steering::like_nic(number, engines, key, entries),
                Spread::Unknown => Steering::new(number, engines, config.seed),
            };
            let steering = steering.ok_or_else(|| {
                Error::Open(format!(
                    "cannot spread connections over {engines} engines: there may be at most 64, and the number of \
                     entries of a NIC's RSS table must be a power of two, at most 65536; set engine.engines to 1"
                ))
            })?;
            let config = StackConfig { steering, ..config.clone() };
            Self::with(port, config, Box::new(ports), Some(passage), now)
        };
        queues.into_iter().zip(parts).map(stack).collect()
    }

    fn with(
        port: P,
        mut config: StackConfig,
        ports: Box<dyn PortSpace + Send>,
        passage: Option<Passage>,
        now: Time,
    ) -> Result<Self, Error> {
        config.checksum_offload_tx = port.spares_checksum();
        // A peer that is not accepted yet need not send much: an MPA Request is short (MPA-60), and nothing may
        // follow it before our Reply (MPA-91).
        config.tcp.wary = true;
        let stack = Stack::new(config, ports, now).map_err(|e| Error::Open(e.to_string()))?;
        Ok(Self { port, stack, link: Link::default(), under_pressure: false, hurries: false, passage })
    }

    /// Returns how many octets the engine may pin by holding frames while receive buffers are not scarce.
    fn pinnable(&self) -> usize {
        self.port.receive_memory() / PINNED_PART
    }

    /// Returns whether frames from other engines wait.
    #[inline]
    fn is_told(&self) -> bool {
        self.passage.as_ref().is_some_and(|passage| !passage.is_empty())
    }

    /// Hands over the frames that this port cannot send, because the peer has no queue with this port's number.
    #[inline(never)]
    fn send_strays(&mut self) {
        let Some(passage) = &mut self.passage else { return };
        let Some(first) = self.port.stray() else { return };
        passage.send_elsewhere(first);
        while let Some(stray) = self.port.stray() {
            passage.send_elsewhere(stray);
        }
        passage.wake();
    }

    /// Notes that the receive pool has become low, or is no longer low.
    #[cold]
    fn pressure_changed(&mut self, low: bool, events: &mut impl Events<StreamRange<P::Frame>>) {
        self.under_pressure = low;
        self.stack.set_pressure(low);
        events.pinnable(if low { 0 } else { self.pinnable() });
    }
}

impl<P: Port> Transport for OverPort<P> {
    type Data = StreamRange<P::Frame>;
    type Draft = P::Draft;

    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError> {
        self.stack.bind(address, v6only)
    }

    fn enter_binding(&mut self, bound: Bound, v6only: bool) -> Result<(), BindError> {
        self.stack.enter_binding(bound, v6only)
    }

    fn home_of(&self, from: BindId, to: SocketAddr) -> Option<usize> {
        let several = !self.stack.config().steering.is_alone();
        several.then(|| self.stack.home_of(from, self.stack.destination(to)))?
    }

    fn unbind(&mut self, bound: BindId) {
        self.stack.unbind(bound);
    }

    fn listen(&mut self, at: BindId, backlog: usize) -> Result<(), ListenError> {
        self.stack.listen(at, backlog)
    }

    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError> {
        self.stack.connect_from(now, from, to, tag, &mut Wire::of(&mut self.port))
    }

    fn welcome(&mut self, now: Time, conn: ConnId) {
        self.stack.welcome(now, conn, &mut Wire::of(&mut self.port));
    }

    fn set_patience(&mut self, conn: ConnId, patience: Option<Patience>) {
        self.stack.set_patience(conn, patience);
    }

    fn close(&mut self, now: Time, conn: ConnId) {
        self.stack.close(now, conn, &mut Wire::of(&mut self.port));
    }

    fn abort(&mut self, now: Time, conn: ConnId) {
        self.stack.abort(now, conn, &mut Wire::of(&mut self.port));
    }

    fn has_ended(&self, conn: ConnId) -> bool {
        self.stack.info(conn).is_some_and(|info| info.state == State::FinWait2)
    }

    fn max_connections(&self) -> u32 {
        self.stack.config().tcp.max_connections
    }

    fn check(&mut self, now: Time, events: &mut impl Events<Self::Data>) -> Time {
        self.check_link(now, events)
    }

    #[inline]
    fn receive(&mut self, now: Time, events: &mut impl Events<Self::Data>) -> bool {
        let mut burst = ArrayVec::<P::Frame, BURST>::new();
        self.port.receive(now, &mut burst);
        let is_told = self.is_told();
        if is_told {
            self.take_over(now, events);
        }
        if burst.is_empty() {
            return is_told;
        }
        self.link.heard();
        let low = self.port.receive_pool_low();
        if low != self.under_pressure {
            self.pressure_changed(low, events);
        }
        if low && self.port.receive_pool_short() {
            self.stack.give_back_held();
        }
        let tags = self.stack.foresee(&burst);
        if !tags.is_empty() {
            events.foresee(&tags);
        }
        let mut frames = burst.drain(..).peekable();
        let frames = std::iter::from_fn(|| {
            let frame = frames.next();
            // Prefetches the next frame, so that its cache lines arrive while this frame is processed.
            if let Some(next) = frames.peek() {
                P::prefetch(next);
            }
            frame
        });
        let told = &mut Told { events, passage: self.passage.as_mut() };
        self.stack.receive_data_first(now, frames, told, &mut Wire::of(&mut self.port));
        if let Some(passage) = &mut self.passage {
            passage.wake();
        }
        true
    }

    #[inline]
    fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    #[inline]
    fn settle_acks(&mut self, events: &mut impl Events<Self::Data>) -> bool {
        self.stack.settle(&mut Told { events, passage: None }, &mut Wire::of(&mut self.port))
    }

    #[inline]
    fn advance(&mut self, now: Time, events: &mut impl Events<Self::Data>) {
        let told = &mut Told { events, passage: None };
        self.stack.advance(now, told, &mut Wire::of(&mut self.port));
        self.stack.flush(now, &mut Wire::of(&mut self.port));
    }

    #[inline]
    fn flush(&mut self) {
        self.port.flush();
        if self.passage.is_some() {
            self.send_strays();
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        if self.is_told() {
            return Some(Time::ZERO);
        }
        [self.stack.next_deadline(), self.port.next_deadline()].into_iter().flatten().min()
    }

    fn flush_late(&mut self, now: Time) {
        self.stack.flush_late(now, &mut Wire::of(&mut self.port));
        self.flush();
    }

    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        self.port.arm()
    }

    #[inline]
    fn sent(&self) -> Sent {
        let counters = self.stack.counters();
        Sent { frames: counters.segments_out, octets: counters.bytes_out }
    }

    fn pinnable(&self) -> usize {
        if self.under_pressure { 0 } else { OverPort::pinnable(self) }
    }

    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Self::Data>) {
        let told = &mut Told { events, passage: None };
        self.stack.resume(now, conn, told, &mut Wire::of(&mut self.port));
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.port.room() > 0
    }

    #[inline]
    fn draft(&mut self) -> Option<P::Draft> {
        self.port.draft()
    }

    #[inline]
    fn segment(&self, conn: ConnId) -> usize {
        self.stack.mss(conn)
    }

    #[inline]
    fn record_max(&self, conn: ConnId) -> usize {
        self.stack.record_max(conn)
    }

    #[inline]
    fn room(&self, conn: ConnId) -> usize {
        self.stack.room(conn)
    }

    #[inline]
    fn send(&mut self, conn: ConnId, record: P::Draft, sum: Option<u16>, unit: u16) {
        let _ = self.stack.send(conn, record.freeze(sum, unit));
    }

    #[inline]
    fn output(&mut self, now: Time, conn: ConnId) {
        self.stack.output(now, conn, &mut Wire { port: &mut self.port, hurries: self.hurries });
    }

    fn send_early(&mut self, now: Time, conn: ConnId) {
        self.output(now, conn);
        self.port.flush();
    }

    #[inline]
    fn has_crowd(&self) -> bool {
        self.stack.has_crowd()
    }

    fn foresee_output(&self, conns: &[ConnId]) {
        self.stack.foresee_output(conns);
    }

    #[inline]
    fn unacked(&self, conn: ConnId) -> u64 {
        self.stack.unacked(conn)
    }

    #[inline]
    fn unsent(&self, conn: ConnId) -> u64 {
        self.stack.unsent(conn)
    }

    fn stalled_since(&self, conn: ConnId) -> Option<Time> {
        self.stack.stalled_since(conn)
    }

    #[inline]
    fn wants_sum(&self) -> bool {
        !self.port.spares_checksum()
    }

    #[inline]
    fn send_buffers(&self) -> usize {
        self.port.send_buffers()
    }

    #[inline]
    fn all_send_buffers(&self) -> usize {
        self.port.all_send_buffers()
    }

    fn records(&self, conn: ConnId) -> usize {
        self.stack.records(conn)
    }

    fn buffers(&self, conn: ConnId) -> usize {
        self.stack.records_at_end(conn, |payload| !P::is_aside(payload))
    }

    fn put_aside(&mut self, conn: ConnId, most: usize) {
        let port = &mut self.port;
        self.stack.each_payload(conn, |payload| {
            if port.aside() < most {
                port.put_aside(payload);
            }
        });
    }

    #[inline]
    fn aside(&self) -> usize {
        self.port.aside()
    }

    #[inline]
    fn lends_from(&self) -> usize {
        self.port.lends_from()
    }

    #[inline]
    unsafe fn lend(&mut self, record: &mut P::Draft, at: *const u8, len: usize, ours: bool) -> bool {
        // SAFETY: the caller fulfils this function's contract, which is also that of `Port::lend`.
        unsafe { self.port.lend(record, at, len, ours) }
    }

    fn take_back(&mut self, conn: ConnId, range: &Range<usize>) -> bool {
        let mut copied = true;
        let port = &mut self.port;
        self.stack.each_payload(conn, |payload| copied &= port.copy_lent(payload, range));
        copied
    }

    fn forget(&mut self, range: &Range<usize>) {
        self.port.forget(range);
    }

    fn is_read_late(&mut self, conn: ConnId, range: &Range<usize>) -> bool {
        let mut late = false;
        let port = &self.port;
        self.stack.each_payload(conn, |payload| late |= port.is_read_late(payload, range));
        late
    }

    fn only_peer_has_ended(&self) -> bool {
        self.link.is_lost() && self.port.carrier_is_peer()
    }

    fn peers_notice_end(&self) -> bool {
        self.port.carrier_is_peer()
    }

    fn finish(&mut self) {
        self.port.finish();
    }

    fn local(&self, conn: ConnId) -> Option<SocketAddr> {
        self.stack.local_addr(conn)
    }

    fn without_route(&self) -> &'static str {
        "the address is in none of the device's networks, and no router leads there; check the prefix length of ip.ip, \
         or set ip.gateway or ip.routes"
    }

    fn is_held_up(&self, conn: ConnId) -> bool {
        let shut = |info: ConnInfo| info.snd_wnd < info.snd_mss.into();
        self.stack.unacked(conn) > 0 && self.stack.info(conn).is_some_and(shut)
    }

    fn destination(&self, to: SocketAddr) -> SocketAddr {
        self.stack.destination(to)
    }

    fn source_for(&self, now: Time, to: SocketAddr) -> Result<Option<IpAddr>> {
        Ok(self.stack.source_for(now, to.ip()))
    }

    fn facts(&self) -> Facts {
        let c = self.stack.counters();
        let mut counters = self.port.counters();
        counters.extend([
            ("tcp_segments_in", c.segments_in),
            ("tcp_segments_out", c.segments_out),
            ("tcp_retransmitted", c.retransmitted_segments),
            ("tcp_fast_recoveries", c.fast_recoveries),
            ("tcp_timeouts", c.rto_recoveries),
            ("tcp_out_of_order", c.out_of_order),
            ("tcp_duplicate", c.duplicate),
            ("tcp_bad_checksum", c.bad_tcp_checksum),
            ("tcp_unfilled_checksum", c.unfilled_tcp_checksum),
            ("malformed", c.malformed),
            ("arp_conflicts", c.arp_conflicts),
        ]);
        counters.extend([
            ("send_buffers_free", self.port.send_buffers() as u64),
            ("aside_octets", self.port.aside() as u64),
        ]);
        counters.extend(self.passage.iter().flat_map(Passage::counters));
        counters.extend(c.nstat());
        Facts {
            link_up: self.link.is_up(),
            gso_max: self.port.gso_max(),
            addresses: self.stack.addresses(),
            counters,
        }
    }

    fn connections(&self) -> Vec<StreamFacts> {
        let facts = |conn| {
            let (local, peer) = (self.stack.local_addr(conn)?, self.stack.peer_addr(conn)?);
            Some(StreamFacts { conn, local, peer, tcp: self.stack.info(conn)? })
        };
        self.stack.connections().filter_map(facts).collect()
    }
}

/// A received frame, and the range of its octets that is stream data.
pub(crate) struct StreamRange<F> {
    frame: F,
    range: Range<usize>,
}

impl<F: Received> Chunk for StreamRange<F> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.frame.bytes().get(self.range.clone()).unwrap_or_default()
    }

    #[inline]
    fn len(&self) -> usize {
        self.range.len()
    }

    #[inline]
    fn piece(&self, at: usize) -> Octets<'_> {
        let start = self.range.end.min(self.range.start.saturating_add(at));
        self.frame.piece(start..self.range.end)
    }

    #[inline]
    fn keep(&mut self) {
        self.frame.keep();
    }

    #[inline]
    fn is_shared(&self) -> bool {
        self.frame.is_shared()
    }

    #[inline]
    fn pins(&self) -> usize {
        self.frame.pins()
    }
}

impl<F: Received> Data for StreamRange<F> {
    #[inline]
    fn skip(&mut self, n: usize) {
        self.range.start = (self.range.start + n).min(self.range.end);
    }
}

/// Passes the stack's events on to the engine.
struct Told<'a, E> {
    events: &'a mut E,
    /// The passage for frames that concern other engines; `None` where no such frames can come.
    passage: Option<&'a mut Passage>,
}

impl<F: Received, E: Events<StreamRange<F>>> Handler<F> for Told<'_, E> {
    #[inline]
    fn accepted(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        self.events.incoming(listener, conn, peer)
    }

    #[inline]
    fn connected(&mut self, conn: ConnId, tag: u64) {
        self.events.connected(conn, tag);
    }

    #[inline]
    fn data(&mut self, conn: ConnId, tag: u64, frame: F, range: Range<usize>) -> Option<(F, Range<usize>)> {
        let rest = self.events.data(conn, tag, StreamRange { frame, range })?;
        Some((rest.frame, rest.range))
    }

    #[inline]
    fn acked(&mut self, conn: ConnId, tag: u64, bytes: u64) {
        self.events.acked(conn, tag, bytes);
    }

    #[inline]
    fn finished(&mut self, conn: ConnId, tag: u64) {
        self.events.finished(conn, tag);
    }

    #[inline]
    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason) {
        self.events.closed(conn, tag, reason);
    }

    fn hand_over(&mut self, to: Elsewhere, frame: &F) {
        if let Some(passage) = &mut self.passage {
            passage.hand_over(to, frame);
        }
    }
}

/// Tells the TCP stack the types of a port's buffers.
struct PortBuffers<P: Port>(core::marker::PhantomData<fn() -> P>);

impl<P: Port> Buffers for PortBuffers<P> {
    type Frame = P::Frame;
    type Payload = P::Payload;

    #[inline]
    fn prefetch(start: *const u8, octets: usize) {
        prefetch(start, octets);
    }
}

/// The port in the form in which the TCP stack transmits through it.
struct Wire<'a, P: Port> {
    port: &'a mut P,
    /// See [`Transport::hurry`].
    hurries: bool,
}

impl<'a, P: Port> Wire<'a, P> {
    #[inline]
    fn of(port: &'a mut P) -> Self {
        Wire { port, hurries: false }
    }
}

impl<P: Port> Transmit<P::Payload> for Wire<'_, P> {
    fn room(&self) -> usize {
        self.port.room()
    }

    fn emit(&mut self, emit: Emit<'_, P::Payload>) {
        self.port.emit(emit);
    }

    #[inline]
    fn emitted(&mut self) {
        if self.hurries {
            self.port.flush();
        }
    }
}
