//! smoltcp's TCP as the other end, in both roles: an independent implementation agrees on the octets.

use crate::harness::{App, Host, Script, for_seeds, ip, mac, octet};
use fastrand::Rng;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;
use std::net::SocketAddrV4;
use std::time::Duration;
use urnic_sim::{Impairment, Network};
use urnic_tcp::{CloseReason, Time};

#[derive(Default)]
struct Wire {
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);
struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let r = f(&mut frame);
        self.0.push(frame);
        r
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        self.rx.pop_front().map(|f| (Rx(f), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut c = DeviceCapabilities::default();
        c.medium = Medium::Ethernet;
        c.max_transmission_unit = 1514;
        c
    }
}

/// A host (2) that runs smoltcp with one socket.
struct Other {
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    who: u64,
    peer_who: u64,
    sent: u64,
    to_send: u64,
    received: u64,
    closed: bool,
    close_first: bool,
}

fn instant(t: Time) -> Instant {
    Instant::from_micros((t.0 / 1000) as i64)
}

impl Other {
    fn new(seed: u64, buffer: usize) -> Self {
        let mut wire = Wire::default();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac(2))));
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|a| {
            a.push(IpCidr::new(IpAddress::Ipv4(ip(2)), 24)).expect("one address");
        });
        let mut sockets = SocketSet::new(vec![]);
        let buffers = || tcp::SocketBuffer::new(vec![0; buffer]);
        let socket = sockets.add(tcp::Socket::new(buffers(), buffers()));
        Other {
            wire,
            interface,
            sockets,
            socket,
            who: 0,
            peer_who: 0,
            sent: 0,
            to_send: 0,
            received: 0,
            closed: false,
            close_first: false,
        }
    }

    fn pass(&mut self, now: Time) {
        self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
        let s = self.sockets.get_mut::<tcp::Socket>(self.socket);
        while s.can_recv() {
            let n = s
                .recv(|data| {
                    for (i, &b) in data.iter().enumerate() {
                        let at = self.received + i as u64;
                        assert_eq!(b, octet(self.peer_who, at), "wrong octet at {at}");
                    }
                    (data.len(), data.len())
                })
                .expect("can receive");
            self.received += n as u64;
        }
        while s.can_send() && self.sent < self.to_send {
            let n = s
                .send(|space| {
                    let n = (space.len() as u64).min(self.to_send - self.sent) as usize;
                    for (i, b) in space[..n].iter_mut().enumerate() {
                        *b = octet(self.who, self.sent + i as u64);
                    }
                    (n, n)
                })
                .expect("can send");
            self.sent += n as u64;
        }
        let finished = s.state() == tcp::State::CloseWait;
        if self.sent == self.to_send && s.may_send() && !self.closed && (self.close_first || finished) {
            s.close();
            self.closed = true;
        }
        self.interface.poll(instant(now), &mut self.wire, &mut self.sockets);
    }

    fn next(&mut self, now: Time) -> Option<Time> {
        self.interface
            .poll_at(instant(now), &self.sockets)
            .map(|i| Time(i.total_micros().max(0) as u64 * 1000).max(now + Duration::from_micros(1)))
    }

    fn state(&self) -> tcp::State {
        self.sockets.get::<tcp::Socket>(self.socket).state()
    }
}

fn run(
    host: &mut Host,
    other: &mut Other,
    impairment: &Impairment,
    done: impl Fn(&App, &Other) -> bool,
) -> bool {
    let mut net: Network<Vec<u8>> = Network::pair(impairment);
    let mut now = Time::ZERO;
    while now < Time::from_secs(7200) {
        while let Some(d) = net.pop(now.0) {
            if d.to == 0 { host.inbox.push_back(d.frame) } else { other.wire.rx.push_back(d.frame) }
        }
        host.pass(now);
        other.pass(now);
        for f in host.out.frames.drain(..) {
            net.push(now.0, 0, 1, f);
        }
        for f in other.wire.tx.drain(..) {
            net.push(now.0, 1, 0, f);
        }
        if done(&host.app, other) {
            return true;
        }
        if !host.inbox.is_empty() {
            continue;
        }
        let next = [host.stack.next_deadline(), net.next_arrival().map(Time), other.next(now)];
        match next.into_iter().flatten().min() {
            Some(t) => now = now.max(t),
            None => return false,
        }
    }
    false
}

fn impairment(rng: &mut Rng) -> Impairment {
    let some = |rng: &mut Rng, most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
    Impairment {
        loss: some(rng, 0.05),
        dup: some(rng, 0.05),
        reorder: some(rng, 0.1),
        corrupt: some(rng, 0.02),
        delay: rng.u64(1000..1_000_000),
        jitter: rng.u64(..100_000),
        seed: rng.u64(..),
        ..Impairment::default()
    }
}

fn host(rng: &mut Rng) -> Host {
    let (sack, timestamps) = (rng.bool(), rng.bool());
    Host::new(1, move |c| {
        c.tcp.sack = sack;
        c.tcp.timestamps = timestamps;
        c.tcp.data_retries = 30;
        c.tcp.syn_retries = 20;
    })
}

fn check(host: &Host, other: &Other) {
    let s = &host.app.sessions[0];
    assert_eq!(s.closed, Some(CloseReason::Graceful), "{s:?}");
    assert_eq!((s.received, s.acked, other.received), (other.to_send, s.script.send, s.script.send), "{s:?}");
}

fn over(app: &App, other: &Other) -> bool {
    matches!(other.state(), tcp::State::Closed | tcp::State::TimeWait)
        && app.sessions.first().is_some_and(|s| s.closed.is_some())
}

#[test]
fn we_connect() {
    for_seeds(40, |seed| {
        let mut rng = Rng::with_seed(seed);
        let (mut h, mut o) = (host(&mut rng), Other::new(seed, 1 << rng.u32(11..17)));
        let close_first = rng.bool();
        o.sockets.get_mut::<tcp::Socket>(o.socket).listen(7).expect("listen");
        (o.to_send, o.close_first) = (rng.u64(..200_000), !close_first);
        let script = Script {
            close_first,
            records: vec![rng.usize(1..4000).max(100)],
            ..Script::send(rng.u64(..200_000))
        };
        h.connect(Time::ZERO, SocketAddrV4::new(ip(2), 7), script);
        (o.who, o.peer_who) = (h.app.sessions[0].peer_who, h.app.sessions[0].who);
        let done = run(&mut h, &mut o, &impairment(&mut rng), over);
        assert!(done, "{:?} {:?} {:?}", h.app.sessions, o.state(), h.stack.counters());
        check(&h, &o);
    });
}

#[test]
fn smoltcp_connects() {
    for_seeds(40, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0x5555);
        let (mut h, mut o) = (host(&mut rng), Other::new(seed, 1 << rng.u32(11..17)));
        let close_first = rng.bool();
        let port = 20_000 + seed as u16;
        h.app.on_accept = Some(Script {
            close_first,
            records: vec![rng.usize(100..4000)],
            ..Script::send(rng.u64(..200_000))
        });
        h.stack.listen_on(7, 16).expect("listen");
        (o.to_send, o.close_first) = (rng.u64(..200_000), !close_first);
        (o.who, o.peer_who) = (u64::from(port), 1_000_000 + u64::from(port));
        let cx = o.interface.context();
        let socket = o.sockets.get_mut::<tcp::Socket>(o.socket);
        socket.connect(cx, (IpAddress::Ipv4(ip(1)), 7), port).expect("connect");
        let done = run(&mut h, &mut o, &impairment(&mut rng), over);
        assert!(done, "{:?} {:?} {:?}", h.app.sessions, o.state(), h.stack.counters());
        check(&h, &o);
    });
}
