//! Numbers for pairs of IPv6 addresses, ours and a peer's, that are short enough for a [`Key`].
//!
//! A key has a field for one IPv4 address. For IPv6, this field holds the number of a pair, written as an address of
//! `0.0.0.0/8`, which no host has. A pair is kept while the stack's table has keys that name it, and after that until
//! the next `collect`.

use crate::table::{Hashed, Key, Table};
use core::net::Ipv6Addr;

/// Bits of a pair's number.
const NUMBER: u32 = 24;
/// IP protocol number of TCP.
const TCP: u32 = 6;

/// A local and a remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    local: u128,
    remote: u128,
}

impl Hashed for Pair {
    const NONE: Self = Pair { local: 0, remote: 0 };

    #[inline]
    fn word(self, k0: u64, k1: u64) -> u64 {
        let mix = |a: u128, k: u64| {
            let wide = u128::from(a as u64 ^ k) * u128::from((a >> 64) as u64 ^ k.rotate_left(32) ^ k1);
            (wide as u64) ^ ((wide >> 64) as u64)
        };
        // A product with a zero factor would lose the other factor. So the lower word of the remote address, which a
        // peer chooses, also enters the hash on its own.
        mix(self.remote, k0) ^ mix(self.local, k1).rotate_left(17) ^ (self.remote as u64).rotate_left(7) ^ k0
    }
}

/// A pair of addresses, and values computed from it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub local: Ipv6Addr,
    pub remote: Ipv6Addr,
    /// Sum of both addresses and of TCP's protocol number, for the pseudo-header.
    pub sum: u32,
    /// Both addresses are ours.
    pub own: bool,
    salt: u64,
    refs: u32,
}

impl Path {
    /// Returns the flow label of a connection. It is the same for all packets of the connection, differs between
    /// connections and is hard to guess (RFC 6437).
    #[inline]
    pub fn label(&self, key: Key) -> u32 {
        let mixed = (key.0 ^ self.salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 44) as u32
    }
}

/// All pairs in use.
pub(crate) struct Paths {
    entries: Vec<Path>,
    vacant: Vec<u32>,
    index: Table<Pair>,
    /// Pairs that may no longer be in use.
    idle: Vec<u32>,
    salt: u64,
}

impl Paths {
    pub fn new(k0: u64, k1: u64) -> Self {
        Paths {
            entries: Vec::new(),
            vacant: Vec::new(),
            index: Table::new(k0, k1),
            idle: Vec::new(),
            salt: k0 ^ k1.rotate_left(23),
        }
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&Path> {
        self.entries.get(number as usize)
    }

    /// Returns the number of a pair; `None` if it has none.
    #[inline]
    pub fn find(&self, local: Ipv6Addr, remote: Ipv6Addr) -> Option<u32> {
        self.index.get(Pair { local: local.to_bits(), remote: remote.to_bits() })
    }

    /// Returns the number of a pair, and assigns one if it has none. The number stays valid until `collect`, or
    /// longer while a key holds it. `None`: all numbers are taken.
    pub fn intern(&mut self, local: Ipv6Addr, remote: Ipv6Addr, own: bool) -> Option<u32> {
        if let Some(number) = self.find(local, remote) {
            return Some(number);
        }
        let path = Path { local, remote, sum: sum(local) + sum(remote) + TCP, own, salt: self.salt, refs: 0 };
        let number = match self.vacant.pop() {
            Some(number) => {
                *self.entries.get_mut(number as usize)? = path;
                number
            }
            None if self.entries.len() < 1 << NUMBER => {
                self.entries.push(path);
                self.entries.len() as u32 - 1
            }
            None => return None,
        };
        self.index.insert(Pair { local: local.to_bits(), remote: remote.to_bits() }, number);
        self.idle.push(number);
        Some(number)
    }

    /// Notes one more key with this pair.
    pub fn hold(&mut self, number: u32) {
        if let Some(p) = self.entries.get_mut(number as usize) {
            p.refs += 1;
        }
    }

    /// Notes that one key with this pair is gone.
    pub fn release(&mut self, number: u32) {
        if let Some(p) = self.entries.get_mut(number as usize) {
            p.refs = p.refs.saturating_sub(1);
            if p.refs == 0 {
                self.idle.push(number);
            }
        }
    }

    /// Returns the number of pairs that may no longer be in use.
    #[inline]
    pub fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Removes pairs that are no longer in use.
    pub fn collect(&mut self) {
        while let Some(number) = self.idle.pop() {
            let Some(p) = self.entries.get(number as usize).filter(|p| p.refs == 0) else { continue };
            let pair = Pair { local: p.local.to_bits(), remote: p.remote.to_bits() };
            // A pair may be in `idle` twice; the second time it has been removed already.
            if self.index.get(pair) == Some(number) {
                self.index.remove(pair);
                self.vacant.push(number);
            }
        }
    }

    /// Returns the number of pairs.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }
}

/// Returns the sum of an address's 16-bit words, not folded.
pub(crate) fn sum(address: Ipv6Addr) -> u32 {
    address.segments().iter().map(|&w| u32::from(w)).sum()
}

#[cfg(test)]
mod tests;
