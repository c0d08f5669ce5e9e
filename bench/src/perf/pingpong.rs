//! Latency: one message at a time, over each lane (queue pair) in turn. Writes and Sends go back and forth;
//! Reads and Atomics are timed from post to completion.
//!
//! The receiver notices a Write by the last byte of its buffer, which changes. If the Write is empty, or the ends wait
//! for events, an empty Send follows the Write as its doorbell. The receiver notices a Send or a doorbell by the
//! completion of a receive. Each end takes the completion of its own message before it posts the next message.

use urnic::WcOpcode;
use urnic_dataplane::Clock;

use super::{
    end::{End, IN, OUT},
    error::PerfError,
    measure::{self, Counted, Extent, Outcome},
    options::Op,
    wire::{Control, Kind},
};

/// The reason why a wait ended.
enum Heard {
    Message,
    Done,
}

/// The state of one player.
struct Player<'a> {
    end: &'a mut End,
    /// Whether this end notices a message by its receive, and not by its last byte.
    by_receive: bool,
    /// Whether our last message has completed.
    sent: bool,
    /// Whether a receive has completed.
    received: bool,
    done: bool,
}

impl<'a> Player<'a> {
    fn new(end: &'a mut End) -> Self {
        let by_receive = end.session.op == Op::Send || end.session.doorbell();
        Self { end, by_receive, sent: true, received: false, done: false }
    }

    /// Prepares the outgoing message.
    fn prepare(&self, lane: u32, number: u64) -> Result<(), PerfError> {
        if self.end.session.verify {
            self.end.fill(lane, number, OUT)
        } else if !self.by_receive {
            self.end.stamp(lane, number)
        } else {
            Ok(())
        }
    }

    #[inline]
    fn post(&mut self, lane: u32, number: u64) -> Result<(), PerfError> {
        self.sent = false;
        let doorbell = self.end.session.doorbell();
        self.end.post_message(lane, number, OUT, IN, !doorbell)?;
        if doorbell {
            self.end.post_doorbell(lane, number)?;
        }
        Ok(())
    }

    /// Waits for message `number` of the other end, and for the completion of our own last message.
    #[inline]
    fn hear(&mut self, lane: u32, number: u64) -> Result<Heard, PerfError> {
        loop {
            let found = if self.by_receive {
                self.end.completions.wait("a message")?
            } else {
                self.end.completions.poll("a message")?
            };
            for place in found {
                let wc = self.end.completions.get(place);
                let tag = self.end.success(&wc)?;
                match (tag.kind, wc.opcode) {
                    (Kind::Data, WcOpcode::Recv) => self.received = true,
                    (Kind::Data, _) => self.sent = true,
                    (Kind::Control, WcOpcode::Recv) => match self.end.take_control(tag, &wc)? {
                        Control::Done { .. } => self.done = true,
                        _ => return Err(PerfError::Protocol("an unexpected control message")),
                    },
                    _ => {}
                }
            }
            let here = if self.by_receive { self.received } else { self.end.stamped(lane, number)? };
            if here && self.sent {
                self.end.completions.alive();
                return Ok(Heard::Message);
            }
            if self.done {
                return Ok(Heard::Done);
            }
        }
    }

    /// Checks the message that arrived, and prepares for the next message.
    fn accept(&mut self, lane: u32, number: u64) -> Result<(), PerfError> {
        if self.end.session.verify {
            self.end.check(lane, number, IN)?;
        }
        if self.by_receive {
            self.received = false;
            self.end.repost_receive(lane, number)?;
        }
        Ok(())
    }
}

/// Returns the lane of a message, and the number of the message on this lane. Numbers start at 1, because a buffer
/// starts as zeros.
fn place(message: u64, lanes: u32) -> (u32, u64) {
    let lanes = u64::from(lanes);
    ((message % lanes) as u32, message / lanes + 1)
}

/// Serves until the client is done.
pub(super) fn serve(end: &mut End) -> Result<(), PerfError> {
    let lanes = end.session.lanes;
    let mut player = Player::new(end);
    for message in 0.. {
        let (lane, number) = place(message, lanes);
        match player.hear(lane, number)? {
            Heard::Done => break,
            Heard::Message => {
                player.accept(lane, number)?;
                player.prepare(lane, number)?;
                player.post(lane, number)?;
            }
        }
    }
    player.end.send_control(&Control::Confirmed)
}

/// Plays until enough round trips have been measured.
pub(super) fn measure(end: &mut End, extent: &mut Extent) -> Result<Outcome, PerfError> {
    let lanes = end.session.lanes;
    let clock = Clock::calibrate();
    let mut histogram = measure::histogram();
    let mut counted = Counted::new();
    let mut player = Player::new(end);
    let mut done = 0;
    while extent.goes_on(done) {
        let (lane, number) = place(done, lanes);
        let counts = counted.after(done, extent);
        player.prepare(lane, number)?;
        let posted = clock.now();
        player.post(lane, number)?;
        if matches!(player.hear(lane, number)?, Heard::Done) {
            return Err(PerfError::Protocol("an unexpected control message"));
        }
        if counts {
            histogram.saturating_record(clock.now() - posted);
        }
        player.accept(lane, number)?;
        done += 1;
    }
    let outcome = counted.outcome(done, Some(histogram));
    end.send_control(&Control::Done { messages: done })?;
    end.await_confirmation()?;
    Ok(outcome)
}

/// Measures Reads or Atomics one at a time, from post to completion. With `--verify`, the client tells the server in a
/// note (a small Send) how many Reads of the lane it has checked. The server then writes new bytes for later Reads, and
/// answers by a note.
pub(super) fn measure_answered(end: &mut End, extent: &mut Extent) -> Result<Outcome, PerfError> {
    let lanes = u64::from(end.session.lanes);
    let opcode = if end.session.op == Op::Atomic { WcOpcode::FetchAdd } else { WcOpcode::Read };
    let clock = Clock::calibrate();
    let mut histogram = measure::histogram();
    let mut counted = Counted::new();
    let mut done = 0;
    while extent.goes_on(done) {
        let (lane, number) = ((done % lanes) as u32, done / lanes);
        let counts = counted.after(done, extent);
        let posted = clock.now();
        end.post_message(lane, number, number, number, true)?;
        await_one(end, Kind::Data, opcode)?;
        if counts {
            histogram.saturating_record(clock.now() - posted);
        }
        if end.session.verify && opcode == WcOpcode::FetchAdd {
            end.check_count(lane, number)?;
        } else if end.session.verify {
            end.check(lane, number, number)?;
            end.send_note(lane, number + 1)?;
            await_one(end, Kind::Note, WcOpcode::Recv)?;
        }
        done += 1;
    }
    let outcome = counted.outcome(done, Some(histogram));
    end.send_control(&Control::Done { messages: 0 })?;
    end.await_confirmation()?;
    Ok(outcome)
}

/// Waits for one completion of this kind. If a note of the server arrives, posts the receive for the next note, but
/// ignores the count in this one.
fn await_one(end: &mut End, kind: Kind, opcode: WcOpcode) -> Result<(), PerfError> {
    loop {
        let mut arrived = false;
        for place in end.completions.wait("a completion")? {
            let wc = end.completions.get(place);
            let tag = end.success(&wc)?;
            match (tag.kind, wc.opcode) {
                (Kind::Control, WcOpcode::Recv) => {
                    end.take_control(tag, &wc)?;
                }
                (Kind::Note, WcOpcode::Recv) => {
                    end.take_note(tag, &wc)?;
                }
                _ => {}
            }
            arrived |= tag.kind == kind && wc.opcode == opcode;
        }
        if arrived {
            return Ok(());
        }
    }
}
