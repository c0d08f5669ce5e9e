//! Measures how a device with several engines scales. Two devices of one process are joined by a ring; thread `i` on
//! core `i` drives engine `i` of both devices. The rate of this process is compared with that of independent processes
//! whose devices have one engine each. There is one such process for each core. Together they do the same work on the
//! same cores, side by side, before or after the process with several engines.
//!
//! Every measurement runs in its own processes ([`worker`]). They report when they are ready, and begin when the
//! process that compares them ([`compare`]) tells them.

pub mod compare;
mod station;
pub mod turns;
pub mod worker;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The engines that a thread's queue pairs belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Thread `i` has its queue pairs at engine `i`, and has its own completion queues, shared receive queue and memory
    /// region.
    Own,
    /// Each thread has queue pairs at every engine. The serving end has one completion queue, one shared receive
    /// queue and one region for all.
    All,
}

/// The load of the threads. Each call posts one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Writes of 8 bytes.
    Write8,
    /// Sends of 8 bytes into a shared receive queue.
    Send8,
    /// Reads of 4 KiB.
    Read4k,
    /// Writes of 64 KiB.
    Write64k,
}

impl Load {
    /// All loads, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::Write8, Self::Send8, Self::Read4k, Self::Write64k];

    /// Returns the bytes of a message.
    fn size(self) -> usize {
        match self {
            Self::Write8 | Self::Send8 => 8,
            Self::Read4k => 4096,
            Self::Write64k => 65_536,
        }
    }

    /// Returns the number of requests outstanding on each queue pair.
    fn window(self) -> u32 {
        match self {
            Self::Write8 | Self::Send8 => 128,
            Self::Read4k => 32,
            Self::Write64k => 8,
        }
    }

    /// Returns the interval between signalled requests, in requests.
    fn interval(self) -> u32 {
        self.window() / 4
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write8 => "8-byte Writes",
            Self::Send8 => "8-byte Sends",
            Self::Read4k => "4 KiB Reads",
            Self::Write64k => "64 KiB Writes",
        })
    }
}

impl FromStr for Load {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "write8" => Ok(Self::Write8),
            "send8" => Ok(Self::Send8),
            "read4k" => Ok(Self::Read4k),
            "write64k" => Ok(Self::Write64k),
            _ => Err(format!("`{word}` is none of write8, send8, read4k, write64k")),
        }
    }
}

/// The task of one process of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The engines that the threads' queue pairs belong to.
    pub shape: Shape,
    /// The load.
    pub load: Load,
    /// The core of each thread; there are as many threads as engines.
    pub cores: Vec<usize>,
    /// Queue pairs of each thread. Processes that are compared have the same number, so that their caches hold the
    /// same amount of data.
    pub ways: usize,
    /// Length of the measurement, in s.
    pub seconds: f64,
}

/// The result of a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Million messages per second of each thread.
    pub mmsg_s: Vec<f64>,
    /// Million messages of each thread per second of its processor time, which leaves out time in which other programs
    /// had the core.
    pub mmsg_cpu_s: Vec<f64>,
    /// Frames that one engine handed over to another since all connections were made, warm-up included.
    pub handed_over: u64,
}
