//! For tests: the invariants of a connection.

use super::{Connection, Due, Flags, Recovery, State};
use crate::audit::{Fault, Numbers, must};
use crate::buffers::Buffers;
use crate::net::Net;
use crate::time::Time;

impl<B: Buffers> Connection<B> {
    pub fn numbers(&self) -> Numbers {
        Numbers {
            snd_una: self.snd_una,
            snd_nxt: self.snd_nxt,
            queued: self.cold.queue.end(),
            max_snd_wnd: self.max_snd_wnd,
            rcv_nxt: self.rcv_nxt,
            rcv_end: self.rcv_nxt + self.rcv_wnd,
            ts_recent: self.flags.has(Flags::TIMESTAMPS).then_some(self.ts_recent),
            held: self.cold.reassembly.octets(),
        }
    }

    pub fn audit(&self, net: &Net) -> Result<(), Fault> {
        let c = &self.cold;
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        let (una, nxt, end) = (self.snd_una, self.snd_nxt, c.queue.end());
        let (fin, outstanding) = (self.flags.has(Flags::FIN), self.outstanding());
        must!(una.le(nxt));
        must!(if opening { nxt == c.iss + 1 } else { nxt.le(end + u32::from(fin)) });
        must!(!fin || nxt == end + 1);
        must!(!fin || self.flags.has(Flags::CLOSE));
        c.queue.audit(self.first_unacked().min(end))?;
        must!(self.unacked() <= u64::from(net.cfg.tcp.send_buffer));
        if !opening {
            c.scoreboard.audit(una, nxt)?;
        }
        must!(c.congestion.cwnd() > 0 && self.mss > 0);

        // Recovery needs outstanding data.
        must!(self.recovery == Recovery::None || una.lt(c.recover) && c.recover.le(nxt));
        must!(self.flags.has(Flags::SACK) || self.recovery != Recovery::Sack);
        must!(!self.flags.has(Flags::SACK) || self.recovery != Recovery::NewReno);

        // A timer or a list triggers everything that must still happen.
        must!(outstanding == 0 || self.rtx_at < Time::MAX);
        let unsent = nxt.lt(end) || self.flags.has(Flags::CLOSE) && !fin;
        must!(outstanding == 0 || c.stalled_since < Time::MAX);
        must!(outstanding > 0 || unsent || c.stalled_since == Time::MAX || opening);
        let awaited = self.waits_for_neighbour || self.flags.has(Flags::OUTPUT);
        let timed = self.rtx_at.min(c.hold_until).min(c.pace_at) < Time::MAX;
        must!(opening || !unsent || awaited || timed);
        must!(!c.persist || outstanding == 0 && self.snd_wnd == 0);
        let shut = outstanding == 0 && nxt.lt(end) && self.snd_wnd == 0;
        must!(opening || !shut || awaited || c.pace_at < Time::MAX || c.persist);
        must!(c.due == Due::Timeout || outstanding > 0);
        let rare = c.hold_until.min(c.pace_at).min(c.fin_wait_until) < Time::MAX || c.patience.is_some();
        must!(self.timed || !rare);
        must!(self.next_deadline(net) <= self.deadline(net));
        must!(self.armed <= self.deadline(net));

        must!(self.rcv_wnd <= net.cfg.tcp.recv_window);
        must!(!c.parked.is_empty() || self.rcv_wnd == self.full_window(net));
        must!(c.parked.is_empty() || self.flags.has(Flags::HOLES));
        must!(!c.fin_waits || !c.parked.is_empty());
        must!(!self.last_ack_sent.gt(self.rcv_nxt));
        c.reassembly.audit(self.rcv_nxt, self.rcv_nxt + self.rcv_wnd)?;
        must!(c.reassembly.is_empty() || self.flags.has(Flags::HOLES));
        must!(!self.flags.has(Flags::ACK) || self.flags.has(Flags::LISTED) || self.waits_for_neighbour);
        Ok(())
    }
}
