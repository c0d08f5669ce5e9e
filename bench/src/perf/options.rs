//! The parameters of a measurement.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The RDMA operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
    /// Send into a posted receive.
    Send,
    /// Fetch and add of 1 to a word of the server, one word for each queue pair.
    Atomic,
}

impl Op {
    /// Returns whether the server answers the operation. The completion of an answered operation shows that the
    /// operation is done at the server.
    pub(super) fn is_answered(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }
}

/// Bytes of an [`Op::Atomic`].
pub const ATOMIC_LEN: usize = 8;

/// The property of the operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Latency of one message at a time.
    Lat,
    /// Bandwidth, while a window of messages is outstanding.
    Bw,
    /// Messages per second, with one request per call and a completion for every 64th request, or for every
    /// half of a window smaller than 128.
    Rate,
}

/// How an end waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Polls the completion queue.
    Poll,
    /// Sleeps on a completion channel.
    Event,
}

/// The length of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// A number of messages (ping-pongs in `lat`), over all queue pairs.
    Iters(u64),
    /// A number of seconds.
    Seconds(f64),
}

/// The parameters of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct PerfOptions {
    /// The operation.
    pub op: Op,
    /// The property that is measured.
    pub mode: Mode,
    /// Bytes of a message, 0 to 1 GiB.
    pub size: usize,
    /// The length of the measurement.
    pub amount: Amount,
    /// Number of queue pairs over which the messages are spread.
    pub qps: usize,
    /// How both ends wait for completions. `None`: by events if the client's engine is dedicated (`engine.progress`),
    /// else by polling.
    pub wait: Option<Wait>,
    /// Whether the sender fills every message with a different pattern, and the receiver checks every byte.
    pub verify: bool,
    /// Requests outstanding per queue pair in `bw` and `rate`; `None`: a number that follows from the message size and
    /// the number of queue pairs.
    pub window: Option<usize>,
    /// Load beside the measured messages: queue pairs that stream large messages all the time. `None`: no such load.
    pub beside: Option<Beside>,
    /// Threads of each end, which share its device. The other fields give the numbers of queue pairs and messages of
    /// each thread.
    pub threads: usize,
    /// Cores that the threads are pinned to, in the order of the threads; empty: the threads are not pinned.
    pub cores: Vec<usize>,
}

impl PerfOptions {
    /// Returns a measurement of `op` by one thread on one queue pair, with the usual number of messages for this mode
    /// and size.
    pub fn new(op: Op, mode: Mode, size: usize) -> Self {
        Self {
            op,
            mode,
            size,
            amount: Amount::Iters(Self::usual_iters(mode, size)),
            qps: 1,
            wait: None,
            verify: false,
            window: None,
            beside: None,
            threads: 1,
            cores: Vec::new(),
        }
    }

    /// Returns a number of messages that a link through shared memory (such as virtio and vhost) carries in about a
    /// second or less.
    pub fn usual_iters(mode: Mode, size: usize) -> u64 {
        let bytes = size.max(1) as u64;
        match mode {
            Mode::Lat => ((1 << 30) / bytes).clamp(200, 100_000),
            Mode::Bw => ((4 << 30) / bytes).clamp(500, 1_000_000),
            Mode::Rate => ((4 << 30) / bytes).clamp(500, 3_000_000),
        }
    }
}

/// Load beside the measured messages: queue pairs of the client, each of which keeps [`Beside::WINDOW`] messages of
/// [`Beside::SIZE`] bytes outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// The operation: with [`Op::Write`] the client sends the data, with [`Op::Read`] the server does.
    pub op: Op,
    /// Number of queue pairs, 1 to 64.
    pub streams: u32,
}

impl Beside {
    /// Bytes of a message.
    pub const SIZE: u64 = 8 << 20;
    /// Messages outstanding on each queue pair.
    pub const WINDOW: u32 = 2;
    /// Maximum number of queue pairs.
    pub(super) const MOST: u32 = 64;

    /// Returns whether this load is within the limits of a session.
    pub(super) fn is_sound(self) -> bool {
        matches!(self.op, Op::Write | Op::Read) && (1..=Self::MOST).contains(&self.streams)
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.op, self.streams)
    }
}

impl FromStr for Beside {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let parts =
            word.split_once(':').and_then(|(op, streams)| Some((op.parse().ok()?, streams.parse().ok()?)));
        let beside = parts.map(|(op, streams)| Self { op, streams });
        beside
            .filter(|b| b.is_sound())
            .ok_or_else(|| UnknownWord::new(word, "write:N, read:N with N from 1 to 64"))
    }
}

/// A word that names no variant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{given}` is none of {known}")]
pub struct UnknownWord {
    given: String,
    known: &'static str,
}

impl UnknownWord {
    pub(super) fn new(given: &str, known: &'static str) -> Self {
        Self { given: given.to_owned(), known }
    }
}

macro_rules! words {
    ($type:ident: $known:literal, $($word:literal => $variant:ident),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $type {
            type Err = UnknownWord;

            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(UnknownWord::new(word, $known)),
                }
            }
        }
    };
}

words!(Op: "write, read, send, atomic",
    "write" => Write, "read" => Read, "send" => Send, "atomic" => Atomic);
words!(Mode: "lat, bw, rate", "lat" => Lat, "bw" => Bw, "rate" => Rate);
words!(Wait: "poll, event", "poll" => Poll, "event" => Event);
