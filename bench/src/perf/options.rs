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
    /// Returns whether the server answers the operation, so that its completion shows that it is done.
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
    /// Bandwidth with a window of messages outstanding.
    Bw,
    /// Messages per second: one request per call, every 64th signalled.
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
    /// This many messages (ping-pongs in `lat`), over all queue pairs.
    Iters(u64),
    /// This many seconds.
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
    /// Queue pairs that the messages are spread over.
    pub qps: usize,
    /// How both ends wait. `None`: by events if the engine has a core of its own, else by polling.
    pub wait: Option<Wait>,
    /// Whether to fill every message with a pattern of its own and check every byte where it arrives.
    pub verify: bool,
    /// Requests outstanding per queue pair in `bw` and `rate`; `None`: chosen by the number of queue pairs.
    pub window: Option<usize>,
    /// Queue pairs besides, which stream large messages all the time; `None`: none.
    pub beside: Option<Beside>,
    /// Threads of each end, which share its device. The other fields give the numbers of queue pairs and messages of
    /// each thread.
    pub threads: usize,
    /// Cores that the threads are pinned to, in turn; empty: they are not pinned.
    pub cores: Vec<usize>,
}

impl PerfOptions {
    /// Returns a measurement of `op` with the usual number of messages for its size, on one polled queue pair.
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

    /// Returns a number of messages that takes about a second or less at the speed of a memory link.
    pub fn usual_iters(mode: Mode, size: usize) -> u64 {
        let bytes = size.max(1) as u64;
        match mode {
            Mode::Lat => ((1 << 30) / bytes).clamp(200, 100_000),
            Mode::Bw => ((4 << 30) / bytes).clamp(500, 1_000_000),
            Mode::Rate => ((4 << 30) / bytes).clamp(500, 3_000_000),
        }
    }
}

/// Load beside the measured messages: queue pairs of the client that each keep [`Beside::WINDOW`] messages of [`Beside::SIZE`]
/// outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// [`Op::Write`]: the client sends. [`Op::Read`]: the server does.
    pub op: Op,
    /// Queue pairs, 1 to 64.
    pub streams: u32,
}

impl Beside {
    /// Bytes of a message.
    pub const SIZE: u64 = 8 << 20;
    /// Messages outstanding on each queue pair.
    pub const WINDOW: u32 = 2;
    /// Most queue pairs.
    pub(super) const MOST: u32 = 64;

    /// Returns whether a session may have this load.
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
