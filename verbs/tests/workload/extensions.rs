//! The Atomics of the workload, and its Writes with immediate data (RFC 7306).

use super::Checked;
use super::end::{Due, Mark};
use super::traffic::{Draft, sge};
use crate::check;
use urnic::*;

impl super::World {
    /// Posts an Atomic on the peer's word. Only this end's Atomics change the word, so the returned and the new value
    /// are known beforehand.
    pub(super) fn post_atomic(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let gap = self.rng.usize(..5);
        let Some(place) = self.ends[pair][side].sink.take(gap, 8) else { return Ok(false) };
        let peer = &self.ends[pair][1 - side];
        let old = *peer.word_values.last().ok_or("no value")?;
        let (addr, rkey) = self.target(pair, side, peer.word);
        let rng = &mut self.rng;
        let (add, mask, swap) = (rng.u64(..), rng.u64(..) & rng.u64(..), rng.u64(..));
        let compare = if rng.bool() { old } else { rng.u64(..) };
        let (op, new) = match rng.u8(..4) {
            0 => (SendOp::FetchAdd { addr, rkey, add }, old.wrapping_add(add)),
            1 => {
                // The Atomic adds to the two halves of the word separately.
                let half = |shift: u32| {
                    u64::from(((old >> shift) as u32).wrapping_add((add >> shift) as u32)) << shift
                };
                (SendOp::MaskedFetchAdd { addr, rkey, add, mask: 1 << 31 }, half(0) | half(32))
            }
            2 => (SendOp::CmpSwap { addr, rkey, compare, swap }, if old == compare { swap } else { old }),
            _ => {
                let (compare_mask, swap_mask) = (mask, !mask);
                let new = if old & mask == compare & mask { old & mask | swap & !mask } else { old };
                (SendOp::MaskedCmpSwap { addr, rkey, compare, compare_mask, swap, swap_mask }, new)
            }
        };
        let opcode = match op {
            SendOp::FetchAdd { .. } | SendOp::MaskedFetchAdd { .. } => WcOpcode::FetchAdd,
            _ => WcOpcode::CmpSwap,
        };
        let data = old.to_ne_bytes().to_vec();
        let sges = vec![sge(&self.arenas[side], &place, self.ends[pair][side].sink.key())];
        let effect = self.effect(side, vec![place], data.clone());
        let draft = Draft { op, sges, from: Vec::new(), flags: SendFlags::empty(), data, opcode };
        let seq = self.push(pair, side, draft, Some(effect))?;
        let values = &mut self.ends[pair][1 - side].word_values;
        values.push(new);
        let n = values.len() - 1;
        self.ends[pair][side].atomics.push_back((seq, n));
        Ok(true)
    }

    /// Posts a Write with immediate data. The immediate data takes a receive of the peer, but does not change
    /// the receive's memory.
    pub(super) fn post_write_imm(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let peer = &self.ends[pair][1 - side];
        if peer.receives.len() <= peer.due.len() {
            return Ok(false);
        }
        let most = peer.dst.left() / self.p.share();
        let len = self.length(most);
        let Some(mut draft) = self.source(pair, side, len) else { return Ok(false) };
        let gap = self.rng.usize(..9);
        let Some(place) = self.ends[pair][1 - side].dst.take(gap, len) else { return Ok(false) };
        let (addr, rkey) = self.target(pair, side, place);
        let (imm, solicited) = (self.rng.u32(..), self.rng.bool());
        draft.op = SendOp::WriteImm { addr, rkey, imm };
        draft.flags.set(SendFlags::SOLICITED, solicited);
        let data = draft.data.clone();
        let seq = self.push(pair, side, draft, None)?;
        let effect = self.effect(1 - side, vec![place], data);
        self.ends[pair][side].unproven.push_back((seq, Mark::Effect(effect)));
        // When the immediate data arrives, this Write itself has been placed too.
        let (seq, len, imm) = (seq + 1, len as u32, Some(imm));
        let due = Due { seq, imm, len, solicited, invalidates: None, effect, too_long: false };
        self.ends[pair][1 - side].due.push_back(due);
        Ok(true)
    }

    /// Notes that the Atomics which `side` posted up to its request `seq` have been performed.
    pub(super) fn prove_atomics(&mut self, pair: usize, side: usize, seq: u64) {
        while let Some((_, n)) = self.ends[pair][side].atomics.front().copied().filter(|a| a.0 <= seq) {
            self.ends[pair][side].atomics.pop_front();
            self.ends[pair][1 - side].word_floor = n;
            self.seen.atomics += 1;
        }
    }

    /// Checks that the word of `side` has one of its possible values.
    pub(super) fn look_at_word(&mut self, pair: usize, side: usize) -> Checked {
        let end = &self.ends[pair][side];
        let now = self.arenas[side].read(end.word.at, 8);
        let can = &end.word_values[end.word_floor..];
        check!(
            can.iter().any(|v| now == v.to_ne_bytes()),
            "the word of side {side} is {now:02x?} instead of one of {can:016x?}"
        );
        self.arenas[side].shadow[end.word.at..end.word.at + 8].copy_from_slice(&now);
        Ok(())
    }
}
