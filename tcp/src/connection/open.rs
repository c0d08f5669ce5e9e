//! Active and simultaneous open (RFC 9293 §3.5, §3.10.7.3).

use super::{Connection, Cx, Fate, Flags, State};
use crate::buffers::{Buffers, CloseReason, Handler, Transmit};
use crate::config::Ecn;
use crate::ecn;
use crate::net::Net;
use crate::seq::Seq;
use crate::table::Key;
use crate::wire::{Options, Segment, SynOptions, TcpFields, Timestamps, flag, put_syn};
use core::time::Duration;

/// Returns the options of our SYN, or of our answer to a SYN with the options `peer`.
pub(crate) fn syn_options(net: &Net, key: Key, peer: Option<&SynOptions>) -> SynOptions {
    let t = &net.cfg.tcp;
    SynOptions {
        mss: Some(net.our_mss(key)),
        window_scale: (t.window_scale && peer.is_none_or(|p| p.window_scale.is_some()))
            .then_some(net.window_scale),
        sack_permitted: t.sack && peer.is_none_or(|p| p.sack_permitted),
        ecn: match peer {
            None => t.offers_ecn(),
            Some(p) => p.ecn && t.ecn != Ecn::Off,
        },
    }
}

/// Returns the flags of a SYN, or of a SYN-ACK if `ack` is set. With `ecn`, the SYN offers ECN and the SYN-ACK accepts
/// it (RFC 3168 §6.1.1).
pub(crate) fn syn_flags(ack: bool, ecn: bool) -> u8 {
    match (ack, ecn) {
        (false, false) => flag::SYN,
        (false, true) => flag::SYN | flag::ECE | flag::CWR,
        (true, false) => flag::SYN | flag::ACK,
        (true, true) => flag::SYN | flag::ACK | flag::ECE,
    }
}

/// Returns the receive window of our SYN, which is never scaled (RFC 7323 §2.2).
pub(crate) fn syn_window(net: &Net) -> u16 {
    net.cfg.tcp.recv_window.min(0xffff) as u16
}

/// Returns the receive window of our answer to a SYN, which is not scaled either.
pub(crate) fn syn_ack_window(net: &Net) -> u16 {
    if net.cfg.tcp.wary { net.newcomer_window() as u16 } else { syn_window(net) }
}

/// Time from our RST to the next SYN, for a peer that still had an older connection.
const SYN_AFTER_RST: Duration = Duration::from_millis(10);

impl<B: Buffers> Connection<B> {
    /// Sends the SYN, or in SYN-RECEIVED the SYN-ACK.
    pub fn send_syn<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>) {
        self.cold.stalled_since = self.cold.stalled_since.min(cx.now);
        self.rtx_at = cx.now + self.cold.rtt.rto();
        let Some(dst_mac) = self.ready_to_send(cx) else { return };
        let crossed = self.state == State::SynReceived;
        let again = self.cold.retries > 0;
        // A retransmitted SYN goes without ECN, so that a path that drops SYNs with ECN can still be used (RFC 3168
        // §6.1.1.1). After a SYN-ACK without ECN, no data may be sent as ECT (§6.1.1).
        if crossed && again && self.ect != ecn::NOT_ECT {
            self.ect = ecn::ECHO_ONLY;
        }
        // If the SYNs crossed, our SYN-ACK has only options that the peer's SYN had as well: the negotiated ones.
        let with_timestamps = cx.net.cfg.tcp.timestamps && (!crossed || self.flags.has(Flags::TIMESTAMPS));
        let timestamps = with_timestamps.then(|| Timestamps {
            value: self.timestamp(cx.now),
            echo: if crossed { self.ts_recent } else { 0 },
        });
        let mut offer = syn_options(cx.net, self.key, None);
        if crossed {
            offer.sack_permitted &= self.flags.has(Flags::SACK);
            offer.window_scale = offer.window_scale.filter(|_| self.cold.peer_scales);
            offer.ecn = self.ect == ecn::ECT0;
        }
        let mut options = Options::new();
        put_syn(&mut options, offer, timestamps);
        offer.ecn &= !again;
        self.cold.last_sent = cx.now;
        let fields = TcpFields {
            dst_mac,
            key: self.key,
            seq: self.cold.iss,
            ack: if crossed { self.rcv_nxt } else { Seq(0) },
            flags: syn_flags(crossed, offer.ecn),
            ecn: ecn::NOT_ECT,
            window: syn_window(cx.net),
            options: &options,
        };
        cx.net.emit(cx.tx, &fields, &[], again, 0);
        self.flags.clear(Flags::OUTPUT);
        if crossed {
            self.last_ack_sent = self.rcv_nxt;
            self.flags.clear(Flags::ACK);
        }
    }

    /// Handles a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(super) fn arrive_syn_sent<T: Transmit<B::Payload>>(
        &mut self,
        cx: &mut Cx<'_, T>,
        h: &mut impl Handler<B::Frame>,
        s: &Segment,
    ) -> Fate {
        let acked = s.has(flag::ACK);
        if acked && (s.ack.le(self.cold.iss) || s.ack.gt(self.snd_nxt)) {
            self.reset_for(cx, s);
            // The peer answered for an older connection. Our RST has ended the older connection, so the peer will
            // take the next SYN.
            if self.cold.retries == 0 && !s.has(flag::RST) {
                self.rtx_at = self.rtx_at.min(cx.now + SYN_AFTER_RST);
            }
            return Fate::Keep;
        }
        if s.has(flag::RST) {
            return if acked { Fate::Closed(CloseReason::Refused) } else { Fate::Keep };
        }
        if !s.has(flag::SYN) {
            return Fate::Keep;
        }
        self.rcv_nxt = s.seq + 1;
        self.last_ack_sent = self.rcv_nxt;
        self.cold.peer_scales = s.syn.window_scale.is_some();
        self.negotiate(&s.syn_options(), s.timestamps.map(|t| t.value), cx.net, cx.now);
        self.snd_wnd = u32::from(s.window);
        self.max_snd_wnd = self.snd_wnd;
        (self.snd_wl1, self.snd_wl2) = (s.seq, s.ack);
        if acked {
            self.establish(cx, s.ack);
            self.flags.set(Flags::ACK);
            h.connected(cx.id, self.tag);
        } else {
            self.enter(State::SynReceived, cx.net);
            self.cold.retries = 0;
            self.send_syn(cx);
        }
        Fate::Keep
    }

    /// Enters ESTABLISHED after the ACK of our SYN, or FIN-WAIT-1 if our user has already closed the connection.
    pub(super) fn establish<T>(&mut self, cx: &mut Cx<'_, T>, ack: Seq) {
        let closing = self.flags.has(Flags::CLOSE);
        self.enter(if closing { State::FinWait1 } else { State::Established }, cx.net);
        if self.cold.retries > 0 {
            self.cold.rtt.syn_was_lost();
            self.cold.congestion.on_syn_lost();
        } else {
            self.cold.rtt.sample(cx.now - self.cold.last_sent);
        }
        self.snd_una = ack;
        self.begin_sending();
        self.rtx_at = crate::Time::MAX;
        self.cold.retries = 0;
        self.cold.stalled_since = crate::Time::MAX;
        self.cold.recover = self.cold.iss;
        self.flags.set(Flags::OUTPUT);
    }
}
