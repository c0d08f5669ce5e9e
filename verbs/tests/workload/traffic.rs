//! Posting of operations, and checks of their completions.

use super::arena::{Arena, Piece};
use super::end::{Due, Fate, MAX_INLINE, MAX_SGE, Mark, Posted, RECEIVE, RECEIVES, Receive, SLOT, WINDOW};
use super::{Checked, Effect, Ending, Poison, World};
use crate::check;
use urnic::*;

impl Arena {
    /// Copies to the shadow those octets of an effect that have visibly changed, if the effect may have happened.
    pub(super) fn settle(&mut self, effect: &Effect) {
        if effect.fate != Fate::Maybe {
            return;
        }
        let mut data = effect.data.iter();
        for piece in &effect.pieces {
            let now = self.read(piece.at, piece.len);
            let shadow = &mut self.shadow[piece.at..piece.at + piece.len];
            for ((shadow, now), new) in shadow.iter_mut().zip(now).zip(&mut data) {
                if now == *new {
                    *shadow = now;
                }
            }
        }
    }
}

/// A request to be posted.
pub(super) struct Draft {
    pub(super) op: SendOp,
    pub(super) sges: Vec<Sge>,
    pub(super) from: Vec<Piece>,
    pub(super) flags: SendFlags,
    pub(super) data: Vec<u8>,
    pub(super) opcode: WcOpcode,
}

impl World {
    /// Posts receives with scatter lists, up to [`RECEIVES`].
    pub(super) fn post_receives(&mut self, pair: usize, side: usize) -> Checked {
        let World { ends, arenas, rng, p, .. } = self;
        let (end, arena) = (&mut ends[pair][side], &arenas[side]);
        while end.receives.len() < RECEIVES && !end.failed() && !end.ending {
            let mut capacity =
                if rng.u8(..10) == 0 { 0 } else { rng.usize(..=p.largest.min(end.inbox.left() / p.share())) };
            let mut pieces = Vec::new();
            for left in (0..rng.usize(1..=usize::from(MAX_SGE))).rev() {
                let len = if left == 0 { capacity } else { rng.usize(..=capacity) };
                let Some(piece) = end.inbox.take(rng.usize(..9), len) else { break };
                capacity -= len;
                pieces.push(piece);
            }
            rng.shuffle(&mut pieces);
            if pieces.is_empty() {
                return Ok(());
            }
            let mut sges: Vec<Sge> = pieces.iter().map(|p| sge(arena, p, end.inbox.key())).collect();
            if let Some(rule) = p.broken {
                rule.post_receive(&mut sges);
            }
            let wr_id = RECEIVE | end.receive_id;
            end.qp.post_recv(&RecvWr { wr_id, sges: &sges }).map_err(|e| format!("post_recv: {e}"))?;
            end.receive_id += 1;
            let capacity = pieces.iter().map(|p| p.len).sum();
            end.receives.push_back(Receive { wr_id, pieces, capacity });
        }
        Ok(())
    }

    /// Posts some of an end's remaining work.
    pub(super) fn work(&mut self, pair: usize, side: usize) -> Checked {
        self.post_receives(pair, side)?;
        if self.p.swap > 0.0 && !self.all_established() {
            return Ok(()); // the network swaps words only from then on, so all work must wait
        }
        while self.ends[pair][side].ops_left > 0 && self.rng.u8(..3) > 0 {
            let end = &self.ends[pair][side];
            if end.failed() || end.ending || end.posted.len() >= end.qp.max_send_wr() as usize {
                return Ok(());
            }
            let op = self.rng.u8(..21);
            let posted = match op {
                0..4 => self.post_write(pair, side)?,
                4..6 => self.post_slot(pair, side)?,
                6..10 => self.post_send(pair, side, false)?,
                10 => self.post_send(pair, side, true)?,
                11..13 => self.post_read(pair, side)?,
                13 => self.post_read_back(pair, side)?,
                14..16 => self.post_forward(pair, side)?,
                16..19 => self.post_atomic(pair, side)?,
                _ => self.post_write_imm(pair, side)?,
            };
            // An operation that is impossible at this moment also counts, so that this loop ends.
            self.ends[pair][side].ops_left -= 1;
            self.seen.operations += u64::from(posted);
            let end = &mut self.ends[pair][side];
            let open = end.posted.back().is_some_and(|p| !p.signalled);
            if end.ops_left == 0 && open {
                end.ops_left = 1; // the last one must be signalled: see `push`
            }
        }
        Ok(())
    }

    /// Returns the length of the next message.
    pub(super) fn length(&mut self, most: usize) -> usize {
        let most = most.min(self.p.largest);
        match self.rng.u8(..8) {
            0 => self.rng.usize(..=most.min(1)),
            1..4 => self.rng.usize(..=most.min(16)),
            4..7 => self.rng.usize(..=most.min(3000)),
            _ => self.rng.usize(..=most),
        }
    }

    /// Returns a draft of a message of `len` octets, gathered from several places of the end's sources.
    pub(super) fn source(&mut self, pair: usize, side: usize, len: usize) -> Option<Draft> {
        let (end, rng) = (&mut self.ends[pair][side], &mut self.rng);
        let mut left = len;
        let mut from = Vec::new();
        for rest in (0..rng.usize(1..=usize::from(MAX_SGE))).rev() {
            let part = if rest == 0 { left } else { rng.usize(..=left) };
            from.push(end.src.take(rng.usize(..5), part)?);
            left -= part;
        }
        rng.shuffle(&mut from);
        let arena = &self.arenas[side];
        let mut flags = SendFlags::empty();
        if len <= MAX_INLINE as usize && rng.bool() {
            flags |= SendFlags::INLINE;
        }
        Some(Draft {
            op: SendOp::Send,
            sges: from.iter().map(|p| sge(arena, p, end.src.key())).collect(),
            data: arena.gather(&from),
            from,
            flags,
            opcode: WcOpcode::Write,
        })
    }

    /// Posts `draft`. Returns its sequence number.
    pub(super) fn push(
        &mut self,
        pair: usize,
        side: usize,
        mut draft: Draft,
        read: Option<usize>,
    ) -> Checked<u64> {
        let end = &mut self.ends[pair][side];
        let queue = end.qp.max_send_wr() as usize;
        let must = end.posted.len() + 1 >= queue || end.ops_left <= 1;
        if must || self.rng.bool() {
            draft.flags |= SendFlags::SIGNALED;
        }
        if self.rng.u8(..10) == 0 {
            draft.flags |= SendFlags::FENCE;
        }
        let seq = end.seq;
        end.seq += 1;
        let (mut op, mut flags) = (draft.op, draft.flags);
        if let Some(rule) = self.p.broken {
            rule.post(&mut op, &mut draft.sges, &mut flags);
        }
        let wr = SendWr { wr_id: seq, op, sges: &draft.sges, flags };
        end.qp.post_send(&wr).map_err(|e| format!("pair {pair} side {side}: post_send: {e}"))?;
        self.seen.octets += draft.data.len() as u64;
        let early = self.p.broken.is_some_and(|rule| rule.completes_at_once(&self.p));
        if draft.flags.contains(SendFlags::INLINE) || early {
            // Inline data was copied, so the application may reuse its place.
            for piece in std::mem::take(&mut draft.from) {
                scribble(&mut self.arenas[side], piece);
            }
        }
        self.ends[pair][side].posted.push_back(Posted {
            wr_id: seq,
            seq,
            signalled: self.p.signal_all || draft.flags.contains(SendFlags::SIGNALED),
            opcode: draft.opcode,
            len: draft.data.len() as u32,
            from: draft.from,
            read,
        });
        Ok(seq)
    }

    pub(super) fn effect(&mut self, device: usize, pieces: Vec<Piece>, data: Vec<u8>) -> usize {
        self.effects.push(Effect { device, pieces, data, fate: Fate::Maybe });
        self.effects.len() - 1
    }

    /// Returns the address and the key by which `side` names a place of its peer's memory.
    pub(super) fn target(&self, pair: usize, side: usize, place: Piece) -> (u64, u32) {
        (self.arenas[1 - side].address(place.at), self.ends[pair][1 - side].dst.key())
    }

    fn post_write(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let most = self.ends[pair][1 - side].dst.left() / self.p.share();
        let len = self.length(most);
        let Some(mut draft) = self.source(pair, side, len) else { return Ok(false) };
        let gap = self.rng.usize(..9);
        let Some(place) = self.ends[pair][1 - side].dst.take(gap, len) else { return Ok(false) };
        let (mut addr, mut rkey) = self.target(pair, side, place);
        if len == 0 {
            (addr, rkey) = (self.rng.u64(..), self.rng.u32(..)); // not looked at (RFC 5041 §5.2)
        }
        draft.op = SendOp::Write { addr, rkey };
        let data = draft.data.clone();
        let seq = self.push(pair, side, draft, None)?;
        let effect = self.effect(1 - side, vec![place], data.clone());
        let end = &mut self.ends[pair][side];
        end.unproven.push_back((seq, Mark::Effect(effect)));
        if len > 0 {
            end.written.push((place, data));
        }
        Ok(true)
    }

    /// Posts a Write to the peer's slot, whose content shows the order of Writes.
    fn post_slot(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let Some(mut draft) = self.source(pair, side, SLOT) else { return Ok(false) };
        let place = self.ends[pair][1 - side].slot;
        let (addr, rkey) = self.target(pair, side, place);
        draft.op = SendOp::Write { addr, rkey };
        let value = draft.data.clone();
        let seq = self.push(pair, side, draft, None)?;
        let [a, b] = &mut self.ends[pair];
        let (end, peer) = if side == 0 { (a, b) } else { (b, a) };
        peer.slot_values.push(value);
        end.unproven.push_back((seq, Mark::Slot(peer.slot_values.len() - 1)));
        Ok(true)
    }

    fn post_send(&mut self, pair: usize, side: usize, invalidate: bool) -> Checked<bool> {
        let peer = &self.ends[pair][1 - side];
        let Some(receive) = peer.receives.get(peer.due.len()) else { return Ok(false) };
        let capacity = receive.capacity;
        let len = if self.rng.bool() { capacity } else { self.length(capacity) };
        let peer = &self.ends[pair][1 - side];
        let mut invalidates = None;
        if invalidate {
            let Some(window) = peer.windows.get(peer.next_window) else { return Ok(false) };
            let (at, key) = (window.at + 5, window.key());
            let end = &self.ends[pair][side];
            if end.posted.len() + 2 > end.qp.max_send_wr() as usize {
                return Ok(false);
            }
            invalidates = Some((window.at, key));
            self.ends[pair][1 - side].next_window += 1;
            // The window can be written to while it is valid.
            self.post_window(pair, side, at, key)?;
        }
        let Some(mut draft) = self.source(pair, side, len) else { return Ok(false) };
        let solicited = self.rng.bool();
        draft.flags.set(SendFlags::SOLICITED, solicited);
        draft.op = invalidates.map_or(SendOp::Send, |(_, key)| SendOp::SendInv(key));
        draft.opcode = WcOpcode::Send;
        let data = draft.data.clone();
        let seq = self.push(pair, side, draft, None)?;
        let peer = &self.ends[pair][1 - side];
        let pieces = head(&peer.receives[peer.due.len()].pieces, len);
        let effect = self.effect(1 - side, pieces, data);
        let invalidated = invalidates.map(|(_, key)| key);
        let len = len as u32;
        let due = Due { seq, imm: None, len, solicited, invalidates: invalidated, effect, too_long: false };
        let peer = &mut self.ends[pair][1 - side];
        peer.due.push_back(due);
        peer.invalid = invalidates.or(peer.invalid);
        Ok(true)
    }

    /// Posts a Write into a window of the peer.
    fn post_window(&mut self, pair: usize, side: usize, at: usize, rkey: u32) -> Checked {
        let Some(mut draft) = self.source(pair, side, 20) else { return Ok(()) };
        let place = Piece { at, len: 20 };
        draft.op = SendOp::Write { addr: self.arenas[1 - side].address(at), rkey };
        let data = draft.data.clone();
        let seq = self.push(pair, side, draft, None)?;
        let effect = self.effect(1 - side, vec![place], data);
        self.ends[pair][side].unproven.push_back((seq, Mark::Effect(effect)));
        Ok(())
    }

    /// Posts a Read of memory of the peer that no operation writes.
    fn post_read(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let most = self.ends[pair][side].sink.left() / self.p.share();
        let len = self.length(most);
        let ro = &self.ends[pair][1 - side].ro;
        let at = ro.at + self.rng.usize(..=ro.len - len);
        let key = ro.key();
        let data = self.arenas[1 - side].read(at, len);
        self.read(pair, side, Piece { at, len }, key, data)
    }

    /// Posts a Read of data that this end has written before.
    fn post_read_back(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let Some((place, data)) = self.rng.choice(&self.ends[pair][side].written).cloned() else {
            return Ok(false);
        };
        let key = self.ends[pair][1 - side].dst.key();
        self.read(pair, side, place, key, data)
    }

    fn read(&mut self, pair: usize, side: usize, from: Piece, mut rkey: u32, data: Vec<u8>) -> Checked<bool> {
        let (end, rng) = (&mut self.ends[pair][side], &mut self.rng);
        let (mut places, mut left) = (Vec::new(), from.len);
        for rest in (0..rng.usize(1..=usize::from(MAX_SGE))).rev() {
            let part = if rest == 0 { left } else { rng.usize(..=left) };
            let Some(place) = end.sink.take(rng.usize(..5), part) else { return Ok(false) };
            places.push(place);
            left -= part;
        }
        rng.shuffle(&mut places);
        let mut addr = self.arenas[1 - side].address(from.at);
        let mut sges: Vec<Sge> = places.iter().map(|p| sge(&self.arenas[side], p, end.sink.key())).collect();
        if from.len == 0 {
            (addr, rkey) = (self.rng.u64(..), self.rng.u32(..)); // not looked at (RFC 5040 §5.2)
            if self.rng.bool() {
                sges.clear();
            }
        }
        let effect = self.effect(side, places.clone(), data.clone());
        let draft = Draft {
            op: SendOp::Read { addr, rkey },
            sges,
            from: Vec::new(),
            flags: SendFlags::empty(),
            data: data.clone(),
            opcode: WcOpcode::Read,
        };
        self.push(pair, side, draft, Some(effect))?;
        if from.len > 0 {
            self.ends[pair][side].last_read = Some((places, data));
        }
        Ok(true)
    }

    /// Posts, with a fence, a Write of the data that the last Read brings.
    fn post_forward(&mut self, pair: usize, side: usize) -> Checked<bool> {
        let Some((from, data)) = self.ends[pair][side].last_read.take() else { return Ok(false) };
        let Some(place) = self.ends[pair][1 - side].dst.take(0, data.len()) else { return Ok(false) };
        let (addr, rkey) = self.target(pair, side, place);
        let key = self.ends[pair][side].sink.key();
        let sges = from.iter().map(|p| sge(&self.arenas[side], p, key)).collect();
        let draft = Draft {
            op: SendOp::Write { addr, rkey },
            sges,
            from: Vec::new(),
            flags: SendFlags::FENCE,
            data: data.clone(),
            opcode: WcOpcode::Write,
        };
        let seq = self.push(pair, side, draft, None)?;
        let effect = self.effect(1 - side, vec![place], data);
        self.ends[pair][side].unproven.push_back((seq, Mark::Effect(effect)));
        Ok(true)
    }

    /// Handles the completion of a send request.
    pub(super) fn sent(&mut self, pair: usize, side: usize, wc: &Wc) -> Checked {
        let end = &mut self.ends[pair][side];
        if wc.status != WcStatus::Success {
            return failed(end, wc, 0, |end| {
                // Unsignalled requests before the first failure may have succeeded without a completion.
                while let Some(posted) = end.posted.pop_front() {
                    if posted.wr_id == wc.wr_id {
                        return Ok(());
                    }
                    check!(!end.broken[0] && !posted.signalled, "request {} was not reported", posted.wr_id);
                }
                Err("it was not posted".to_owned())
            });
        }
        check!(!end.broken[0], "a success after a failure");
        loop {
            let end = &mut self.ends[pair][side];
            let Some(posted) = end.posted.pop_front() else { return Err("nothing is posted".to_owned()) };
            let this = posted.wr_id == wc.wr_id;
            check!(posted.signalled == this, "request {} comes first", posted.wr_id);
            if let Some(effect) = posted.read {
                self.prove(pair, side, posted.seq)?;
                self.prove_atomics(pair, side, posted.seq);
                self.happened(effect).map_err(|e| format!("Read {}: {e}", posted.wr_id))?;
            }
            for piece in posted.from {
                scribble(&mut self.arenas[side], piece);
            }
            if this {
                check!(wc.opcode == posted.opcode, "the opcode should be {:?}", posted.opcode);
                check!(wc.byte_len == posted.len, "the length should be {}", posted.len);
                return Ok(());
            }
        }
    }

    /// Handles the completion of a receive.
    pub(super) fn received(&mut self, pair: usize, side: usize, wc: &Wc) -> Checked {
        let end = &mut self.ends[pair][side];
        let Some(receive) = end.receives.pop_front() else { return Err("nothing is posted".to_owned()) };
        check!(receive.wr_id == wc.wr_id, "receive {:#x} comes first", receive.wr_id);
        if wc.status != WcStatus::Success {
            return failed(end, wc, 1, |_| Ok(()));
        }
        check!(!end.broken[1], "a success after a failure");
        let Some(due) = end.due.pop_front() else { return Err("no Send was posted for it".to_owned()) };
        check!(!due.too_long, "the Send does not fit");
        let opcode = if due.imm.is_some() { WcOpcode::RecvRdmaWithImm } else { WcOpcode::Recv };
        check!(wc.opcode == opcode, "the opcode");
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then(|| wc.imm_data());
        check!(imm == due.imm, "the immediate data should be {:?}", due.imm);
        self.seen.immediates += u64::from(imm.is_some());
        check!(wc.byte_len == due.len, "the length should be {}", due.len);
        check!(wc.flags.contains(WcFlags::SOLICITED) == due.solicited, "solicited: {}", due.solicited);
        let invalidated = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.invalidated_rkey);
        check!(invalidated == due.invalidates, "should invalidate {:?}", due.invalidates);
        // All data that the peer wrote before this message has been placed (RFC 5040 §5.5).
        self.prove(pair, 1 - side, due.seq)?;
        self.happened(due.effect).map_err(|e| format!("Send {}: {e}", due.seq))
    }

    /// Checks that the Writes that `side` posted before its request `seq` have been placed.
    fn prove(&mut self, pair: usize, side: usize, seq: u64) -> Checked {
        while let Some((first, mark)) = self.ends[pair][side].unproven.front().copied() {
            if first >= seq {
                break;
            }
            self.ends[pair][side].unproven.pop_front();
            match mark {
                Mark::Effect(effect) => self.happened(effect).map_err(|e| format!("Write {first}: {e}"))?,
                Mark::Slot(n) => {
                    let peer = &mut self.ends[pair][1 - side];
                    peer.slot_floor = peer.slot_floor.max(n);
                }
            }
        }
        self.look_at_slot(pair, 1 - side)
    }

    /// Checks that the slot of `side` has one of its possible values.
    pub(super) fn look_at_slot(&mut self, pair: usize, side: usize) -> Checked {
        let end = &mut self.ends[pair][side];
        let now = self.arenas[side].read(end.slot.at, SLOT);
        let found = end.slot_values[end.slot_floor..].iter().position(|v| *v == now);
        let Some(further) = found else {
            let before = end.slot_values.iter().position(|v| *v == now);
            return Err(format!(
                "the slot of side {side} has value {before:?} after value {} was seen",
                end.slot_floor
            ));
        };
        end.slot_floor += further;
        self.arenas[side].shadow[end.slot.at..end.slot.at + SLOT].copy_from_slice(&now);
        Ok(())
    }

    /// Checks that an effect is visible in memory now.
    fn happened(&mut self, effect: usize) -> Checked {
        let effect = &mut self.effects[effect];
        check!(effect.fate != Fate::Never, "succeeded, but must not");
        let arena = &mut self.arenas[effect.device];
        let now = arena.gather(&effect.pieces);
        if let Some(at) = now.iter().zip(&effect.data).position(|(a, b)| a != b) {
            return Err(format!("octet {at} of {} is not there at completion", effect.data.len()));
        }
        let mut rest = &effect.data[..];
        for piece in &effect.pieces {
            let (part, others) = rest.split_at(piece.len);
            arena.shadow[piece.at..piece.at + piece.len].copy_from_slice(part);
            rest = others;
        }
        effect.fate = Fate::Done;
        Ok(())
    }

    /// Checks, after the connection of `pair` has ended well, that everything has happened.
    pub(super) fn prove_all(&mut self, pair: usize) -> Checked {
        for side in 0..2 {
            self.prove(pair, side, u64::MAX)?;
        }
        for side in 0..2 {
            self.prove_atomics(pair, side, u64::MAX);
            let end = &self.ends[pair][side];
            check!(end.due.is_empty(), "side {side}: {} Sends did not arrive", end.due.len());
            let performed = end.word_floor + 1 == end.word_values.len();
            check!(performed, "side {side}: an Atomic was not performed");
            check!(
                end.slot_floor + 1 == end.slot_values.len(),
                "side {side}: the slot's last value is missing"
            );
        }
        Ok(())
    }

    /// Posts an operation that must be refused, and then further operations. They must have no effect, because the
    /// refusal ends the connection.
    pub(super) fn poison(&mut self, pair: usize, side: usize, poison: Poison) -> Checked {
        let peer = &self.ends[pair][1 - side];
        let arena = &self.arenas[1 - side];
        let (address, dst, ro) = (|at| arena.address(at), &peer.dst, &peer.ro);
        let unknown = self.rng.u32(..);
        let len = self.rng.usize(1..=400); // always one FPDU
        let len = if poison == Poison::WriteInvalidated { len.min(WINDOW - 30) } else { len };
        let decoy = &self.decoys[1 - side];
        let reads = matches!(
            poison,
            Poison::ReadUnknownStag
                | Poison::ReadBeyondEnd
                | Poison::ReadWithoutRight
                | Poison::ReadOtherDomain
                | Poison::AtomicUnaligned
                | Poison::AtomicWithoutRight
        );
        let atomic = matches!(poison, Poison::AtomicUnaligned | Poison::AtomicWithoutRight);
        let len = if atomic { 8 } else { len };
        let (at, key) = match poison {
            Poison::WriteUnknownStag | Poison::ReadUnknownStag => (dst.at + 100, unknown),
            Poison::WriteBeyondEnd => (dst.at + dst.len + 1 - len, dst.key()),
            Poison::ReadBeyondEnd => (ro.at + ro.len + 1 - len, ro.key()),
            Poison::WriteBeforeStart => (dst.at - 1, dst.key()),
            Poison::WriteWithoutRight => (ro.at, ro.key()),
            Poison::ReadWithoutRight => (peer.inbox.at, peer.inbox.key()),
            Poison::WriteOtherDomain | Poison::ReadOtherDomain => (decoy.at, decoy.key()),
            // If no window has been invalidated, the test uses an STag that never existed.
            Poison::WriteInvalidated => {
                let (at, key) = peer.invalid.unwrap_or((dst.at, unknown));
                (at + 30, key)
            }
            Poison::AtomicUnaligned => (peer.word.at + 4, dst.key()),
            Poison::AtomicWithoutRight => (ro.at.next_multiple_of(8), ro.key()),
            Poison::SendTooLong | Poison::LocalKey => (dst.at, dst.key()),
        };
        let addr = address(at);
        let (addr, key) = self.let_pass(pair, 1 - side, poison, at, len).unwrap_or((addr, key));
        let peer = &self.ends[pair][1 - side];
        if poison == Poison::SendTooLong {
            let Some(receive) = peer.receives.get(peer.due.len()) else { return Ok(()) };
            let (most, pieces) = (receive.capacity, receive.pieces.clone());
            let Some(mut draft) = self.source(pair, side, most + 1) else {
                // Too few octets of the source are left for a message that is longer than the receive. There
                // will be no more, because each octet is used once.
                self.p.endings[pair] = Ending::Graceful;
                return Ok(());
            };
            draft.opcode = WcOpcode::Send;
            draft.flags = SendFlags::SIGNALED;
            let data = draft.data[..most].to_vec();
            let seq = self.push(pair, side, draft, None)?;
            let effect = self.effect(1 - side, pieces, data);
            let (imm, invalidates) = (None, None);
            let due = Due { seq, imm, len: 0, solicited: false, invalidates, effect, too_long: true };
            self.ends[pair][1 - side].due.push_back(due);
        } else if reads {
            let Some(place) = self.ends[pair][side].sink.take(0, len) else { return Ok(()) };
            let sges = vec![sge(&self.arenas[side], &place, self.ends[pair][side].sink.key())];
            let draft = Draft {
                op: if atomic {
                    SendOp::FetchAdd { addr, rkey: key, add: 1 }
                } else {
                    SendOp::Read { addr, rkey: key }
                },
                sges,
                from: Vec::new(),
                flags: SendFlags::SIGNALED,
                data: vec![0; len],
                opcode: WcOpcode::Read,
            };
            let effect = self.effect(side, vec![place], Vec::new());
            self.effects[effect].fate = Fate::Never;
            self.push(pair, side, draft, Some(effect))?;
        } else {
            let Some(mut draft) = self.source(pair, side, len) else { return Ok(()) };
            draft.op = SendOp::Write { addr, rkey: key };
            if poison == Poison::LocalKey {
                draft.flags = SendFlags::SIGNALED;
                draft.sges[0].lkey = unknown;
                draft.sges[0].len = draft.sges[0].len.max(1);
            }
            self.push(pair, side, draft, None)?;
        }
        let end = &mut self.ends[pair][side];
        end.ending = true;
        // These messages follow the fault, and must not be placed.
        for _ in 0..2 {
            let end = &self.ends[pair][side];
            if end.posted.len() >= end.qp.max_send_wr() as usize {
                break;
            }
            let before = self.ends[pair][side].unproven.len();
            self.post_write(pair, side)?;
            for (_, mark) in self.ends[pair][side].unproven.drain(before..) {
                if let Mark::Effect(effect) = mark {
                    self.effects[effect].fate = Fate::Never;
                }
            }
        }
        Ok(())
    }

    /// Checks that requests which are posted after the end are flushed once.
    pub(super) fn flushes_at_once(&mut self, pair: usize, side: usize) -> Checked {
        let end = &self.ends[pair][side];
        end.qp.post_recv(&RecvWr { wr_id: RECEIVE | 77, sges: &[] }).map_err(|e| e.to_string())?;
        let wr = SendWr { wr_id: 78, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
        end.qp.post_send(&wr).map_err(|e| e.to_string())?;
        let mut seen = Vec::new();
        for _ in 0..4 {
            for cq in &self.cqs[side] {
                let mut batch = [Wc::default(); 4];
                let n = cq.poll(&mut batch);
                seen.extend(batch[..n].iter().map(|wc| (wc.wr_id, wc.status)));
            }
        }
        seen.sort_by_key(|(wr_id, _)| *wr_id);
        let flushed = [(78, WcStatus::Flushed), (RECEIVE | 77, WcStatus::Flushed)];
        check!(seen == flushed, "instead of two flushes: {seen:?}");
        Ok(())
    }
}

/// Checks a completion that is not a success. One such completion of a queue may name the cause; all others
/// must be flushes.
fn failed(
    end: &mut super::End,
    wc: &Wc,
    queue: usize,
    take: impl FnOnce(&mut super::End) -> Checked,
) -> Checked {
    take(end)?;
    end.broken[queue] = true;
    if wc.status != WcStatus::Flushed {
        end.errors[queue] += 1;
        check!(end.errors[queue] == 1, "a second error on the same queue");
    }
    check!(end.established, "a failure before the connection stands");
    Ok(())
}

pub(super) fn sge(arena: &Arena, piece: &Piece, lkey: u32) -> Sge {
    Sge { addr: arena.address(piece.at), len: piece.len as u32, lkey }
}

/// Returns the first `len` octets of a scatter list.
fn head(pieces: &[Piece], mut len: usize) -> Vec<Piece> {
    let cut = |p: &Piece| {
        let n = p.len.min(len);
        len -= n;
        Piece { len: n, ..*p }
    };
    pieces.iter().map(cut).filter(|p| p.len > 0).collect()
}

/// Overwrites a piece, as an application that reuses its memory.
fn scribble(arena: &mut Arena, piece: Piece) {
    let mut bytes = arena.read(piece.at, piece.len);
    for byte in &mut bytes {
        *byte = !*byte;
    }
    arena.write(piece.at, &bytes);
}
