//! Passes frames from one engine of a device to another, as copies in ordinary memory, because the buffers of a port
//! belong to one engine. An engine passes on received frames that concern another engine. If the port steers
//! connections to their engines, these are only messages about neighbours and routers, and frames that arrive before
//! the port steers. An engine also passes on strays: frames that its queue cannot send, because the peer has fewer
//! queues.

use crossbeam_queue::ArrayQueue;
use std::sync::Arc;
use urnic_config::MAX_ENGINES;
use urnic_tcp::{Elsewhere, Frame};

use super::OverPort;
use crate::drive::port::{BURST, Port, Stray};
use crate::drive::transport::Events;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::figures::{FRAMES_HANDED_OVER, FRAMES_TAKEN_OVER};
use arrayvec::ArrayVec;
use urnic_tcp::Time;

/// Maximum number of frames that wait for an engine. Further frames are dropped, as on any link.
const INBOX: usize = 512;
/// Number of additional places of an inbox. They keep the inbox from becoming full, because `push` to a full queue
/// waits while a consumer is about to free a place. Each engine first checks that fewer than `INBOX` frames wait; at
/// worst, all engines check at the same time, and each then adds one.
const SPARE: usize = MAX_ENGINES;

/// A frame that one engine hands to another.
enum Handed {
    /// A frame that the giving engine has received.
    Received {
        /// The frame, shared by all engines that get it.
        octets: Arc<[u8]>,
        /// Whether the port vouched for its checksums.
        trusted: bool,
    },
    /// A frame that the queue of the giving engine cannot send.
    Stray(Stray),
}

/// Number of the engine whose queue sends strays. This is the first, because every peer has a first queue.
const SENDS_STRAYS: usize = 0;

/// An engine's connection to the other engines of its device: the inboxes of all engines.
pub(super) struct Passage {
    number: usize,
    inboxes: Arc<[ArrayQueue<Handed>]>,
    commons: Arc<Commons>,
    /// Engines to which this engine has given frames, and which it has not woken since; one bit for each.
    unwoken: u64,
    counters: Counters,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Number of frames given to other engines, counted once for each receiving engine.
    pub handed_over: u64,
    /// Number of frames that came from other engines.
    pub taken_over: u64,
    /// Number of frames that concern all engines, each counted once.
    pub told_to_all: u64,
    /// Number of frames that were dropped because the other engine's inbox was full or this engine had no buffer.
    pub dropped: u64,
}

impl Passage {
    /// Makes the passages of a device with `engines` engines, one for each engine.
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

    /// Hands a copy of a frame to each other engine that it concerns.
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

    /// Hands a frame to the engine that can send it.
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

    /// Wakes the engines that this engine has given frames. Does not wait.
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

    /// Returns whether no frame waits for this engine.
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
            (FRAMES_HANDED_OVER, handed_over),
            (FRAMES_TAKEN_OVER, taken_over),
            ("frames_told_to_all", told_to_all),
            ("frames_between_engines_dropped", dropped),
        ]
    }
}

impl<P: Port> OverPort<P> {
    /// Takes in frames that other engines have handed over, at most one burst.
    #[cold]
    pub(super) fn take_over(&mut self, now: Time, events: &mut impl Events<super::StreamRange<P::Frame>>) {
        let Some(passage) = &mut self.passage else { return };
        let mut burst = ArrayVec::<P::Frame, BURST>::new();
        let mut heard = false;
        for _ in 0..BURST {
            match passage.take() {
                None => break,
                Some(Handed::Stray(stray)) => self.port.send_stray(&stray),
                Some(Handed::Received { octets, trusted }) => {
                    heard = true;
                    match self.port.adopt(&octets, trusted) {
                        Some(frame) => burst.push(frame),
                        None => passage.counters.dropped += 1,
                    }
                }
            }
        }
        // Strays are frames of this device, so they do not show that the peer is up.
        if heard {
            self.link.heard();
        }
        let told = &mut super::Told { events, passage: None };
        self.stack.take_over(now, burst, told, &mut super::Wire::of(&mut self.port));
    }
}
