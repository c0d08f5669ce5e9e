//! One end of a session: its lanes, the memory behind them, and the completion queue that all of them share.
//!
//! A slot is the memory of one message. A [`Note`] is a count of messages, which one end sends to the other on a lane.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use urnic::{
    Access, CmEvent, CompChannel, Cq, CqInit, Device, EventChannel, Mr, Pd, Qp, QpInit, RecvWr, SendFlags,
    SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};

use super::{
    error::{Doing, PerfError},
    options::{ATOMIC_LEN, Beside, Op, Wait},
    pattern::Message,
    wire::{self, CONTROL_LEN, Control, Kind, NOTES, Note, Session, Tag, Target},
};

/// Time without any event after which an end gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum number of completions that one poll takes.
const BATCH: usize = 32;

/// Maximum number of control messages in flight in one direction.
const CONTROLS: u32 = 4;

const NOTE_LEN: u32 = size_of::<Note>() as u32;

/// Which end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// The completion queue of an end, and how the end waits for completions.
pub(super) struct Completions {
    pub(super) cq: Cq,
    /// The channel on which the end sleeps; `None`: it polls.
    channel: Option<CompChannel>,
    found: [Wc; BATCH],
    quiet: u32,
    quiet_since: Option<Instant>,
    /// Whether waiting has no time limit, because this end may rightly see no completion: for example, one-sided
    /// operations complete nothing at their target.
    pub(super) endless: bool,
}

impl Completions {
    fn new(device: &Device, depth: u32, wait: Wait, vector: u32) -> Result<Self, PerfError> {
        let channel = match wait {
            Wait::Poll => None,
            Wait::Event => Some(device.create_comp_channel().doing("creating a completion channel")?),
        };
        let init = CqInit { depth, channel: channel.as_ref(), timestamps: false, vector };
        let cq = device.create_cq_with(&init).doing("creating a completion queue")?;
        Ok(Self { cq, channel, found: [Wc::default(); BATCH], quiet: 0, quiet_since: None, endless: false })
    }

    /// Drives the engine and takes completions. Returns the places of the completions in the batch, for [`Self::get`].
    #[inline]
    pub(super) fn poll(&mut self, what: &'static str) -> Result<Range<usize>, PerfError> {
        let n = self.cq.poll(&mut self.found);
        if n > 0 {
            self.quiet = 0;
            self.quiet_since = None;
        } else {
            self.quiet = self.quiet.wrapping_add(1);
            if self.quiet.is_multiple_of(4096) {
                self.check_patience(what)?;
            }
        }
        Ok(0..n)
    }

    /// Returns the completion at a place that [`Self::poll`] or [`Self::wait`] returned.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Wc {
        self.found.get(place).copied().unwrap_or_default()
    }

    /// Like [`Self::poll`], but an end that waits by events sleeps if there are no completions. After the sleep
    /// it returns no places, so that the caller's next call takes the completions.
    #[inline]
    pub(super) fn wait(&mut self, what: &'static str) -> Result<Range<usize>, PerfError> {
        let found = self.poll(what)?;
        if !found.is_empty() || self.channel.is_none() {
            return Ok(found);
        }
        self.cq.arm(false);
        let found = self.poll(what)?;
        if found.is_empty()
            && let Some(channel) = &self.channel
            && channel.get_event(Some(PATIENCE)).is_none()
            && !self.endless
        {
            return Err(PerfError::Stalled { what, seconds: PATIENCE.as_secs() });
        }
        Ok(found)
    }

    /// Restarts the time limit. A caller that sees a message arrive without a completion calls this, because then the
    /// other end is alive.
    #[inline]
    pub(super) fn alive(&mut self) {
        self.quiet_since = None;
    }

    #[cold]
    fn check_patience(&mut self, what: &'static str) -> Result<(), PerfError> {
        if self.quiet_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE && !self.endless {
            return Err(PerfError::Stalled { what, seconds: PATIENCE.as_secs() });
        }
        Ok(())
    }
}

/// A lane: a queue pair that carries measured messages or the load beside them.
pub(super) struct Lane {
    pub(super) qp: Qp,
    /// Location of the other end's slots for this lane.
    pub(super) peer: Target,
}

/// One end of a session.
pub(super) struct End {
    pub(super) session: Session,
    role: Role,
    pd: Pd,
    pub(super) events: EventChannel,
    pub(super) completions: Completions,
    pub(super) lanes: Vec<Lane>,
    /// The slots of all lanes.
    memory: Mr,
    /// Memory into which notes arrive.
    notes: Mr,
    /// The connection that opened the session.
    pub(super) control: Qp,
    /// Memory for control messages: the lower half for arriving messages, the upper half for leaving messages.
    letters: Mr,
    letters_sent: u32,
    /// Number of messages that the load beside the measurement has moved.
    streamed: u64,
}

impl End {
    /// Makes all that an end of `session` needs, except its lanes.
    pub(super) fn new(
        device: &Device,
        events: EventChannel,
        role: Role,
        session: Session,
    ) -> Result<Self, PerfError> {
        let pd = device.alloc_pd();
        let depth = session.completions() as u32 + 4 * CONTROLS;
        let engines = device.attributes().doing("reading the attributes of the device")?.engines.max(1);
        // Each thread has its own engine, if there are enough engines.
        let completions = Completions::new(device, depth, session.wait, session.thread % engines)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pd.alloc_mr(session.region_len() as usize, access).doing(
            "allocating memory for the messages (fewer or smaller ones, or a larger `memory.mb`, may help)",
        )?;
        let notes = pd
            .alloc_mr((session.lanes * NOTES * NOTE_LEN) as usize, Access::LOCAL_WRITE)
            .doing("allocating memory for counts of messages")?;
        let letters = pd
            .alloc_mr(2 * CONTROLS as usize * CONTROL_LEN, Access::LOCAL_WRITE)
            .doing("allocating memory for control messages")?;
        let control = create_control(&pd, &completions.cq)?;
        let end = Self {
            session,
            role,
            pd,
            events,
            completions,
            lanes: Vec::new(),
            memory,
            notes,
            control,
            letters,
            letters_sent: 0,
            streamed: 0,
        };
        end.post_control_receives()?;
        Ok(end)
    }

    /// Makes a new control queue pair, after the old one could not be connected.
    pub(super) fn renew_control(&mut self) -> Result<(), PerfError> {
        self.control = create_control(&self.pd, &self.completions.cq)?;
        while !self.completions.poll("left-over completions")?.is_empty() {}
        self.post_control_receives()
    }

    /// Makes the queue pair of a lane, with its receives posted.
    pub(super) fn create_lane_qp(&self, lane: u32) -> Result<Qp, PerfError> {
        let s = &self.session;
        if lane >= s.lanes {
            return self.create_stream_qp();
        }
        let data_receives = self.data_receives();
        let qp = self
            .pd
            .create_qp(&QpInit {
                send_cq: &self.completions.cq,
                recv_cq: &self.completions.cq,
                max_send_wr: s.window + NOTES,
                max_recv_wr: data_receives + NOTES,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: NOTE_LEN,
                signal_all: false,
            })
            .doing("creating a queue pair")?;
        for number in 0..u64::from(data_receives) {
            self.post_receive(&qp, lane, number)?;
        }
        if data_receives == 0 {
            for slot in 0..NOTES {
                self.post_note_receive(&qp, lane, slot)?;
            }
        }
        Ok(qp)
    }

    fn create_stream_qp(&self) -> Result<Qp, PerfError> {
        let init = QpInit {
            send_cq: &self.completions.cq,
            recv_cq: &self.completions.cq,
            max_send_wr: Beside::WINDOW,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        self.pd.create_qp(&init).doing("creating a queue pair for the load beside")
    }

    /// Returns how many receives for messages or doorbells each lane of this end keeps posted. A lane that receives
    /// messages or doorbells receives no notes.
    pub(super) fn data_receives(&self) -> u32 {
        match (self.session.pingpong(), self.role) {
            (true, _) if self.session.op == Op::Send || self.session.doorbell() => 2,
            (false, Role::Server) if self.session.op == Op::Send => self.session.credit,
            _ => 0,
        }
    }

    /// Returns the location of this end's slots for a lane. The other end needs it.
    pub(super) fn target(&self, lane: u32) -> Target {
        Target { addr: self.memory.addr() + self.session.offset(lane, 0), rkey: self.memory.rkey() }
    }

    fn lane(&self, lane: u32) -> Result<&Lane, PerfError> {
        // Not `ok_or`, which makes the error in any case, and drops it with each post.
        let Some(lane) = self.lanes.get(lane as usize) else {
            return Err(PerfError::Protocol("a queue pair that does not exist"));
        };
        Ok(lane)
    }

    /// Returns a slot of this end as a scatter-gather list, which is empty if messages are empty.
    fn slot(&self, lane: u32, slot: u64) -> Option<Sge> {
        let len = self.session.size as u32;
        (len > 0).then(|| Sge::of(&self.memory, self.session.offset(lane, slot), len))
    }

    // --- posting --------------------------------------------------------------------------------------------

    /// Posts message `number` of a lane, from the local slot `from` to the other end's slot `to`. A Read or Atomic
    /// moves data from slot `to` into slot `from`. All Atomics of a lane go to its first slot.
    #[inline]
    pub(super) fn post_message(
        &self,
        lane: u32,
        number: u64,
        from: u64,
        to: u64,
        signaled: bool,
    ) -> Result<(), PerfError> {
        let Lane { qp, peer } = self.lane(lane)?;
        let s = &self.session;
        let addr = peer.addr + to % u64::from(s.slots) * s.stride();
        let op = match s.op {
            Op::Write => SendOp::Write { addr, rkey: peer.rkey },
            Op::Read => SendOp::Read { addr, rkey: peer.rkey },
            Op::Send => SendOp::Send,
            Op::Atomic => SendOp::FetchAdd { addr: peer.addr, rkey: peer.rkey, add: 1 },
        };
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let sge = self.slot(lane, from);
        Ok(qp.post_send(&SendWr { wr_id: Tag::data(lane, number), op, sges: sge.as_slice(), flags })?)
    }

    /// Starts the load beside the measured messages, at the client. When a message of this load completes,
    /// [`Self::success`] posts the next.
    pub(super) fn start_streams(&self) -> Result<(), PerfError> {
        for lane in self.session.lanes..self.session.all_lanes() {
            (0..Beside::WINDOW).try_for_each(|_| self.post_stream(lane))?;
        }
        Ok(())
    }

    fn post_stream(&self, lane: u32) -> Result<(), PerfError> {
        let Lane { qp, peer: Target { addr, rkey } } = self.lane(lane)?;
        let op = match self.session.beside {
            Some(Beside { op: Op::Read, .. }) => SendOp::Read { addr: *addr, rkey: *rkey },
            _ => SendOp::Write { addr: *addr, rkey: *rkey },
        };
        let sge = Sge::of(&self.memory, self.session.offset(lane, 0), Beside::SIZE as u32);
        let wr_id = Tag { kind: Kind::Stream, lane, number: 0 }.pack();
        Ok(qp.post_send(&SendWr { wr_id, op, sges: &[sge], flags: SendFlags::SIGNALED })?)
    }

    /// Returns the number of bytes that the load beside the measurement has moved.
    pub(super) fn streamed(&self) -> u64 {
        self.streamed * Beside::SIZE
    }

    /// Posts the empty Send that announces a Write to the other end.
    pub(super) fn post_doorbell(&self, lane: u32, number: u64) -> Result<(), PerfError> {
        let wr = SendWr {
            wr_id: Tag::data(lane, number),
            op: SendOp::Send,
            sges: &[],
            flags: SendFlags::SIGNALED,
        };
        Ok(self.lane(lane)?.qp.post_send(&wr)?)
    }

    /// Posts a receive for message `number`. A Send arrives in the message's slot, or in [`IN`] in a ping-pong. A
    /// doorbell needs no memory, because it is empty.
    fn post_receive(&self, qp: &Qp, lane: u32, number: u64) -> Result<(), PerfError> {
        let slot = if self.session.pingpong() { IN } else { number };
        let sge = if self.session.op == Op::Send { self.slot(lane, slot) } else { None };
        Ok(qp.post_recv(&RecvWr { wr_id: Tag::data(lane, number), sges: sge.as_slice() })?)
    }

    /// Posts a receive again, in place of the receive of message `number`.
    #[inline]
    pub(super) fn repost_receive(&self, lane: u32, number: u64) -> Result<(), PerfError> {
        self.post_receive(&self.lane(lane)?.qp, lane, number)
    }

    fn post_note_receive(&self, qp: &Qp, lane: u32, slot: u32) -> Result<(), PerfError> {
        let sge = Sge::of(&self.notes, Self::note_offset(lane, slot), NOTE_LEN);
        Ok(qp.post_recv(&RecvWr { wr_id: Tag::note(lane, slot.into()), sges: &[sge] })?)
    }

    fn note_offset(lane: u32, slot: u32) -> u64 {
        (u64::from(lane) * u64::from(NOTES) + u64::from(slot)) * u64::from(NOTE_LEN)
    }

    /// Sends a note on a lane.
    pub(super) fn send_note(&self, lane: u32, note: Note) -> Result<(), PerfError> {
        let wr =
            SendWr { wr_id: Tag::note(lane, note), op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
        Ok(self.lane(lane)?.qp.post_send_inline(&wr, &note.to_le_bytes())?)
    }

    /// Reads the note that a completion announces, and posts a receive for the next one.
    pub(super) fn take_note(&self, tag: Tag, wc: &Wc) -> Result<Note, PerfError> {
        let slot = tag.number as u32;
        let mut bytes = [0; size_of::<Note>()];
        if wc.byte_len != NOTE_LEN {
            return Err(PerfError::Protocol("a count of messages with a wrong number of octets"));
        }
        self.notes
            .read_at(Self::note_offset(tag.lane, slot), &mut bytes)
            .doing("reading a count of messages")?;
        self.post_note_receive(&self.lane(tag.lane)?.qp, tag.lane, slot)?;
        Ok(Note::from_le_bytes(bytes))
    }

    // --- control messages -----------------------------------------------------------------------------------

    fn post_control_receives(&self) -> Result<(), PerfError> {
        (0..CONTROLS).try_for_each(|slot| self.post_letter_receive(slot))
    }

    fn post_letter_receive(&self, slot: u32) -> Result<(), PerfError> {
        let sge = Sge::of(&self.letters, u64::from(slot) * CONTROL_LEN as u64, CONTROL_LEN as u32);
        let tag = Tag { kind: Kind::Control, lane: 0, number: slot.into() };
        Ok(self.control.post_recv(&RecvWr { wr_id: tag.pack(), sges: &[sge] })?)
    }

    /// Sends a control message.
    pub(super) fn send_control(&mut self, message: &Control) -> Result<(), PerfError> {
        let mut bytes = wire::encode(message);
        if bytes.len() > CONTROL_LEN {
            bytes = wire::encode(&Control::Failed("its reason is too long for a message".to_owned()));
        }
        let offset = u64::from(CONTROLS + self.letters_sent % CONTROLS) * CONTROL_LEN as u64;
        self.letters_sent = self.letters_sent.wrapping_add(1);
        self.letters.write_at(offset, &bytes).doing("writing a control message")?;
        let wr = SendWr {
            wr_id: Tag { kind: Kind::Control, lane: 0, number: 0 }.pack(),
            op: SendOp::Send,
            sges: &[Sge::of(&self.letters, offset, bytes.len() as u32)],
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
        };
        Ok(self.control.post_send(&wr)?)
    }

    /// Reads the control message that a completion announces; turns [`Control::Failed`] into an error.
    pub(super) fn take_control(&self, tag: Tag, wc: &Wc) -> Result<Control, PerfError> {
        let slot = tag.number as u32 % CONTROLS;
        let mut bytes = [0; CONTROL_LEN];
        let bytes =
            bytes.get_mut(..wc.byte_len as usize).ok_or(PerfError::Protocol("a control message too long"))?;
        self.letters
            .read_at(u64::from(slot) * CONTROL_LEN as u64, bytes)
            .doing("reading a control message")?;
        let message = wire::decode(bytes).ok_or(PerfError::Protocol("a control message of another kind"))?;
        self.post_letter_receive(slot)?;
        match message {
            Control::Failed(reason) => Err(PerfError::Peer(reason)),
            message => Ok(message),
        }
    }

    /// Waits for a control message; ignores completions of other kinds.
    pub(super) fn await_control(&mut self, what: &'static str) -> Result<Control, PerfError> {
        loop {
            let mut message = None;
            for place in self.completions.wait(what)? {
                let wc = self.completions.get(place);
                let tag = self.success(&wc)?;
                if tag.kind == Kind::Control && wc.opcode == WcOpcode::Recv {
                    message = Some(self.take_control(tag, &wc)?);
                }
            }
            if let Some(message) = message {
                return Ok(message);
            }
        }
    }

    /// Drives the engine and takes completions, while this end waits for its other threads. The only message that the
    /// other end may send meanwhile is its reason for giving up.
    pub(super) fn attend(&mut self) -> Result<(), PerfError> {
        for place in self.completions.poll("the other threads")? {
            let wc = self.completions.get(place);
            let tag = self.success(&wc)?;
            if tag.kind == Kind::Control && wc.opcode == WcOpcode::Recv {
                self.take_control(tag, &wc)?;
                return Err(PerfError::Protocol("an unexpected control message"));
            }
        }
        Ok(())
    }

    /// Waits until the server confirms that it has received everything. Called by the client after [`Control::Done`].
    pub(super) fn await_confirmation(&mut self) -> Result<(), PerfError> {
        match self.await_control("the server's confirmation")? {
            Control::Confirmed => Ok(()),
            _ => Err(PerfError::Protocol("an unexpected control message")),
        }
    }

    /// Returns the tag of a successful completion, or an error. If the completion belongs to the load beside the
    /// measurement, posts the next message of that load.
    #[inline]
    pub(super) fn success(&mut self, wc: &Wc) -> Result<Tag, PerfError> {
        if wc.status != WcStatus::Success {
            return Err(self.failure(wc));
        }
        let tag = Tag::unpack(wc.wr_id);
        if tag.kind == Kind::Stream {
            self.streamed += 1;
            self.post_stream(tag.lane)?;
        }
        Ok(tag)
    }

    #[cold]
    fn failure(&mut self, wc: &Wc) -> PerfError {
        let qps = || self.lanes.iter().map(|lane| &lane.qp).chain([&self.control]);
        if let Some(info) = qps().find_map(Qp::terminate) {
            return PerfError::Completion { qpn: wc.qpn, status: wc.status, detail: format!("; {info}") };
        }
        while let Some(event) = self.events.poll() {
            if let CmEvent::Disconnected { reason, .. } = event {
                return PerfError::Gone(reason.to_string());
            }
        }
        PerfError::Completion { qpn: wc.qpn, status: wc.status, detail: String::new() }
    }

    // --- contents -------------------------------------------------------------------------------------------

    fn message(&self, lane: u32, number: u64, from: Role) -> Message {
        let stream = lane * 2 + u32::from(from == Role::Server);
        Message { stream, number, len: self.session.size as usize }
    }

    /// Writes this end's message `number` into a slot.
    pub(super) fn fill(&self, lane: u32, number: u64, slot: u64) -> Result<(), PerfError> {
        let message = self.message(lane, number, self.role);
        let start = self.session.offset(lane, slot);
        let mut bytes = [0; CHUNK];
        for (at, len) in chunks(message.len) {
            let Some(piece) = bytes.get_mut(..len) else { break };
            message.fill(at, piece);
            self.memory.write_at(start + at as u64, piece).doing("writing a message")?;
        }
        Ok(())
    }

    /// Compares a slot with the other end's message `number`.
    pub(super) fn check(&self, lane: u32, number: u64, slot: u64) -> Result<(), PerfError> {
        let from = if self.role == Role::Client { Role::Server } else { Role::Client };
        let message = self.message(lane, number, from);
        let start = self.session.offset(lane, slot);
        let (mut expected, mut found) = ([0; CHUNK], [0; CHUNK]);
        for (at, len) in chunks(message.len) {
            let (Some(expected), Some(found)) = (expected.get_mut(..len), found.get_mut(..len)) else {
                break;
            };
            message.fill(at, expected);
            self.memory.read_at(start + at as u64, found).doing("reading a message")?;
            if *expected != *found
                && let Some(i) = expected.iter().zip(&*found).position(|(e, f)| e != f)
            {
                return Err(PerfError::Data {
                    lane,
                    number,
                    offset: (at + i) as u64,
                    expected: expected.get(i).copied().unwrap_or_default(),
                    found: found.get(i).copied().unwrap_or_default(),
                });
            }
        }
        Ok(())
    }

    /// Checks the result of Atomic number `number` of a lane. The result must be `number`, because each earlier Atomic
    /// added 1.
    pub(super) fn check_count(&self, lane: u32, number: u64) -> Result<(), PerfError> {
        let mut found = [0; ATOMIC_LEN];
        self.memory.read_at(self.session.offset(lane, number), &mut found).doing("reading a result")?;
        let expected = number.to_ne_bytes();
        match expected.iter().zip(&found).position(|(e, f)| e != f) {
            None => Ok(()),
            Some(i) => Err(PerfError::Data {
                lane,
                number,
                offset: i as u64,
                expected: expected[i],
                found: found[i],
            }),
        }
    }

    /// Writes the last byte of the outgoing slot. The other end of a ping-pong polls the place where this byte
    /// arrives.
    #[inline]
    pub(super) fn stamp(&self, lane: u32, number: u64) -> Result<(), PerfError> {
        let last = self.session.offset(lane, OUT) + self.session.size - 1;
        self.memory
            .store_u8(last, self.message(lane, number, self.role).last_byte())
            .doing("writing a message")
    }

    /// Returns whether the last byte of the other end's message `number` is in the incoming slot. This byte depends on
    /// `number` alone, so the comparison may use this end's own message.
    #[inline]
    pub(super) fn stamped(&self, lane: u32, number: u64) -> Result<bool, PerfError> {
        let last = self.session.offset(lane, IN) + self.session.size - 1;
        let byte = self.memory.load_u8(last).doing("reading a message")?;
        Ok(byte == self.message(lane, number, self.role).last_byte())
    }
}

fn create_control(pd: &Pd, cq: &Cq) -> Result<Qp, PerfError> {
    pd.create_qp(&QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: CONTROLS,
        max_recv_wr: CONTROLS,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
    })
    .doing("creating the control queue pair")
}

/// The slot for the arriving message of a ping-pong, at either end.
pub(super) const IN: u64 = 0;
/// The slot for the leaving message of a ping-pong, at either end.
pub(super) const OUT: u64 = 1;

/// Maximum number of bytes of a message that are made or compared at once.
const CHUNK: usize = 4096;

/// Returns the start and length of each chunk of a message.
fn chunks(len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(CHUNK).map(move |at| (at, CHUNK.min(len - at)))
}
