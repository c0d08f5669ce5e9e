//! Frames of all kinds that a link can send to the parts of a stack below TCP: ARP, ICMP, neighbour, router and
//! listener discovery, address claims, fragments, extension headers. The input determines the frames and how
//! much time passes. In every case, the state that the stack keeps must stay within its bounds
//! ([`Stack::audit`]); the stack may send only from its own addresses, and only a bounded number of frames at
//! once; its messages must be well-formed; and in the end, no timer may stay due.

mod craft;

use crate::host::Host;
use crate::input::Input;
use crate::tcp_frames::app::App;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use urnic_tcp::{Address, StackConfig, Time, sum};

const STACK_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const STACK_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const STACK_IP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// The maximum number of frames that one frame, or one step of the clock, may make the stack send: announcements of
/// addresses, reports of groups, solicitations of neighbours and routers.
const MOST_AT_ONCE: usize = 400;

struct Run {
    host: Host<App>,
    now: Time,
    mtu: usize,
    /// Frames sent lately, for errors that quote them.
    sent: Vec<Vec<u8>>,
    own: HashSet<IpAddr>,
}

fn config(flags: u8) -> StackConfig {
    let bit = |n: u8| flags & (1 << n) != 0;
    let mut c = StackConfig::new(STACK_MAC, STACK_IP, 24, 7);
    if !bit(0) {
        c.addresses.push(Address { ip: STACK_IP6.into(), prefix_len: 64 });
    }
    if bit(1) {
        c.addresses.remove(0);
    }
    c.autoconf = !bit(2) || c.addresses.is_empty();
    if bit(3) {
        c.gateways = vec![Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x1ff).into()];
    }
    c.mtu = if bit(4) { 9000 } else { 1500 };
    c.tcp.max_neighbours = if bit(5) { 4 } else { 32 };
    c.tcp.max_connections = 16;
    c.tcp.max_syn_backlog = 8;
    c.tcp.max_time_wait = 8;
    c
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let flags = input.u8();
    let config = config(flags);
    let mtu = usize::from(config.mtu);
    let v6 = config.autoconf || config.addresses.iter().any(|a| a.ip.is_ipv6());
    let Ok(host) = Host::new(config, App::default()) else {
        // An IPv6 gateway without IPv6 addresses is refused.
        return assert!(!v6, "a fair configuration");
    };
    let mut run = Run { host, now: Time::ZERO, mtu, sent: Vec::new(), own: HashSet::new() };
    run.host.out.limit = usize::MAX;
    let _ = run.host.stack.listen_on(7, 8);
    if flags & 0x40 != 0 {
        run.host.stack.claim_address(run.now);
    }
    run.pass();
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
        let known = self.known();
        match input.u8() % 16 {
            0 => {
                let n = input.u8();
                let frame = input.take(usize::from(n)).to_vec();
                self.receive(frame);
            }
            1 => {
                let frame = craft::arp(input);
                self.receive(frame);
            }
            2..=6 => {
                let frame = craft::icmp6(input, &known, &self.sent);
                let redirect = frame.get(54) == Some(&137);
                let before = self.sent.len();
                self.receive(frame);
                assert!(!redirect || self.sent.len() == before, "a redirect was answered");
            }
            7 => {
                let frame = craft::icmp4(input, &self.sent);
                self.receive(frame);
            }
            8 => {
                let n = input.u8();
                let protocol = input.u8();
                let payload = input.take(usize::from(n)).to_vec();
                let frame = craft::packet4(input, protocol, &payload);
                self.receive(frame);
            }
            9 => {
                let frame = craft::tcp6(input, &known);
                self.receive(frame);
            }
            10 => {
                let (protocol, n) = (input.u8(), usize::from(input.u8()));
                let mut payload = input.take(n).to_vec();
                let ends = (craft::ip6(input, &known), craft::ip6(input, &known), 64);
                let frame = craft::packet6(input, ends, protocol, &mut payload, 2, true);
                self.receive(frame);
            }
            11 => {
                self.now += Duration::from_micros(u64::from(input.magnitude()));
                self.pass();
            }
            12 => {
                if let Some(t) = self.host.stack.next_deadline() {
                    self.now = self.now.max(t);
                }
                self.pass();
            }
            13 => {
                let to: IpAddr = if input.u8() & 1 == 0 {
                    craft::ip6(input, &known).into()
                } else {
                    craft::ip4(input).into()
                };
                let to = SocketAddr::new(to, 9);
                if let Ok(conn) = self.host.stack.connect(self.now, to, 5, &mut self.host.out) {
                    self.host.app.opened(conn);
                }
                self.pass();
            }
            14 => {
                // A frame that we have sent comes back.
                let n = usize::from(input.u8());
                if let Some(frame) = self.sent.get(n % self.sent.len().max(1)).cloned() {
                    self.receive(frame);
                }
            }
            _ => {
                match input.u8() % 4 {
                    0 => self.host.stack.claim_address(self.now),
                    1 => self.host.stack.link_came_up(self.now),
                    _ => {
                        if let Some(conn) = self.host.app.nth(usize::from(input.u8())) {
                            self.host.stack.abort(self.now, conn, &mut self.host.out);
                        }
                    }
                }
                self.pass();
            }
        }
    }

    /// Returns our IPv6 addresses.
    fn known(&self) -> Vec<Ipv6Addr> {
        let v6 = |a: Address| match a.ip {
            IpAddr::V6(ip) => Some(ip),
            IpAddr::V4(_) => None,
        };
        self.host.stack.addresses().into_iter().filter_map(v6).collect()
    }

    fn receive(&mut self, frame: Vec<u8>) {
        self.host.receive(self.now, frame, false);
        self.host.flush(self.now);
        self.after();
    }

    fn pass(&mut self) {
        self.host.pass(self.now);
        self.after();
    }

    /// Checks the state and the output of the stack.
    fn after(&mut self) {
        // In this step, the stack may have sent from an address that was ours before the step.
        self.own.extend(self.host.stack.addresses().iter().map(|a| a.ip));
        let mut count = 0;
        for _ in 0..20 {
            for frame in std::mem::take(&mut self.host.out.frames) {
                self.look_at(&frame);
                count += 1;
                self.sent.push(frame);
            }
            self.host.loop_back(self.now);
        }
        assert!(count <= MOST_AT_ONCE, "{count} frames at once");
        if self.sent.len() > 64 {
            self.sent.drain(..self.sent.len() - 64);
        }
        if let Err(fault) = self.host.stack.audit() {
            panic!("{fault:?}; {:?}", self.host.stack.counters());
        }
        assert!(self.host.held() == 0, "frames are held");
        self.own = self.host.stack.addresses().iter().map(|a| a.ip).collect();
    }

    /// Checks that a frame of ours is well-formed, and has our source address.
    fn look_at(&self, frame: &[u8]) {
        assert_eq!(frame[6..12], STACK_MAC, "from another station");
        assert!(frame.len() <= 14 + self.mtu);
        if frame[12..14] != [0x86, 0xdd] {
            return; // `Out` checks these
        }
        let (header, payload) = frame[14..].split_at(40);
        let word = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        assert_eq!((header[0] >> 4, word(4)), (6, payload.len()));
        let address =
            |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("16 octets"));
        let (src, dst) = (address(8), address(24));
        assert!(!dst.is_unspecified() && !src.is_multicast());
        // Listener reports follow a router alert option.
        let (protocol, message) =
            if header[6] == 0 { (payload[0], &payload[8..]) } else { (header[6], payload) };
        let [l0, l1] = (message.len() as u16).to_be_bytes();
        let pseudo = [&header[8..40], &[0, 0, l0, l1, 0, 0, 0, protocol]].concat();
        assert_eq!(sum::add(sum::sum(&pseudo), sum::sum(message)), 0xffff, "a wrong checksum");
        if protocol == 6 {
            return; // a connection outlives its address
        }
        assert_eq!(protocol, 58);
        assert!(src.is_unspecified() || self.own.contains(&src.into()), "{src} is not ours");
        match message[0] {
            133..=136 => assert_eq!(header[7], 255),
            143 => assert_eq!(header[7], 1),
            kind => assert!(matches!(kind, 1 | 3 | 4 | 129), "a message of kind {kind}"),
        }
        // Discovery and reports may go to groups, errors and echo replies may not (RFC 4443 §2.4 e).
        assert!(matches!(message[0], 133 | 135 | 136 | 143) || !dst.is_multicast());
    }

    /// Lets time pass without frames from the link. The timers must run out, or become due again only later.
    fn drain(&mut self) {
        for conn in self.host.app.all() {
            self.host.stack.abort(self.now, conn, &mut self.host.out);
        }
        self.pass();
        let mut at_once = 0;
        for _ in 0..400 {
            let Some(t) = self.host.stack.next_deadline() else { return };
            at_once = if t <= self.now { at_once + 1 } else { 0 };
            assert!(at_once < 50, "timers that are always due");
            self.now = self.now.max(t);
            self.pass();
        }
    }
}

/// Returns inputs that together contain each kind of step.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for flags in [0u8, 0x40, 0x60, 0x21, 0x5c] {
        for op in 0..16u8 {
            for kind in 0..8u8 {
                let mut s = vec![flags];
                for n in 0..4u8 {
                    s.extend([
                        op,
                        2 * kind + (n & 1),
                        n << 5,
                        0x10 + n,
                        2,
                        n,
                        5,
                        64,
                        0xc0,
                        32,
                        0xff,
                        0xff,
                        9,
                        n,
                    ]);
                    s.extend([12, 2 + n, kind, n, 0x44, 1, 1, 5 + n, 12, 12]);
                }
                seeds.push(s);
            }
        }
    }
    seeds
}
