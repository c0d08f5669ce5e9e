//! Records that wait to be handed to the kernel. They consist of our own octets, with pieces of the program's memory
//! between them.

use std::collections::VecDeque;
use std::ops::Range;

use super::socket::Socket;
use crate::drive::draft::Draft;

/// Maximum number of our own octets in a record that is under construction.
pub(super) const CAPACITY: usize = 64 << 10;
/// Maximum number of pieces that are handed to the kernel at once (`UIO_MAXIOV` is 1,024).
const PIECES: usize = 256;
/// Number of records that are kept for reuse.
const SPARE: usize = 64;

/// A record that is under construction or waits to be sent.
pub struct Record {
    octets: Box<[u8]>,
    used: usize,
    /// Pieces of the program's memory, in order.
    lent: Vec<Lent>,
    lent_octets: usize,
}

/// A piece of the program's memory in a record.
struct Lent {
    /// Number of our own octets before the piece.
    behind: usize,
    /// Address of the piece.
    at: usize,
    len: usize,
}

impl Record {
    fn new() -> Self {
        Self { octets: vec![0; CAPACITY].into(), used: 0, lent: Vec::new(), lent_octets: 0 }
    }

    /// Appends `len` octets at `at` without copying them.
    pub(super) fn lend(&mut self, at: *const u8, len: usize) {
        self.lent.push(Lent { behind: self.used, at: at.addr(), len });
        self.lent_octets += len;
    }

    /// Calls `f` with the record's pieces in order, as address and length.
    fn pieces(&self, mut f: impl FnMut(*const u8, usize)) {
        let mut from = 0;
        for lent in &self.lent {
            if lent.behind > from {
                f(self.octets[from..lent.behind].as_ptr(), lent.behind - from);
            }
            f(std::ptr::with_exposed_provenance(lent.at), lent.len);
            from = lent.behind;
        }
        if self.used > from {
            f(self.octets[from..self.used].as_ptr(), self.used - from);
        }
    }

    /// Copies all octets of the record if any lent piece overlaps `range` (addresses). The record then no longer
    /// refers to the program's memory.
    fn take_back(&mut self, range: &Range<usize>) {
        let concerned = |lent: &Lent| lent.at < range.end && range.start < lent.at + lent.len;
        if !self.lent.iter().any(concerned) {
            return;
        }
        let mut octets = Vec::with_capacity(self.len());
        self.pieces(|at, len| {
            let start = octets.len();
            octets.resize(start + len, 0);
            // SAFETY: there is room for `len` octets. They are our own, or the lender guarantees that they are
            // readable.
            unsafe { std::ptr::copy_nonoverlapping(at, octets[start..].as_mut_ptr(), len) };
        });
        (self.used, self.lent_octets) = (octets.len(), 0);
        self.octets = octets.into();
        self.lent.clear();
    }
}

impl Draft for Record {
    #[inline]
    fn len(&self) -> usize {
        self.used + self.lent_octets
    }

    #[inline]
    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let at = self.used;
        let room = self.octets.get_mut(at..at + n)?;
        self.used += n;
        Some(room)
    }

    fn truncate(&mut self, len: usize) {
        while let Some(excess @ 1..) = self.len().checked_sub(len) {
            match self.lent.last_mut() {
                Some(last) if last.behind == self.used => {
                    let cut = excess.min(last.len);
                    last.len -= cut;
                    self.lent_octets -= cut;
                    if last.len == 0 {
                        self.lent.pop();
                    }
                }
                last => {
                    let behind = last.map_or(0, |last| last.behind);
                    self.used = behind.max(self.used.saturating_sub(excess));
                }
            }
        }
    }
}

/// Empty records for reuse, so that sending need not allocate.
#[derive(Default)]
pub(super) struct Spare(Vec<Record>);

impl Spare {
    pub(super) fn take(&mut self) -> Record {
        self.0.pop().unwrap_or_else(Record::new)
    }

    fn give(&mut self, mut record: Record) {
        if self.0.len() < SPARE && record.octets.len() == CAPACITY {
            (record.used, record.lent_octets) = (0, 0);
            record.lent.clear();
            self.0.push(record);
        }
    }
}

/// The records of one connection, in order. A record leaves the queue when the kernel has taken all of it.
#[derive(Default)]
pub(super) struct Queue {
    records: VecDeque<Record>,
    octets: usize,
    /// How many octets of the first record the kernel has taken.
    gone: usize,
}

impl Queue {
    pub(super) fn push(&mut self, record: Record) {
        self.octets += record.len();
        self.records.push_back(record);
    }

    /// Returns the number of queued octets.
    #[inline]
    pub(super) fn octets(&self) -> usize {
        self.octets
    }

    pub(super) fn is_empty(&self) -> bool {
        self.octets == 0
    }

    /// Hands the queued octets to the kernel, as far as the kernel takes them. Returns the number of octets that the
    /// kernel took, and the error, if any, that followed.
    pub(super) fn send(
        &mut self,
        socket: &Socket,
        pieces: &mut Pieces,
        spare: &mut Spare,
    ) -> (usize, Option<std::io::Error>) {
        let mut sent = 0;
        while self.octets > 0 {
            let offered = pieces.gather(&self.records, self.gone);
            // SAFETY: the pieces are our own octets, or memory that the lender guarantees to be readable.
            let taken = match unsafe { socket.send(&pieces.0) } {
                Ok(taken) => taken,
                Err(error) => return (sent, Some(error)),
            };
            sent += taken;
            self.took(taken, spare);
            if taken < offered {
                break;
            }
        }
        (sent, None)
    }

    /// Notes that the kernel has taken `n` octets.
    fn took(&mut self, n: usize, spare: &mut Spare) {
        self.octets -= n;
        self.gone += n;
        while let Some(first) = self.records.front()
            && self.gone >= first.len()
        {
            self.gone -= first.len();
            if let Some(record) = self.records.pop_front() {
                spare.give(record);
            }
        }
    }

    /// Copies the queued records that refer to memory within `range` (addresses).
    pub(super) fn take_back(&mut self, range: &Range<usize>) {
        self.records.iter_mut().for_each(|record| record.take_back(range));
    }

    /// Drops all queued records.
    pub(super) fn clear(&mut self, spare: &mut Spare) {
        self.records.drain(..).for_each(|record| spare.give(record));
        (self.octets, self.gone) = (0, 0);
    }
}

/// A list of pieces of memory for a call to the kernel. The list is reused, so that calls need not allocate.
#[derive(Default)]
pub(super) struct Pieces(Vec<libc::iovec>);

// SAFETY: the addresses in the list are used only in the call that has put them there.
unsafe impl Send for Pieces {}

impl Pieces {
    /// Makes a list of the pieces of `records`, without the first `skip` octets. Returns the number of octets in the
    /// list.
    fn gather(&mut self, records: &VecDeque<Record>, mut skip: usize) -> usize {
        self.0.clear();
        let mut all = 0;
        for record in records {
            record.pieces(|at, len| {
                let skipped = skip.min(len);
                skip -= skipped;
                if len > skipped && self.0.len() < PIECES {
                    let iov_base = at.wrapping_add(skipped).cast_mut().cast();
                    self.0.push(libc::iovec { iov_base, iov_len: len - skipped });
                    all += len - skipped;
                }
            });
            if self.0.len() >= PIECES {
                break;
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the record's octets.
    fn octets(record: &Record) -> Vec<u8> {
        let mut octets = Vec::new();
        // SAFETY: the pieces are our own octets, or those of an array that outlives the record.
        record.pieces(|at, len| octets.extend_from_slice(unsafe { std::slice::from_raw_parts(at, len) }));
        octets
    }

    #[test]
    fn a_cut_may_lie_anywhere() {
        let lent = *b"cdef";
        for len in 0..=9 {
            let mut record = Record::new();
            record.append(2).unwrap().copy_from_slice(b"ab");
            record.lend(lent.as_ptr(), 4);
            record.append(1).unwrap().copy_from_slice(b"g");
            record.lend(lent.as_ptr(), 1);
            record.truncate(len);
            assert_eq!(octets(&record), b"abcdefgc"[..len.min(8)], "{len}");
            assert_eq!(record.len(), len.min(8));
            record.append(1).unwrap().copy_from_slice(b"h");
            assert_eq!(octets(&record)[len.min(8)..], *b"h");
        }
    }
}
