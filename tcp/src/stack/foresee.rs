//! Prefetches the memory that a burst of frames will need.

use super::*;
use crate::wire::{ETHERNET, IPV4};
use arrayvec::ArrayVec;
use core::net::Ipv6Addr;

/// Number of connections from which on prefetching pays: fewer are in the CPU cache anyway.
const CROWD: usize = 256;
/// Octets of an IPv6 header.
const IPV6: usize = 40;
/// Number of frames of a burst, from its start, for which memory is prefetched.
const MOST: usize = 64;
/// Octets of an IPv4 frame without data, with the timestamps option. Longer frames probably carry data. All IPv6 frames
/// are longer, so their bare ACKs count as data too; this costs only needless prefetches.
const BARE_ACK: usize = ETHERNET + IPV4 + 32;
/// Octets of a connection's cold part that a lone segment and its ACK need.
const HOT_PART_OF_COLD: usize = 7 * 64;
/// Octets at the place of a payload that are read when it is dropped.
const LINE: usize = 64;

/// Tags of connections: the numbers that the user gave them and that their events carry.
pub type Tags = ArrayVec<u64, MOST>;

impl<B: Buffers> Stack<B> {
    /// Prefetches memory for the frames that [`receive_burst`](Self::receive_burst) will take next, if there
    /// are several of them and many connections. Fetches the table's entries for all frames together, then the
    /// connections, then the cold parts of the connections that await an ACK, then the records and payloads that bare
    /// ACKs probably release. Returns the tags of the connections for which data may come; none if nothing was
    /// fetched. Changes nothing; the call is optional. See [`Buffers::prefetch`].
    #[inline]
    pub fn foresee(&self, burst: &[B::Frame]) -> Tags {
        if self.has_crowd() && burst.len() > 1 { self.fetch(burst) } else { Tags::new() }
    }

    /// Returns whether there are so many connections that prefetching them pays.
    #[inline]
    pub fn has_crowd(&self) -> bool {
        self.connections.len() >= CROWD
    }

    fn fetch(&self, burst: &[B::Frame]) -> Tags {
        let mut keys = ArrayVec::<(Key, bool), MOST>::new();
        for frame in burst.iter().take(MOST) {
            if let Some(key) = expected_v4(frame.bytes()).or_else(|| self.expected_v6(frame.bytes())) {
                let place = self.table.place(key);
                fetch::<B, _>(place);
                keys.push((key, frame.len() > BARE_ACK));
            }
        }
        let mut found = ArrayVec::<(u32, bool), MOST>::new();
        for &(key, data) in &keys {
            if let Some(Place::Connection(i)) = self.table.get(key).map(Place::unpack)
                && let Some(place) = self.connections.place(i)
            {
                fetch::<B, _>(place);
                found.push((i, data));
            }
        }
        let (mut tags, mut acked) = (Tags::new(), ArrayVec::<&Connection<B>, MOST>::new());
        for &(i, data) in &found {
            let Some(c) = self.connections.get(i) else { continue };
            if c.outstanding() > 0 {
                B::prefetch((&raw const *c.cold).cast(), HOT_PART_OF_COLD);
            }
            if data {
                tags.push(c.tag);
            } else {
                acked.push(c);
            }
        }
        for c in &acked {
            fetch_first_places(c);
        }
        for c in &acked {
            if let Some(place) = c.cold.queue.front().and_then(Payload::place) {
                B::prefetch(place, LINE);
            }
        }
        tags
    }

    /// Prefetches the state of connections on which the user is about to send.
    pub fn foresee_output(&self, conns: &[ConnId]) {
        let found = || conns.iter().filter_map(|conn| self.connections.get(conn.index));
        for place in conns.iter().filter_map(|conn| self.connections.place(conn.index)) {
            fetch::<B, _>(place);
        }
        for c in found() {
            B::prefetch((&raw const *c.cold).cast(), HOT_PART_OF_COLD);
        }
        found().for_each(fetch_first_places);
    }

    fn expected_v6(&self, frame: &[u8]) -> Option<Key> {
        let h: &[u8; ETHERNET + IPV6 + 4] = frame.first_chunk()?;
        let [from, to] = [22, 38].map(|at| h.get(at..).and_then(|a| a.first_chunk()).copied());
        if [h[12], h[13], h[20]] != [0x86, 0xdd, PROTO_TCP] {
            return None;
        }
        let path = self.net.paths.find(Ipv6Addr::from(to?), Ipv6Addr::from(from?))?;
        Some(Key::v6(path, u16::from_be_bytes([h[54], h[55]]), u16::from_be_bytes([h[56], h[57]])))
    }
}

/// Prefetches the oldest entries of what a connection has queued and sent.
#[inline]
fn fetch_first_places<B: Buffers>(c: &Connection<B>) {
    for (place, octets) in [c.cold.queue.first_place(), c.cold.scoreboard.first_place()] {
        B::prefetch(place, octets);
    }
}

fn fetch<B: Buffers, T>(what: &T) {
    B::prefetch(core::ptr::from_ref(what).cast(), size_of::<T>());
}

/// Returns the key of the connection to which a TCP frame over IPv4 without IP options seems to belong. Does not
/// validate the headers. `None` for other frames.
fn expected_v4(frame: &[u8]) -> Option<Key> {
    let h: &[u8; ETHERNET + IPV4 + 4] = frame.first_chunk()?;
    let usual = [h[12], h[13], h[14], h[23]] == [0x08, 0x00, 0x45, PROTO_TCP];
    let ip = u32::from_be_bytes([h[26], h[27], h[28], h[29]]);
    let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    usual.then(|| Key::new(ip, port(34), port(36)))
}
