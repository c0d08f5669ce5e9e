//! In-order octets that the handler has not taken yet. They are acknowledged and count against the receive window
//! (RFC 9293 §3.8.6).

use core::ops::Range;
use std::collections::VecDeque;

/// Received frames that wait for the handler, in order. Takes one word while there are none.
#[derive(Debug)]
pub(crate) struct Parked<F>(Option<Box<Frames<F>>>);

#[derive(Debug)]
struct Frames<F> {
    /// Each frame with the range of its waiting octets, which is never empty.
    frames: VecDeque<(F, Range<usize>)>,
    octets: u32,
}

impl<F> Default for Parked<F> {
    fn default() -> Self {
        Parked(None)
    }
}

impl<F> Parked<F> {
    /// Returns whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of waiting frames.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |p| p.frames.len())
    }

    /// Returns the number of waiting octets.
    pub fn octets(&self) -> u32 {
        self.0.as_ref().map_or(0, |p| p.octets)
    }

    /// Adds octets after all others.
    pub fn push(&mut self, frame: F, range: Range<usize>) {
        let p = self.get_or_insert();
        p.octets += range.len() as u32;
        p.frames.push_back((frame, range));
    }

    /// Puts back what [`pop`](Self::pop) returned, or the rest of it.
    pub fn push_front(&mut self, frame: F, range: Range<usize>) {
        let p = self.get_or_insert();
        p.octets += range.len() as u32;
        p.frames.push_front((frame, range));
    }

    /// Takes the next octets; `None` if none wait.
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
