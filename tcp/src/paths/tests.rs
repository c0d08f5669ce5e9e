use super::*;

fn address(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)
}

#[test]
fn a_pair_keeps_its_number_while_it_is_held() {
    let mut paths = Paths::new(1, 2);
    let a = paths.intern(address(1), address(2), false).unwrap();
    let b = paths.intern(address(2), address(1), false).unwrap();
    assert_ne!(a, b);
    paths.hold(a);
    paths.hold(a);
    paths.collect();
    assert_eq!((paths.find(address(1), address(2)), paths.find(address(2), address(1))), (Some(a), None));
    paths.release(a);
    paths.collect();
    assert_eq!(paths.find(address(1), address(2)), Some(a));
    paths.release(a);
    // Held again before `collect`, the pair keeps its number.
    assert_eq!(paths.intern(address(1), address(2), false), Some(a));
    paths.hold(a);
    paths.collect();
    assert_eq!((paths.find(address(1), address(2)), paths.len()), (Some(a), 1));
    paths.release(a);
    paths.collect();
    assert_eq!(paths.len(), 0);
}

#[test]
fn numbers_are_used_again() {
    let mut paths = Paths::new(3, 4);
    for n in 0..1000 {
        assert!(paths.intern(address(1), address(n), false).unwrap() < 1);
        paths.collect();
    }
}

/// Addresses that differ in few bits, in either half of either end, are spread over the table.
#[test]
fn hashes_spread() {
    let (k0, k1) = (0x8f3a_1c57_e02b_94d6, 0x5bd1_e995_27d4_eb2f);
    let mut seen = std::collections::HashSet::new();
    let mut add = |local: u128, remote: u128| {
        assert!(seen.insert(Pair { local, remote }.word(k0, k1) >> 20), "{local:x} {remote:x}");
    };
    for bit in 0..128 {
        add(1 << bit, 0);
        add(0, 1 << bit);
        add(1 << bit, 1 << bit);
    }
}
