//! SYN cookies (RFC 4987 §3.6). When there is no room for another half-open connection, the SYN-ACK itself carries
//! the state, and the peer's ACK brings it back.
//!
//! The sequence number of the SYN-ACK has two bits of time, three bits that select an MSS, and 27 bits of a keyed
//! hash of these and of the addresses. Another hash masks all these bits. A blind ACK hits with probability 2⁻²⁸. If
//! the peer has timestamps, the lowest bits of our timestamp hold window scale and SACK. Without timestamps, window
//! scale and SACK are not used.

use crate::secret::{Purpose, Secret};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::SynOptions;
use core::net::SocketAddr;
use core::time::Duration;

/// Tick of a cookie's clock. Cookies of the present tick and of the one before are valid.
const TICK: Duration = Duration::from_secs(64);
/// Time during which a cookie may come back after the last one was sent.
pub(crate) const LIFETIME: Duration = Duration::from_secs(2 * TICK.as_secs());
/// The possible values of the MSS. The peer's is rounded down to one of these; a smaller one counts as the least.
const MSS: [u16; 8] = [216, 536, 1220, 1360, 1440, 1460, 4036, 8960];
const MAC_BITS: u32 = 27;
/// Bits of a timestamp that hold options: four for window scale, one for SACK.
const OPTIONS: u32 = (1 << 5) - 1;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;

/// The connection that a cookie is for.
pub(crate) struct Cookies<'a> {
    pub secret: &'a Secret,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Sequence number of the peer's SYN.
    pub irs: Seq,
}

impl Cookies<'_> {
    fn hash(&self, what: u64) -> u32 {
        let extra = u64::from(self.irs.0) << 32 | what;
        self.secret.of_connection_and(self.local, self.remote, Purpose::SynCookie, extra) as u32
    }

    fn bake(&self, tick: u64, mss: u32) -> u32 {
        let data = (tick as u32 & 3) << 3 | mss;
        let mac = self.hash(1 << 31 | (tick << 3 | u64::from(mss)) & 0x7fff_ffff) >> (32 - MAC_BITS);
        (data << MAC_BITS | mac) ^ self.hash(0)
    }

    /// Returns an initial sequence number that holds the peer's MSS.
    pub fn number(&self, now: Time, mss: u16) -> Seq {
        let index = MSS.iter().rposition(|&m| m <= mss).unwrap_or(0);
        Seq(self.bake(tick(now), index as u32))
    }

    /// Returns the MSS that a number holds; `None` unless the number was sent recently.
    pub fn check(&self, now: Time, number: Seq) -> Option<u16> {
        let data = (number.0 ^ self.hash(0)) >> MAC_BITS;
        let index = data & 7;
        let now = tick(now);
        let tick = (now.saturating_sub(1)..=now).find(|t| *t as u32 & 3 == data >> 3)?;
        (self.bake(tick, index) == number.0).then(|| MSS[index as usize & 7])
    }
}

fn tick(now: Time) -> u64 {
    now.as_millis() / TICK.as_millis() as u64
}

/// Returns our timestamp with the peer's options in its lowest bits. It is at most 31 ms behind the clock.
pub(crate) fn timestamp(clock: u32, peer: &SynOptions) -> u32 {
    let scale = peer.window_scale.map_or(NO_SCALE, |s| u32::from(s.min(14)));
    let options = scale | if peer.sack_permitted { SACK } else { 0 };
    let value = clock & !OPTIONS | options;
    // Never ahead of the clock, because later timestamps must not be smaller.
    if value > clock { value.wrapping_sub(OPTIONS + 1) } else { value }
}

/// Returns the options that an echoed timestamp holds.
pub(crate) fn options(echo: u32, mss: u16) -> SynOptions {
    let scale = echo & NO_SCALE;
    SynOptions {
        mss: Some(mss),
        window_scale: (scale != NO_SCALE).then_some(scale as u8),
        sack_permitted: echo & SACK != 0,
        ecn: false,
    }
}

#[cfg(test)]
mod tests;
