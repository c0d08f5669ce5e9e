//! The language: parses text into steps. `docs/packet-scripts.md` describes it.

use crate::packet::{ECN, FLAGS};
use std::time::Duration;

/// A fault and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub line: usize,
    pub text: String,
}

pub fn fault<T>(line: usize, text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line, text: text.into() })
}

#[derive(Debug, Default)]
pub struct Script {
    /// Line, key and value of every setting.
    pub config: Vec<(usize, String, String)>,
    pub steps: Vec<Step>,
}

#[derive(Debug)]
pub struct Step {
    pub line: usize,
    /// The name after `@`; empty for the default flow.
    pub flow: String,
    pub when: When,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    After(Duration),
    Between(Duration, Duration),
}

#[derive(Debug)]
pub enum What {
    /// Lets time pass.
    Wait,
    /// `more`: the next packet comes in the same burst.
    Inject {
        packet: Packet,
        times: Times,
        more: bool,
    },
    Expect {
        packet: Packet,
        times: Times,
    },
    Open {
        active: bool,
        options: Tcp,
    },
    Command(String, Vec<String>),
}

/// Number of repetitions, and the octets by which the sequence number grows each time (by default, the length of the
/// segment).
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub n: u32,
    pub all: bool,
    pub step: Option<i64>,
}

#[derive(Clone, Debug)]
pub enum Packet {
    Tcp(Tcp),
    Arp { request: bool, words: Vec<String> },
    Echo { reply: bool, len: usize },
    Icmp { kind: String, about: Option<(i64, usize)>, mtu: u16, words: Vec<String> },
    Any,
}

/// A TCP segment. Its numbers are relative.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    pub flags: u8,
    pub seq: i64,
    pub len: usize,
    pub ack: Option<i64>,
    pub window: Option<u16>,
    pub urgent: Option<u16>,
    pub ecn: u8,
    pub options: Vec<Opt>,
    /// `...`: whether to allow options that the line does not name.
    pub any_options: bool,
    pub no_ts: bool,
    /// Value of all octets of data; `None`: the usual octets of the sequence numbers (`world::octet`).
    pub fill: Option<u8>,
    pub mac: Option<[u8; 6]>,
    pub bad_checksum: bool,
    pub bad_ip_checksum: bool,
    pub fragment: bool,
    /// `open`: round-trip time of the handshake.
    pub rtt: Duration,
    /// `open`: whether both ends want ECN (RFC 3168 §6.1.1).
    pub ecn_setup: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opt {
    Mss(u16),
    Scale(u8),
    SackOk,
    Sack(Vec<(i64, i64)>),
    /// `None`: in an injected segment, the value of an honest peer; in an expected one, any value.
    Ts(Option<i64>, Option<i64>),
    Nop,
    Eol,
    Other(u8, Vec<u8>),
    /// Raw octets of an option field.
    Raw(Vec<u8>),
}

pub fn parse(text: &str) -> Result<Script, Fault> {
    let mut script = Script::default();
    for (i, raw) in text.lines().enumerate() {
        let line = i + 1;
        let code = raw.split('#').next().unwrap_or("").trim();
        if code.is_empty() {
            continue;
        }
        let mut words = Words { line, words: code.split_whitespace().collect(), at: 0 };
        if words.words[0] == "config" {
            if !script.steps.is_empty() {
                return fault(line, "`config` lines come before everything else");
            }
            for w in &words.words[1..] {
                let Some((k, v)) = w.split_once('=') else {
                    return fault(line, format!("`{w}` is not KEY=VALUE"));
                };
                script.config.push((line, k.into(), v.into()));
            }
            continue;
        }
        script.steps.push(step(&mut words)?);
    }
    Ok(script)
}

struct Words<'a> {
    line: usize,
    words: Vec<&'a str>,
    at: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        self.at += 1;
        self.words.get(self.at - 1).copied()
    }

    fn want(&mut self, what: &str) -> Result<&'a str, Fault> {
        match self.next() {
            Some(w) => Ok(w),
            None => fault(self.line, format!("{what} is missing at the end of the line")),
        }
    }

    fn number<T: TryFrom<i64>>(&mut self, what: &str) -> Result<T, Fault> {
        let w = self.want(what)?;
        self.as_number(w, what)
    }

    fn as_number<T: TryFrom<i64>>(&self, w: &str, what: &str) -> Result<T, Fault> {
        match number(w) {
            Some(n) => match T::try_from(n) {
                Ok(n) => Ok(n),
                Err(_) => fault(self.line, format!("{what} {w} is out of range")),
            },
            None => fault(self.line, format!("`{w}` is no number; {what} belongs here")),
        }
    }

    fn rest(&mut self) -> Vec<String> {
        let rest = self.words[self.at.min(self.words.len())..].iter().map(|w| w.to_string()).collect();
        self.at = self.words.len();
        rest
    }
}

/// Parses `12`, `-3`, `1_000`, `0xff`.
pub fn number(w: &str) -> Option<i64> {
    let plain = w.replace('_', "");
    match plain.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => plain.parse().ok(),
    }
}

/// Parses `0.2`, `0.2s`, `200ms`, `10us`, `2min`, `1h`.
pub fn duration(w: &str) -> Option<Duration> {
    let digits = w.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &w[digits.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        "min" => 60e9,
        "h" => 3600e9,
        "d" => 86_400e9,
        _ => return None,
    };
    let n: f64 = digits.parse().ok()?;
    (n >= 0.0 && n.is_finite()).then(|| Duration::from_nanos((n * scale).round() as u64))
}

/// Parses `0a1b2c`.
fn hex(w: &str) -> Option<Vec<u8>> {
    (0..w.len()).step_by(2).map(|i| u8::from_str_radix(w.get(i..i + 2)?, 16).ok()).collect()
}

/// Parses `02:00:00:00:00:07`.
pub fn mac(w: &str) -> Option<[u8; 6]> {
    let octets: Vec<u8> = w.split(':').map(|o| u8::from_str_radix(o, 16).ok()).collect::<Option<_>>()?;
    octets.try_into().ok()
}

fn step(w: &mut Words<'_>) -> Result<Step, Fault> {
    let (line, mut flow, mut when) = (w.line, String::new(), When::Now);
    while let Some(word) = w.peek() {
        if let Some(name) = word.strip_prefix('@') {
            flow = name.into();
        } else if let Some(t) = word.strip_prefix('+') {
            when = match t.split_once("..") {
                Some((a, b)) => match (duration(a), duration(b)) {
                    (Some(a), Some(b)) if a <= b => When::Between(a, b),
                    _ => return fault(line, format!("`{word}` is no span of time such as +0.1..0.3")),
                },
                None => match duration(t) {
                    Some(d) => When::After(d),
                    None => return fault(line, format!("`{word}` is no time such as +0.2, +200ms or +10us")),
                },
            };
        } else {
            break;
        }
        w.at += 1;
    }
    let what = match w.next() {
        None => What::Wait,
        Some(d @ ("<" | "<<")) => {
            let (packet, times) = packet(w)?;
            What::Inject { packet, times, more: d == "<<" }
        }
        Some(">") => {
            let (packet, times) = packet(w)?;
            What::Expect { packet, times }
        }
        Some("open") => {
            let active = match w.want("`passive` or `active`")? {
                "active" => true,
                "passive" => false,
                other => return fault(line, format!("`{other}` is neither `passive` nor `active`")),
            };
            let mut options = Tcp::default();
            let times = attributes(w, &mut options)?;
            if times.n != 1 {
                return fault(line, "`open` opens one connection");
            }
            What::Open { active, options }
        }
        Some(command) => What::Command(command.into(), w.rest()),
    };
    if matches!(when, When::Between(..)) && !matches!(what, What::Expect { .. }) {
        return fault(line, "a span of time is for packets that are expected (`>`)");
    }
    Ok(Step { line, flow, when, what })
}

const ONCE: Times = Times { n: 1, all: false, step: None };

fn packet(w: &mut Words<'_>) -> Result<(Packet, Times), Fault> {
    let line = w.line;
    match w.want("a packet")? {
        "any" => {
            let mut times = ONCE;
            if let Some(word) = w.next() {
                times = repeated(w, word)?;
            }
            Ok((Packet::Any, times))
        }
        "arp" => match w.want("`request` or `reply`")? {
            kind @ ("request" | "reply") => {
                Ok((Packet::Arp { request: kind == "request", words: w.rest() }, ONCE))
            }
            other => fault(line, format!("`arp {other}` is neither a request nor a reply")),
        },
        "icmp" => icmp(w),
        letters => {
            let mut tcp = Tcp::default();
            if letters != "." {
                for c in letters.chars() {
                    let Some((_, bit)) = FLAGS.iter().find(|(l, _)| *l == c) else {
                        return fault(
                            line,
                            format!("`{letters}`: the control bits are letters of SFRPAUEC, or `.` for none"),
                        );
                    };
                    tcp.flags |= bit;
                }
            }
            let range = w.want("the sequence number")?;
            (tcp.seq, tcp.len) = seq_len(w, range)?;
            let times = attributes(w, &mut tcp)?;
            let has_ack = tcp.flags & crate::packet::ACK != 0;
            if has_ack != tcp.ack.is_some() {
                let what =
                    if has_ack { "A needs `ack N`" } else { "`ack N` needs an A among the control bits" };
                return fault(line, what);
            }
            Ok((Packet::Tcp(tcp), times))
        }
    }
}

/// Parses `7` or `7+100`.
fn seq_len(w: &Words<'_>, word: &str) -> Result<(i64, usize), Fault> {
    match word.split_once('+') {
        Some((seq, len)) => Ok((w.as_number(seq, "a sequence number")?, w.as_number(len, "a length")?)),
        None => Ok((w.as_number(word, "a sequence number, SEQ or SEQ+LENGTH,")?, 0)),
    }
}

fn repeated(w: &Words<'_>, word: &str) -> Result<Times, Fault> {
    match word.strip_prefix('x') {
        Some("*") => Ok(Times { n: u32::MAX, all: true, step: None }),
        Some(n) => Ok(Times { n: w.as_number(n, "a number of packets")?, ..ONCE }),
        None => fault(w.line, format!("`{word}` is not known here")),
    }
}

fn attributes(w: &mut Words<'_>, t: &mut Tcp) -> Result<Times, Fault> {
    let line = w.line;
    let mut times = ONCE;
    while let Some(word) = w.next() {
        if let Some((_, ecn)) = ECN.iter().find(|(name, _)| *name == word) {
            t.ecn = *ecn;
            continue;
        }
        match word {
            "ack" => t.ack = Some(w.number("an acknowledgement number")?),
            "win" => t.window = Some(w.number("a window")?),
            "urgent" => t.urgent = Some(w.number("an urgent pointer")?),
            "mss" => t.options.push(Opt::Mss(w.number("an MSS")?)),
            "ws" => t.options.push(Opt::Scale(w.number("a window scale")?)),
            "sackok" => t.options.push(Opt::SackOk),
            "nop" => t.options.push(Opt::Nop),
            "eol" => t.options.push(Opt::Eol),
            "sack" => {
                let mut blocks = Vec::new();
                while let Some((a, b)) = w.peek().and_then(|b| b.split_once(':')) {
                    blocks.push((w.as_number(a, "a block's start")?, w.as_number(b, "a block's end")?));
                    w.at += 1;
                }
                if blocks.is_empty() {
                    return fault(line, "`sack` needs blocks: sack START:END ...");
                }
                t.options.push(Opt::Sack(blocks));
            }
            "ts" => {
                let mut ts = (None, None);
                if let Some((v, e)) = w.peek().and_then(|p| p.split_once('/')) {
                    let half =
                        |x: &str, what| if x == "*" { Ok(None) } else { w.as_number(x, what).map(Some) };
                    ts = (half(v, "a timestamp")?, half(e, "an echoed timestamp")?);
                    w.at += 1;
                }
                t.options.push(Opt::Ts(ts.0, ts.1));
            }
            "ecn" => t.ecn_setup = true,
            "nots" => t.no_ts = true,
            "..." => t.any_options = true,
            "opt" => {
                let word = w.want("an option, KIND:HEX,")?;
                let parsed = word.split_once(':').and_then(|(kind, octets)| {
                    Some(Opt::Other(u8::try_from(number(kind)?).ok()?, hex(octets)?))
                });
                match parsed {
                    Some(o) => t.options.push(o),
                    None => return fault(line, format!("`{word}` is no option such as 254:0102")),
                }
            }
            "raw" => {
                let word = w.want("octets in hex")?;
                match hex(word) {
                    Some(octets) => t.options.push(Opt::Raw(octets)),
                    None => return fault(line, format!("`{word}` are no octets such as 0204ff")),
                }
            }
            "rtt" => {
                let word = w.want("a time")?;
                match duration(word) {
                    Some(d) => t.rtt = d,
                    None => return fault(line, format!("`{word}` is no time such as 50ms")),
                }
            }
            "fill" => t.fill = Some(w.number("an octet")?),
            "mac" => {
                let word = w.want("an Ethernet address")?;
                t.mac = mac(word);
                if t.mac.is_none() {
                    return fault(line, format!("`{word}` is no Ethernet address"));
                }
            }
            "bad-checksum" => t.bad_checksum = true,
            "bad-ip-checksum" => t.bad_ip_checksum = true,
            "fragment" => t.fragment = true,
            "step" => times.step = Some(w.number("a step")?),
            _ if word.starts_with('x') => times = Times { step: times.step, ..repeated(w, word)? },
            _ => return fault(line, format!("`{word}` is not known; see docs/packet-scripts.md")),
        }
    }
    Ok(times)
}

fn icmp(w: &mut Words<'_>) -> Result<(Packet, Times), Fault> {
    let kind = w.want("a kind of message")?;
    if let "echo" | "echo-reply" = kind {
        let len = w.number("a length")?;
        return Ok((Packet::Echo { reply: kind == "echo-reply", len }, ONCE));
    }
    let (mut about, mut mtu, mut words, mut times) = (None, 0, Vec::new(), ONCE);
    while let Some(word) = w.next() {
        match word {
            "about" => {
                let range = w.want("the quoted segment's SEQ or SEQ+LENGTH")?;
                about = Some(seq_len(w, range)?);
            }
            "mtu" => mtu = w.number("an MTU")?,
            _ if word.starts_with('x') => times = repeated(w, word)?,
            other => words.push(other.into()),
        }
    }
    Ok((Packet::Icmp { kind: kind.into(), about, mtu, words }, times))
}
