use super::*;
use proptest::prelude::*;

/// Returns the sum as RFC 1071 §1 defines it: of 16-bit words, with carries added back one by one.
fn naive(data: &[u8]) -> u16 {
    let mut s = 0u32;
    for w in data.chunks(2) {
        s += u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)]));
        if s > 0xffff {
            s = (s & 0xffff) + 1;
        }
    }
    s as u16
}

#[test]
fn rfc_1071_section_3_example() {
    assert_eq!(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
}

#[test]
fn every_length_and_alignment() {
    let mut rng = fastrand::Rng::with_seed(7);
    let data: Vec<u8> = (0..320).map(|_| rng.u8(..)).collect();
    for at in 0..16 {
        for len in 0..=256 {
            assert_eq!(sum(&data[at..at + len]), naive(&data[at..at + len]), "offset {at}, length {len}");
        }
    }
}

#[test]
fn extremes() {
    assert_eq!(sum(&[]), 0);
    assert_eq!(sum(&[0; 1000]), 0);
    assert_eq!(sum(&vec![0xff; 1 << 20]), 0xffff);
    assert_eq!(fold(u64::MAX), 0xffff);
    assert_eq!(checksum(0xffff), 0);
}

#[test]
fn pseudo_header_is_the_sum_of_its_bytes() {
    let (src, dst) = ([192, 168, 1, 2], [10, 255, 254, 3]);
    let mut bytes = Vec::new();
    bytes.extend(src);
    bytes.extend(dst);
    bytes.extend([0, 6, 0x05, 0xdc]);
    assert_eq!(pseudo_header_v4(src, dst, 6, 0x5dc), naive(&bytes));
}

proptest! {
    #[test]
    fn pieces_combine_to_the_whole(data in prop::collection::vec(any::<u8>(), 0..600), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5)) {
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(data.len() + 1)).collect();
        at.sort();
        at.push(data.len());
        let (mut total, mut from) = (0, 0);
        for to in at {
            total = combine(total, from, sum(&data[from..to]));
            from = to;
        }
        prop_assert_eq!(total, naive(&data));
    }

    #[test]
    fn a_filled_in_checksum_verifies(mut data in prop::collection::vec(any::<u8>(), 2..600)) {
        data[0] = 0;
        data[1] = 0;
        let c = checksum(sum(&data));
        data[..2].copy_from_slice(&c.to_be_bytes());
        prop_assert_eq!(sum(&data), 0xffff);
    }
}
