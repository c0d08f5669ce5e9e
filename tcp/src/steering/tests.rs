use super::*;
use proptest::prelude::*;

fn end(ip: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::new(ip.into(), port)
}

fn any_end() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

#[test]
fn a_place_is_one_of_so_many() {
    assert!(Steering::new(0, 0, 1).is_none());
    assert!(Steering::new(2, 2, 1).is_none());
    assert!(Steering::new(0, MAX_STACKS + 1, 1).is_none());
    let last = Steering::new(MAX_STACKS - 1, MAX_STACKS, 1).unwrap();
    assert_eq!((last.number(), last.stacks()), (63, 64));
    assert!(Steering::default().is_alone());
}

proptest! {
    #[test]
    fn all_stacks_of_a_device_and_both_ends_agree(
        a in any_end(), b in any_end(), stacks in 1..=MAX_STACKS, secret: u64,
    ) {
        let places = || (0..stacks).map(|n| Steering::new(n, stacks, secret).unwrap());
        let owner = places().next().unwrap().owner(a, b);
        prop_assert!(owner < stacks);
        prop_assert!(places().all(|s| s.owner(a, b) == owner && s.owner(b, a) == owner));
        prop_assert_eq!(places().filter(|s| s.other_owner(a, b).is_none()).count(), 1);
    }
}

/// Connections that differ in one port, or in one address, are spread evenly: none of 8 stacks gets more than a third more
/// or less than its part of 8,000.
#[test]
fn neighbouring_connections_are_spread() {
    let us = end([10, 0, 0, 1], 7471);
    let us6 = SocketAddr::new("fd00::1".parse().unwrap(), 7471);
    let ports = |i: u16| (us, end([10, 0, 0, 2], 32_768 + i));
    let hosts = |i: u16| (us, end([10, 0, (i >> 8) as u8, i as u8], 40_000));
    let ports6 = |i: u16| (us6, SocketAddr::new("fd00::2".parse().unwrap(), 32_768 + i));
    let hosts6 = |i: u16| {
        let ip = core::net::Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(i));
        (us6, SocketAddr::new(ip.into(), 40_000))
    };
    let kinds: [&dyn Fn(u16) -> (SocketAddr, SocketAddr); 4] = [&ports, &hosts, &ports6, &hosts6];
    for secret in 0..20 {
        let steering = Steering::new(0, 8, secret).unwrap();
        for kind in kinds {
            let mut owned = [0; 8];
            for i in 0..8000 {
                let (a, b) = kind(i);
                owned[steering.owner(a, b)] += 1;
            }
            assert!(owned.iter().all(|n| (667..1333).contains(n)), "secret {secret}: {owned:?}");
        }
    }
}

#[test]
fn the_owner_depends_on_the_secret() {
    let (a, b) = (end([10, 0, 0, 1], 7471), end([10, 0, 0, 2], 40_000));
    let owners = |secret| Steering::new(0, 4, secret).unwrap().owner(a, b);
    assert!((1..64).any(|secret| owners(secret) != owners(0)));
}
