//! Feeds the input to a stream in Full Operation, raw or as ULPDUs inside valid FPDUs. The tests of `iwarp` use the
//! same test body and checks.

pub use crate::iwarp_support::fuzz::iwarp_stream as run;
use crate::iwarp_support::hex;

/// Returns golden FPDUs, as they are and as ULPDUs, for every choice of role, CRC and split.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (name, octets) in crate::iwarp_support::vectors() {
        if name.starts_with("RE") && octets.starts_with("4d504120") {
            continue; // a start-up frame
        }
        let fpdu = hex(octets);
        let len = usize::from(fpdu[1]);
        let ulpdu = &fpdu[1..2 + len]; // with the length octet that the body expects
        for how in [0x00, 0x05, 0x44, 0x85] {
            seeds.push([&[how][..], &fpdu].concat());
            seeds.push([&[how | 2][..], ulpdu, ulpdu].concat());
        }
    }
    seeds
}
