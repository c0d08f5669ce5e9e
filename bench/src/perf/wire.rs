//! The protocol between the two ends of a measurement: private data while connecting, Sends afterwards.
//!
//! The first connection carries control messages. It opens with the parameters of the measurement
//! ([`Hello::Session`]). Each further connection is a lane ([`Hello::Lane`]), a queue pair that messages are measured
//! on. Private data and control messages are JSON: they are small, outside the measured path, and readable in a
//! capture. A [`Note`] is 8 bytes.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::options::{ATOMIC_LEN, Beside, Mode, Op, Wait};

/// Protocol version. It must change whenever ends of different versions would misunderstand each other.
pub(super) const VERSION: u32 = 3;

/// Maximum length of a control message, in bytes.
pub(super) const CONTROL_LEN: usize = 512;

/// The longest message that can be measured, in bytes.
pub(super) const MAX_SIZE: u64 = 1 << 30;

/// The maximum number of measured lanes of one thread.
pub(super) const MAX_LANES: u32 = 16_384;

/// The maximum number of threads of an end, each of which has a session.
pub(super) const MAX_THREADS: u32 = 64;

/// The maximum number of requests outstanding per lane.
pub(super) const MAX_WINDOW: u32 = 4096;

/// The maximum number of completions outstanding at one end.
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
    /// Number of slots per lane at each end. A slot is the memory of one message.
    pub slots: u32,
    /// Number of receives that the server keeps posted per lane, if Sends are streamed. In other cases it only enlarges
    /// [`Self::completions`].
    pub credit: u32,
    pub wait: Wait,
    pub verify: bool,
    /// Load beside the measured messages; its lanes follow the measured lanes.
    #[serde(default)]
    pub beside: Option<Beside>,
    /// Number of threads of the client. Each thread opens a session like this one, on its own port.
    #[serde(default = "one")]
    pub threads: u32,
    /// The index of the thread that has this session, from 0.
    #[serde(default)]
    pub thread: u32,
}

/// Returns the value of a field that clients of older versions do not send. With it, the server can decode the session
/// of such a client, and answers that the versions differ.
fn one() -> u32 {
    1
}

impl Session {
    /// Returns an error if a server must refuse the session. The error is the reason that the server sends to the
    /// client.
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
            return Err("a load (--beside) must be of Writes or Reads, over 1 to 64 queue pairs");
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
            return Err(
                "too many requests outstanding over all queue pairs: lower their number (--qps) or the window (--window)",
            );
        }
        Ok(())
    }

    /// Returns the port of the server's thread, if the first thread's port is `first`; `None` if the number exceeds
    /// 65535.
    pub(super) fn port(&self, first: u16) -> Option<u16> {
        first.checked_add(u16::try_from(self.thread).ok()?)
    }

    /// Returns the maximum number of completions of all lanes that can be outstanding at one end.
    pub(super) fn completions(&self) -> u64 {
        u64::from(self.lanes) * (u64::from(self.window) + u64::from(self.credit) + 4 * u64::from(NOTES))
            + u64::from(self.streams()) * u64::from(Beside::WINDOW)
    }

    /// Returns the number of lanes that stream beside the measured ones.
    pub(super) fn streams(&self) -> u32 {
        self.beside.map_or(0, |beside| beside.streams)
    }

    /// Returns the number of all lanes. The lanes with numbers from [`Self::lanes`] on carry the load beside the
    /// measured messages.
    pub(super) fn all_lanes(&self) -> u32 {
        self.lanes + self.streams()
    }

    /// Returns whether messages go back and forth, one at a time.
    pub(super) fn pingpong(&self) -> bool {
        self.mode == Mode::Lat && !self.op.is_answered()
    }

    /// Returns whether a Send after each message announces the message. This is necessary because an empty Write
    /// changes no byte, and because only Sends wake an end that sleeps on a channel.
    pub(super) fn doorbell(&self) -> bool {
        self.op == Op::Write && self.pingpong() && (self.size == 0 || self.wait == Wait::Event)
    }

    /// Returns the distance between two slots in bytes, a multiple of a cache line.
    pub(super) fn stride(&self) -> u64 {
        self.size.max(1).next_multiple_of(64)
    }

    /// Returns the offset of slot `slot` of `lane` in the region of all slots.
    pub(super) fn offset(&self, lane: u32, slot: u64) -> u64 {
        if lane >= self.lanes {
            return self.slots_len() + u64::from(lane - self.lanes) * Beside::SIZE;
        }
        (u64::from(lane) * u64::from(self.slots) + slot % u64::from(self.slots)) * self.stride()
    }

    /// Returns the length in bytes of the measured lanes' slots.
    fn slots_len(&self) -> u64 {
        u64::from(self.lanes) * u64::from(self.slots) * self.stride()
    }

    /// Returns the length in bytes of the region of all slots.
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
    /// Opens the control connection.
    Session { version: u32, session: Session },
    /// Opens a lane; contains the location of the client's slots for this lane.
    Lane { index: u32, target: Target },
}

/// The private data of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Welcome,
    /// Accepts a lane; contains the location of the server's slots for this lane.
    Lane(Target),
    /// Refuses a session; contains the reason.
    Refused(String),
}

/// A message on the control connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Control {
    /// Client: all lanes are connected.
    Start,
    /// Server: all lanes are connected here too, and receives are posted.
    Ready,
    /// Client: the measurement is over. `messages` is the number of Writes or Sends on all measured lanes; 0 for Reads
    /// and Atomics, which the server does not see.
    Done { messages: u64 },
    /// Server: all these messages arrived and, with `--verify`, had the right contents.
    Confirmed,
    /// Either end: the reason for giving up.
    Failed(String),
}

/// Encodes a message as JSON. Encoding the types above cannot fail.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// Most octets of private data in a rejection, in any revision of MPA.
const PRIVATE_DATA: usize = urnic::MAX_PRIVATE_DATA - 4;

/// Encodes the refusal of a session. The reason is cut, because the message must fit into the private data of a
/// rejection. JSON writes some characters in several octets.
pub(super) fn refusal(reason: &str) -> Vec<u8> {
    let mut reason: String = reason.chars().take(PRIVATE_DATA).collect();
    loop {
        let message = encode(&Answer::Refused(reason.clone()));
        if message.len() <= PRIVATE_DATA || reason.pop().is_none() {
            return message;
        }
    }
}

/// Decodes a message of the other end; `None` if the bytes are no message of this protocol.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

/// A count of messages, which an end sends on a lane beside its messages, as 8 bytes in a Send. A note from the client
/// is a mark: it counts the Writes that arrive before it, or the Reads whose slots the server may refill. A note from
/// the server is a grant: the client may post messages up to this number.
pub(super) type Note = u64;

/// Maximum number of notes of one lane in flight in one direction.
pub(super) const NOTES: u32 = 8;

/// The purpose of a work request, packed into its `wr_id`.
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
    /// A message of the load beside the measured messages.
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
