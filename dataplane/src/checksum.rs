//! Internet checksums of whole frames, for frames that leave the links on which checksums may stay unfilled.

use std::ops::Range;

#[cfg(test)]
mod tests;

const ETHERNET: usize = 14;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Computes the TCP or UDP checksum of an IPv4 frame and writes it into its field. A frame of another kind, a fragment,
/// and one that is cut short stay as they are.
pub fn fill_checksum(frame: &mut [u8]) {
    let Some((segment, field)) = places(frame) else { return };
    let pseudo_header = frame.get(ETHERNET + 12..ETHERNET + 20).map_or(0, sum);
    let (protocol, length) = (u64::from(frame[ETHERNET + 9]), segment.len() as u64);
    let Some(place) = frame.get_mut(field..field + 2) else { return };
    place.fill(0);
    let checksum = !fold(pseudo_header + protocol + length + frame.get(segment).map_or(0, sum));
    // RFC 768: all ones stand for a UDP checksum of zero. To TCP the two are the same.
    let checksum = if checksum == 0 && protocol == u64::from(UDP) { 0xffff } else { checksum };
    if let Some(place) = frame.get_mut(field..field + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Where the segment is, and its checksum.
fn places(frame: &[u8]) -> Option<(Range<usize>, usize)> {
    let ip = frame.get(ETHERNET..).filter(|ip| ip.len() >= 20)?;
    if frame.get(12..ETHERNET)? != [0x08, 0x00] || ip[0] >> 4 != 4 {
        return None;
    }
    let header = usize::from(ip[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    let at = match ip[9] {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let whole = header >= 20 && total <= ip.len() && header + at + 2 <= total && fragment == 0;
    whole.then_some((ETHERNET + header..ETHERNET + total, ETHERNET + header + at))
}

/// The sum of big-endian words, not folded; a last odd octet counts as the upper half of one.
fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<2>();
    words.iter().map(|w| u64::from(u16::from_be_bytes(*w))).sum::<u64>()
        + last.first().map_or(0, |&b| u64::from(b) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
