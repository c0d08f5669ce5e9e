//! Decodes the input as the content of a Terminate. The tests of `iwarp` use the same test body and checks.

pub use crate::iwarp_support::fuzz::terminate as run;
use crate::iwarp_support::{hex, vectors};

/// Returns golden Terminates, and some in the form in which Linux siw sends them.
pub fn seeds() -> Vec<Vec<u8>> {
    let golden = vectors().filter(|(name, _)| name.starts_with("TERM")).map(|(_, octets)| {
        let fpdu = hex(octets);
        fpdu[20..2 + usize::from(fpdu[1])].to_vec()
    });
    let swapped =
        [vec![0x21, 0x06, 0, 0], vec![0x11, 0, 3, 0, 0, 30, 0xC1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 16, 0]];
    golden.chain(swapped).collect()
}
