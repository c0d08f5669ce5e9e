use std::fmt;
use std::str::FromStr;

#[cfg(test)]
mod tests;

/// Impairments of the frames that cross a link. The default is none.
///
/// The text form is a list of `key=value` pairs with commas between:
/// `loss=0.01,dup=0.001,reorder=0.01,delay=50us,jitter=10us,corrupt=1e-4,swap=1e-4,mark=0.01,burst=1e-4,`
/// `burst_len=20,rate=10gbit,queue=1000,ecn=65,limit=1000,limit_bytes=1MiB,seed=7`. [`fmt::Display`] writes the same
/// form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame and up to `burst_len - 1` after it are lost.
    pub burst: f64,
    /// Maximum number of consecutive frames that one `burst` loses.
    pub burst_len: usize,
    /// Probability that a frame arrives twice.
    pub dup: f64,
    /// Probability that a frame is held back so that later frames overtake it. The time is random, up to `delay` or
    /// 100 µs, whichever is longer.
    pub reorder: f64,
    /// Probability that one bit of a frame is flipped. Such a frame fails the Internet checksum if the checksum
    /// covers the bit.
    pub corrupt: f64,
    /// Probability that two 16-bit words after the headers are exchanged, which the Internet checksum cannot detect.
    pub swap: f64,
    /// Probability that an ECN-capable IPv4 frame is marked Congestion Experienced, independent of the queue.
    pub mark: f64,
    /// Time from one end to the other, in nanoseconds.
    pub delay: u64,
    /// Upper limit of a random additional delay, in nanoseconds. It does not reorder frames.
    pub jitter: u64,
    /// Rate in bits per second; `None`: unlimited. Frames count with preamble, FCS and gap (24 octets).
    pub rate: Option<u64>,
    /// Maximum number of frames that wait because of `rate`. Further frames are dropped.
    pub queue: usize,
    /// Number of waiting frames from which on ECN-capable IPv4 frames are marked; `None`: the queue marks none.
    pub ecn: Option<usize>,
    /// Maximum number of frames in transit: waiting because of `rate`, or travelling. Further frames are
    /// dropped.
    pub limit: usize,
    /// Maximum number of octets of the frames in transit. Frames that would exceed it are dropped.
    pub limit_bytes: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Default of `queue`, in frames.
const QUEUE: usize = 1000;
/// Default of `burst_len`, in frames.
const BURST_LEN: usize = 20;
/// Default of `limit`, in frames: more than 150 ms at 10 Gbit/s in frames of 1,500 octets.
const LIMIT: usize = 1 << 17;
/// Default of `limit_bytes`, in octets.
const LIMIT_BYTES: usize = 256 << 20;

impl Default for Impairment {
    fn default() -> Self {
        Impairment {
            loss: 0.0,
            burst: 0.0,
            burst_len: BURST_LEN,
            dup: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            swap: 0.0,
            mark: 0.0,
            delay: 0,
            jitter: 0,
            rate: None,
            queue: QUEUE,
            ecn: None,
            limit: LIMIT,
            limit_bytes: LIMIT_BYTES,
            seed: 0,
        }
    }
}

/// Why the description of an impairment was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// A part that is not `key=value`.
    #[error("`{0}` is not of the form key=value")]
    NotAPair(String),
    /// An unknown key.
    #[error(
        "unknown key `{0}`; the keys are loss, burst, burst_len, dup, reorder, corrupt, swap, mark, delay, jitter, rate, \
         queue, ecn, limit, limit_bytes and seed"
    )]
    UnknownKey(String),
    /// A key that is given twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// A value that the key does not accept.
    #[error("`{key}={value}`: expected {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// The value given.
        value: String,
        /// The values that the key accepts.
        expected: &'static str,
    },
    /// A key that has no effect without `rate`.
    #[error("`{0}` has no effect without `rate`")]
    NeedsRate(&'static str),
}

impl FromStr for Impairment {
    type Err = ParseError;

    fn from_str(s: &str) -> Result<Self, ParseError> {
        let mut i = Impairment::default();
        let mut seen: Vec<&str> = Vec::new();
        for pair in s.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| ParseError::NotAPair(pair.into()))?;
            let (key, value) = (key.trim(), value.trim());
            if seen.contains(&key) {
                return Err(ParseError::Twice(key.into()));
            }
            seen.push(key);
            let bad = |expected| ParseError::BadValue { key: key.into(), value: value.into(), expected };
            match key {
                "loss" => i.loss = probability(value).map_err(bad)?,
                "burst" => i.burst = probability(value).map_err(bad)?,
                "burst_len" => i.burst_len = frames(value).map_err(bad)?,
                "dup" => i.dup = probability(value).map_err(bad)?,
                "reorder" => i.reorder = probability(value).map_err(bad)?,
                "corrupt" => i.corrupt = probability(value).map_err(bad)?,
                "swap" => i.swap = probability(value).map_err(bad)?,
                "mark" => i.mark = probability(value).map_err(bad)?,
                "delay" => i.delay = duration(value).map_err(bad)?,
                "jitter" => i.jitter = duration(value).map_err(bad)?,
                "rate" => i.rate = Some(rate(value).map_err(bad)?),
                "queue" => i.queue = frames(value).map_err(bad)?,
                "ecn" => i.ecn = Some(frames(value).map_err(bad)?),
                "limit" => i.limit = frames(value).map_err(bad)?,
                "limit_bytes" => i.limit_bytes = octets(value).map_err(bad)?,
                "seed" => i.seed = value.parse().map_err(|_| bad("a whole number below 2^64"))?,
                _ => return Err(ParseError::UnknownKey(key.into())),
            }
        }
        match i.rate {
            None if seen.contains(&"queue") => Err(ParseError::NeedsRate("queue")),
            None if seen.contains(&"ecn") => Err(ParseError::NeedsRate("ecn")),
            _ => Ok(i),
        }
    }
}

fn probability(value: &str) -> Result<f64, &'static str> {
    let p = match value.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|p| p / 100.0),
        None => value.parse(),
    };
    p.ok().filter(|p| (0.0..=1.0).contains(p)).ok_or("a probability from 0 to 1, like 0.01 or 1%")
}

/// Splits `10gbit` into 10 and `gbit`.
fn number_and_unit(value: &str) -> Option<(f64, &str)> {
    let at = value.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = value.split_at(at);
    let number: f64 = number.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some((number, unit))
}

fn duration(value: &str) -> Result<u64, &'static str> {
    let parse = || {
        let (n, unit) = number_and_unit(value)?;
        let scale = match unit {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return None,
        };
        let ns = n * scale;
        (ns <= 3600e9).then_some(ns as u64)
    };
    parse().ok_or("a time of at most an hour with its unit (ns, us, ms, s), like 50us")
}

fn rate(value: &str) -> Result<u64, &'static str> {
    let parse = || {
        let (n, unit) = number_and_unit(value)?;
        let scale = match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return None,
        };
        let bits = n * scale;
        (1000.0..=1e15).contains(&bits).then_some(bits as u64)
    };
    parse().ok_or("a rate of at least 1kbit per second with its unit (bit, kbit, mbit, gbit), like 10gbit")
}

fn frames(value: &str) -> Result<usize, &'static str> {
    value.parse().ok().filter(|n| (1..=1 << 20).contains(n)).ok_or("a number of frames from 1 to 1048576")
}

fn octets(value: &str) -> Result<usize, &'static str> {
    const MOST: usize = 16 << 30;
    let parse = || {
        let at = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
        let (number, unit) = value.split_at(at);
        let shift = match unit {
            "" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return None,
        };
        number.parse::<usize>().ok()?.checked_mul(1 << shift).filter(|n| (1..=MOST).contains(n))
    };
    parse().ok_or("a number of octets from 1 to 16GiB, like 65536 or 64MiB")
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, p) in [
            ("loss", self.loss),
            ("burst", self.burst),
            ("dup", self.dup),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("swap", self.swap),
            ("mark", self.mark),
        ] {
            if p > 0.0 {
                write!(f, "{key}={p},")?;
            }
        }
        for (key, ns) in [("delay", self.delay), ("jitter", self.jitter)] {
            if ns > 0 {
                write!(f, "{key}={ns}ns,")?;
            }
        }
        if let Some(rate) = self.rate {
            write!(f, "rate={rate}bit,queue={},", self.queue)?;
            if let Some(n) = self.ecn {
                write!(f, "ecn={n},")?;
            }
        }
        for (key, limit, usual) in [
            ("burst_len", self.burst_len, BURST_LEN),
            ("limit", self.limit, LIMIT),
            ("limit_bytes", self.limit_bytes, LIMIT_BYTES),
        ] {
            if limit != usual {
                write!(f, "{key}={limit},")?;
            }
        }
        write!(f, "seed={}", self.seed)
    }
}
