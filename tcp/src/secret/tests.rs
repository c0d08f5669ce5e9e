use super::{Secret, siphash};

/// The published SipHash-2-4 vectors for key 00..0f and messages 00, 00 01, ... of whole words.
#[test]
fn siphash_vectors() {
    let (k0, k1) = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
    assert_eq!(siphash(k0, k1, &[]), 0x726f_db47_dd0e_0e31);
    assert_eq!(siphash(k0, k1, &[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
}

#[test]
fn random_numbers_stay_below() {
    let mut s = Secret::new(7);
    for n in [0, 1, 2, 3, 1000, u32::MAX] {
        for _ in 0..100 {
            let v = s.below(n);
            assert!(v < n.max(1), "{v} of {n}");
        }
    }
}

#[test]
fn seeds_give_different_sequences() {
    let (mut a, mut b) = (Secret::new(1), Secret::new(2));
    assert!((0..64).all(|_| a.random() != b.random()));
}
