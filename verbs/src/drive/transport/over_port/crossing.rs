//! Frames that reach an engine of a device and concern another: copies in ordinary memory, because a port's buffers are for
//! one engine. With a port that steers rightly only neighbours and routers are told of, and what comes before it does. The same
//! way goes what an engine sends to a peer that has not its queue.

use crossbeam_queue::ArrayQueue;
use std::sync::Arc;
use urnic_config::MAX_ENGINES;
use urnic_tcp::{Elsewhere, Frame};

use super::OverPort;
use crate::drive::port::{BURST, Port, Stray};
use crate::drive::transport::Events;
use crate::shared::engines::{Commons, EngineNumber};
use arrayvec::ArrayVec;
use urnic_tcp::Time;

/// Frames that wait for an engine, at most. Further ones are dropped, as on any link.
const INBOX: usize = 512;
/// Places that stay empty: the queue's `push` waits for a consumer that is about to give back the very place that it needs.
/// So many engines may have found room at the same time.
const SPARE: usize = MAX_ENGINES;

/// What another engine hands over.
enum Handed {
    /// A frame that it has received.
    Received {
        /// Of all engines that are told of it.
        octets: Arc<[u8]>,
        /// The port vouched for its checksums.
        trusted: bool,
    },
    /// A frame that its queue cannot send.
    Stray(Stray),
}

/// The engine by whose queue strays leave: any peer has a first one.
const SENDS_STRAYS: usize = 0;

/// One engine's door to the others of its device.
pub(super) struct Passage {
    number: usize,
    inboxes: Arc<[ArrayQueue<Handed>]>,
    commons: Arc<Commons>,
    /// Engines that have got something since they were last woken, a bit each.
    unwoken: u64,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Frames that other engines were given, each of them.
    pub handed_over: u64,
    /// Frames that came from others.
    pub taken_over: u64,
    /// Frames, each once, that concern all engines.
    pub told_to_all: u64,
    /// Frames for which the other engine's inbox, or this one's pool, had no room.
    pub dropped: u64,
}

impl Passage {
    /// Returns the doors of so many engines to each other.
    pub(super) fn of_all(engines: usize, commons: &Arc<Commons>) -> Vec<Passage> {
        let inboxes: Arc<[_]> = (0..engines).map(|_| ArrayQueue::new(INBOX + SPARE)).collect();
        let passage = |number| Passage {
            number,
            inboxes: inboxes.clone(),
            commons: commons.clone(),
            unwoken: 0,
            counters: Counters::default(),
        };
        (0..engines).map(passage).collect()
    }

    /// Gives the engines that a frame concerns a copy of it.
    #[cold]
    pub(super) fn hand_over(&mut self, to: Elsewhere, frame: &impl Frame) {
        let handed = |octets| Handed::Received { octets, trusted: frame.checksum_trusted() };
        let octets: Arc<[u8]> = frame.bytes().into();
        let targets = match to {
            Elsewhere::Stack(one) => one..one + 1,
            Elsewhere::Others => {
                self.counters.told_to_all += 1;
                0..self.inboxes.len()
            }
        };
        let own = self.number;
        for target in targets.filter(|target| *target != own) {
            self.give(target, handed(octets.clone()));
        }
    }

    /// Gives the engine that can send it a frame.
    pub(super) fn send_elsewhere(&mut self, stray: Stray) {
        self.give(SENDS_STRAYS, Handed::Stray(stray));
    }

    fn give(&mut self, target: usize, handed: Handed) {
        let Some(inbox) = self.inboxes.get(target) else { return };
        if inbox.len() < INBOX && inbox.push(handed).is_ok() {
            self.counters.handed_over += 1;
        } else {
            self.counters.dropped += 1;
        }
        self.unwoken |= 1 << target;
    }

    /// Wakes the engines that have been given something. Nothing here waits.
    #[inline]
    pub(super) fn wake(&mut self) {
        if self.unwoken != 0 {
            self.wake_those();
        }
    }

    #[cold]
    fn wake_those(&mut self) {
        let unwoken = std::mem::take(&mut self.unwoken);
        for target in (0..self.inboxes.len()).filter(|target| unwoken >> target & 1 != 0) {
            if let Some(fellow) = EngineNumber::new(target).and_then(|n| self.commons.fellow(n)) {
                fellow.wake();
            }
        }
    }

    /// Returns whether nothing waits for this engine.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.inboxes.get(self.number).is_none_or(ArrayQueue::is_empty)
    }

    fn take(&mut self) -> Option<Handed> {
        let handed = self.inboxes.get(self.number)?.pop()?;
        self.counters.taken_over += 1;
        Some(handed)
    }

    pub(super) fn counters(&self) -> [(&'static str, u64); 4] {
        let Counters { handed_over, taken_over, told_to_all, dropped } = self.counters;
        [
            ("frames_handed_over", handed_over),
            ("frames_taken_over", taken_over),
            ("frames_told_to_all", told_to_all),
            ("frames_between_engines_dropped", dropped),
        ]
    }
}

impl<P: Port> OverPort<P> {
    /// Takes what other engines have handed over, a burst at most.
    #[cold]
    pub(super) fn take_over(&mut self, now: Time, events: &mut impl Events<super::StreamRange<P::Frame>>) {
        let Some(passage) = &mut self.passage else { return };
        let mut burst = ArrayVec::<P::Frame, BURST>::new();
        for _ in 0..BURST {
            match passage.take() {
                None => break,
                Some(Handed::Stray(stray)) => self.port.send_stray(&stray),
                Some(Handed::Received { octets, trusted }) => match self.port.adopt(&octets, trusted) {
                    Some(frame) => burst.push(frame),
                    None => passage.counters.dropped += 1,
                },
            }
        }
        self.link.heard();
        let told = &mut super::Told { events, passage: None };
        self.stack.take_over(now, burst, told, &mut super::Wire(&mut self.port));
    }
}
