//! What the two ends of a measurement tell each other: in private data while connecting, in Sends afterwards.
//!
//! The first connection carries control messages. It opens with the parameters of the measurement
//! ([`Hello::Session`]); each further one is a lane ([`Hello::Lane`]), a queue pair that messages are measured on.
//! All of it is JSON: it is small, off the measured path, and readable in a capture.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::options::{ATOMIC_LEN, Beside, Mode, Op, Wait};

/// Changes whenever two ends of different versions would misunderstand each other.
pub(super) const VERSION: u32 = 3;

/// Room for any control message.
pub(super) const CONTROL_LEN: usize = 512;

/// Longest message that can be measured.
pub(super) const MAX_SIZE: u64 = 1 << 30;

/// Most lanes of a measurement.
pub(super) const MAX_LANES: u32 = 16_384;

/// Most threads of an end, each of which has a session.
pub(super) const MAX_THREADS: u32 = 64;

/// Most requests outstanding per lane.
pub(super) const MAX_WINDOW: u32 = 4096;

/// Most completions outstanding at one end.
const MAX_COMPLETIONS: u64 = 1 << 21;

/// The parameters of a measurement, as both ends need them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Session {
    pub op: Op,
    pub mode: Mode,
    /// Bytes of a message.
    pub size: u64,
    pub lanes: u32,
    /// Requests outstanding per lane.
    pub window: u32,
    /// Messages per lane that have memory of their own at each end.
    pub slots: u32,
    /// Receives that the server keeps posted per lane, or messages that it can check later (see [`Note`]).
    pub credit: u32,
    pub wait: Wait,
    pub verify: bool,
    /// Load beside the measured messages, on the lanes after theirs.
    #[serde(default)]
    pub beside: Option<Beside>,
    /// Threads of the client, each of which opens a session like this one, at a port of its own.
    #[serde(default = "one")]
    pub threads: u32,
    /// Which of them has this session, from 0.
    #[serde(default)]
    pub thread: u32,
}

/// Threads of a client of an older version, which must learn that it is of another.
fn one() -> u32 {
    1
}

impl Session {
    /// Refuses what a server should not try. The message goes to the client.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let fits = |n: u32, max: u32| (1..=max).contains(&n);
        if self.size > MAX_SIZE {
            return Err("messages of more than 1 GiB");
        }
        if self.op == Op::Atomic && self.size != ATOMIC_LEN as u64 {
            return Err("an atomic has 8 bytes");
        }
        if !fits(self.lanes, MAX_LANES) {
            return Err("too many queue pairs, or none");
        }
        if self.beside.is_some_and(|beside| !beside.is_sound()) {
            return Err("a load of other operations than Writes and Reads, or of too many queue pairs");
        }
        if !fits(self.window, MAX_WINDOW)
            || !fits(self.credit, 2 * MAX_WINDOW)
            || !fits(self.slots, 2 * MAX_WINDOW)
        {
            return Err("a window outside 1 to 4096");
        }
        if !fits(self.threads, MAX_THREADS) || self.thread >= self.threads {
            return Err("too many threads, or none");
        }
        if self.completions() > MAX_COMPLETIONS {
            return Err("too many requests outstanding over all queue pairs");
        }
        Ok(())
    }

    /// Returns the port of the thread's server, where that of the first is `first`; `None` if there is no such port.
    pub(super) fn port(&self, first: u16) -> Option<u16> {
        first.checked_add(u16::try_from(self.thread).ok()?)
    }

    /// Completions of all lanes that can be outstanding at one end.
    pub(super) fn completions(&self) -> u64 {
        u64::from(self.lanes) * (u64::from(self.window) + u64::from(self.credit) + 4 * u64::from(NOTES))
            + u64::from(self.streams()) * u64::from(Beside::WINDOW)
    }

    /// Returns the number of lanes that stream beside the measured ones.
    pub(super) fn streams(&self) -> u32 {
        self.beside.map_or(0, |beside| beside.streams)
    }

    /// Returns the number of lanes in all; those from [`Self::lanes`] on stream.
    pub(super) fn all_lanes(&self) -> u32 {
        self.lanes + self.streams()
    }

    /// Whether messages go back and forth, one at a time.
    pub(super) fn pingpong(&self) -> bool {
        self.mode == Mode::Lat && !self.op.is_answered()
    }

    /// Whether a message is announced by a Send behind it: a Write of nothing changes no byte, and who sleeps on a
    /// channel is woken by Sends only.
    pub(super) fn doorbell(&self) -> bool {
        self.op == Op::Write && self.pingpong() && (self.size == 0 || self.wait == Wait::Event)
    }

    /// Bytes from one message's memory to the next: whole cache lines.
    pub(super) fn stride(&self) -> u64 {
        self.size.max(1).next_multiple_of(64)
    }

    /// Where slot `slot` of `lane` is in the region that holds all of them.
    pub(super) fn offset(&self, lane: u32, slot: u64) -> u64 {
        if lane >= self.lanes {
            return self.slots_len() + u64::from(lane - self.lanes) * Beside::SIZE;
        }
        (u64::from(lane) * u64::from(self.slots) + slot % u64::from(self.slots)) * self.stride()
    }

    /// Bytes of the measured lanes' slots.
    fn slots_len(&self) -> u64 {
        u64::from(self.lanes) * u64::from(self.slots) * self.stride()
    }

    /// Bytes of that region.
    pub(super) fn region_len(&self) -> u64 {
        self.slots_len() + u64::from(self.streams()) * Beside::SIZE
    }
}

/// Memory of one end that the other end reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Target {
    pub addr: u64,
    pub rkey: u32,
}

/// The private data of a connection request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Hello {
    /// The control connection.
    Session { version: u32, session: Session },
    /// A lane, and where the client's slots of it are.
    Lane { index: u32, target: Target },
}

/// The private data of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome,
    /// Where the server's slots of the lane are.
    Lane(Target),
    /// Why there is no session.
    Refused(String),
}

/// A message on the control connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Control {
    /// Client: all lanes are connected.
    Start,
    /// Server: so are they here, and receives are posted.
    Ready,
    /// Client: it has sent so many messages over all lanes that the server notices.
    Done { messages: u64 },
    /// Server: all of them arrived and, with `--verify`, were right.
    Confirmed,
    /// Either end: why it gives up.
    Failed(String),
}

/// Encodes; the types above always fit.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Decodes what the other end sent; None if it is nothing of ours.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

/// A count that flows on a lane beside its messages, as 8 bytes in a Send: from client to server "so many of my
/// messages are ready for you" (a mark), from server to client "you may go on up to this number" (a grant).
pub(super) type Note = u64;

/// Notes of one lane that can be under way in one direction.
pub(super) const NOTES: u32 = 8;

/// What a work request was for, packed into its `wr_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub kind: Kind,
    pub lane: u32,
    pub number: u64,
}

/// The kinds of work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A measured message.
    Data,
    /// A [`Note`].
    Note,
    /// A [`Control`] message.
    Control,
    /// A message of the load beside.
    Stream,
}

impl Tag {
    const NUMBER_BITS: u32 = 40;
    const LANE_BITS: u32 = 20;

    pub(super) fn data(lane: u32, number: u64) -> u64 {
        Self { kind: Kind::Data, lane, number }.pack()
    }

    pub(super) fn note(lane: u32, number: u64) -> u64 {
        Self { kind: Kind::Note, lane, number }.pack()
    }

    pub(super) fn pack(self) -> u64 {
        let kind = match self.kind {
            Kind::Data => 0,
            Kind::Note => 1,
            Kind::Control => 2,
            Kind::Stream => 3,
        };
        (kind << Self::LANE_BITS | u64::from(self.lane)) << Self::NUMBER_BITS
            | self.number & ((1 << Self::NUMBER_BITS) - 1)
    }

    pub(super) fn unpack(wr_id: u64) -> Self {
        let kind = match wr_id >> (Self::NUMBER_BITS + Self::LANE_BITS) {
            0 => Kind::Data,
            1 => Kind::Note,
            2 => Kind::Control,
            _ => Kind::Stream,
        };
        Self {
            kind,
            lane: (wr_id >> Self::NUMBER_BITS) as u32 & ((1 << Self::LANE_BITS) - 1),
            number: wr_id & ((1 << Self::NUMBER_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests;
