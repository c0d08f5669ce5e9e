//! Prefetches the memory that a burst of frames will need.

use super::*;
use crate::wire::{ETHERNET, IPV4};
use arrayvec::ArrayVec;
use core::net::Ipv6Addr;

/// Number of connections below which all of them are in the CPU cache anyway.
const CROWD: usize = 256;
/// Octets of an IPv6 header.
const IPV6: usize = 40;
/// Number of frames of a burst, from its start, for which memory is prefetched.
const MOST: usize = 64;

impl<B: Buffers> Stack<B> {
    /// Prefetches memory for the frames that [`receive`](Self::receive) will be called with next, if there are many
    /// connections. It fetches the table's entries for all of them together, then the connections, then their cold
    /// parts. Changes nothing; the call is optional. See [`Buffers::prefetch`].
    #[inline]
    pub fn foresee(&self, burst: &[B::Frame]) {
        if self.connections.len() >= CROWD && burst.len() > 1 {
            self.fetch(burst);
        }
    }

    fn fetch(&self, burst: &[B::Frame]) {
        let mut keys = ArrayVec::<Key, MOST>::new();
        for frame in burst.iter().take(MOST) {
            if let Some(key) = expected_v4(frame.bytes()).or_else(|| self.expected_v6(frame.bytes())) {
                B::prefetch(self.table.place(key));
                keys.push(key);
            }
        }
        let mut found = ArrayVec::<u32, MOST>::new();
        for key in keys {
            if let Some(Place::Connection(i)) = self.table.get(key).map(Place::unpack)
                && let Some(place) = self.connections.place(i)
            {
                B::prefetch(place);
                found.push(i);
            }
        }
        for i in found {
            if let Some(c) = self.connections.get(i) {
                B::prefetch(&*c.cold);
            }
        }
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

/// Returns the key that a frame's connection probably has. Reads it without any check.
fn expected_v4(frame: &[u8]) -> Option<Key> {
    let h: &[u8; ETHERNET + IPV4 + 4] = frame.first_chunk()?;
    let usual = [h[12], h[13], h[14], h[23]] == [0x08, 0x00, 0x45, PROTO_TCP];
    let ip = u32::from_be_bytes([h[26], h[27], h[28], h[29]]);
    let port = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
    usual.then(|| Key::new(ip, port(34), port(36)))
}
