//! New data of an undisturbed connection. Segments that leave directly one after the other share the common part of
//! their headers and are accounted for together.

use super::queue::{Limits, Pieces};
use super::{Connection, Cx, Flags, Recovery};
use crate::buffers::{Buffers, Transmit};
use crate::ecn;
use crate::time::Time;
use crate::wire::{Own, flag};

impl<B: Buffers> Connection<B> {
    /// Sends new data while nothing prevents it; [`next`](Self::next) handles all other cases. Returns the octets
    /// sent. `pipe` octets were in flight before.
    pub(super) fn send_volley<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, pipe: u32) -> u32 {
        let plain = self.recovery == Recovery::None
            && !self.cold.resend_first
            && !self.flags.has(Flags::CLOSE)
            && !cx.net.cfg.tcp.pacing;
        if !plain || cx.tx.room() == 0 {
            return 0;
        }
        let Some(dst_mac) = cx.net.resolve(self.neighbour, cx.now) else { return 0 };
        let (first, end) = (self.snd_nxt, self.cold.queue.end());
        let mss = u32::from(self.mss);
        let options = self.timestamp_option(cx.now);
        let mut fields = self.fields(dst_mac, first, flag::ACK, &options);
        fields.ecn = self.ect & ecn::MASK;
        let flags = fields.flags;
        let Some(volley) = cx.net.begin(&fields) else { return 0 };
        let window = (self.snd_una + self.snd_wnd).since(first);
        let cwnd = self.cold.congestion.allowed(pipe, cx.net.gso_max).saturating_sub(pipe);
        let mut left = window.min(cwnd);
        let (mut seq, mut last) = (first, 0);
        while seq.lt(end) && cx.tx.room() > 0 {
            let mut pieces = Pieces::new();
            let limits = Limits { segment: mss, train: cx.net.gso_max.min(left), total: left };
            let (len, unit) = self.cold.queue.cut(seq, limits, &mut pieces);
            if len == 0 {
                break;
            }
            let push = if seq + len == end { flag::PSH } else { 0 };
            // RFC 3168 §6.1.2: the first segment reports that the window was reduced.
            let reduced = core::mem::take(&mut self.reduced);
            let own = Own { seq, flags: flags | push | reduced };
            let gso_size = if len > mss { unit.min(self.mss) } else { 0 };
            cx.net.emit_next(cx.tx, &volley, own, &pieces, false, gso_size);
            seq += len;
            left -= len;
            last = len;
        }
        let sent = seq - first;
        if sent > 0 {
            cx.tx.emitted();
            self.acknowledged();
            let c = &mut self.cold;
            c.last_sent = cx.now;
            c.stalled_since = c.stalled_since.min(cx.now);
            if self.timed {
                c.hold_until = Time::MAX;
            }
            c.last_len = last;
            c.scoreboard.sent(seq, cx.now);
            let idle = self.outstanding() == 0;
            self.snd_nxt = seq;
            if idle {
                self.restart_timer(cx.now); // RFC 6298 (5.1)
            } else {
                self.schedule_probe(cx.now);
            }
        }
        sent
    }
}
