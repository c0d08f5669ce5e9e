//! The model of one end of a connection.

use super::Checked;
use super::arena::{Arena, Piece, Region};
use super::parameters::Parameters;
use crate::check;
use std::collections::VecDeque;
use urnic::*;

/// The bit of a work request id that marks receives.
pub const RECEIVE: u64 = 1 << 63;

/// Number of receives that are kept posted.
pub const RECEIVES: usize = 16;
/// Octets of a slot: memory that the peer's Writes overwrite again and again.
pub const SLOT: usize = 16;
/// Number of regions for Sends with Invalidate.
pub const WINDOWS: usize = 3;
/// Octets of a region for Sends with Invalidate.
pub const WINDOW: usize = 64;
pub const MAX_SGE: u8 = 4;
pub const MAX_INLINE: u32 = 128;

/// Whether an effect on memory has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The effect may have happened, in part or as a whole.
    Maybe,
    /// The effect must not happen.
    Never,
    /// The effect was seen to have happened, and is in the shadow.
    Done,
}

/// The effect of a Write on the peer's memory.
#[derive(Clone, Copy, Debug)]
pub enum Mark {
    Effect(usize),
    /// The n-th value of the peer's slot.
    Slot(usize),
}

/// A posted send request.
pub struct Posted {
    pub wr_id: u64,
    pub seq: u64,
    pub signalled: bool,
    pub opcode: WcOpcode,
    pub len: u32,
    /// Pieces that the application may overwrite once the request is complete.
    pub from: Vec<Piece>,
    /// The effect of a Read or Atomic on this end's memory; `None` for other requests.
    pub read: Option<usize>,
}

/// A posted receive.
pub struct Receive {
    pub wr_id: u64,
    pub pieces: Vec<Piece>,
    pub capacity: usize,
}

/// A Send or immediate data of the peer that must arrive at this end.
pub struct Due {
    /// Sequence number of the peer's request. All earlier requests of the peer have been placed when this message
    /// arrives.
    pub seq: u64,
    /// The immediate data; `None` for a Send.
    pub imm: Option<u32>,
    pub len: u32,
    pub solicited: bool,
    pub invalidates: Option<u32>,
    pub effect: usize,
    /// Whether the message is too long for its receive.
    pub too_long: bool,
}

pub struct End {
    // These regions are dropped before the protection domain.
    pub src: Region,
    pub dst: Region,
    pub ro: Region,
    pub inbox: Region,
    pub sink: Region,
    pub windows: Vec<Region>,
    pub next_window: usize,
    /// Place and key of the last window that a posted Send invalidates; `None`: no such Send was posted.
    pub invalid: Option<(usize, u32)>,
    /// The word for the peer's Atomics, and its values in order. The last value is the result of all posted Atomics.
    pub word: Piece,
    pub word_values: Vec<u64>,
    /// Index in `word_values` of the latest value that the word is known to have had.
    pub word_floor: usize,
    /// Atomics of this end that are not known to be done: the number of the request, and the index of the value that it
    /// produces.
    pub atomics: VecDeque<(u64, usize)>,
    pub slot: Piece,
    pub slot_values: Vec<Vec<u8>>,
    /// Number of the latest value that the slot is known to have had.
    pub slot_floor: usize,
    pub qp: Qp,
    pub pd: Pd,
    pub connection: Option<Connection>,
    pub posted: VecDeque<Posted>,
    pub receives: VecDeque<Receive>,
    pub due: VecDeque<Due>,
    /// Writes of this end that are not known to have arrived: the number of the request, and its effect.
    pub unproven: VecDeque<(u64, Mark)>,
    /// Places at the peer that this end has written to, with the data.
    pub written: Vec<(Piece, Vec<u8>)>,
    /// The sink of the last Read, and the data that the Read must bring; `None`: no Read is left to be
    /// forwarded.
    pub last_read: Option<(Vec<Piece>, Vec<u8>)>,
    pub seq: u64,
    pub receive_id: u64,
    pub ops_left: usize,
    pub established: bool,
    pub disconnected: Option<DisconnectReason>,
    /// Whether the connection is being ended: by a disconnect at either end, or by an operation of this end
    /// that must be refused.
    pub ending: bool,
    pub gave_up: bool,
    /// Number of errors other than flushes that were reported for send requests and for receives.
    pub errors: [u32; 2],
    /// Whether any completion was an error or a flush, for send requests and for receives.
    pub broken: [bool; 2],
}

impl End {
    /// Returns the maximum memory of an end, in octets.
    pub fn memory(p: &Parameters) -> usize {
        let guards = (6 + WINDOWS) * 700;
        5 * room(p) + WINDOWS * WINDOW + guards + 4096
    }

    pub fn new(
        p: &Parameters,
        device: &Device,
        arena: &mut Arena,
        send_cq: &Cq,
        recv_cq: &Cq,
        pair: usize,
        side: usize,
    ) -> End {
        let pd = device.alloc_pd();
        let init = QpInit {
            send_cq,
            recv_cq,
            max_send_wr: p.queue,
            max_recv_wr: RECEIVES as u32,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            signal_all: p.signal_all,
        };
        let qp = pd.create_qp(&init).unwrap();
        let len = room(p);
        let odd = 64 + (p.seed as usize * 7 + pair * 5 + side * 3) % 600;
        let (local, write, read) = (Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_READ);
        let atomic = Access::REMOTE_ATOMIC;
        let src = arena.region(&pd, len, odd, Access::empty());
        let mut dst = arena.region(&pd, len, odd, local | write | read | atomic);
        let ro = arena.region(&pd, len, odd, read);
        let inbox = arena.region(&pd, len, odd, local);
        let sink = arena.region(&pd, len, odd, local);
        let passing = local | write | Access::REMOTE_INVALIDATE;
        let windows = (0..WINDOWS).map(|_| arena.region(&pd, WINDOW, odd, passing)).collect();
        let slot = dst.take(3, SLOT).unwrap();
        // The arena itself is aligned, so the offset decides the alignment.
        let word = dst.take((slot.at + SLOT).wrapping_neg() % 8, 8).unwrap();
        End {
            word_values: vec![u64::from_ne_bytes(arena.read(word.at, 8).try_into().unwrap())],
            word,
            word_floor: 0,
            atomics: VecDeque::new(),
            slot_values: vec![arena.read(slot.at, SLOT)],
            slot_floor: 0,
            slot,
            src,
            dst,
            ro,
            inbox,
            sink,
            windows,
            next_window: 0,
            invalid: None,
            qp,
            pd,
            connection: None,
            posted: VecDeque::new(),
            receives: VecDeque::new(),
            due: VecDeque::new(),
            unproven: VecDeque::new(),
            written: Vec::new(),
            last_read: None,
            seq: 0,
            receive_id: 0,
            ops_left: p.ops,
            established: false,
            disconnected: None,
            ending: false,
            gave_up: false,
            errors: [0; 2],
            broken: [false; 2],
        }
    }

    pub fn failed(&self) -> bool {
        self.disconnected.is_some() || self.broken != [false; 2]
    }

    /// Returns whether this end has no work left, and no outstanding request.
    pub fn is_idle(&self) -> bool {
        self.established && self.ops_left == 0 && self.posted.is_empty()
    }

    /// Returns whether the connection is gone and all completions have been reported.
    pub fn is_over(&self) -> bool {
        // Requests that were not signalled may have succeeded silently before the end.
        let silent = self.posted.iter().all(|p| !p.signalled);
        self.disconnected.is_some() && silent && self.receives.is_empty()
    }

    pub fn disconnected(&mut self, pair: usize, side: usize, reason: DisconnectReason) -> Checked {
        let before = self.disconnected.replace(reason);
        check!(before.is_none(), "pair {pair} side {side}: disconnected twice: {before:?}, {reason:?}");
        Ok(())
    }

    pub fn region_at(&self, at: usize) -> Option<&'static str> {
        let named = [
            (&self.src, "sources"),
            (&self.dst, "targets of Writes"),
            (&self.ro, "sources of Reads"),
            (&self.inbox, "receives"),
            (&self.sink, "sinks of Reads"),
        ];
        let windows = self.windows.iter().map(|w| (w, "a window"));
        named
            .into_iter()
            .chain(windows)
            .find(|(r, _)| (r.at..r.at + r.len).contains(&at))
            .map(|(_, name)| name)
    }

    pub fn describe(&self) -> String {
        format!(
            "{:?}, {} to post, {} posted, {} receives, {} due, {:?}, {:?}",
            self.qp.state(),
            self.ops_left,
            self.posted.len(),
            self.receives.len(),
            self.due.len(),
            self.disconnected,
            self.qp.terminate(),
        )
    }
}

/// Returns the size of each of an end's regions except the windows, in octets.
fn room(p: &Parameters) -> usize {
    p.budget + 64 * 1024
}
