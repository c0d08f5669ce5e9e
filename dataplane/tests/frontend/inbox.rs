//! The receive ring of a peer: the buffers that it offers to the port, and the frames that it finds in them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};

use super::peer::{GUEST, MRG_RXBUF, Peer, ring};

/// The peer's ring for frames from the port.
pub const INBOX: u32 = 0;
/// Length of the header before each frame.
pub const HEADER: usize = 12;
const BUFFERS: usize = 640 << 10;
const BUFFER: usize = 4096;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const NO_INTERRUPT: u16 = 1;

/// What the peer knows of its receive ring.
#[derive(Debug, Default)]
pub struct Inbox {
    /// The ring, one of the even ones.
    pub index: u32,
    /// Number of chains offered, modulo 2^16.
    pub offers: u16,
    /// Number of chains that the peer has found used, modulo 2^16.
    pub found: u16,
    next: u16,
    /// The offered chains: the first descriptor of each, and the places of its buffers.
    chains: VecDeque<(u16, Vec<(usize, usize)>)>,
}

impl Inbox {
    /// Returns the state of ring `index`, in which `offers` chains were offered and used.
    pub fn of(index: u32, offers: u16) -> Self {
        Inbox { index, offers, found: offers, ..Inbox::default() }
    }
}

/// A frame that the peer has found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub header: [u8; HEADER],
    pub octets: Vec<u8>,
    /// How many octets of each chain were written.
    pub written: Vec<u32>,
}

impl Peer {
    fn word(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: within the memory, and aligned.
        unsafe { AtomicU16::from_ptr(self.at.add(offset).cast().as_ptr()) }
    }

    /// Offers a chain of buffers of these lengths.
    pub fn lend(&mut self, lens: &[usize]) {
        let [descriptors, available, _] = ring(self.inbox.index);
        let first = self.inbox.next % self.size;
        let mut places = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            let (index, next) = (self.inbox.next % self.size, (self.inbox.next + 1) % self.size);
            let at = BUFFERS + BUFFER * usize::from(index);
            assert!(len <= BUFFER);
            self.write(at, &[0xaa; BUFFER]);
            let flags = if i + 1 < lens.len() { WRITE | NEXT } else { WRITE };
            let words = [GUEST + at as u64, len as u64 | u64::from(flags) << 32 | u64::from(next) << 48];
            self.write(descriptors + 16 * usize::from(index), &words.map(u64::to_le_bytes).concat());
            places.push((at, len));
            self.inbox.next = next;
        }
        self.inbox.chains.push_back((first, places));
        let slot = usize::from(self.inbox.offers % self.size);
        self.write(available + 4 + 2 * slot, &first.to_le_bytes());
        self.inbox.offers = self.inbox.offers.wrapping_add(1);
        self.word(available + 2).store(self.inbox.offers, Ordering::Release);
    }

    /// Returns how many chains of the receive ring the port has used.
    pub fn filled(&self) -> u16 {
        self.word(ring(self.inbox.index)[2] + 2).load(Ordering::Acquire)
    }

    /// Says whether the peer wants notifications about a ring.
    pub fn want_notifications(&self, index: u32, wants: bool) {
        self.word(ring(index)[1]).store(if wants { 0 } else { NO_INTERRUPT }, Ordering::SeqCst);
    }

    /// Returns whether the peer was notified since it last asked.
    pub fn was_notified(&self) -> bool {
        use std::os::fd::{AsFd, AsRawFd};
        let mut poll = libc::pollfd { fd: self.call.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives meanwhile.
        let is_there = unsafe { libc::poll(&raw mut poll, 1, 0) } == 1;
        if is_there {
            self.call.read().expect("a count");
        }
        is_there
    }

    /// Takes the next chain that was used: its octets, and how many were written.
    fn chain(&mut self) -> Option<(Vec<u8>, u32)> {
        if self.filled() == self.inbox.found {
            return None;
        }
        let slot = usize::from(self.inbox.found % self.size);
        // SAFETY: within the memory.
        let [chain, written] = unsafe {
            self.at.add(ring(self.inbox.index)[2] + 4 + 8 * slot).cast::<[u32; 2]>().as_ptr().read_volatile()
        };
        self.inbox.found = self.inbox.found.wrapping_add(1);
        let (first, places) = self.inbox.chains.pop_front().expect("no more chains than were offered");
        assert_eq!(chain, u32::from(first), "chains are used in order");
        let mut octets = Vec::new();
        for (at, len) in places {
            // SAFETY: within the memory, which the port no longer writes.
            octets.extend_from_slice(unsafe { std::slice::from_raw_parts(self.at.add(at).as_ptr(), len) });
        }
        let beyond = octets.split_off((written as usize).min(octets.len()));
        assert!(beyond.iter().all(|octet| *octet == 0xaa), "nothing is written behind a frame");
        Some((octets, written))
    }

    /// Takes the next frame; `None` if there is none.
    pub fn found(&mut self) -> Option<Found> {
        let (mut octets, first) = self.chain()?;
        let mut written = vec![first];
        while octets.len() < HEADER {
            let (more, n) = self.chain().expect("all of the header");
            octets.extend(more);
            written.push(n);
        }
        let frame = octets.split_off(HEADER);
        let header: [u8; HEADER] = octets.try_into().expect("a header");
        let chains = u16::from_le_bytes([header[10], header[11]]);
        let mut octets = frame;
        // The driver leaves the field as it is where it is not used.
        let is_used = self.features & MRG_RXBUF != 0 || chains != 0xaaaa;
        let chains = if is_used { chains } else { 1 };
        assert!(chains == 1 || self.features & MRG_RXBUF != 0);
        while written.len() < chains.into() {
            let (more, n) = self.chain().expect("all chains of the frame");
            octets.extend(more);
            written.push(n);
        }
        Some(Found { header, octets, written })
    }
}
