//! Streams in memory that break a rule. They change octets as a TCP or an RNIC would if it broke this rule.

use crate::common::medium::{self, Memory};
use std::cell::Cell;
use std::net::SocketAddr;
use urnic::Device;
use urnic::simulation::{Options, SimClock};
use urnic::transport::*;

/// A rule of streams, or of the content of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Octets arrive as they were sent.
    Checksum,
    /// Delivered octets are not delivered again.
    OverlapOnce,
    /// A retransmission contains the octets that are missing.
    RetransmitRange,
    /// Octets are delivered in order.
    InOrder,
    /// Only octets that arrived are acknowledged.
    AckReceived,
    /// An error is reported to the peer by a Terminate.
    Terminate,
    /// The answer to a peer's Read has the octets that the Read asks for.
    ReadSource,
    /// Only the last segment of a message has L set.
    LastOnLast,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 8] = [
        Rule::Checksum,
        Rule::OverlapOnce,
        Rule::RetransmitRange,
        Rule::InOrder,
        Rule::AckReceived,
        Rule::Terminate,
        Rule::ReadSource,
        Rule::LastOnLast,
    ];
}

thread_local! {
    /// The rule that the devices of this thread break.
    static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// Sets the rule that devices break if this thread opens them from now on; `None`: no rule.
pub fn set(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Makes device number `index` of a simulation.
pub fn device(options: &Options, index: usize, clock: &SimClock) -> urnic::Result<Device> {
    let dice = fastrand::Rng::with_seed(options.network.seed ^ index as u64);
    let fault = Fault { rule: BROKEN.get(), pieces: 0, dice };
    medium::device_over(options, index, clock, |memory| Unruly { memory, fault })
}

/// Number of first pieces that arrive unharmed, so that connections are established.
const START_UP: u64 = 64;
/// On average, one of this many later pieces is harmed.
const SELDOM: u32 = 50;

/// A rule to break, and when to break it.
struct Fault {
    rule: Option<Rule>,
    /// Number of pieces that have arrived.
    pieces: u64,
    dice: fastrand::Rng,
}

impl Fault {
    /// Returns the rule if the next piece breaks it.
    fn strikes(&mut self) -> Option<Rule> {
        self.pieces += 1;
        self.rule.filter(|_| self.pieces > START_UP && self.dice.u32(..SELDOM) == 0)
    }

    /// Changes an FPDU (without its CRC) before it is sent. Returns `false` if the FPDU must not be sent.
    fn send(&self, fpdu: &mut [u8]) -> bool {
        let tagged = fpdu[2] & 0x80 != 0;
        match (self.rule, fpdu[3] & 0x0F) {
            (Some(Rule::Terminate), 7) => return false,
            (Some(Rule::ReadSource), 2) if tagged => {
                let end = 2 + usize::from(u16::from_be_bytes([fpdu[0], fpdu[1]]));
                let payload = &mut fpdu[16..end];
                payload.rotate_left(payload.len().min(1));
            }
            (Some(Rule::LastOnLast), _) => fpdu[2] |= 0x40,
            _ => {}
        }
        true
    }
}

/// An end of a [`medium::Medium`] that breaks a rule.
struct Unruly {
    memory: Memory,
    fault: Fault,
}

/// Passes events from the transport to an engine, and breaks a rule in doing so.
struct Misled<'a, E> {
    events: &'a mut E,
    fault: &'a mut Fault,
}

impl<E: Events<Octets>> Events<Octets> for Misled<'_, E> {
    fn data(&mut self, conn: ConnId, tag: u64, data: Octets) -> Option<Octets> {
        let (mut octets, events) = (data.bytes().to_vec(), &mut *self.events);
        let mut offer = |data| events.data(conn, tag, data);
        match self.fault.strikes() {
            Some(Rule::Checksum) => {
                let at = self.fault.dice.usize(..octets.len());
                octets[at] ^= 1 << self.fault.dice.u8(..8);
                offer(Octets::new(octets))
            }
            Some(Rule::OverlapOnce) => offer(data.clone()).or_else(|| offer(data)),
            Some(Rule::RetransmitRange) => {
                octets.rotate_left(1);
                offer(Octets::new(octets))
            }
            Some(Rule::InOrder) => {
                let half = octets.len() / 2;
                offer(data.part(half..octets.len())).or_else(|| offer(data.part(0..half)))
            }
            Some(Rule::AckReceived) => None,
            _ => offer(data),
        }
    }

    fn incoming(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        self.events.incoming(listener, conn, peer)
    }

    fn connected(&mut self, conn: ConnId, tag: u64) {
        self.events.connected(conn, tag);
    }

    fn acked(&mut self, conn: ConnId, tag: u64, octets: u64) {
        self.events.acked(conn, tag, octets);
    }

    fn finished(&mut self, conn: ConnId, tag: u64) {
        self.events.finished(conn, tag);
    }

    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason) {
        self.events.closed(conn, tag, reason);
    }

    fn pinnable(&mut self, octets: usize) {
        self.events.pinnable(octets);
    }

    fn link(&mut self, up: bool) {
        self.events.link(up);
    }
}

impl Transport for Unruly {
    type Data = Octets;
    type Draft = Vec<u8>;

    fn receive(&mut self, now: Time, events: &mut impl Events<Octets>) -> bool {
        self.memory.receive(now, &mut Misled { events, fault: &mut self.fault })
    }

    fn resume(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Octets>) {
        self.memory.resume(now, conn, &mut Misled { events, fault: &mut self.fault });
    }

    fn send(&mut self, conn: ConnId, record: Vec<u8>, sum: Option<u16>, unit: u16) {
        let is_start_up = record.starts_with(b"MPA ID Re");
        let record = if is_start_up { record } else { each_fpdu(&record, |fpdu| self.fault.send(fpdu)) };
        self.memory.send(conn, record, sum, unit);
    }

    fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError> {
        self.memory.bind(address, v6only)
    }

    fn unbind(&mut self, bound: BindId) {
        self.memory.unbind(bound);
    }

    fn listen(&mut self, at: BindId, backlog: usize) -> Result<(), ListenError> {
        self.memory.listen(at, backlog)
    }

    fn connect(
        &mut self,
        now: Time,
        from: Option<BindId>,
        to: SocketAddr,
        tag: u64,
    ) -> Result<ConnId, ConnectError> {
        self.memory.connect(now, from, to, tag)
    }

    fn close(&mut self, now: Time, conn: ConnId) {
        self.memory.close(now, conn);
    }

    fn abort(&mut self, now: Time, conn: ConnId) {
        self.memory.abort(now, conn);
    }

    fn has_ended(&self, conn: ConnId) -> bool {
        self.memory.has_ended(conn)
    }

    fn local(&self, conn: ConnId) -> Option<SocketAddr> {
        self.memory.local(conn)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.memory.next_deadline()
    }

    fn sent(&self) -> Sent {
        self.memory.sent()
    }

    fn pinnable(&self) -> usize {
        self.memory.pinnable()
    }

    fn draft(&mut self) -> Option<Vec<u8>> {
        self.memory.draft()
    }

    fn segment(&self, conn: ConnId) -> usize {
        self.memory.segment(conn)
    }

    fn room(&self, conn: ConnId) -> usize {
        self.memory.room(conn)
    }

    fn output(&mut self, now: Time, conn: ConnId) {
        self.memory.output(now, conn);
    }

    fn unacked(&self, conn: ConnId) -> u64 {
        self.memory.unacked(conn)
    }

    fn records(&self, conn: ConnId) -> usize {
        self.memory.records(conn)
    }

    fn peers_notice_end(&self) -> bool {
        self.memory.peers_notice_end()
    }

    fn facts(&self) -> Facts {
        self.memory.facts()
    }

    fn connections(&self) -> Vec<StreamFacts> {
        self.memory.connections()
    }
}

/// Applies `change` to each FPDU of a record. Returns the FPDUs for which `change` returned `true`, with correct CRCs.
fn each_fpdu(record: &[u8], change: impl Fn(&mut [u8]) -> bool) -> Vec<u8> {
    let (mut rest, mut all) = (record, Vec::with_capacity(record.len()));
    while let [high, low, ..] = *rest {
        let covered = (2 + usize::from(u16::from_be_bytes([high, low]))).next_multiple_of(4);
        let (fpdu, after) = rest.split_at(covered + 4);
        let mut fpdu = fpdu[..covered].to_vec();
        if change(&mut fpdu) {
            let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &fpdu));
            all.extend(fpdu);
            all.extend(crc.to_le_bytes());
        }
        rest = after;
    }
    all
}
