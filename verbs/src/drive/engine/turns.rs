//! The turns of endpoints in a pass.

use std::time::Duration;

use urnic_tcp::Time;

use super::{Clock, Engine, foresee};
use crate::drive::transport::Transport;

/// Maximum number of endpoints that get a turn in one pass.
pub(super) const TURNS_PER_PASS: usize = 16;
/// Number of frames, and octets of payload, after which a pass begins no further turn, so that the pass ends soon: the
/// engine receives at the end of a pass, and control verbs wait until a pass has ended. A train of segments is one
/// frame, so the frames alone would be no bound.
const FRAMES_PER_PASS: u64 = 64;
const OCTETS_PER_PASS: u64 = 48 << 10;
/// How long the turns of a pass should take while [brief](crate::shared::turns) endpoints have turns too: their peers
/// may answer soon, and the answers should not wait for a long pass. Shorter passes cost streams some of their rate.
const PASS_TIME: Duration = Duration::from_micros(8);
/// Minimum octets that a pass sends even if they take longer: about one train of segments.
const LEAST_OCTETS: u64 = 16 << 10;
/// Upper limit of the measured average, and its value before the first measurement.
const MOST_OCTETS: u64 = 1 << 20;
/// How long passes are short after the turn of a brief endpoint. Most peers answer sooner.
const COMPANY: Duration = Duration::from_micros(100);

/// Bounds the octets of passes by the time that they take, while brief endpoints have turns too.
#[derive(Debug)]
pub(super) struct Pace {
    /// Brief endpoints count as company until this time.
    company_until: Time,
    /// Start of the last pass that gave turns, and the octets that it sent. 0: they are already counted.
    began: Time,
    sent: u64,
    /// Average number of octets that take [`PASS_TIME`].
    octets: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { company_until: Time::ZERO, began: Time::ZERO, sent: 0, octets: MOST_OCTETS }
    }
}

impl Pace {
    /// Notes that a pass which began at `now` has sent `octets`.
    #[inline]
    fn sent(&mut self, now: Time, octets: u64) {
        (self.began, self.sent) = (now, octets);
    }

    /// Notes that a brief endpoint had a turn at `now` before a greedy one.
    #[inline]
    fn in_company(&mut self, now: Time) {
        self.company_until = now + COMPANY;
    }

    /// Notes that all octets of the pass have been handed to the link. `clock` reads the time.
    #[inline]
    pub(super) fn measure(&mut self, clock: impl FnOnce() -> Time) {
        let sent = std::mem::take(&mut self.sent);
        // Turns are of whole segments, so a bounded pass may send little more than half of the bound.
        if sent > LEAST_OCTETS / 2 {
            let took = clock().0.saturating_sub(self.began.0).max(1);
            let fits = (sent * PASS_TIME.as_nanos() as u64 / took).min(MOST_OCTETS);
            self.octets = (self.octets * 7 + fits) / 8;
        }
    }

    /// Returns the maximum number of octets that a pass at `now` should send; `None`: brief endpoints have no turns.
    #[inline]
    pub(super) fn octets(&self, now: Time) -> Option<u64> {
        (now < self.company_until).then_some(self.octets.max(LEAST_OCTETS))
    }
}

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Returns whether [`serve`](Self::serve) has anything to do.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.core.ready.is_empty() || !self.doorbells.is_empty() || self.core.unready.is_due()
    }

    /// Runs the turns of waiting endpoints, and looks for receives for the peers' Sends that wait for one. Returns
    /// whether there was an endpoint that wanted a turn, or a reason to look for receives.
    #[inline(never)]
    pub(super) fn serve(&mut self, now: Time) -> bool {
        self.take_doorbells();
        let takes_up = self.doorbells.take_receives() | self.core.unready.is_due();
        if takes_up {
            self.take_up_unready(now);
        }
        let turns = self.core.ready.len().min(TURNS_PER_PASS);
        let before = self.transport.sent();
        let pace = self.pace.octets(now);
        let mut taken = 0;
        // Whether frames of brief endpoints wait for the next flush.
        let mut brief = false;
        for turn in 0..turns {
            if turn % foresee::TURNS == 0 {
                self.foresee_turns();
            }
            let sent = self.transport.sent();
            let frames = sent.frames.wrapping_sub(before.frames);
            let octets = sent.octets.wrapping_sub(before.octets);
            let last = octets - std::mem::replace(&mut taken, octets);
            let fits = match pace {
                Some(most) => {
                    let next = if self.core.ready.next_is_greedy() { last } else { 0 };
                    octets + next <= most.min(OCTETS_PER_PASS)
                }
                None => octets < OCTETS_PER_PASS,
            };
            if !self.transport.has_room() || frames >= FRAMES_PER_PASS || !fits {
                break;
            }
            let Some(index) = self.core.ready.pop() else { break };
            let Some(endpoint) = self.core.endpoints.get_mut(index) else { continue };
            endpoint.queued = false;
            if !endpoint.greedy {
                brief = true;
            } else if std::mem::take(&mut brief) {
                // A greedy endpoint's turn takes microseconds. Short messages must not wait for its end.
                self.transport.flush();
                self.pace.in_company(now);
            }
            let more = self.service(index, now);
            if self.complete(index) | more {
                self.core.schedule(index);
            }
        }
        self.pace.sent(now, self.transport.sent().octets.wrapping_sub(before.octets));
        turns > 0 || takes_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs passes of `octets` that take `micros` each, and returns the bound in company.
    fn paced(octets: u64, micros: u64) -> u64 {
        let mut pace = Pace::default();
        let mut now = Time::ZERO;
        for _ in 0..100 {
            pace.sent(now, octets);
            now += Duration::from_micros(micros);
            pace.measure(|| now);
        }
        pace.in_company(now);
        pace.octets(now).expect("there is company")
    }

    #[test]
    fn passes_in_company_take_the_time_that_they_should() {
        // 3 KiB, 12 KiB and 1 KiB a microsecond. A slow link does not make passes shorter than about a train.
        for (octets, micros, expected) in
            [(24 << 10, 8, 24 << 10), (96 << 10, 8, 96 << 10), (20 << 10, 20, LEAST_OCTETS)]
        {
            let bound = paced(octets, micros);
            assert!(bound.abs_diff(expected) < expected / 20, "{octets} in {micros} us: {bound}");
        }
    }

    #[test]
    fn passes_that_send_little_say_nothing() {
        assert_eq!(paced(LEAST_OCTETS / 2, 1000), MOST_OCTETS);
    }

    /// After some slow passes, passes become long again, whatever the size of segments, and with trains or without.
    #[test]
    fn passes_recover_from_slow_moments() {
        for unit in [1448, 17_376, 8948, 17_896, 4060] {
            let mut pace = Pace::default();
            let mut now = Time::ZERO;
            for pass in 0..200 {
                pace.in_company(now);
                let bound = pace.octets(now).expect("there is company").min(64 << 10);
                pace.sent(now, (bound / unit).max(1) * unit);
                now += Duration::from_micros(if pass < 100 { 500 } else { 1 });
                pace.measure(|| now);
            }
            let bound = pace.octets(now).expect("there is company");
            assert!(bound > 48 << 10, "{unit}: {bound}");
        }
    }

    #[test]
    fn without_company_there_is_no_bound() {
        let mut pace = Pace::default();
        assert_eq!(pace.octets(Time::ZERO), None);
        let now = Time::ZERO + Duration::from_millis(1);
        pace.in_company(now);
        assert_eq!(pace.octets(now), Some(MOST_OCTETS));
        assert_eq!(pace.octets(now + COMPANY), None);
    }
}
