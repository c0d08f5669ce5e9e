//! Feeds the input to either end of an MPA start-up. The tests of `iwarp` use the same test body and checks.

pub use crate::iwarp_support::fuzz::mpa_startup as run;
use crate::iwarp_support::{hex, vectors};

/// Returns each golden start-up frame five times, behind an octet that selects our end (Initiator or Responder), our
/// revision, and our offer.
pub fn seeds() -> Vec<Vec<u8>> {
    let frames = vectors().filter(|(_, octets)| octets.starts_with("4d504120"));
    frames
        .flat_map(|(_, octets)| [0x00, 0x03, 0x04, 0x82, 0x83].map(|how| [&[how][..], &hex(octets)].concat()))
        .collect()
}
