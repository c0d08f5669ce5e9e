//! Bursts of frames. Segments that a connection expects take a short path, and consecutive ACKs are handled as one.

use super::*;
use crate::ecn;
use crate::seq::Seq;
use crate::wire::Timestamps;

/// The newest of several ACKs of one connection. Each of these ACKs acknowledged more than the one before, or repeated
/// it on a segment with data.
pub(super) struct Acks {
    /// The connection; [`NOBODY`]: no ACK waits.
    index: u32,
    seq: Seq,
    ack: Seq,
    window: u16,
    timestamps: Option<Timestamps>,
    /// When it arrived, and SND.NXT then.
    at: Time,
    nxt: Seq,
    /// Whether it came with data.
    with_data: bool,
}

const NOBODY: u32 = u32::MAX;

impl Acks {
    pub const NONE: Acks = Acks {
        index: NOBODY,
        seq: Seq(0),
        ack: Seq(0),
        window: 0,
        timestamps: None,
        at: Time::ZERO,
        nxt: Seq(0),
        with_data: false,
    };

    /// Returns whether an ACK waits.
    #[inline]
    pub fn waits(&self) -> bool {
        self.index != NOBODY
    }

    /// Forgets the ACK of the connection at `index`, which is gone.
    pub fn forget(&mut self, index: u32) {
        if self.index == index {
            *self = Acks::NONE;
        }
    }
}

impl<B: Buffers> Stack<B> {
    /// Takes a burst of frames, in order. Consecutive ACKs of one connection count as one, as if all but the last had
    /// been lost.
    pub fn receive_burst(
        &mut self,
        now: Time,
        burst: impl IntoIterator<Item = B::Frame>,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.receive_data_first(now, burst, h, tx);
        self.settle(h, tx);
    }

    /// Like [`receive_burst`](Self::receive_burst), but the ACK of the last segment may wait for
    /// [`settle`](Self::settle), if it came with data. So the user gets the data, and may answer it, before the ACK is
    /// handled. Until then, and at most until the next burst, the ACK counts as not yet arrived.
    pub fn receive_data_first(
        &mut self,
        now: Time,
        burst: impl IntoIterator<Item = B::Frame>,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        let mut call = Call { stack: self, now, handler: h, tx };
        call.settle_acks();
        for frame in burst {
            call.take(frame);
        }
        if !call.stack.acks.with_data {
            call.settle_acks();
        }
    }

    /// Handles the ACK that [`receive_data_first`](Self::receive_data_first) has left waiting, if there is one, as of
    /// the time when it arrived. Returns whether there was one. [`advance`](Self::advance) does the same.
    #[inline]
    pub fn settle(&mut self, h: &mut impl Handler<B::Frame>, tx: &mut impl Transmit<B::Payload>) -> bool {
        let waits = self.acks.waits();
        if waits {
            Call { now: self.acks.at, stack: self, handler: h, tx }.count_acks();
        }
        waits
    }

    /// Takes frames that other stacks of the device have [handed over](Handler::hand_over).
    pub fn take_over(
        &mut self,
        now: Time,
        frames: impl IntoIterator<Item = B::Frame>,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        self.taking_over = true;
        self.receive_burst(now, frames, h, tx);
        self.taking_over = false;
    }

    /// Returns the table entry of `key`; `None` if there is none. It is usually the connection of the last segment.
    #[inline(always)]
    pub(super) fn find(&self, key: Key) -> Option<Place> {
        if self.connections.get(self.last).is_some_and(|c| c.key == key) {
            return Some(Place::Connection(self.last));
        }
        self.table.get(key).map(Place::unpack)
    }
}

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    /// Passes a segment to the entry of its addresses.
    #[inline(always)]
    pub fn dispatch(&mut self, mut incoming: Incoming<'_, B::Frame>) {
        let segment = incoming.segment;
        self.stack.net.counters.segments_in += 1;
        self.stack.net.counters.congestion_marks_in += u64::from(segment.ecn == ecn::CE);
        let place = self.stack.find(incoming.key);
        if let Some(Place::Connection(index)) = place {
            if self.stack.acks.index != index {
                self.settle_acks();
            }
            let stack = &mut *self.stack;
            if let Some(c) = stack.connections.get_mut(index)
                && c.predicts(segment)
                && stack.acks.take(self.now, index, c, segment)
            {
                stack.last = index;
                let mut cx = Cx { now: self.now, net: &mut stack.net, tx: self.tx, id: c.id(index) };
                c.take_predicted(&mut cx, self.handler, segment, incoming.frame);
                // The connection may owe an ACK now, but none of its deadlines has become earlier.
                if c.flags.has(Flags::ACK) {
                    if !c.flags.has(Flags::LISTED) && !c.waits_for_neighbour {
                        c.flags.set(Flags::LISTED);
                        stack.work.push_back(index);
                    }
                } else if !c.late && c.owes_ack() {
                    c.late = true;
                    stack.late.push_back((index, self.now + stack.net.cfg.tcp.ack_wait()));
                }
                return;
            }
        }
        self.settle_acks();
        // Only the handler takes payload that may still change.
        incoming.frame.keep();
        self.arrive_at(place, incoming);
    }

    /// Handles the waiting ACK, if there is one.
    #[inline]
    pub fn settle_acks(&mut self) {
        if self.stack.acks.waits() {
            self.count_acks();
        }
    }

    #[inline(never)]
    fn count_acks(&mut self) {
        let acks = core::mem::replace(&mut self.stack.acks, Acks::NONE);
        let now = core::mem::replace(&mut self.now, acks.at);
        self.with(acks.index, |c, cx, h| {
            c.arrive_ack(cx, h, &acks.segment(c.key), acks.nxt);
            // RFC 4861 §7.3.1: an ACK of our data confirms that the neighbour is reachable.
            if c.neighbour.is_v6() {
                cx.net.inet6.confirm(c.neighbour, cx.now);
            }
            Fate::Keep
        });
        self.now = now;
    }
}

impl Acks {
    /// Takes the ACK of a segment that `c`, the connection at `index`, [predicts](Connection::predicts). Returns `true`
    /// in three cases:
    /// * The ACK acknowledges more than the waiting ACK or, if none waits, more than SND.UNA. It waits from now on.
    /// * The segment has data and repeats the waiting ACK. It replaces the waiting ACK.
    /// * The segment has data, no ACK waits, and the ACK is [no news](Connection::is_no_news). It need not wait.
    ///
    /// Otherwise returns `false` and changes nothing.
    #[inline(always)]
    fn take<B: Buffers>(&mut self, now: Time, index: u32, c: &mut Connection<B>, s: &Segment) -> bool {
        let waiting = self.index == index;
        let una = if waiting { self.ack } else { c.snd_una };
        let further = s.ack - una;
        if (further > 0 && further <= c.snd_nxt - una) || (waiting && s.ack == una && !s.payload.is_empty()) {
            *self = Acks {
                index,
                seq: s.seq,
                ack: s.ack,
                window: s.window,
                timestamps: s.timestamps,
                at: now,
                nxt: c.snd_nxt,
                with_data: !s.payload.is_empty(),
            };
            return true;
        }
        let data = !waiting && !s.payload.is_empty() && c.is_no_news(s);
        if data {
            (c.snd_wl1, c.snd_wl2) = (s.seq, s.ack);
        }
        data
    }

    /// Returns the ACK as a segment of its own.
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
