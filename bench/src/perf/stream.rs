//! Bandwidth and message rate: a window of requests is outstanding on every lane.
//!
//! Notes keep the ends in step where necessary: marks from the client, and grants from the server.
//!
//! * Sends: the server grants as many messages as it has receives posted, because a Send without a receive ends the
//!   connection.
//! * Writes with `--verify`: a mark contains the number of Writes posted before it. The server checks them, and grants
//!   the reuse of their slots.
//! * Reads with `--verify`: a mark contains the number of Reads that the client has checked. The server refills their
//!   slots, and grants further Reads.
//! * Writes without `--verify`: a last mark on each lane tells the server that all Writes of the lane have arrived.

use std::collections::VecDeque;

use urnic::WcOpcode;

use super::{
    end::End,
    error::PerfError,
    measure::{Counted, Extent, Outcome},
    options::{Mode, Op},
    wire::{Control, Kind, Session, Tag},
};

/// Maximum number of messages that one lane posts in its turn.
const TURN: u64 = 32;

/// The client's state of a lane. All counts are of messages since the start.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Total number of messages to be posted.
    total: u64,
    posted: u64,
    completed: u64,
    /// Number of messages that the server has allowed the client to post.
    granted: u64,
    /// Number of messages that the client's last mark covers.
    marked: u64,
    /// Number of messages posted since the last signalled message.
    unsignalled: u64,
    /// Whether the lane waits for its turn.
    queued: bool,
}

impl Flow {
    fn room(&self, window: u64) -> u64 {
        let in_flight = self.posted - self.completed;
        (self.total - self.posted)
            .min(window.saturating_sub(in_flight))
            .min(self.granted.saturating_sub(self.posted))
    }

    fn finished(&self) -> bool {
        self.completed == self.total
    }
}

/// Returns the number of messages from one signalled message to the next: 1 if the client must check each message. In
/// other cases a fraction of the window: a half, at most 64, in the mode `rate`; and a quarter, at most 16, in `bw`.
fn signal_interval(session: &Session) -> u64 {
    let window = u64::from(session.window);
    match session.mode {
        _ if session.op.is_answered() && session.verify => 1,
        Mode::Rate => 64.min(window / 2).max(1),
        _ => (window / 4).clamp(1, 16),
    }
}

struct Client<'a> {
    end: &'a mut End,
    flows: Vec<Flow>,
    turns: VecDeque<u32>,
    window: u64,
    interval: u64,
    /// Number of messages between two marks.
    batch: u64,
    completed: u64,
    unfinished: usize,
}

impl Client<'_> {
    /// Returns whether the client sends marks for the messages that it posts.
    fn marks(&self) -> bool {
        self.end.session.op == Op::Write
    }

    fn enqueue(&mut self, lane: u32) {
        if let Some(flow) = self.flows.get_mut(lane as usize)
            && !flow.queued
        {
            flow.queued = true;
            self.turns.push_back(lane);
        }
    }

    /// Lets the next lane post. Returns `false` if no lane has anything to post.
    fn turn(&mut self) -> Result<bool, PerfError> {
        let Some(lane) = self.turns.pop_front() else { return Ok(false) };
        let Some(mut flow) = self.flows.get(lane as usize).copied() else { return Ok(false) };
        flow.queued = false;
        let session = &self.end.session;
        let (fills, marks) = (session.verify && !session.op.is_answered(), self.marks());
        for _ in 0..flow.room(self.window).min(TURN) {
            let number = flow.posted;
            if fills {
                self.end.fill(lane, number, number)?;
            }
            flow.unsignalled += 1;
            let signaled = flow.unsignalled >= self.interval || number + 1 == flow.total;
            if signaled {
                flow.unsignalled = 0;
            }
            self.end.post_message(lane, number, number, number, signaled)?;
            flow.posted += 1;
            let due = flow.posted == flow.total || (fills && flow.posted - flow.marked >= self.batch);
            if marks && due {
                self.end.send_note(lane, flow.posted)?;
                flow.marked = flow.posted;
            }
        }
        let more = flow.room(self.window) > 0;
        if let Some(place) = self.flows.get_mut(lane as usize) {
            *place = flow;
        }
        if more {
            self.enqueue(lane);
        }
        Ok(true)
    }

    /// Adds messages to a lane that has not yet posted its last message.
    fn extend(&mut self, more: u64) {
        let open = self.flows.iter().position(|flow| flow.posted < flow.total);
        if let Some(flow) = open.and_then(|lane| self.flows.get_mut(lane)) {
            flow.total = flow.total.saturating_add(more);
        }
    }

    /// Closes all lanes when the time is over. A lane that has posted messages posts one more, unless its last
    /// message is signalled and a mark covers it. The added message is signalled and, if it is a Write, marked.
    /// Posted messages of other operations get no marks, so their lanes always post one more.
    fn finish(&mut self) {
        for lane in 0..self.flows.len() {
            let Some(flow) = self.flows.get_mut(lane) else { break };
            let closing = flow.unsignalled > 0 || flow.marked < flow.posted;
            flow.total = flow.posted + u64::from(closing);
            if flow.finished() {
                self.unfinished -= 1;
            }
            self.enqueue(lane as u32);
        }
    }

    /// Takes completions.
    fn reap(&mut self, wait: bool) -> Result<(), PerfError> {
        let what = "completions";
        let found = if wait { self.end.completions.wait(what)? } else { self.end.completions.poll(what)? };
        for place in found {
            let wc = self.end.completions.get(place);
            let tag = self.end.success(&wc)?;
            match (tag.kind, wc.opcode) {
                (Kind::Data, opcode) if opcode != WcOpcode::Recv => self.completed_up_to(tag)?,
                (Kind::Note, WcOpcode::Recv) => {
                    let granted = self.end.take_note(tag, &wc)?;
                    if let Some(flow) = self.flows.get_mut(tag.lane as usize) {
                        flow.granted = flow.granted.max(granted);
                    }
                    self.enqueue(tag.lane);
                }
                (Kind::Control, WcOpcode::Recv) => {
                    self.end.take_control(tag, &wc)?;
                    return Err(PerfError::Protocol("an unexpected control message"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts a signalled message as complete, and all messages before it on its lane.
    fn completed_up_to(&mut self, tag: Tag) -> Result<(), PerfError> {
        let Some(flow) = self.flows.get_mut(tag.lane as usize) else { return Ok(()) };
        self.completed += tag.number + 1 - flow.completed;
        flow.completed = tag.number + 1;
        let (finished, count) = (flow.finished(), flow.completed);
        if self.end.session.op == Op::Read && self.end.session.verify {
            self.end.check(tag.lane, tag.number, tag.number)?;
            if !finished && count.is_multiple_of(self.batch) {
                self.end.send_note(tag.lane, count)?;
            }
        }
        if self.end.session.op == Op::Atomic && self.end.session.verify {
            self.end.check_count(tag.lane, tag.number)?;
        }
        if finished {
            self.unfinished -= 1;
        }
        self.enqueue(tag.lane);
        Ok(())
    }
}

/// Returns how many messages the client may post before the first grant.
fn first_grant(session: &Session) -> u64 {
    match session.op {
        Op::Send => session.credit.into(),
        Op::Atomic => u64::MAX,
        _ if session.verify => session.slots.into(),
        _ => u64::MAX,
    }
}

/// Streams messages until there are enough.
pub(super) fn measure(end: &mut End, extent: &mut Extent) -> Result<Outcome, PerfError> {
    let session = end.session.clone();
    let lanes = u64::from(session.lanes);
    let granted = first_grant(&session);
    let flows = (0..lanes).map(|lane| {
        let total = extent.total().map_or(u64::MAX, |total| total / lanes + u64::from(lane < total % lanes));
        Flow { total, posted: 0, completed: 0, granted, marked: 0, unsignalled: 0, queued: false }
    });
    let flows: Vec<Flow> = flows.collect();
    let unfinished = flows.iter().filter(|flow| !flow.finished()).count();
    let mut client = Client {
        turns: VecDeque::with_capacity(flows.len()),
        window: session.window.into(),
        interval: signal_interval(&session),
        batch: u64::from(session.slots / 2).max(1),
        completed: 0,
        unfinished,
        flows,
        end,
    };
    (0..session.lanes).for_each(|lane| client.enqueue(lane));

    let mut counted = Counted::new();
    let mut running = true;
    while client.unfinished > 0 {
        let posted = client.turn()?;
        client.reap(!posted)?;
        if !counted.started() && counted.after(client.completed, extent) {
            client.extend(extent.excess(client.completed));
        }
        if running && !extent.has_time(client.completed) {
            running = false;
            client.finish();
        }
    }
    // Answered operations are complete at this point. Only the server knows when the messages of other operations have
    // arrived.
    let done = client.completed;
    let outcome = counted.outcome(done, None);
    let answered = session.op.is_answered();
    client.end.send_control(&Control::Done { messages: if answered { 0 } else { done } })?;
    client.end.await_confirmation()?;
    Ok(if answered { outcome } else { counted.outcome(done, None) })
}

/// Serves until the client is done and everything has arrived.
pub(super) fn serve(end: &mut End) -> Result<(), PerfError> {
    let session = end.session.clone();
    let (credit, slots) = (u64::from(session.credit), u64::from(session.slots));
    // Number of messages that have arrived or were marked, for each lane.
    let mut seen = vec![0u64; session.lanes as usize];
    let mut sum = 0;
    let mut expected = None;
    while expected != Some(sum) {
        // There is no time limit, because the client may measure for any time, and the connections report a client that
        // dies.
        end.completions.endless = expected.is_none();
        for place in end.completions.wait("the client")? {
            let wc = end.completions.get(place);
            let tag = end.success(&wc)?;
            let lane = tag.lane;
            let Some(count) = seen.get_mut(lane as usize) else { continue };
            match (tag.kind, wc.opcode) {
                (Kind::Data, WcOpcode::Recv) => {
                    if u64::from(wc.byte_len) != session.size {
                        return Err(PerfError::Protocol("a message of the wrong length"));
                    }
                    if session.verify {
                        end.check(lane, *count, *count)?;
                    }
                    end.repost_receive(lane, tag.number)?;
                    *count += 1;
                    sum += 1;
                    if count.is_multiple_of((credit / 4).max(1)) {
                        end.send_note(lane, *count + credit)?;
                    }
                }
                (Kind::Note, WcOpcode::Recv) => {
                    let marked = end.take_note(tag, &wc)?;
                    if marked < *count || (session.verify && marked - *count > slots) {
                        return Err(PerfError::Protocol("an unexpected count of messages"));
                    }
                    if session.op == Op::Read {
                        make(end, lane, *count + slots..marked + slots)?;
                        *count = marked;
                        end.send_note(lane, marked + slots)?;
                    } else {
                        if session.verify {
                            (*count..marked).try_for_each(|number| end.check(lane, number, number))?;
                            end.send_note(lane, marked + slots)?;
                        }
                        sum += marked - *count;
                        *count = marked;
                    }
                }
                (Kind::Control, WcOpcode::Recv) => match end.take_control(tag, &wc)? {
                    Control::Done { messages } => expected = Some(messages),
                    _ => return Err(PerfError::Protocol("an unexpected control message")),
                },
                _ => {}
            }
        }
        if expected.is_some_and(|messages| messages < sum) {
            return Err(PerfError::Protocol("more messages than the client says it sent"));
        }
    }
    end.send_control(&Control::Confirmed)
}

/// Fills the server's slots for verified Reads: before the start, and again when the client has checked their contents.
fn make(end: &End, lane: u32, mut numbers: std::ops::Range<u64>) -> Result<(), PerfError> {
    numbers.try_for_each(|number| end.fill(lane, number, number))
}

/// Fills the slots for the first Reads, before the server reports that it is ready.
pub(super) fn prepare_reads(end: &End) -> Result<(), PerfError> {
    if end.session.op == Op::Read && end.session.verify {
        let slots = end.session.slots.into();
        (0..end.session.lanes).try_for_each(|lane| make(end, lane, 0..slots))?;
    }
    Ok(())
}
