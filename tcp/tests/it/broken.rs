//! Breaks rules of the protocol from outside of a stack: changes the frames that reach the stack, the data that it
//! delivers and the frames that it sends, as if the stack had broken the rule itself.

use crate::harness::{App, Out, Record};
use std::net::SocketAddr;
use std::ops::Range;
use urnic_tcp::{BindId, CloseReason, ConnId, Counters, Elsewhere, Emit, Handler, Piece, Seq, Transmit, sum};

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A segment with a wrong checksum is dropped.
    Checksum,
    /// Octets are delivered only once.
    OverlapOnce,
    /// A retransmission carries the octets of the missing range.
    RetransmitRange,
    /// Octets are delivered in order.
    InOrder,
    /// Only octets that arrived are acknowledged.
    AckReceived,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 5] =
        [Rule::Checksum, Rule::OverlapOnce, Rule::RetransmitRange, Rule::InOrder, Rule::AckReceived];

    /// Returns whether a host may break the rule yet. Some rules wait until the stack has seen a suitable event, such
    /// as a duplicate.
    pub fn has_cause(self, seen: &Counters) -> bool {
        match self {
            Rule::OverlapOnce => seen.duplicate + seen.unacceptable > 0,
            Rule::InOrder => seen.out_of_order > 0,
            Rule::Checksum | Rule::RetransmitRange | Rule::AckReceived => true,
        }
    }

    /// Returns a frame as a stack that breaks the rule would see it.
    pub fn arriving(self, mut frame: Vec<u8>) -> Vec<u8> {
        if self == Rule::Checksum {
            mend(&mut frame);
        }
        frame
    }
}

/// Wraps an application, or a way out for frames, and breaks `rule` in the stack's place.
pub struct Unruly<'a, T> {
    pub inner: &'a mut T,
    pub rule: Option<Rule>,
}

impl Handler<Vec<u8>> for Unruly<'_, App> {
    fn accepted(&mut self, listener: BindId, conn: ConnId, peer: SocketAddr) -> u64 {
        self.inner.accepted(listener, conn, peer)
    }

    fn connected(&mut self, conn: ConnId, tag: u64) {
        self.inner.connected(conn, tag);
    }

    fn data(
        &mut self,
        conn: ConnId,
        tag: u64,
        frame: Vec<u8>,
        range: Range<usize>,
    ) -> Option<(Vec<u8>, Range<usize>)> {
        let mut offer = |range| self.inner.data(conn, tag, frame.clone(), range);
        match self.rule {
            Some(Rule::OverlapOnce) => offer(range.clone()).or_else(|| offer(range)),
            Some(Rule::InOrder) if range.len() > 1 => {
                let half = range.start + range.len() / 2;
                offer(half..range.end).or_else(|| offer(range.start..half))
            }
            _ => self.inner.data(conn, tag, frame, range),
        }
    }

    fn acked(&mut self, conn: ConnId, tag: u64, bytes: u64) {
        self.inner.acked(conn, tag, bytes);
    }

    fn finished(&mut self, conn: ConnId, tag: u64) {
        self.inner.finished(conn, tag);
    }

    fn closed(&mut self, conn: ConnId, tag: u64, reason: CloseReason) {
        self.inner.closed(conn, tag, reason);
    }

    fn hand_over(&mut self, to: Elsewhere, frame: &Vec<u8>) {
        self.inner.hand_over(to, frame);
    }
}

impl Transmit<Record> for Unruly<'_, Out> {
    fn room(&self) -> usize {
        self.inner.room()
    }

    fn emit(&mut self, e: Emit<'_, Record>) {
        match self.rule {
            Some(Rule::RetransmitRange) if e.retransmit && !e.payload.is_empty() => {
                let octets = e.payload.iter().flat_map(|p| &p.payload[p.range.clone()]);
                let mut octets: Vec<u8> = octets.copied().collect();
                // Whole 16-bit words change places, so the checksum stays correct.
                let even = octets.len() & !1;
                octets[..even].rotate_left(even.min(2));
                let range = 0..octets.len();
                self.inner.emit(Emit { payload: &[Piece { payload: &octets.into(), range }], ..e });
            }
            Some(Rule::AckReceived) if e.payload.is_empty() => {
                let mut headers = e.headers.to_vec();
                acknowledge_hole(&mut headers);
                self.inner.emit(Emit { headers: &headers, ..e });
            }
            _ => self.inner.emit(e),
        }
    }
}

/// Returns the range of the TCP segment in a frame, and the range of its addresses.
fn segment(frame: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
    let length = |at: usize| Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    let (tcp, addresses) = match (frame.get(12..14)?, *frame.get(14)?, *frame.get(20)?, *frame.get(23)?) {
        ([0x08, 0x00], 0x45, _, 6) => (34..14 + length(16)?, 26..34),
        ([0x86, 0xdd], _, 6, _) => (54..54 + length(18)?, 22..54),
        _ => return None,
    };
    (frame.get(tcp.clone())?.len() >= 20).then_some((tcp, addresses))
}

/// Corrects the checksum of a TCP segment.
fn mend(frame: &mut [u8]) {
    let Some((tcp, addresses)) = segment(frame) else { return };
    let field = tcp.start + 16;
    frame[field..field + 2].fill(0);
    let pseudo = sum::add(sum::sum(&frame[addresses]), 6 + tcp.len() as u16);
    let checksum = sum::checksum(sum::add(pseudo, sum::sum(&frame[tcp])));
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Lets a segment that reports a gap acknowledge the missing octets.
fn acknowledge_hole(frame: &mut [u8]) {
    let Some((tcp, _)) = segment(frame) else { return };
    let word = |at: usize| Seq(u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]));
    let (ack, end) = (tcp.start + 8, tcp.start + 4 * usize::from(frame[tcp.start + 12] >> 4));
    let mut at = tcp.start + 20;
    while at + 10 <= end {
        match frame[at] {
            0 => return,
            1 => at += 1,
            5 if word(at + 2).gt(word(ack)) => {
                frame.copy_within(at + 2..at + 6, ack);
                return mend(frame);
            }
            _ => at += usize::from(frame[at + 1]),
        }
    }
}
