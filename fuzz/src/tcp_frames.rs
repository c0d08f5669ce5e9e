//! Sends frames to a stack. The input is a small program: frames octet by octet, segments that fit the stack's
//! connections, passing time, and actions of an application. In every case the stack must not panic, must come to rest,
//! must send only well-formed frames, must report a consistent sequence of events to its application, and must not hold
//! more frames than its windows allow.

pub(crate) mod app;
mod segment;

use crate::host::{Host, Record};
use crate::input::Input;
use app::App;
use segment::Flow;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use urnic_tcp::{Congestion, Keepalive, StackConfig, Time};

const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const STACK_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// The maximum number of frames that the stack may hold, for all connections together.
const MOST_HELD: usize = 40_000;

struct Run {
    host: Host<App>,
    now: Time,
    flows: Vec<Flow>,
}

fn config(flags: u8) -> StackConfig {
    let mut c = StackConfig::new(STACK_MAC, STACK_IP, 24, 42);
    let bit = |n: u8| flags & (1 << n) != 0;
    c.tcp.sack = bit(0);
    c.tcp.timestamps = bit(1);
    c.tcp.window_scale = bit(2);
    c.tcp.congestion = if bit(3) { Congestion::Cubic } else { Congestion::Reno };
    c.tcp.recv_window = if bit(4) { 1 << 20 } else { 8192 };
    c.mtu = if bit(5) { 9000 } else { 576 };
    if bit(6) {
        let idle = Duration::from_secs(5);
        c.tcp.keepalive = Some(Keepalive { idle, interval: Duration::from_secs(1), count: 3 });
        c.tcp.user_timeout = Some(Duration::from_secs(30));
    }
    c.checksum_offload_tx = bit(7);
    c.tcp.max_connections = 64;
    c.tcp.max_syn_backlog = 16;
    c
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let Ok(host) = Host::new(config(input.u8()), App::default()) else { return };
    let mut run = Run { host, now: Time::ZERO, flows: Vec::new() };
    let _ = run.host.stack.listen_on(7, 8);
    run.receive(segment::arp(false), true);
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    run.drain();
}

impl Run {
    fn step(&mut self, input: &mut Input) {
        match input.u8() % 16 {
            0 => {
                let n = input.u8();
                let frame = input.take(usize::from(n)).to_vec();
                self.receive(frame, n & 1 == 0);
            }
            1 => {
                // An IPv4 packet to our address, with any protocol and payload.
                let n = usize::from(input.u8());
                let frame = segment::ip_frame(input.u8(), input.take(n));
                self.receive(frame, true);
            }
            2 => self.receive(segment::arp(input.u8() & 1 == 0), true),
            3 => {
                self.now += Duration::from_micros(u64::from(input.magnitude()));
                self.pass();
            }
            4 => {
                if let Some(t) = self.host.stack.next_deadline() {
                    self.now = self.now.max(t);
                }
                self.pass();
            }
            5 => self.application(input),
            _ => {
                let trusted = input.u8() > 8;
                let frame = segment::read(input, &self.flows);
                self.receive(frame, trusted);
            }
        }
    }

    fn receive(&mut self, frame: Vec<u8>, trusted: bool) {
        self.host.receive(self.now, frame, trusted);
        self.after();
    }

    fn pass(&mut self) {
        self.host.pass(self.now);
        self.after();
    }

    /// Performs an application's action on one of its connections.
    fn application(&mut self, input: &mut Input) {
        let what = input.u8();
        let index = usize::from(input.u8());
        let (now, Host { stack, app, out, .. }) = (self.now, &mut self.host);
        if what.is_multiple_of(10) {
            let port = u16::from(input.u8() % 4) + 9;
            if let Ok(conn) = stack.connect(now, SocketAddrV4::new(PEER_IP, port), 5, out) {
                app.opened(conn);
            }
        }
        let Some(conn) = app.nth(index) else { return };
        match what % 10 {
            1..=4 => {
                let len = input.magnitude() as usize % 20_000;
                if len > 0 && stack.room(conn) > 0 && stack.send(conn, Record::from(vec![0xa5; len])).is_ok()
                {
                    app.queued(conn, len as u64);
                }
                stack.output(now, conn, out);
            }
            5 | 6 => stack.close(now, conn, out),
            7 => stack.abort(now, conn, out),
            8 => match input.u8() & 3 {
                3 => stack.give_back_held(),
                low => stack.set_pressure(low == 1),
            },
            9 => out.limit = usize::from(input.u8() % 70),
            _ => {}
        }
        self.after();
    }

    /// Checks the frames that the stack has sent, and delivers those that it sent to itself.
    fn after(&mut self) {
        for _ in 0..50 {
            for frame in std::mem::take(&mut self.host.out.frames) {
                segment::observe(&frame, &mut self.flows);
            }
            if !self.host.loop_back(self.now) {
                break;
            }
        }
        assert!(self.host.held() <= MOST_HELD, "{} frames held", self.host.held());
    }

    /// Checks that without a peer, every timer runs out in a bounded number of steps.
    fn drain(&mut self) {
        self.host.out.limit = 64;
        for conn in self.host.app.all() {
            self.host.stack.abort(self.now, conn, &mut self.host.out);
        }
        self.after();
        for _ in 0..100_000 {
            let Some(t) = self.host.stack.next_deadline() else { return };
            self.now = self.now.max(t);
            self.pass();
        }
        let (census, next) = (self.host.stack.census(), self.host.stack.next_deadline());
        panic!("timers never end: {census:?}, {next:?} at {:?}, {:?}", self.now, self.host.stack.counters());
    }
}

/// Returns programs that open connections, exchange data and close.
pub fn seeds() -> Vec<Vec<u8>> {
    segment::seeds()
}
