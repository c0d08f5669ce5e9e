//! Internet checksums of whole frames. A frame may be made with its checksum unfilled, because the link needs
//! none or the NIC fills it. This module fills it where a right checksum is needed nevertheless, such as in the
//! copy for a capture, and in the copy that is sent if the driver refuses the frame itself.

use std::ops::Range;

use crate::layers::Layers;

#[cfg(test)]
mod tests;

#[cfg(test)]
use crate::layers::ETHERNET;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Computes the TCP or UDP checksum of an IP frame and writes it into its field. Leaves alone frames of other kinds,
/// fragments, and frames that are cut short.
pub fn fill_checksum(frame: &mut [u8]) {
    let Some((layers, segment, field)) = places(frame) else { return };
    let pseudo_header = frame.get(layers.addresses()).map_or(0, sum);
    let (protocol, length) = (u64::from(layers.protocol), segment.len() as u64);
    let Some(place) = frame.get_mut(field..field + 2) else { return };
    place.fill(0);
    let checksum = !fold(pseudo_header + protocol + length + frame.get(segment).map_or(0, sum));
    // RFC 768: a UDP checksum of zero is sent as all ones. For TCP, zero and all ones are equivalent.
    let checksum = if checksum == 0 && protocol == u64::from(UDP) { 0xffff } else { checksum };
    if let Some(place) = frame.get_mut(field..field + 2) {
        place.copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Returns whether the checksum in a header, such as the IPv4 header, is right (RFC 791 §3.1).
pub(crate) fn is_complete(header: &[u8]) -> bool {
    fold(sum(header)) == 0xffff
}

/// Returns the frame's layers, the range of the segment, and the offset of its checksum field.
fn places(frame: &[u8]) -> Option<(Layers, Range<usize>, usize)> {
    let layers = Layers::of(frame)?;
    let at = match layers.protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let end = layers.payload + layers.len;
    let whole = end <= frame.len() && at + 2 <= layers.len;
    whole.then_some((layers, layers.payload..end, layers.payload + at))
}

/// Sums big-endian words, without folding the carries; a last odd octet counts as the upper half of a word.
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
