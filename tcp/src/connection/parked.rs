//! Octets in order that the handler has not taken yet: acknowledged, and counted against the receive window
//! (RFC 9293 §3.8.6).

use core::ops::Range;
use std::collections::VecDeque;

/// Received frames that wait for the handler, in order. One word while there are none.
#[derive(Debug)]
pub(crate) struct Parked<F>(Option<Box<Frames<F>>>);

#[derive(Debug)]
struct Frames<F> {
    /// Each with the range of its octets that waits, never empty.
    frames: VecDeque<(F, Range<usize>)>,
    octets: u32,
}

impl<F> Default for Parked<F> {
    fn default() -> Self {
        Parked(None)
    }
}

impl<F> Parked<F> {
    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |p| p.frames.len())
    }

    /// Octets that wait.
    pub fn octets(&self) -> u32 {
        self.0.as_ref().map_or(0, |p| p.octets)
    }

    /// Adds octets behind all others.
    pub fn push(&mut self, frame: F, range: Range<usize>) {
        let p = self.get_or_insert();
        p.octets += range.len() as u32;
        p.frames.push_back((frame, range));
    }

    /// Puts back what [`pop`](Self::pop) gave, or the rest of it.
    pub fn push_front(&mut self, frame: F, range: Range<usize>) {
        let p = self.get_or_insert();
        p.octets += range.len() as u32;
        p.frames.push_front((frame, range));
    }

    /// Takes the next octets.
    pub fn pop(&mut self) -> Option<(F, Range<usize>)> {
        let p = self.0.as_mut()?;
        let next = p.frames.pop_front();
        p.octets -= next.as_ref().map_or(0, |(_, range)| range.len() as u32);
        if p.frames.is_empty() {
            self.0 = None;
        }
        next
    }

    fn get_or_insert(&mut self) -> &mut Frames<F> {
        self.0.get_or_insert_with(|| Box::new(Frames { frames: VecDeque::new(), octets: 0 }))
    }
}
