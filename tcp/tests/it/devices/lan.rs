//! Devices of several stacks on a simulated network. The network chooses the stack of a device that a frame reaches.

use crate::harness::{Host, Script, ip, ip6, mac, only_v6, solicitation};
use crate::paths::{Path, too_big};
use crate::peer::arp;
use fastrand::Rng;
use smoltcp::wire::ArpOperation;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use urnic_sim::{Impairment, Network};
use urnic_tcp::{BindId, CloseReason, Counters, Elsewhere, SharedPorts, StackConfig, Steering, Time};

/// How the network chooses a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Any stack of the device.
    Random,
    /// The owner of the connection, if the frame is a TCP segment; otherwise any stack.
    Right,
}

/// Several stacks that act as one host.
pub struct Device {
    pub hosts: Vec<Host>,
}

impl Device {
    /// Makes host `n` of the network, with the given number of stacks.
    pub fn new(n: u8, stacks: usize, tune: impl Fn(&mut StackConfig)) -> Device {
        let secret = 0x5eed_0000 + u64::from(n);
        let host = |(i, ports)| {
            let mut config = StackConfig::new(mac(n), ip(n), 24, secret);
            tune(&mut config);
            config.steering = Steering::new(i, stacks, secret).expect("a place");
            Host::with(config, Box::new(ports))
        };
        let hosts = SharedPorts::new(secret, stacks).into_iter().enumerate().map(host).collect();
        Device { hosts }
    }

    pub fn address(&self) -> IpAddr {
        self.hosts[0].address()
    }

    /// Reserves a port at all stacks.
    pub fn bind(&mut self, port: u16) -> BindId {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let bound = self.hosts[0].stack.bind(any, false).expect("a free port");
        for host in &mut self.hosts[1..] {
            host.stack.enter_binding(bound, false).expect("the same order everywhere");
        }
        bound.id
    }

    /// Listens at all stacks.
    pub fn listen(&mut self, port: u16, backlog: usize, script: &Script) -> BindId {
        let at = self.bind(port);
        for host in &mut self.hosts {
            host.stack.listen(at, backlog).expect("listen");
            host.app.on_accept = Some(script.clone());
        }
        at
    }

    pub fn unbind(&mut self, at: BindId) {
        self.hosts.iter_mut().for_each(|host| host.stack.unbind(at));
    }

    /// Returns a counter, summed over all stacks.
    pub fn count(&self, which: impl Fn(&Counters) -> u64) -> u64 {
        self.hosts.iter().map(|host| which(host.stack.counters())).sum()
    }

    pub fn sessions(&self) -> impl Iterator<Item = &crate::harness::Session> {
        self.hosts.iter().flat_map(|host| &host.app.sessions)
    }

    /// Returns whether any stack has a connection between two addresses.
    fn has(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        let is = |host: &Host| {
            let ends = |c| (host.stack.local_addr(c), host.stack.peer_addr(c));
            host.stack.connections().any(|c| ends(c) == (Some(local), Some(peer)))
        };
        self.hosts.iter().any(is)
    }
}

/// Devices 1, 2, … (nodes 0, 1, …) on one network.
pub struct Lan {
    pub now: Time,
    pub net: Network<Vec<u8>>,
    pub devices: Vec<Device>,
    pub path: Path,
    pub aim: Aim,
    pub rng: Rng,
    /// Probability that a frame is lost between two stacks of a device.
    pub lossy: f64,
    /// Sent frames, with the node and its stack.
    pub sent: Vec<(usize, usize, Vec<u8>)>,
    /// Whether `sent` records frames.
    pub keeps: bool,
}

impl Lan {
    pub fn new(impairment: &Impairment, rng: Rng, aim: Aim, devices: Vec<Device>) -> Lan {
        let net = Network::new(devices.len(), impairment);
        Lan {
            // The allowance of stateless replies grows with time, so at time zero there is none.
            now: Time::from_secs(1),
            net,
            devices,
            path: Path::OPEN,
            aim,
            rng,
            lossy: 0.0,
            sent: Vec::new(),
            keeps: false,
        }
    }

    /// Makes two devices that know each other's addresses, on a network without faults.
    pub fn pair(stacks: [usize; 2], seed: u64, tune: impl Fn(&mut StackConfig)) -> Lan {
        let devices = vec![Device::new(1, stacks[0], &tune), Device::new(2, stacks[1], &tune)];
        let mut lan = Lan::new(&Impairment::default(), Rng::with_seed(seed), Aim::Random, devices);
        lan.introduce();
        lan
    }

    /// Lets all devices ask each other for their addresses, so that all stacks know them.
    pub fn introduce(&mut self) {
        for to in 0..self.devices.len() {
            for from in (0..self.devices.len()).filter(|from| *from != to) {
                let (from, me) = (from as u8 + 1, to as u8 + 1);
                let frame = if self.devices[to].address().is_ipv6() {
                    solicitation(from, me)
                } else {
                    arp(ArpOperation::Request, from, me)
                };
                self.throw(to, frame);
                self.turn(to);
            }
            for host in &mut self.devices[to].hosts {
                host.out.frames.clear();
            }
        }
        self.sent.clear();
    }

    /// Lets a frame reach a device.
    pub fn throw(&mut self, to: usize, frame: Vec<u8>) {
        let hosts = &mut self.devices[to].hosts;
        let right = ends(&frame).map(|(from, to, _)| hosts[0].stack.config().steering.owner(to, from));
        let random = self.rng.usize(..hosts.len());
        let chosen = if self.aim == Aim::Right { right.unwrap_or(random) } else { random };
        hosts[chosen].inbox.push_back(frame);
    }

    /// Runs passes of the stacks of a device until no stack has frames from another one. Returns whether any frame
    /// moved.
    pub fn turn(&mut self, node: usize) -> bool {
        let mut busy = false;
        for _ in 0..1000 {
            let mut order: Vec<usize> = (0..self.devices[node].hosts.len()).collect();
            self.rng.shuffle(&mut order);
            for i in order {
                let host = &mut self.devices[node].hosts[i];
                busy |= !host.inbox.is_empty();
                host.pass(self.now);
                for (to, frame) in std::mem::take(&mut host.app.handed_over) {
                    self.cross(node, i, to, &frame);
                }
            }
            if self.devices[node].hosts.iter().all(|host| host.taken_over.is_empty()) {
                return busy;
            }
            busy = true;
        }
        panic!("the stacks of a device hand frames to each other for ever");
    }

    fn cross(&mut self, node: usize, from: usize, to: Elsewhere, frame: &[u8]) {
        for (i, host) in self.devices[node].hosts.iter_mut().enumerate() {
            let concerns = match to {
                Elsewhere::Stack(one) => i == one,
                Elsewhere::Others => i != from,
            };
            if concerns && self.rng.f64() >= self.lossy {
                host.taken_over.push_back(frame.to_vec());
            }
        }
    }

    /// Moves frames, without passing time, until nothing more happens.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            while let Some(d) = self.net.pop(self.now.0) {
                self.throw(d.to, d.frame);
            }
            let mut busy = false;
            for node in 0..self.devices.len() {
                busy |= self.turn(node);
                for i in 0..self.devices[node].hosts.len() {
                    let host = &mut self.devices[node].hosts[i];
                    let sent = std::mem::take(&mut host.out.frames);
                    busy |= !sent.is_empty() || !host.out.loopback.is_empty();
                    host.inbox.extend(host.out.loopback.drain(..));
                    for frame in sent {
                        self.transmit(node, i, frame);
                    }
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the stacks never come to rest at {:?}", self.now);
    }

    fn transmit(&mut self, node: usize, stack: usize, frame: Vec<u8>) {
        if let Some((local, peer, flags)) = ends(&frame)
            && flags & RST != 0
        {
            let device = &self.devices[node];
            let owner = device.hosts[0].stack.config().steering.owner(local, peer);
            assert_eq!(
                stack, owner,
                "a RST from {local} to {peer} by a stack that does not own the addresses"
            );
            assert!(!device.has(local, peer), "a RST to {peer}, which has a connection to {local}");
        }
        if self.keeps {
            self.sent.push((node, stack, frame.clone()));
        }
        if frame.len() - 14 > self.path.mtu {
            if let Some(message) = too_big(&frame, self.path.mtu).filter(|_| self.path.tells) {
                // A random stack could be the sender itself, so each message goes to a random one of the other
                // stacks.
                let hosts = &mut self.devices[node].hosts;
                let past = self.rng.usize(1..hosts.len().max(2));
                let other = (stack + past) % hosts.len();
                hosts[other].inbox.push_back(message);
            }
            return;
        }
        match frame[..6] {
            [2, 0, 0, 0, 0, n] if n != 0 => self.net.push(self.now.0, node, usize::from(n) - 1, frame),
            _ => self.net.broadcast(self.now.0, node, &frame),
        }
    }

    fn audit(&self) {
        for (node, device) in self.devices.iter().enumerate() {
            for (i, host) in device.hosts.iter().enumerate() {
                if let Err(fault) = host.stack.audit() {
                    panic!("stack {i} of node {node}: {fault:?} {}", self.describe());
                }
            }
        }
    }

    fn next(&self) -> Option<Time> {
        let hosts = self.devices.iter().flat_map(|d| &d.hosts);
        hosts.filter_map(|h| h.stack.next_deadline()).chain(self.net.next_arrival().map(Time)).min()
    }

    /// Runs until `done` or until `limit` of virtual time has passed. Returns whether it was done.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&Lan) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.settle();
            self.audit();
            if done(self) {
                return true;
            }
            match self.next() {
                Some(t) if t <= end => self.now = self.now.max(t),
                _ => {
                    self.now = end;
                    return false;
                }
            }
        }
    }

    /// Runs until `opened` connections are gone at both ends. Checks that each connection delivered everything in
    /// both directions.
    pub fn run_to_end(&mut self, opened: usize, limit: Duration) {
        let sessions = |lan: &Lan| lan.devices.iter().map(|d| d.sessions().count()).sum::<usize>();
        let gone = |lan: &Lan| lan.devices.iter().all(|d| d.hosts.iter().all(Host::done));
        let done = self.run(limit, |lan| sessions(lan) == 2 * opened && gone(lan));
        assert!(done, "not finished at {:?}: {}", self.now, self.describe());
        let all = || self.devices.iter().flat_map(Device::sessions);
        for s in all() {
            assert_eq!(s.closed, Some(CloseReason::Graceful), "{s:?}");
            let peer = all().find(|p| p.who == s.peer_who && p.peer_who == s.who);
            let peer = peer.unwrap_or_else(|| panic!("no peer of {s:?}"));
            assert_eq!((s.received, s.acked), (peer.script.send, s.script.send), "{s:?}");
        }
        for device in &self.devices {
            assert_eq!(device.count(|c| c.strays), 0, "a frame was handed to a stack that it is not for");
        }
    }

    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (node, device) in self.devices.iter().enumerate() {
            for (i, h) in device.hosts.iter().enumerate() {
                for s in &h.app.sessions {
                    let ends = (h.stack.local_addr(s.conn), h.stack.peer_addr(s.conn));
                    text += &format!("\n  {node}.{i}: {ends:?} {s:?}\n    {:?}", h.stack.info(s.conn));
                }
                text += &format!("\n  {node}.{i}: {:?}", h.stack.counters());
            }
        }
        text
    }
}

/// Configures device `n` with only an IPv6 address if `v6`, and with only an IPv4 address otherwise.
pub fn family(n: u8, v6: bool, config: &mut StackConfig) {
    if v6 {
        only_v6(n, config);
    }
}

pub const RST: u8 = 4;

/// Returns the ends of a TCP segment, its source first, and its flags; `None` if it is no TCP segment.
pub fn ends(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, u8)> {
    let (src, dst, tcp): (IpAddr, IpAddr, usize) = match (frame.get(12..14)?, frame.get(23)?, frame.get(20)?)
    {
        ([8, 0], 6, _) => {
            let ip = |at: usize| Some(Ipv4Addr::from(*frame.get(at..)?.first_chunk::<4>()?));
            (ip(26)?.into(), ip(30)?.into(), 34)
        }
        ([0x86, 0xdd], _, 6) => {
            let ip = |at: usize| Some(Ipv6Addr::from(*frame.get(at..)?.first_chunk::<16>()?));
            (ip(22)?.into(), ip(38)?.into(), 54)
        }
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let end = |ip, at| Some(SocketAddr::new(ip, port(at)?));
    Some((end(src, tcp)?, end(dst, tcp + 2)?, *frame.get(tcp + 13)?))
}

/// Returns the address of device `n`.
pub fn address(n: u8, v6: bool) -> IpAddr {
    if v6 { ip6(n).into() } else { ip(n).into() }
}
