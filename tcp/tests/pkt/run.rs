//! Runs a script.

use crate::packet::{self, ACK, Arp, CWR, ECE, PSH, Packet, SYN, Segment};
use crate::script::{self, Fault, Opt, Script, Step, Tcp, Times, What, When, fault};
use crate::settings;
use crate::translate::Wire;
use crate::world::{GATEWAY, GATEWAY_V6, US, World, mac_of, octet, timestamps, us};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use urnic_tcp::Time;

/// A packet is on time if it is at most this much early or late.
const TOLERANCE: Duration = Duration::from_micros(500);

/// Runs the text of a script. A fault comes with the trace of packets, for people to read.
pub fn run(text: &str, wire: Wire) -> Result<(), (Fault, Vec<String>)> {
    let script = script::parse(text).map_err(|f| (f, Vec::new()))?;
    let mut start = Time::from_secs(1000);
    // The script runs a second time if it prescribes our initial sequence number and the first run had another one.
    for _ in 0..2 {
        let mut world = settings::world(&script, start, wire).map_err(|f| (f, Vec::new()))?;
        let result = steps(&mut world, &script);
        match world.shift {
            Some(shift) => start += shift,
            None => return result.map_err(|f| (f, world.trace)),
        }
    }
    Err((
        Fault {
            line: 1,
            text: "our_isn: the stack does not choose this initial sequence number at any start time tried"
                .into(),
        },
        Vec::new(),
    ))
}

fn steps(world: &mut World, script: &Script) -> Result<(), Fault> {
    let mut last = 1;
    for step in &script.steps {
        last = step.line;
        let flow = world.flow(&step.flow);
        let result = Runner { world, flow }.step(step);
        if world.shift.is_some() {
            return Ok(());
        }
        result.map_err(|text| Fault { line: step.line, text })?;
    }
    let end = |world: &mut World| {
        nothing_pending(world, "at the end of the script")?;
        world.check_data()?;
        for f in &world.flows {
            let session = f.conn.and_then(|c| world.events.sessions.get(&c));
            if let Some(reason) = session.filter(|s| !s.close_seen).and_then(|s| s.closed) {
                return Err(format!(
                    "the connection {}has ended; say `closed {}`",
                    if f.name.is_empty() { String::new() } else { format!("@{} ", f.name) },
                    kebab(&format!("{reason:?}"))
                ));
            }
        }
        Ok(())
    };
    end(world).or_else(|text| fault(last, text))
}

/// Checks that every sent packet was expected by a line.
fn nothing_pending(world: &World, when: &str) -> Result<(), String> {
    match world.pending.front() {
        None => Ok(()),
        Some((at, packet)) => Err(format!(
            "{} packet(s) were sent that no line expects {when}; the first, at {}, is\n    {}",
            world.pending.len(),
            world.clock(*at),
            world.show(packet)
        )),
    }
}

/// Returns `TimedOut` as `timed-out`.
pub fn kebab(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(c.to_lowercase());
    }
    out
}

pub struct Runner<'a> {
    pub world: &'a mut World,
    pub flow: usize,
}

impl Runner<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        if let What::Expect { packet, times } = &step.what {
            return self.expect(packet, *times, step.when);
        }
        if let When::After(d) = step.when {
            nothing_pending(self.world, "before time passes")?;
            let end = self.world.now + d;
            self.world.advance(end)?;
            nothing_pending(self.world, &format!("before {}", self.world.clock(end)))?;
        }
        match &step.what {
            What::Wait | What::Expect { .. } => Ok(()),
            What::Inject { packet, times, more } => {
                nothing_pending(self.world, "before this one is injected")?;
                for i in 0..times.n {
                    self.inject(packet, times.step, i)?;
                }
                if *more { Ok(()) } else { self.world.settle() }
            }
            What::Open { active, options } => self.open(*active, options),
            What::Command(name, words) => {
                self.command(name, words)?;
                self.world.settle()
            }
        }
    }

    // ---- from the peer ----

    fn inject(&mut self, packet: &script::Packet, step: Option<i64>, i: u32) -> Result<(), String> {
        match packet {
            script::Packet::Tcp(t) => {
                let len = t.len as i64 + i64::from(t.flags & packet::FIN != 0);
                let mut t = t.clone();
                t.seq += step.unwrap_or(len) * i64::from(i);
                self.inject_tcp(&t)
            }
            script::Packet::Arp { request, words } => self.inject_arp(*request, words),
            script::Packet::Echo { reply, len } => {
                let data: Vec<u8> = (0..*len as u32).map(|i| octet(false, i)).collect();
                let peer = self.world.flows[self.flow].peer.ip();
                let kind = match (peer, reply) {
                    (IpAddr::V4(_), false) => 8,
                    (IpAddr::V4(_), true) => 0,
                    (IpAddr::V6(_), false) => 128,
                    (IpAddr::V6(_), true) => 129,
                };
                let head = [kind, 0, 0, 0, 0, 7, 0, 1];
                let frame = packet::icmp(self.us(), mac_of(peer), peer, us(peer), head, &data);
                self.world.receive(frame);
                Ok(())
            }
            script::Packet::Icmp { kind, about, mtu, words } => self.inject_error(kind, *about, *mtu, words),
            script::Packet::Any => Err("`any` is for packets that are expected".into()),
        }
    }

    fn us(&self) -> [u8; 6] {
        self.world.stack.config().mac
    }

    fn inject_tcp(&mut self, t: &Tcp) -> Result<(), String> {
        let (our_mac, clock) = (self.us(), self.world.peer_clock());
        let f = &mut self.world.flows[self.flow];
        let opening = t.flags & (SYN | ACK) == SYN;
        let o = f.theirs();
        let mut options = Vec::new();
        for option in &t.options {
            options.push(match option {
                Opt::Mss(m) => packet::Opt::Mss(*m),
                Opt::Scale(s) => packet::Opt::Scale(*s),
                Opt::SackOk => packet::Opt::SackOk,
                Opt::Sack(blocks) => {
                    let at = |n: i64| o.ack.wrapping_add(n as u32);
                    packet::Opt::Sack(blocks.iter().map(|(a, b)| (at(*a), at(*b))).collect())
                }
                Opt::Ts(value, echo) => packet::Opt::Ts(
                    value.map_or(clock, |v| v as u32),
                    match echo {
                        None if opening => 0,
                        None => f.ts_last,
                        Some(e) => f.ours().ts.wrapping_add(*e as u32),
                    },
                ),
                Opt::Nop => packet::Opt::Nop,
                Opt::Eol => packet::Opt::Eol,
                Opt::Other(kind, body) => packet::Opt::Other(*kind, body.clone()),
                Opt::Raw(octets) => packet::Opt::Raw(octets.clone()),
            });
        }
        let has_ts = t.options.iter().any(|o| matches!(o, Opt::Ts(..)));
        if t.flags & SYN != 0 {
            f.ts_peer = has_ts;
        } else if f.ts_ours && f.ts_peer && !has_ts && !t.no_ts {
            options.push(packet::Opt::Ts(clock, f.ts_last));
        }
        f.window = t.window.unwrap_or(f.window);
        let first = t.seq as u32;
        let first = if t.flags & SYN != 0 { first.wrapping_add(1) } else { first };
        let payload =
            (0..t.len as u32).map(|i| t.fill.unwrap_or_else(|| octet(false, first.wrapping_add(i))));
        let segment = Segment {
            dst_mac: our_mac,
            src_mac: t.mac.unwrap_or_else(|| mac_of(f.peer.ip())),
            src: (f.peer.ip(), f.peer.port()),
            dst: (us(f.peer.ip()), f.port),
            ecn: t.ecn,
            seq: o.seq.wrapping_add(t.seq as u32),
            ack: t.ack.map_or(0, |a| o.ack.wrapping_add(a as u32)),
            flags: t.flags,
            window: f.window,
            urgent: t.urgent.unwrap_or(0),
            options,
            payload: payload.collect(),
        };
        let mut frame = segment.frame()?;
        let v4 = f.peer.is_ipv4();
        frame[if v4 { 50 } else { 70 }] ^= u8::from(t.bad_checksum);
        if !v4 && (t.fragment || t.bad_ip_checksum) {
            return Err("`fragment` and `bad-ip-checksum` are for IPv4".into());
        }
        if t.fragment {
            frame[20] |= 0x20; // more fragments
            frame[24..26].fill(0);
            let check = !urnic_tcp::sum::sum(&frame[14..34]);
            frame[24..26].copy_from_slice(&check.to_be_bytes());
        }
        frame[24] ^= u8::from(t.bad_ip_checksum);
        self.world.receive(frame);
        Ok(())
    }

    /// Parses an IPv4 address, or a word that stands for one: `us`, `peer`, `gateway` or `nobody`.
    pub fn address(&self, word: &str) -> Result<Ipv4Addr, String> {
        match word {
            "us" => Ok(US),
            "peer" => match self.world.flows[self.flow].peer.ip() {
                IpAddr::V4(ip) => Ok(ip),
                IpAddr::V6(_) => Err("the peer has no IPv4 address".into()),
            },
            "gateway" => Ok(GATEWAY),
            "nobody" => Ok(Ipv4Addr::UNSPECIFIED),
            _ => word
                .parse()
                .map_err(|_| format!("`{word}` is no address, `us`, `peer`, `gateway` or `nobody`")),
        }
    }

    fn inject_arp(&mut self, request: bool, words: &[String]) -> Result<(), String> {
        let (mut sender, mut mac, mut target) = (self.address("peer")?, None, US);
        let mut to = None;
        for pair in words.chunks(2) {
            match pair {
                [k, v] if k == "from" => sender = self.address(v)?,
                [k, v] if k == "for" => target = self.address(v)?,
                [k, v] if k == "mac" => mac = Some(script::mac(v).ok_or("`mac` needs an Ethernet address")?),
                [k, v] if k == "to" && v == "all" => to = Some([0xff; 6]),
                _ => {
                    return Err(
                        "an ARP packet has `from ADDRESS`, `mac MAC`, `for ADDRESS` and `to all`".into()
                    );
                }
            }
        }
        let us = self.us();
        let arp = Arp {
            request,
            dst_mac: to.unwrap_or(if request { [0xff; 6] } else { us }),
            sender_mac: mac.unwrap_or_else(|| mac_of(sender)),
            sender,
            target_mac: if request { [0; 6] } else { us },
            target,
        };
        self.world.receive(arp.frame());
        Ok(())
    }

    fn inject_error(
        &mut self,
        kind: &str,
        about: Option<(i64, usize)>,
        mtu: u16,
        words: &[String],
    ) -> Result<(), String> {
        let peer = self.world.flows[self.flow].peer;
        let (kind, code) = match (kind, peer.is_ipv4()) {
            ("net-unreachable", true) => (3, 0),
            ("host-unreachable", true) => (3, 1),
            ("protocol-unreachable", true) => (3, 2),
            ("port-unreachable", true) => (3, 3),
            ("frag-needed", true) => (3, 4),
            ("admin-prohibited", true) => (3, 13),
            ("source-quench", true) => (4, 0),
            ("redirect", true) => (5, 1),
            ("time-exceeded", true) => (11, 0),
            ("parameter-problem", true) => (12, 0),
            ("net-unreachable", false) => (1, 0),
            ("admin-prohibited", false) => (1, 1),
            ("host-unreachable", false) => (1, 3),
            ("port-unreachable", false) => (1, 4),
            ("packet-too-big", false) => (2, 0),
            ("time-exceeded", false) => (3, 0),
            ("parameter-problem", false) => (4, 1),
            (other, _) => {
                return Err(format!("`icmp {other}` is not known here; see docs/packet-scripts.md"));
            }
        };
        let mut from = if peer.is_ipv4() { IpAddr::from(GATEWAY) } else { GATEWAY_V6.into() };
        match words {
            [] => {}
            [k, v] if k == "from" && v == "peer" => from = peer.ip(),
            [k, v] if k == "from" => from = v.parse().map_err(|_| format!("`{v}` is no address"))?,
            _ => return Err("an ICMP error has `about SEQ+LENGTH`, `mtu N` and `from ADDRESS`".into()),
        }
        let (seq, len) = about.ok_or("an ICMP error needs `about SEQ` or `about SEQ+LENGTH`")?;
        let f = &self.world.flows[self.flow];
        let quoted = Segment {
            dst_mac: [0; 6],
            src_mac: [0; 6],
            src: (us(peer.ip()), f.port),
            dst: (peer.ip(), peer.port()),
            ecn: 0,
            seq: f.ours().seq.wrapping_add(seq as u32),
            ack: 0,
            flags: ACK,
            window: 0,
            urgent: 0,
            options: Vec::new(),
            payload: vec![0; len],
        };
        let quoted = quoted.frame()?;
        // IPv4: the header and eight octets (RFC 792). IPv6: up to 1186 octets; the message must fit into a
        // packet of 1280 (RFC 4443 §2.4 (c)).
        let end = if peer.is_ipv4() { 42 } else { quoted.len().min(1200) };
        let [m0, m1] = mtu.to_be_bytes();
        let head = [kind, code, 0, 0, 0, 0, m0, m1];
        let frame = packet::icmp(self.us(), mac_of(from), from, us(peer.ip()), head, &quoted[14..end]);
        self.world.receive(frame);
        Ok(())
    }

    // ---- from the stack ----

    fn expect(&mut self, packet: &script::Packet, times: Times, when: When) -> Result<(), String> {
        let now = self.world.now;
        let (early, late) = match when {
            When::Now => (now, now),
            When::After(d) => (now + d - TOLERANCE.min(d), now + d + TOLERANCE),
            When::Between(a, b) => (now + a - TOLERANCE.min(a), now + b + TOLERANCE),
        };
        if when != When::Now {
            nothing_pending(self.world, "before time passes")?;
            self.world.advance(late)?;
            if let Some((at, sent)) = self.world.pending.front()
                && *at < early
            {
                return Err(format!(
                    "sent too early, at {} and not at {} or later:\n    {}",
                    self.world.clock(*at),
                    self.world.clock(early),
                    self.world.show(sent)
                ));
            }
        }
        for i in 0..times.n {
            let Some((_, sent)) = self.world.pending.pop_front() else {
                if times.all {
                    return Ok(());
                }
                let which = if times.n > 1 { format!(" (after {i} of {})", times.n) } else { String::new() };
                return Err(format!("nothing was sent{which}"));
            };
            let matched = match (packet, &sent) {
                (script::Packet::Any, _) => Ok(()),
                (script::Packet::Tcp(t), Packet::Tcp(s)) => {
                    let mut t = t.clone();
                    let len = t.len as i64 + i64::from(t.flags & packet::FIN != 0);
                    t.seq += times.step.unwrap_or(len) * i64::from(i);
                    self.match_tcp(&t, s)
                }
                (script::Packet::Arp { request, words }, Packet::Arp(a)) => {
                    self.match_arp(*request, words, a)
                }
                (script::Packet::Echo { reply, len }, Packet::Echo { reply: r, data }) => {
                    let same = data.iter().enumerate().all(|(i, b)| *b == octet(false, i as u32));
                    let ok = reply == r && data.len() == *len && same;
                    ok.then_some(()).ok_or_else(|| "another message was sent".into())
                }
                _ => Err("another kind of packet was sent".into()),
            };
            matched.map_err(|why| {
                let which =
                    if times.n > 1 { format!("packet {} of {}: ", i + 1, times.n) } else { String::new() };
                format!("{which}{why}\n    sent: {}", self.world.show(&sent))
            })?;
        }
        Ok(())
    }

    fn match_arp(&self, request: bool, words: &[String], a: &Arp) -> Result<(), String> {
        if a.request != request {
            return Err("one is a request, the other a reply".into());
        }
        for pair in words.chunks(2) {
            let (what, same) = match pair {
                [k, v] if k == "for" || (k == "to" && v != "all") => {
                    ("the address", a.target == self.address(v)?)
                }
                [k, v] if k == "to" && v == "all" => ("the destination", a.dst_mac == [0xff; 6]),
                [k, v] if k == "from" => ("the sender", a.sender == self.address(v)?),
                [k, v] if k == "mac" => {
                    ("the destination", a.dst_mac == script::mac(v).ok_or("`mac` needs an Ethernet address")?)
                }
                _ => {
                    return Err("an ARP packet has `for ADDRESS`, `from ADDRESS`, `mac MAC`, `to all`".into());
                }
            };
            if !same {
                return Err(format!("{what} differs"));
            }
        }
        Ok(())
    }

    fn match_tcp(&self, t: &Tcp, s: &Segment) -> Result<(), String> {
        let f = &self.world.flows[self.flow];
        if (s.dst.0, s.dst.1, s.src.1) != (f.peer.ip(), f.peer.port(), f.port) {
            return Err("it belongs to another flow".into());
        }
        let o = f.ours();
        let differs =
            |what: &str, want: String, got: String| Err(format!("{what}: expected {want}, got {got}"));
        // PSH is checked only if the script names it.
        let flags = s.flags & if t.flags & PSH != 0 { 0xff } else { !PSH };
        if flags != t.flags {
            return differs("control bits", packet::flag_letters(t.flags), packet::flag_letters(s.flags));
        }
        let seq = packet::relative(s.seq, o.seq);
        if seq as u32 != t.seq as u32 {
            return differs("sequence number", t.seq.to_string(), seq.to_string());
        }
        if s.payload.len() != t.len {
            return differs("octets of data", t.len.to_string(), s.payload.len().to_string());
        }
        if let Some(want) = t.ack
            && s.ack != o.ack.wrapping_add(want as u32)
        {
            return differs("ack", want.to_string(), packet::relative(s.ack, o.ack).to_string());
        }
        if let Some(want) = t.window.filter(|w| *w != s.window) {
            return differs("window", want.to_string(), s.window.to_string());
        }
        if s.ecn != t.ecn {
            return differs("ECN field", t.ecn.to_string(), s.ecn.to_string());
        }
        if s.urgent != t.urgent.unwrap_or(0) {
            return differs("urgent pointer", t.urgent.unwrap_or(0).to_string(), s.urgent.to_string());
        }
        let mac = t.mac.unwrap_or(s.dst_mac);
        if mac != s.dst_mac {
            return differs("Ethernet address", format!("{mac:02x?}"), format!("{:02x?}", s.dst_mac));
        }
        let first = t.seq as u32 + u32::from(s.flags & SYN != 0);
        if (0u32..).zip(&s.payload).any(|(i, b)| *b != octet(true, first.wrapping_add(i))) {
            return Err("its data is not what was queued there".into());
        }
        match_options(t, s, o)
    }

    // ---- a handshake in one line ----

    fn open(&mut self, active: bool, options: &Tcp) -> Result<(), String> {
        let first = |t: &Tcp, flags, ack| Tcp { flags, seq: 0, len: 0, ack, ..t.clone() };
        let (syn, ecn) = if options.ecn_setup { (SYN | ECE | CWR, ECE) } else { (SYN, 0) };
        let plain = |flags, seq, ack| Tcp { flags, seq, ack, any_options: true, ..Tcp::default() };
        let expect = |r: &mut Self, t| {
            r.expect(&script::Packet::Tcp(t), Times { n: 1, all: false, step: None }, When::Now)
        };
        let pause = |r: &mut Self| {
            nothing_pending(r.world, "during the handshake")?;
            let end = r.world.now + options.rtt;
            r.world.advance(end)?;
            nothing_pending(r.world, "during the handshake")
        };
        if active {
            self.command("connect", &[])?;
            self.world.settle()?;
            expect(self, plain(syn, 0, None))?;
            pause(self)?;
            self.inject_tcp(&first(options, SYN | ACK | ecn, Some(1)))?;
            self.world.settle()?;
            expect(self, plain(ACK, 1, Some(1)))?;
        } else {
            // If there is a listener already, this fails and changes nothing.
            let _ = self.command("listen", &[]);
            self.inject_tcp(&first(options, syn, None))?;
            self.world.settle()?;
            expect(self, plain(SYN | ACK | ecn, 0, Some(1)))?;
            pause(self)?;
            self.inject_tcp(&plain(ACK, 1, Some(1)))?;
            self.world.settle()?;
        }
        let open = self.world.session(self.flow).is_some_and(|s| s.accepted || s.connected);
        if open { Ok(()) } else { Err("the connection did not open".into()) }
    }
}

fn match_options(t: &Tcp, s: &Segment, o: packet::Origin) -> Result<(), String> {
    for want in &t.options {
        let found = match want {
            Opt::Ts(value, echo) => timestamps(s).is_some_and(|(v, e)| {
                value.is_none_or(|want| v == o.ts.wrapping_add(want as u32))
                    && echo.is_none_or(|want| e == want as u32)
            }),
            Opt::Nop | Opt::Eol | Opt::Raw(_) => true,
            Opt::Mss(m) => s.options.contains(&packet::Opt::Mss(*m)),
            Opt::Scale(n) => s.options.contains(&packet::Opt::Scale(*n)),
            Opt::SackOk => s.options.contains(&packet::Opt::SackOk),
            Opt::Other(k, b) => s.options.contains(&packet::Opt::Other(*k, b.clone())),
            Opt::Sack(blocks) => {
                let at = |n: i64| o.ack.wrapping_add(n as u32);
                let blocks = blocks.iter().map(|(a, b)| (at(*a), at(*b))).collect();
                s.options.contains(&packet::Opt::Sack(blocks))
            }
        };
        if !found {
            return Err(format!("the option {want:?} is not there, or differs"));
        }
    }
    if t.no_ts && timestamps(s).is_some() {
        return Err("the segment has timestamps, and `nots` expects none".into());
    }
    if t.any_options {
        return Ok(());
    }
    let asked = |o: &packet::Opt| {
        t.options.iter().any(|want| {
            matches!(
                (want, o),
                (Opt::Mss(_), packet::Opt::Mss(_))
                    | (Opt::Scale(_), packet::Opt::Scale(_))
                    | (Opt::SackOk, packet::Opt::SackOk)
                    | (Opt::Sack(_), packet::Opt::Sack(_))
                    | (Opt::Other(..), packet::Opt::Other(..))
            )
        })
    };
    // Additional timestamps are allowed, because only scripts about timestamps name them.
    match s.options.iter().find(|o| !matches!(o, packet::Opt::Ts(..)) && !asked(o)) {
        Some(extra) => Err(format!("there is an option that the line does not have: {extra:?}")),
        None => Ok(()),
    }
}
