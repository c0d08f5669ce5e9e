//! Several stacks that act as one host, each on a queue of the port. A frame may reach any of them.
//!
//! All stacks of a device compute the same owner of a connection from its addresses, so there is no directory. If a
//! segment belongs to no connection that the stack knows, and another stack owns its addresses, the stack hands the
//! segment to that owner. Only the owner answers with a RST. Messages of neighbours and routers concern all stacks, and
//! only the first stack speaks for the host.

use crate::buffers::Frame;
use crate::ipv6;
use crate::sabotage::{Rule, broken};
use crate::secret::Secret;
use crate::wire::{self, PROTO_TCP, TYPE_IPV4, TYPE_IPV6, TYPE_TAG};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Most stacks of a device.
pub const MAX_STACKS: usize = 64;

/// A stack's place among the stacks of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    number: u8,
    stacks: u8,
    k0: u64,
    k1: u64,
    nic: Option<Toeplitz>,
}

/// The Toeplitz hash of a NIC, with a key that repeats 16 bits. Entry `n` of the NIC's table leads to queue `n`
/// modulo the number of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Toeplitz {
    key: u16,
    /// Bits of the hash that select an entry.
    mask: u16,
}

impl Steering {
    /// The place of a stack that is the only one of its device.
    pub const ALONE: Steering = Steering { number: 0, stacks: 1, k0: 0, k1: 0, nic: None };

    /// Returns the place of stack `number` of `stacks`; `None` if there is no such place. All stacks of a device use
    /// the same `secret`.
    pub fn new(number: usize, stacks: usize, secret: u64) -> Option<Self> {
        if number >= stacks || stacks > MAX_STACKS {
            return None;
        }
        let mut secret = Secret::new(secret ^ 0x0073_7465_6572);
        Some(Steering {
            number: number as u8,
            stacks: stacks as u8,
            k0: secret.random(),
            k1: secret.random() | 1,
            nic: None,
        })
    }

    /// Returns the place of stack `number` of `stacks` without a secret, so that both ends of a link agree. This is for
    /// links that deliver a frame to the stack with the number of the sending stack. Then no stack hands a frame over,
    /// if both devices have equally many stacks. A peer can direct all of its connections to one stack. Returns `None`
    /// as [`new`](Self::new) does.
    pub fn agreed(number: usize, stacks: usize) -> Option<Self> {
        const KNOWN: u64 = 0x6167_7265_6564;
        Self::new(number, stacks, KNOWN)
    }

    /// Returns the place of stack `number` of `stacks` on a NIC that spreads frames by Toeplitz's hash of both
    /// addresses and TCP ports (RSS). The key of the hash repeats `key`. The NIC's table has `entries` entries, of
    /// which entry `n` leads to queue `n` modulo `stacks`. So a frame arrives at its owner. Both directions of a
    /// connection have the same hash, because every hashed field begins at a multiple of 16 bits. A peer can direct all
    /// of its connections to one stack.
    ///
    /// Returns `None` as [`new`](Self::new) does, and if `entries` is not a power of two up to 65,536.
    pub fn like_nic(number: usize, stacks: usize, key: u16, entries: u32) -> Option<Self> {
        let mask = u16::try_from(entries.checked_sub(1)?).ok().filter(|_| entries.is_power_of_two())?;
        Some(Steering { nic: Some(Toeplitz { key, mask }), ..Self::new(number, stacks, 0)? })
    }

    /// Returns the stack's own number.
    pub fn number(&self) -> usize {
        self.number.into()
    }

    /// Returns the number of stacks.
    pub fn stacks(&self) -> usize {
        self.stacks.into()
    }

    /// Returns whether the stack has the device to itself.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.stacks == 1
    }

    /// Returns the stack that owns the connection between two addresses. The result does not depend on which address
    /// is ours, so a connection of the host with itself has one owner. A peer that does not know the secret cannot
    /// direct its connections to one stack; a NIC's hash has no secret.
    pub fn owner(&self, a: SocketAddr, b: SocketAddr) -> usize {
        if self.is_alone() {
            return 0;
        }
        if let Some(nic) = self.nic {
            return usize::from(nic.entry(a, b)) % self.stacks();
        }
        let (a, b) = (self.word(a), self.word(b));
        let k0 = if broken(Rule::OwnersAgree) { self.k0 ^ u64::from(self.number) } else { self.k0 };
        let mixed = fold(a.min(b) ^ k0, a.max(b) ^ self.k1);
        let hash = fold(mixed ^ self.k1, k0 | 1) >> 32;
        ((hash * u64::from(self.stacks)) >> 32) as usize
    }

    /// Returns the owner of the connection that a frame belongs to, read from the headers without any check. `None`
    /// if the frame is no TCP segment or is a fragment; any stack may get such a frame. A port, real or simulated,
    /// can steer frames by this.
    pub fn owner_of(&self, frame: &[u8]) -> Option<usize> {
        let (kind, at) = match wire::ether_type(frame)? {
            TYPE_TAG => (wire::tagged(frame)?.1, wire::ETHERNET + wire::TAG),
            kind => (kind, wire::ETHERNET),
        };
        let (src, dst, tcp): (IpAddr, IpAddr, usize) = match kind {
            TYPE_IPV4 => {
                let ip: &[u8; wire::IPV4] = frame.get(at..)?.first_chunk()?;
                if ip[9] != PROTO_TCP || u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff != 0 {
                    return None;
                }
                let address = |n: usize| Some(Ipv4Addr::from(*ip.get(n..)?.first_chunk::<4>()?).into());
                (address(12)?, address(16)?, at + usize::from(ip[0] & 0x0f) * 4)
            }
            TYPE_IPV6 => {
                let mut ip = ipv6::parse(&Octets(frame), at)?;
                ipv6::skip_extensions(frame, &mut ip).ok()?;
                if ip.protocol != PROTO_TCP {
                    return None;
                }
                (ip.src.into(), ip.dst.into(), ip.payload.start)
            }
            _ => return None,
        };
        let &[s0, s1, d0, d1] = frame.get(tcp..)?.first_chunk()?;
        let from = SocketAddr::new(src, u16::from_be_bytes([s0, s1]));
        Some(self.owner(from, SocketAddr::new(dst, u16::from_be_bytes([d0, d1]))))
    }

    /// Returns the owner if it is another stack; `None` if it is this one.
    pub(crate) fn other_owner(&self, local: SocketAddr, remote: SocketAddr) -> Option<usize> {
        Some(self.owner(local, remote)).filter(|owner| *owner != self.number())
    }

    /// Returns whether this stack speaks for the host: it claims, announces and defends addresses, answers requests
    /// for them, answers echo requests, and sends ICMP errors.
    pub(crate) fn speaks(&self) -> bool {
        self.number == 0 || broken(Rule::OneSpeaks)
    }

    /// Returns an address and port, mixed into one word.
    fn word(&self, end: SocketAddr) -> u64 {
        let port = u64::from(end.port());
        match end.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()) << 16 | port,
            IpAddr::V6(ip) => {
                let bits = ip.to_bits();
                let high = (bits >> 64) as u64 ^ self.k1.rotate_left(32);
                // The second half also enters on its own, because a product with a zero word would lose it.
                fold(high, bits as u64 ^ self.k0.rotate_left(32)) ^ (bits as u64).rotate_left(23) ^ port << 48
            }
        }
    }
}

impl Toeplitz {
    /// Returns the NIC's table entry for the connection between two addresses.
    ///
    /// Each bit that is set in the input adds the key, rotated to the bit's place. With a key that repeats 16 bits,
    /// only the place modulo 16 matters. So the input is first folded to 16 bits, and both halves of the hash are
    /// equal.
    fn entry(self, a: SocketAddr, b: SocketAddr) -> u16 {
        let folded = folded(a) ^ folded(b);
        let bits = (0..16).filter(|place| folded & (0x8000 >> place) != 0);
        bits.fold(0, |hash, place| hash ^ self.key.rotate_left(place)) & self.mask
    }
}

/// Returns an address and port, folded to 16 bits by exclusive or.
fn folded(end: SocketAddr) -> u16 {
    let address = match end.ip() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    (0..8).fold(end.port(), |sum, word| sum ^ (address >> (16 * word)) as u16)
}

impl Default for Steering {
    fn default() -> Self {
        Steering::ALONE
    }
}

/// A borrowed frame.
struct Octets<'a>(&'a [u8]);

impl Frame for Octets<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// Multiplies, and folds the two halves of the product by exclusive or.
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[cfg(test)]
mod tests;
