//! Numbers that an attacker cannot guess: initial sequence numbers, ports, timestamp offsets and hash keys.

use core::net::{IpAddr, SocketAddr};

/// A key and a counter for a keyed pseudo-random function.
#[derive(Clone, Debug)]
pub struct Secret {
    k0: u64,
    k1: u64,
    counter: u64,
}

impl Secret {
    /// Derives the keys from `seed`.
    pub fn new(seed: u64) -> Self {
        let k0 = siphash(seed, 0x6b65_7920_6f6e_6521, &[1]);
        let k1 = siphash(seed, 0x6b65_7920_7477_6f21, &[2]);
        Secret { k0, k1, counter: 0 }
    }

    /// Returns the next number of an unpredictable sequence.
    pub fn random(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        siphash(self.k0, self.k1, &[0, self.counter])
    }

    /// Returns a number below `n`; zero if `n` is zero.
    pub fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.random()) * u128::from(n)) >> 64) as u32
    }

    /// Returns a number that depends on both ends of a connection and on `purpose`: F() of RFC 6528 §3.
    pub(crate) fn of_connection(&self, local: SocketAddr, remote: SocketAddr, purpose: Purpose) -> u64 {
        self.of_connection_and(local, remote, purpose, 0)
    }

    /// Like `of_connection`, but the number depends on one more number.
    pub(crate) fn of_connection_and(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        purpose: Purpose,
        extra: u64,
    ) -> u64 {
        let ports = u64::from(local.port()) << 16 | u64::from(remote.port());
        match (local.ip(), remote.ip()) {
            (IpAddr::V4(l), IpAddr::V4(r)) => {
                let addresses = u64::from(l.to_bits()) << 32 | u64::from(r.to_bits());
                siphash(self.k0, self.k1, &[purpose as u64, addresses, ports, extra])
            }
            (l, r) => {
                let bits = |ip: IpAddr| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                    IpAddr::V6(ip) => ip.to_bits(),
                };
                let (l, r) = (bits(l), bits(r));
                let halves = [(l >> 64) as u64, l as u64, (r >> 64) as u64, r as u64];
                let [l0, l1, r0, r1] = halves;
                siphash(self.k0, self.k1, &[purpose as u64, l0, l1, r0, r1, ports, extra])
            }
        }
    }
}

/// Separates the uses of one key.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    InitialSequence = 1,
    TimestampOffset = 2,
    SynCookie = 3,
}

/// Computes SipHash-2-4 of whole words.
fn siphash(k0: u64, k1: u64, words: &[u64]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    for &m in words.iter().chain(core::iter::once(&((words.len() as u64) << 59))) {
        v[3] ^= m;
        round(&mut v);
        round(&mut v);
        v[0] ^= m;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests;
