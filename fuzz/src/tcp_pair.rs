//! Two stacks on a bad link, with one connection, and a third party that forges segments. The input determines what
//! happens to frames in flight, how much time passes, and what the applications do. After each step both ends are
//! compared: if one end counts octets as acknowledged, the other end has them; an application gets what the other
//! wrote; windows never shrink; the stacks' state is consistent ([`Stack::audit`](urnic_tcp::Stack::audit)). In the
//! end, the link becomes good again. Then everything must arrive and both ends must close, unless a failure was
//! reported or excused.

mod end;
mod forge;
mod link;

use crate::input::Input;
use end::{End, address, mac};
use forge::Effect;
use link::Link;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use urnic_tcp::{Address, CloseReason, Congestion, Ecn, Keepalive, Numbers, StackConfig, Time};

const PORT: u16 = 7;
/// The maximum number of octets that an application writes.
const MOST_WRITTEN: u64 = 200_000;
/// Delay of one direction once the link is good.
const DELAY: Duration = Duration::from_micros(100);
/// Time after which both ends must be done once the link is good. The longest wait is that for the FIN of a peer that
/// has forgotten the connection.
const PATIENCE: Duration = Duration::from_secs(8 * 3600);
const FIN_WAIT: Duration = Duration::from_secs(6 * 3600);

struct Run {
    ends: [End; 2],
    /// The directions from each end to the other.
    links: [Link; 2],
    now: Time,
    v6: bool,
    /// Whether a forged segment may have changed the data or the state of the streams.
    forged: Rc<Cell<bool>>,
    /// Whether a forged segment may have changed a window.
    beliefs: bool,
    /// Whether the connection had a reason to fail.
    excused: bool,
    before: [Option<Numbers>; 2],
}

fn config(who: usize, input: &mut Input, v6: bool) -> StackConfig {
    let flags = input.u16();
    let bit = |n: u8| flags & (1 << n) != 0;
    let mut c = StackConfig::new(mac(who), address(who, v6), 24, 42 + who as u64);
    c.addresses = vec![Address { ip: address(who, v6), prefix_len: if v6 { 64 } else { 24 } }];
    c.mtu = [1500, 9000, if v6 { 1280 } else { 576 }, 1500][usize::from(flags & 3)];
    c.tcp.sack = !bit(2);
    c.tcp.timestamps = !bit(3);
    c.tcp.window_scale = !bit(4);
    c.tcp.congestion =
        [Congestion::Cubic, Congestion::Reno, Congestion::Dctcp][usize::from(flags >> 5 & 3) % 3];
    c.tcp.ecn = if bit(7) { Ecn::Offer } else { Ecn::Accept };
    c.tcp.pacing = bit(8);
    c.tcp.recv_window = if bit(9) { 4096 } else { 200_000 };
    c.tcp.send_buffer = if bit(10) { 40_000 } else { 4 << 20 };
    c.tcp.rto_min = Duration::from_millis(if bit(11) { 1 } else { 200 });
    c.tcp.initial_window = if bit(12) { 1 } else { 10 };
    if bit(13) {
        let idle = Duration::from_secs(5);
        c.tcp.keepalive = Some(Keepalive { idle, interval: Duration::from_secs(1), count: 3 });
        c.tcp.user_timeout = Some(Duration::from_secs(30));
    }
    c.tcp.max_held_frames = if bit(14) { 8 } else { 1024 };
    c.tcp.fin_wait = FIN_WAIT;
    c
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let how = input.u8();
    let v6 = how & 1 == 1;
    let configs = [config(0, &mut input, v6), config(1, &mut input, v6)];
    let impatient = configs.iter().any(|c| c.tcp.keepalive.is_some());
    let forged = Rc::new(Cell::new(false));
    let [a, b] = configs;
    let mut run = Run {
        ends: [end::new(0, a, forged.clone()), end::new(1, b, forged.clone())],
        links: [Link::new(), Link::new()],
        now: Time::from_secs(1),
        v6,
        forged,
        beliefs: false,
        excused: impatient,
        before: [None; 2],
    };
    run.open();
    if how & 2 == 0 {
        // In this case, the start is undisturbed; otherwise the input also controls the start.
        run.exchange();
    }
    for _ in 0..500 {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
        run.check();
    }
    run.heal();
}

impl Run {
    fn open(&mut self) {
        let [a, b] = &mut self.ends;
        b.stack.listen_on(PORT, 8).expect("the port is free");
        let to = SocketAddr::new(address(1, self.v6), PORT);
        let conn = a.stack.connect(self.now, to, 0, &mut a.out).expect("there is a route");
        a.app.conn = Some(conn);
        self.pass(0);
    }

    fn step(&mut self, input: &mut Input) {
        let op = input.u8();
        let (who, arg) = (usize::from(op >> 5 & 1), usize::from(op >> 6));
        let place = |input: &mut Input| usize::from(input.u8() & 63);
        match op & 0x1f {
            what @ 0..=6 => {
                for _ in 0..[1, 2, 5, 64][arg] {
                    self.deliver(who);
                }
                // Operation 6 delivers a part of a burst, so the end does not run its timers and output yet.
                if what < 6 {
                    self.pass(who);
                }
            }
            7 => self.wait(Duration::from_micros(u64::from(input.magnitude() % 100_000_000))),
            8 => {
                let next = self.ends.iter().filter_map(|e| e.stack.next_deadline()).min();
                self.wait(next.map_or(Duration::ZERO, |t| t - self.now));
            }
            9 => self.wait(Duration::from_millis([1, 10, 100, 1000][arg])),
            10 | 11 => {
                let n = place(input);
                self.links[who].lose(n);
            }
            12 => self.links[who].lose_all(),
            13 => {
                let (n, to) = (place(input), place(input));
                self.links[who].duplicate(n, to);
            }
            14 => {
                let (n, to) = (place(input), place(input));
                self.links[who].move_to(n, to);
            }
            15 => {
                let (n, bit) = (place(input), input.u16());
                self.links[who].damage(n, usize::from(bit));
            }
            16 => {
                let n = place(input);
                self.links[who].mark(n);
            }
            17 => {
                self.links[who].mtu = [usize::MAX, 1280, 576, usize::from(input.u16())][arg];
                self.links[who].tells = input.u8() & 1 == 0;
            }
            18..=21 => self.write(who, input.magnitude() as usize % end::RECORD, 1),
            22 => self.write(who, [100, 1000, 1448, 8948][arg], usize::from(input.u8())),
            23 => {
                self.ends[who].close(self.now);
                self.drain(who);
            }
            24 if input.u8() < 16 => {
                self.ends[who].abort(self.now);
                self.pass(who);
            }
            24 => self.pass(who),
            25..=28 => self.forge(who, input),
            29 => self.ends[who].out.limit = usize::from(input.u8() % 65),
            30 => {
                self.ends[who].stack.set_pressure(arg & 1 == 1);
                self.drain(who);
            }
            _ => {
                // An ICMP error about a frame in flight arrives, with any MTU: from a router, or forged.
                let mtu = usize::from(input.u16());
                if let Some(message) = self.links[who].first().and_then(|f| link::too_big(f, mtu)) {
                    self.ends[who].receive(self.now, message, false);
                    self.drain(who);
                }
            }
        }
    }

    /// Delivers the next frame to `who`.
    fn deliver(&mut self, who: usize) {
        if let Some(frame) = self.links[1 - who].pop() {
            self.ends[who].receive(self.now, frame, false);
            self.drain(who);
        }
    }

    fn pass(&mut self, who: usize) {
        self.ends[who].pass(self.now);
        self.drain(who);
    }

    fn wait(&mut self, d: Duration) {
        self.now += d;
        self.pass(0);
        self.pass(1);
    }

    /// Puts the frames that an end has sent on the link.
    fn drain(&mut self, who: usize) {
        assert!(self.ends[who].out.loopback.is_empty(), "sent to itself");
        for frame in std::mem::take(&mut self.ends[who].out.frames) {
            if let Some(message) = self.links[who].push(frame) {
                self.links[1 - who].push(message);
            }
        }
    }

    fn write(&mut self, who: usize, len: usize, times: usize) {
        for _ in 0..times {
            if len > 0 && self.ends[who].app.queued < MOST_WRITTEN && !self.ends[who].app.close_called {
                self.ends[who].write(len);
            }
        }
        self.ends[who].output(self.now);
        self.drain(who);
    }

    fn forge(&mut self, to: usize, input: &mut Input) {
        let (target, other) = (&self.ends[to], &self.ends[1 - to]);
        let established = |e: &End| e.app.established && e.live().is_some();
        let (Some(conn), Some(n), true) = (target.live(), target.numbers(), established(target)) else {
            return;
        };
        // The other end's window is not known yet.
        if !other.app.established {
            return;
        }
        let port = |a: Option<SocketAddr>| a.map_or(0, |a| a.port());
        let ports = (port(target.stack.peer_addr(conn)), port(target.stack.local_addr(conn)));
        let forged = forge::segment(input, to, self.v6, ports, &n, other.numbers().as_ref());
        match forged.effect {
            Effect::None => {}
            Effect::Beliefs => self.beliefs = true,
            Effect::Streams => {
                self.forged.set(true);
                self.excused = true;
            }
        }
        let seen = (self.ends[to].app.received, self.ends[to].app.finished, self.ends[to].app.closed);
        self.ends[to].receive(self.now, forged.frame, false);
        if forged.effect == Effect::None {
            let end = &self.ends[to];
            assert_eq!(end.numbers(), Some(n), "a segment had an effect that should have been refused");
            assert_eq!((end.app.received, end.app.finished, end.app.closed), seen);
        }
        self.drain(to);
    }

    /// Compares both ends.
    fn check(&mut self) {
        for who in [0, 1] {
            let end = &self.ends[who];
            if let Err(fault) = end.stack.audit() {
                let info = end.live().and_then(|c| end.stack.info(c));
                panic!("end {who}: {fault:?}; {:?} {info:?} {:?}", end.app, end.numbers());
            }
            let now = end.numbers();
            if let (Some(old), Some(new)) = (self.before[who].filter(|_| end.app.established), now) {
                assert!(old.rcv_end.le(new.rcv_end), "the window shrank: {old:?} {new:?}");
                assert!(old.rcv_nxt.le(new.rcv_nxt) && old.snd_una.le(new.snd_una), "{old:?} {new:?}");
                assert!(old.queued.le(new.queued) && old.snd_nxt.le(new.snd_nxt), "{old:?} {new:?}");
            }
            self.before[who] = now.filter(|_| end.app.established);
            assert!(end.held() <= 1100, "{} frames are held", end.held());
        }
        for who in [0, 1] {
            let app = &self.ends[who].app;
            // A failure is excused: the links were bad, or the application aborted.
            let given_up = matches!(
                app.closed,
                Some(CloseReason::Aborted | CloseReason::TimedOut | CloseReason::Unreachable)
            );
            self.excused |= given_up;
        }
        if self.forged.get() {
            return;
        }
        for who in [0, 1] {
            let (end, other) = (&self.ends[who], &self.ends[1 - who]);
            assert!(end.app.acked <= other.app.received && end.app.received <= other.app.queued);
            if let (Some(n), Some(m), true, true) =
                (end.numbers(), other.numbers(), end.app.established, other.app.established)
            {
                assert!(n.snd_una.le(m.rcv_nxt) && m.rcv_nxt.le(n.snd_nxt), "{n:?} {m:?}");
                // A FIN needs no window.
                assert!(self.beliefs || n.snd_nxt.le(m.rcv_end + 1), "beyond the window: {n:?} {m:?}");
            }
            match end.app.closed {
                Some(CloseReason::Graceful) => {
                    assert!(end.app.finished && other.app.finished, "{:?} {:?}", end.app, other.app);
                    assert_eq!((end.app.received, other.app.received), (other.app.queued, end.app.queued));
                }
                Some(CloseReason::Reset | CloseReason::Refused) => {
                    let gone = other.app.conn.is_none() || other.app.closed == Some(CloseReason::Graceful);
                    assert!(self.excused || gone, "{:?} {:?}", end.app, other.app);
                }
                _ => {}
            }
        }
    }

    /// Delivers all frames in flight, and the answers to them, until there is silence.
    fn exchange(&mut self) {
        for _ in 0..20_000 {
            self.pass(0);
            self.pass(1);
            if self.links.iter().all(|l| l.len() == 0) {
                return;
            }
            self.now += DELAY;
            for who in [0, 1] {
                for _ in 0..self.links[1 - who].len().min(64) {
                    self.deliver(who);
                }
            }
            self.check();
        }
        panic!("the ends never fall silent: {}", self.describe());
    }

    /// Makes the link good, and checks that all written data arrives and both ends close.
    fn heal(&mut self) {
        for (end, link) in self.ends.iter_mut().zip(&mut self.links) {
            (link.mtu, end.out.limit) = (usize::MAX, 64);
            end.stack.set_pressure(false);
            // An end that is about to give up may not notice in time that the link is good.
            let info = end.live().and_then(|c| end.stack.info(c));
            self.excused |= info.is_some_and(|i| i.retries >= 5) || !end.app.established;
        }
        let excused = self.excused;
        let end = self.now + PATIENCE;
        loop {
            self.exchange();
            let [a, b] = &self.ends;
            let arrived = a.app.queued == b.app.received && b.app.queued == a.app.received;
            let over = self.forged.get() || [a, b].iter().any(|e| e.live().is_none());
            if a.live().is_none() && b.live().is_none() {
                break;
            }
            if (arrived || over) && [a, b].iter().any(|e| e.live().is_some() && !e.app.close_called) {
                for who in [0, 1] {
                    self.ends[who].close(self.now);
                    self.drain(who);
                }
                continue;
            }
            let next = self.ends.iter().filter_map(|e| e.stack.next_deadline()).min();
            match next {
                Some(t) if t < end => self.now = self.now.max(t),
                _ => panic!("the ends are stuck: {}", self.describe()),
            }
        }
        let closed = [0, 1].map(|who| self.ends[who].app.closed);
        for (who, end) in self.ends.iter().enumerate() {
            // The last ACK may have been lost for longer than the other end remembers the connection. The other end has
            // then refused a retransmitted FIN with a reset.
            let graceful = match closed[who] {
                Some(CloseReason::Reset) => closed[1 - who] == Some(CloseReason::Graceful),
                reason => reason == Some(CloseReason::Graceful),
            };
            assert!(graceful || excused || self.forged.get(), "{}", self.describe());
            assert!(end.held() == 0, "frames are held for nobody");
        }
    }

    fn describe(&self) -> String {
        let mut text = format!("at {:?}", self.now);
        for (end, link) in self.ends.iter().zip(&self.links) {
            let info = end.live().and_then(|c| end.stack.info(c));
            text += &format!("\n{:?} {:?} {info:?} {} on their way", end.app, end.numbers(), link.len());
        }
        text
    }
}

/// Returns programs: transfers in both directions, with losses and other events in between.
pub fn seeds() -> Vec<Vec<u8>> {
    // `to_*` delivers up to 64 frames to an end; `from_*` sends 30 records from an end.
    let (to_a, to_b) = (vec![0xc0], vec![0xe0]);
    let (from_a, from_b) = (vec![22 | 0x40, 30], vec![22 | 0x60, 30]);
    let (wait, later) = (vec![8], vec![9 | 0x80]);
    let both = [&to_b[..], &to_a].concat();
    let (close_a, close_b) = (vec![23], vec![23 | 0x20]);
    let ack = vec![25, 0];
    let reset = vec![25 | 0x20, 12, 4];
    let sacks = vec![25, 128, 4, 1, 7, 10, 1, 0, 0];
    let smaller = vec![17 | 0x40, 0];
    let black = vec![17 | 0x80, 1];
    let programs: [Vec<&[u8]>; 9] = [
        vec![&from_a, &both, &both, &from_b, &both, &both, &close_a, &both, &close_b, &both],
        vec![&from_a, &both, &from_a, &[10, 0], &both, &both, &wait, &both, &both, &close_a],
        vec![&from_a, &both, &from_a, &[10, 3, 10, 5, 10, 1], &both, &both, &both, &wait, &both],
        vec![&from_a, &[14, 0, 9, 13, 2, 7, 15, 4, 1, 99, 16, 1], &both, &both, &wait, &both],
        vec![&from_a, &both, &from_a, &[12], &wait, &[12], &wait, &both, &wait, &both, &both],
        vec![&from_a, &to_b, &ack, &reset, &sacks, &both, &from_b, &both, &wait, &both],
        vec![&smaller, &from_a, &both, &both, &wait, &both, &from_a, &both],
        vec![&from_a, &both, &black, &from_a, &both, &wait, &wait, &wait, &wait, &wait, &both, &later, &both],
        vec![&close_a, &from_b, &both, &close_b, &[12], &wait, &both, &wait, &both],
    ];
    let mut seeds = Vec::new();
    for how in [0, 1, 2] {
        for flags in [[0u8; 4], [0, 4, 0, 4], [8, 0x84, 8, 0x9c], [0x1b, 0x20, 0x0a, 0x60]] {
            for program in &programs {
                seeds.push([&[how][..], &flags, &program.concat()].concat());
            }
        }
    }
    seeds
}
