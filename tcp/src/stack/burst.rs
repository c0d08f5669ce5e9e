//! Frames that come together: what undisturbed connections get is taken on a short way, and ACKs that follow each other
//! are taken as one.

use super::*;
use crate::ecn;
use crate::seq::Seq;
use crate::wire::Timestamps;

/// The newest of some ACKs of one connection, each of which acknowledged more than the one before it.
pub(super) struct Acks {
    /// The connection; [`NOBODY`]: there are none.
    index: u32,
    seq: Seq,
    ack: Seq,
    window: u16,
    timestamps: Option<Timestamps>,
}

const NOBODY: u32 = u32::MAX;

impl Acks {
    pub const NONE: Acks = Acks { index: NOBODY, seq: Seq(0), ack: Seq(0), window: 0, timestamps: None };
}

impl<B: Buffers> Stack<B> {
    /// Takes frames that came together, in their order. ACKs of one connection that follow each other count as one, as if
    /// the others had been lost on the way.
    pub fn receive_burst(
        &mut self,
        now: Time,
        burst: impl IntoIterator<Item = B::Frame>,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        for frame in burst {
            self.take(now, frame, h, tx);
        }
        self.settle_acks(now, h, tx);
    }

    /// Gives a segment to whatever has its addresses.
    #[inline(always)]
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        key: Key,
        segment: &Segment,
        frame: B::Frame,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.net.counters.segments_in += 1;
        self.net.counters.congestion_marks_in += u64::from(segment.ecn == ecn::CE);
        let place = self.find(key);
        if let Some(Place::Connection(index)) = place {
            if self.acks.index != index {
                self.settle_acks(now, h, tx);
            }
            if let Some(c) = self.connections.get_mut(index)
                && c.predicts(segment)
                && self.acks.take(index, c, segment)
            {
                self.last = index;
                let id = c.id(index);
                c.take_predicted(&mut Cx { now, net: &mut self.net, tx, id }, h, segment, frame);
                // It may owe an ACK now, and no deadline has come nearer.
                if c.flags.has(Flags::ACK) && !c.flags.has(Flags::LISTED) && !c.waits_for_neighbour {
                    c.flags.set(Flags::LISTED);
                    self.work.push_back(index);
                }
                return;
            }
        }
        self.settle_acks(now, h, tx);
        self.arrive_at(now, (key, place), segment, frame, h, tx);
    }

    /// What has these addresses: most often the connection that the last segment was for.
    #[inline(always)]
    pub(super) fn find(&self, key: Key) -> Option<Place> {
        if self.connections.get(self.last).is_some_and(|c| c.key == key) {
            return Some(Place::Connection(self.last));
        }
        self.table.get(key).map(Place::unpack)
    }

    /// The ACKs that wait, if any, are over: the newest counts.
    #[inline]
    pub(super) fn settle_acks(
        &mut self,
        now: Time,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        if self.acks.index != NOBODY {
            self.count_acks(now, h, tx);
        }
    }

    #[inline(never)]
    fn count_acks(&mut self, now: Time, h: &mut impl Handler<B::Frame>, tx: &mut impl Transmit<B::Payload>) {
        let acks = core::mem::replace(&mut self.acks, Acks::NONE);
        let Some(c) = self.connections.get_mut(acks.index) else { return };
        let id = c.id(acks.index);
        c.arrive_ack(&mut Cx { now, net: &mut self.net, tx, id }, h, &acks.segment(c.key));
        // RFC 4861 §7.3.1: what TCP hears of its data tells that the neighbour is there.
        if c.neighbour.is_v6() {
            self.net.inet6.confirm(c.neighbour, now);
        }
        self.note(id.index);
    }
}

impl Acks {
    /// Takes the ACK of a segment that `c`, the connection at `index`, [predicts](Connection::predicts). False: it is
    /// neither more news than the last one nor data without news, and nothing has happened.
    #[inline(always)]
    fn take<B: Buffers>(&mut self, index: u32, c: &mut Connection<B>, s: &Segment) -> bool {
        let waiting = self.index == index;
        let una = if waiting { self.ack } else { c.snd_una };
        let further = s.ack - una;
        if (further > 0 && further <= c.snd_nxt - una) || (waiting && s.ack == una && !s.payload.is_empty()) {
            *self = Acks { index, seq: s.seq, ack: s.ack, window: s.window, timestamps: s.timestamps };
            return true;
        }
        let data = !waiting && !s.payload.is_empty() && c.is_no_news(s);
        if data {
            (c.snd_wl1, c.snd_wl2) = (s.seq, s.ack);
        }
        data
    }

    /// The ACK as if it had come alone.
    fn segment(&self, key: Key) -> Segment {
        Segment {
            remote_port: key.remote_port(),
            local_port: key.local_port(),
            seq: self.seq,
            ack: self.ack,
            flags: wire::flag::ACK,
            window: self.window,
            timestamps: self.timestamps,
            ..Segment::default()
        }
    }
}
