//! One TCP connection, from SYN-SENT (active) or ESTABLISHED (passive) to the end of its data. Half-open passive
//! connections and those in TIME-WAIT have their own types: `listen::Embryo` and `timewait::TimeWait`.

mod ack;
mod arrive;
mod audit;
mod data;
mod info;
mod marks;
pub(crate) mod open;
mod output;
mod pace;
mod parked;
pub(crate) mod pmtu;
mod probe;
mod queue;
mod rack;
mod rate;
mod repair;
mod timers;
mod volley;

use crate::buffers::{Buffers, CloseReason, ConnId};
use crate::config::{Ecn, Patience, TcpConfig};
use crate::congestion::{Congestion, Controller, Rate};
use crate::ecn;
use crate::listen::Embryo;
use crate::neighbours::Neighbour;
use crate::net::{Net, ip_tcp};
use crate::reassembly::Reassembly;
use crate::rows::BoxRows;
use crate::rtt::{RttConfig, RttEstimator};
use crate::scoreboard::Scoreboard;
use crate::seq::Seq;
use crate::table::Key;
use crate::time::Time;
use crate::timewait::TimeWait;
use crate::wire::SynOptions;
pub use info::{ConnInfo, RecoveryState};
use output::Next;
use parked::Parked;
use pmtu::PathMtu;
use probe::Probe;
use queue::RecordQueue;
use rack::Rack;
use rate::Round;
use repair::{Frto, Undo};

/// Returns the largest number of out-of-order frames that a connection with this receive window may hold, and also the
/// largest number of frames that it may park. This is the number of 512-octet segments that fill the window, but at
/// least 64 and at most 65,536.
fn held_frames(recv_window: u32) -> u32 {
    (recv_window >> 9).clamp(64, 1 << 16)
}

/// Most records that one connection may have queued or in flight.
const MAX_RECORDS: usize = 1 << 16;
/// Smallest segment size that a peer can make us use, in octets (as in FreeBSD). The peer's MSS option may ask for
/// less. But every host takes packets of 576 octets (RFC 1122 §3.3.2), and a segment of this size holds a ULPDU of
/// 128 octets, the smallest limit that DDP may get (RFC 5044 §3, MPA-5). A peer that makes us send a segment for
/// every few octets attacks us.
const MIN_PEER_MSS: u16 = 216;
/// The MSS of an IPv4 peer whose SYN has no MSS option, in octets (RFC 9293 §3.7.1).
const DEFAULT_PEER_MSS: u16 = 536;
/// Returns the MSS that a peer's SYN states, in octets, or if it states none, the family's default (RFC 9293 §3.7.1).
pub(crate) fn mss_of(syn: &SynOptions, key: Key) -> u16 {
    syn.mss.unwrap_or(if key.is_v6() { 1220 } else { DEFAULT_PEER_MSS })
}

/// Octets that the timestamps option takes in every segment.
const TIMESTAMPS_LEN: u16 = 12;

/// The states of RFC 9293 §3.3.2 that a `Connection` can be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Our SYN has been sent.
    #[default]
    SynSent,
    /// Both SYNs crossed (simultaneous open).
    SynReceived,
    /// Both ends may send data.
    Established,
    /// Our FIN is queued or sent, but not acknowledged.
    FinWait1,
    /// Our FIN is acknowledged. The peer has not sent its own, or our user has not taken all data before it.
    FinWait2,
    /// The peer has sent its FIN; we have not sent ours.
    CloseWait,
    /// Both FINs crossed; ours is not acknowledged.
    Closing,
    /// The peer's FIN came first; ours is not acknowledged.
    LastAck,
}

/// The fate of a connection after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays open.
    Keep,
    /// It is closed and leaves nothing behind.
    Closed(CloseReason),
    /// It is closed in both directions; its addresses go into TIME-WAIT.
    TimeWait,
}

/// The context of a call into a connection. The handler is separate and is passed only to methods that report
/// something, because calls of the user (send, close) have no handler.
pub(crate) struct Cx<'a, T> {
    pub now: Time,
    pub net: &'a mut Net,
    pub tx: &'a mut T,
    pub id: ConnId,
}

/// Flags of a connection that are read or set for every segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags(u8);

impl Flags {
    /// Timestamps were negotiated.
    pub const TIMESTAMPS: u8 = 1;
    /// SACK was negotiated.
    pub const SACK: u8 = 1 << 1;
    /// An ACK is due at the end of the pass.
    pub const ACK: u8 = 1 << 2;
    /// There may be data or a FIN to send.
    pub const OUTPUT: u8 = 1 << 3;
    /// The connection is in the stack's list of connections to flush.
    pub const LISTED: u8 = 1 << 4;
    /// The short receive path must not be used: out-of-order data is held, data is parked, or the peer's FIN is known
    /// but not reached.
    pub const HOLES: u8 = 1 << 5;
    /// The user has closed its side.
    pub const CLOSE: u8 = 1 << 6;
    /// Our FIN was sent. Its sequence number is `queue.end()`.
    pub const FIN: u8 = 1 << 7;

    #[inline]
    pub fn has(self, f: u8) -> bool {
        self.0 & f != 0
    }

    #[inline]
    pub fn set(&mut self, f: u8) {
        self.0 |= f;
    }

    #[inline]
    pub fn clear(&mut self, f: u8) {
        self.0 &= !f;
    }
}

/// Kind of loss recovery in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// No loss is known.
    None,
    /// Fast recovery with SACK (RFC 8985, RFC 6937) until `Cold::recover` is acknowledged.
    Sack,
    /// Fast recovery without SACK (RFC 6582).
    NewReno,
    /// After a timeout, or after a report that the path carries only smaller packets, until `Cold::recover` is
    /// acknowledged.
    Timeout,
}

/// Meaning of `Connection::rtx_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Retransmission, SYN or window probe.
    Timeout,
    /// A loss probe (RFC 8985 §7).
    Probe,
    /// The reordering timer: late segments then count as lost (RFC 8985 §6).
    Reordering,
}

/// The part of a connection that every arriving segment touches: two cache lines. A test checks its size and order.
#[repr(C, align(64))]
pub(crate) struct Connection<B: Buffers> {
    // First line: identity, and the fields that decide about an arriving segment.
    pub key: Key,
    pub tag: u64,
    pub state: State,
    pub flags: Flags,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub rcv_nxt: Seq,
    /// Octets that may arrive beyond `rcv_nxt`: the full window without the parked octets. Never smaller than the
    /// window that the peer was told.
    pub rcv_wnd: u32,
    /// Last.ACK.sent (RFC 7323 §4.3).
    pub last_ack_sent: Seq,
    pub ts_recent: u32,
    pub ts_offset: u32,
    pub snd_una: Seq,
    pub snd_nxt: Seq,
    pub snd_wnd: u32,
    pub snd_wl1: Seq,
    pub snd_wl2: Seq,
    pub generation: u32,
    // Second line: sending, and deadlines.
    pub max_snd_wnd: u32,
    pub mss: u16,
    pub dup_acks: u8,
    pub recovery: Recovery,
    /// ECN codepoint of new data, or [`ECHO_ONLY`](ecn::ECHO_ONLY); zero if ECN is not used.
    pub ect: u8,
    /// ECE while we echo congestion to the peer; otherwise zero.
    pub echo: u8,
    /// CWR if the next new segment must carry it; otherwise zero.
    pub reduced: u8,
    pub neighbour: Neighbour,
    /// Keep-alive probes sent since the peer was last heard.
    pub probes: u8,
    /// The connection waits for the neighbour's address.
    pub waits_for_neighbour: bool,
    /// The next ACK may need a SACK option.
    pub reports: bool,
    /// The cold part may have a deadline, or time limits of its own.
    pub timed: bool,
    /// The connection is in the stack's list of delayed ACKs.
    pub late: bool,
    /// Time when TS.Recent was set, in units of 2^30 ns.
    pub ts_recent_at: u32,
    /// Deadline of retransmission, SYN, window probe, loss probe or reordering timer; `Time::MAX`: none.
    pub rtx_at: Time,
    /// Deadline in the timer wheel; never later than the earliest deadline.
    pub armed: Time,
    /// Arrival of the last acceptable segment.
    pub heard: Time,
    /// Octets of data received in order.
    pub received: u64,
    pub cold: Box<Cold<B>>,
}

/// The part of a connection that is needed to send data. Taking in-order data and sending its ACK do without it, if
/// nothing is outstanding.
///
/// Sending one segment of new data and taking the peer's ACK of it touch the first seven cache lines, each of them for
/// one purpose. The fields after these lines are for pacing, losses, received data that is kept, and the end. A
/// test checks the order.
#[repr(C, align(64))]
pub(crate) struct Cold<B: Buffers> {
    // First line: what to send.
    pub queue: RecordQueue<B::Payload>,
    /// The next round-trip sample is taken when an ACK goes beyond this sequence number.
    pub sample_at: Seq,
    /// Recovery ends when this is acknowledged. Also the NewReno variable `recover` of RFC 6582.
    pub recover: Seq,
    /// Octets in the last frame of new data: a segment, or a train of segments.
    pub last_len: u32,
    /// Meaning of `rtx_at`.
    pub due: Due,
    pub frto: Frto,
    /// Consecutive timeouts.
    pub retries: u8,
    /// Window probes are being sent instead of data.
    pub persist: bool,
    /// The first unacknowledged segment must be sent again now.
    pub resend_first: bool,
    /// The last transmission ended only because of the congestion window (RFC 9438 §5.8).
    pub cwnd_limited: bool,
    /// A sample was taken since the last loss probe.
    pub sampled: bool,
    /// NewReno: a partial ACK has restarted the retransmission timer in this recovery.
    pub partial_acked: bool,
    /// An ICMP error or a silent neighbour has shown that the peer cannot be reached. If the peer stays silent, the
    /// connection ends with this reason (RFC 5461).
    pub soft_error: bool,
    /// Each change of marks is echoed exactly (RFC 8257 §3.2).
    pub exact_echo: bool,
    // Second line: what is outstanding.
    pub scoreboard: Scoreboard,
    pub last_sent: Time,
    // Third line.
    pub rtt: RttEstimator,
    // Fourth line: times, and fields that are used only after losses.
    /// Deadline of the retransmission timer. `rtx_at` is earlier while a loss probe or the reordering timer is due
    /// before it.
    pub rto_at: Time,
    /// Time since which a SYN or data has been outstanding, or has waited for the neighbour's address, without
    /// progress; `Time::MAX`: none has.
    pub stalled_since: Time,
    pub path_mtu: PathMtu,
    /// State for undoing the last window reduction; `None` when it can no longer turn out to be a mistake.
    pub undo: Option<Box<Undo>>,
    pub probe: Option<Probe>,
    /// Octets of sequence space that the peer has acknowledged.
    pub delivered: u64,
    // Fifth line: the window. The algorithm's state follows in the sixth, `round` and `rate` in the seventh.
    pub congestion: Controller,
    /// The round trip whose delivery rate is being measured.
    round: Round,
    /// The delivery rate of the last measured round trip; `None`: not measured yet.
    pub rate: Option<Rate>,
    // Beyond: deadlines that `Connection::timed` announces, losses, received data that is kept, and the end.
    /// Deadline at which a held segment is sent although it does not fit the window; `Time::MAX`: there is
    /// none.
    pub hold_until: Time,
    /// With pacing: time of the next call to send; `Time::MAX`: none is needed.
    pub pace_at: Time,
    /// End of FIN-WAIT-2; `Time::MAX` in other states.
    pub fin_wait_until: Time,
    /// Time limits of this connection; `None`: those of the configuration.
    pub patience: Option<Box<Patience>>,
    /// With pacing: time until which the octets sent so far use up the rate. The next segment may leave a
    /// little earlier (`pace`).
    pub paced_until: Time,
    pub rack: Rack,
    pub reassembly: Reassembly<B::Frame>,
    pub parked: Parked<B::Frame>,
    pub retransmits: u64,
    pub challenge_window: Time,
    /// Sequence number of the peer's FIN; `None` until it is known.
    pub peer_fin: Option<Seq>,
    pub iss: Seq,
    /// Until this is acknowledged, further marks belong to a reduction already made (RFC 3168 §6.1.2).
    pub marks_until: Seq,
    pub challenges: u8,
    pub port: PortFrom,
    /// The peer's FIN has been reached. The handler is told when it has taken all parked data.
    pub fin_waits: bool,
    /// The peer's SYN had the window scale option.
    pub peer_scales: bool,
    /// The connection was accepted, and the user has not called `Stack::welcome` yet ([`TcpConfig::wary`]).
    pub newcomer: bool,
}

/// Rounds a time down to units of 2^30 ns, for uses that need no precision.
pub(crate) fn coarse(t: Time) -> u32 {
    (t.as_nanos() >> 30) as u32
}

/// Parameters of a new connection.
pub(crate) struct Birth {
    pub key: Key,
    pub iss: Seq,
    pub ts_offset: u32,
    pub neighbour: Neighbour,
    pub port: PortFrom,
}

/// Origin of a connection's local port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortFrom {
    /// The port of the listener that accepted the connection.
    Listener,
    /// Chosen for this connection, which keeps it through TIME-WAIT, so that no other connection to the same
    /// address and port chooses it meanwhile.
    Choice,
    /// Reserved by the user. Several connections may use it one after another.
    Binding,
}

impl<B: Buffers> Connection<B> {
    pub fn new(birth: Birth, cfg: &TcpConfig, colds: &mut BoxRows<Cold<B>>, now: Time) -> Self {
        let rtt = RttConfig { initial: cfg.rto_initial, min: cfg.rto_min, max: cfg.rto_max };
        let Birth { key, iss, ts_offset, neighbour, port } = birth;
        Connection {
            key,
            tag: 0,
            state: State::SynSent,
            flags: Flags::default(),
            snd_wscale: 0,
            rcv_wscale: 0,
            rcv_nxt: Seq(0),
            rcv_wnd: cfg.recv_window.min(0xffff),
            last_ack_sent: Seq(0),
            ts_recent: 0,
            ts_offset,
            snd_una: iss,
            snd_nxt: iss + 1,
            snd_wnd: 0,
            snd_wl1: Seq(0),
            snd_wl2: iss,
            generation: 0,
            max_snd_wnd: 0,
            mss: DEFAULT_PEER_MSS,
            dup_acks: 0,
            recovery: Recovery::None,
            ect: 0,
            echo: 0,
            reduced: 0,
            neighbour,
            probes: 0,
            waits_for_neighbour: false,
            reports: false,
            timed: false,
            late: false,
            ts_recent_at: coarse(now),
            rtx_at: Time::MAX,
            armed: Time::MAX,
            heard: now,
            received: 0,
            cold: colds.boxed(Cold {
                queue: RecordQueue::new(iss + 1),
                congestion: Controller::new(cfg.congestion, u32::from(DEFAULT_PEER_MSS), cfg.initial_window),
                rtt: RttEstimator::new(&rtt),
                scoreboard: Scoreboard::new(iss),
                sample_at: iss,
                sampled: true,
                recover: iss,
                rack: Rack::new(iss),
                frto: Frto::Off,
                marks_until: iss,
                exact_echo: false,
                undo: None,
                resend_first: false,
                partial_acked: false,
                cwnd_limited: false,
                round: Round::default(),
                rate: None,
                rto_at: Time::MAX,
                due: Due::Timeout,
                probe: None,
                last_len: 0,
                retries: 0,
                persist: false,
                hold_until: Time::MAX,
                stalled_since: Time::MAX,
                fin_wait_until: Time::MAX,
                last_sent: now,
                path_mtu: PathMtu::UNKNOWN,
                paced_until: Time::ZERO,
                pace_at: Time::MAX,
                reassembly: Reassembly::new(held_frames(cfg.recv_window)),
                parked: Parked::default(),
                peer_fin: None,
                fin_waits: false,
                challenge_window: Time::ZERO,
                challenges: 0,
                iss,
                peer_scales: false,
                newcomer: false,
                port,
                soft_error: false,
                retransmits: 0,
                delivered: 0,
                patience: None,
            }),
        }
    }

    /// Applies the options that the two SYNs agreed on (RFC 9293 §3.7.1, RFC 7323, RFC 2018). `timestamp` is the
    /// peer's.
    pub fn negotiate(&mut self, peer: &SynOptions, timestamp: Option<u32>, net: &Net, now: Time) {
        let cfg = &net.cfg.tcp;
        let link = net.our_mss(self.key);
        let path = net.path_mtu(self.key, now) - ip_tcp(self.key);
        let mut mss = mss_of(peer, self.key).max(MIN_PEER_MSS).min(link);
        if cfg.timestamps
            && let Some(value) = timestamp
        {
            self.flags.set(Flags::TIMESTAMPS);
            (self.ts_recent, self.ts_recent_at) = (value, coarse(now));
            mss -= TIMESTAMPS_LEN;
        }
        if cfg.sack && peer.sack_permitted {
            self.flags.set(Flags::SACK);
        }
        if cfg.window_scale
            && let Some(shift) = peer.window_scale
        {
            self.snd_wscale = shift;
            self.rcv_wscale = net.window_scale;
            self.rcv_wnd = self.full_window(net);
        }
        let willing = if self.state == State::SynSent { cfg.offers_ecn() } else { cfg.ecn != Ecn::Off };
        if peer.ecn && willing {
            // After a SYN without ECN, no data may be sent as ECT. The SYN before it had ECN, so the peer's data may be
            // marked (RFC 3168 §6.1.1).
            let again = self.state == State::SynSent && self.cold.retries > 0;
            self.ect = if again { ecn::ECHO_ONLY } else { ecn::ECT0 };
            self.cold.exact_echo = cfg.congestion == Congestion::Dctcp;
        }
        let options = if self.flags.has(Flags::TIMESTAMPS) { TIMESTAMPS_LEN } else { 0 };
        self.mss = mss.min(path - options);
        self.cold.path_mtu = PathMtu::begin(mss, self.mss, now);
        self.cold.congestion.set_mss(u32::from(self.mss));
    }

    /// Completes a passive open with the state of the half-open connection.
    pub fn accept(&mut self, e: &Embryo, net: &Net, now: Time) {
        self.enter(State::Established, net);
        self.rcv_nxt = e.irs + 1;
        self.last_ack_sent = self.rcv_nxt;
        self.cold.peer_scales = e.syn.window_scale.is_some();
        self.cold.newcomer = net.cfg.tcp.wary;
        self.negotiate(&e.syn, e.timestamp, net, now);
        self.rcv_wnd = self.full_window(net);
        self.snd_una = e.iss + 1;
        self.snd_wnd = u32::from(e.window);
        self.max_snd_wnd = self.snd_wnd;
        (self.snd_wl1, self.snd_wl2) = (e.irs, e.iss);
        self.begin_sending();
        if e.cookie {
            // No sample: the stack does not know when it sent the SYN-ACK.
        } else if e.retries == 0 {
            self.cold.rtt.sample(now - e.sent_at);
        } else {
            self.cold.rtt.syn_was_lost();
            self.cold.congestion.on_syn_lost();
        }
    }

    /// Prepares the state for sending. So far we have sent only the SYN, and it is acknowledged.
    pub(super) fn begin_sending(&mut self) {
        let c = &mut self.cold;
        c.scoreboard = Scoreboard::new(self.snd_una);
        c.rack = Rack::new(self.snd_una);
        c.sample_at = self.snd_una;
    }

    /// Closes the sending side: a FIN follows the queued data (RFC 9293 §3.10.4).
    pub fn close(&mut self, net: &Net) {
        self.flags.set(Flags::CLOSE);
        match self.state {
            State::Established => self.enter(State::FinWait1, net),
            State::CloseWait => self.enter(State::LastAck, net),
            _ => {}
        }
    }

    /// Returns the TIME-WAIT entry for a connection that is closed in both directions.
    pub fn time_wait(&self, now: Time, net: &Net) -> TimeWait {
        TimeWait {
            key: self.key,
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            window: self.window_field(),
            ts_recent: self.flags.has(Flags::TIMESTAMPS).then_some(self.ts_recent),
            ts_offset: self.ts_offset,
            owns_port: self.cold.port == PortFrom::Choice,
            disowned: false,
            until: now + net.cfg.tcp.time_wait,
        }
    }

    /// Drops the farther half of the held out-of-order frames. Returns how many it dropped.
    pub fn drop_farther_half(&mut self) -> usize {
        let held = &mut self.cold.reassembly;
        let before = held.len();
        while held.len() > before / 2 && held.drop_newest() {}
        let dropped = before - held.len();
        self.settle_holes();
        dropped
    }

    /// Returns the number of received frames kept here: beyond a gap, or waiting for the handler.
    pub fn held(&self) -> usize {
        self.cold.reassembly.len() + self.cold.parked.len()
    }

    /// Returns the id of this connection, whose slot is `index`.
    #[inline]
    pub fn id(&self, index: u32) -> ConnId {
        ConnId { index, generation: self.generation }
    }

    /// Returns whether both ends are closed and our user has data left to read.
    pub fn only_reads(&self) -> bool {
        self.cold.fin_waits && self.state == State::FinWait2
    }

    /// Returns the octets sent and not acknowledged, including SYN and FIN.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.snd_nxt - self.snd_una
    }

    /// Returns the receive window while nothing is parked, in octets: a multiple of the window field's unit.
    pub fn full_window(&self, net: &Net) -> u32 {
        if self.cold.newcomer {
            return net.newcomer_window();
        }
        match self.rcv_wscale {
            0 => net.cfg.tcp.recv_window.min(0xffff),
            shift => net.cfg.tcp.recv_window >> shift << shift,
        }
    }

    /// Returns the window field of a segment that is not a SYN.
    #[inline]
    pub fn window_field(&self) -> u16 {
        (self.rcv_wnd >> self.rcv_wscale).min(0xffff) as u16
    }

    /// Returns our clock for the timestamps option: milliseconds from a secret origin (RFC 7323 §5.4).
    #[inline]
    pub fn timestamp(&self, now: Time) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.ts_offset)
    }

    /// Returns whether the user may still queue data.
    pub fn may_send(&self) -> bool {
        !self.flags.has(Flags::CLOSE)
    }

    /// Returns the octets queued and not sent yet.
    pub fn unsent(&self) -> u64 {
        let end = self.cold.queue.end();
        if self.snd_nxt.lt(end) { u64::from(end.since(self.snd_nxt)) } else { 0 }
    }

    /// Returns the octets queued or in flight.
    #[inline]
    pub fn unacked(&self) -> u64 {
        u64::from(self.cold.queue.end().since(self.first_unacked()))
    }

    /// Returns the sequence number of the first octet that the peer has not acknowledged; if there is none, that of
    /// the next octet, or of our FIN.
    #[inline]
    fn first_unacked(&self) -> Seq {
        // Until our SYN, which is not in the queue, is acknowledged, SND.UNA is its number. The state tells, and not a
        // comparison with ISS, because an old ISS may seem to lie ahead of SND.UNA.
        match self.state {
            State::SynSent | State::SynReceived => self.cold.iss + 1,
            _ => self.snd_una,
        }
    }

    /// Returns the number of records queued or in flight.
    pub fn records(&self) -> usize {
        self.cold.queue.records()
    }

    /// Returns how many records at the end of the queue, newest first, satisfy `f`.
    pub fn records_at_end(&self, f: impl FnMut(&B::Payload) -> bool) -> usize {
        self.cold.queue.records_at_end(f)
    }

    /// Returns since when a SYN or data has been outstanding, or has waited for the neighbour's address, without
    /// progress; `Time::MAX` if none has.
    pub fn stalled_since(&self) -> Time {
        self.cold.stalled_since
    }

    /// Returns how many octets are worth queueing now: what the windows allow at once, and a few segments more, so
    /// that the next ACK finds data to send.
    pub fn room(&self, cfg: &TcpConfig, gso_max: u32) -> usize {
        if !self.may_send() || self.cold.queue.records() >= MAX_RECORDS {
            return 0;
        }
        let mss = u32::from(self.mss);
        let window = (self.snd_una + self.snd_wnd).since(self.snd_nxt);
        let pipe = self.pipe();
        let unsent = self.cold.queue.end().since(self.snd_nxt);
        let sendable = self.cold.congestion.cwnd().saturating_sub(pipe).min(window);
        // The caller may overshoot by the record that it is building. Twice its size is kept back, as a margin.
        let record = u64::from(mss.max(gso_max));
        let free = u64::from(cfg.send_buffer).saturating_sub(self.unacked() + 2 * record);
        let worth = sendable.saturating_add(4 * mss).saturating_sub(unsent);
        u64::from(worth).min(free) as usize
    }

    /// Queues a record. Returns `false` if there is no room for it.
    pub fn queue(&mut self, payload: B::Payload, len: u32, cfg: &TcpConfig) -> bool {
        let fits = self.unacked() + u64::from(len) <= u64::from(cfg.send_buffer);
        if !fits || self.cold.queue.records() >= MAX_RECORDS {
            return false;
        }
        self.cold.queue.push(payload, len);
        if !matches!(self.state, State::SynSent | State::SynReceived) {
            self.flags.set(Flags::OUTPUT);
        }
        true
    }
}

#[cfg(test)]
mod tests;
