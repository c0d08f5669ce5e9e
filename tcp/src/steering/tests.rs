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

/// The two devices share only the number of their stacks.
#[test]
fn both_ends_of_a_link_agree_without_a_secret() {
    let (a, b) = (end([10, 0, 0, 1], 7471), end([10, 0, 0, 2], 40_000));
    let owner = |number, here, there| Steering::agreed(number, 4).unwrap().owner(here, there);
    assert!((0..4).all(|number| owner(number, a, b) == owner(0, b, a)));
    assert!(Steering::agreed(4, 4).is_none());
}

/// Toeplitz's hash as Microsoft describes it ("RSS hashing functions"): bit by bit, with any key.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let bit = |octets: &[u8], n: usize| octets[n / 8] >> (7 - n % 8) & 1;
    let window = |from: usize| (from..from + 32).fold(0, |word, n| word << 1 | u32::from(bit(key, n)));
    let set = (0..input.len() * 8).filter(|n| bit(input, *n) == 1);
    set.fold(0, |hash, n| hash ^ window(n))
}

/// Returns the octets of a TCP segment that a NIC hashes.
fn hashed(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let octets = |end: SocketAddr| match end.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    [octets(from), octets(to), from.port().to_be_bytes().to_vec(), to.port().to_be_bytes().to_vec()].concat()
}

/// Two of the vectors that Microsoft publishes for verifying implementations.
#[test]
fn the_hash_of_these_tests_is_that_of_nics() {
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    let four = hashed(end([66, 9, 149, 187], 2794), end([161, 142, 100, 80], 1766));
    assert_eq!(toeplitz(&KEY, &four), 0x51cc_c178);
    let six =
        hashed("[3ffe:2501:200:1fff::7]:2794".parse().unwrap(), "[3ffe:2501:200:3::1]:1766".parse().unwrap());
    assert_eq!(toeplitz(&KEY, &six), 0x4020_7d3d);
}

proptest! {
    /// Both addresses are of one family, because a NIC hashes the addresses of one packet.
    #[test]
    fn owners_are_those_that_a_nic_chooses(
        v6: bool, ips: (u128, u128), ports: (u16, u16), stacks in 2..=MAX_STACKS, key: u16, log in 0u32..=16,
    ) {
        let end = |bits: u128, port| {
            let ip = if v6 { IpAddr::V6(bits.into()) } else { Ipv4Addr::from(bits as u32).into() };
            SocketAddr::new(ip, port)
        };
        let (a, b) = (end(ips.0, ports.0), end(ips.1, ports.1));
        let hash = toeplitz(&key.to_be_bytes().repeat(20), &hashed(a, b));
        let queue = (hash & ((1u32 << log) - 1)) as usize % stacks;
        let steering = Steering::like_nic(stacks - 1, stacks, key, 1 << log).unwrap();
        prop_assert_eq!((steering.owner(a, b), steering.owner(b, a)), (queue, queue));
    }
}

#[test]
fn a_nics_table_is_a_power_of_two() {
    let place = |entries| Steering::like_nic(0, 2, 0x6d5a, entries);
    assert!(place(128).is_some() && place(1 << 16).is_some());
    assert!(place(0).is_none() && place(100).is_none() && place(1 << 17).is_none());
}

/// Connections that differ in one port or one address are spread evenly: each of 8 stacks gets its part of 8,000,
/// with a deviation of at most a third.
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
    let keyed = (0..20).map(|secret| Steering::new(0, 8, secret).unwrap());
    for steering in keyed.chain(Steering::like_nic(0, 8, 0x6d5a, 128)) {
        for kind in kinds {
            let mut owned = [0; 8];
            for i in 0..8000 {
                let (a, b) = kind(i);
                owned[steering.owner(a, b)] += 1;
            }
            assert!(owned.iter().all(|n| (667..1333).contains(n)), "{steering:?}: {owned:?}");
        }
    }
}

#[test]
fn the_owner_depends_on_the_secret() {
    let (a, b) = (end([10, 0, 0, 1], 7471), end([10, 0, 0, 2], 40_000));
    let owners = |secret| Steering::new(0, 4, secret).unwrap().owner(a, b);
    assert!((1..64).any(|secret| owners(secret) != owners(0)));
}

/// Returns a segment from port 1000 to port 2000 over IPv4. `words` is the length of the IP header in 32-bit words.
fn segment4(words: u8) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([8, 0, 0x40 | words, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.resize(14 + usize::from(words) * 4, 1);
    frame.extend([0x03, 0xe8, 0x07, 0xd0]);
    frame
}

/// Returns the same segment over IPv6, optionally after a destination options header.
fn segment6(options: bool) -> Vec<u8> {
    let mut frame = vec![0; 12];
    let (len, first) = if options { (28, 60) } else { (20, 6) };
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, len, first, 64]);
    frame.extend("fd00::1".parse::<core::net::Ipv6Addr>().unwrap().octets());
    frame.extend("fd00::2".parse::<core::net::Ipv6Addr>().unwrap().octets());
    if options {
        frame.extend([6, 0, 1, 4, 0, 0, 0, 0]);
    }
    frame.extend([0x03, 0xe8, 0x07, 0xd0]);
    frame.resize(frame.len() + 16, 0);
    frame
}

#[test]
fn a_frame_tells_its_owner() {
    for secret in 0..50 {
        let steering = Steering::new(3, 8, secret).unwrap();
        let owner = |a: &str, b: &str| {
            let end = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
            Some(steering.owner(end(a, 1000), end(b, 2000)))
        };
        for words in [5, 8, 15] {
            let frame = segment4(words);
            assert_eq!(steering.owner_of(&frame), owner("10.0.0.1", "10.0.0.2"));
            let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
            assert_eq!(steering.owner_of(&tagged), owner("10.0.0.1", "10.0.0.2"));
        }
        for options in [false, true] {
            assert_eq!(steering.owner_of(&segment6(options)), owner("fd00::1", "fd00::2"));
        }
    }
}

#[test]
fn what_is_no_whole_segment_has_no_owner() {
    let steering = Steering::new(0, 4, 1).unwrap();
    let (whole4, whole6) = (segment4(5), segment6(false));
    for len in 0..whole4.len() {
        assert_eq!(steering.owner_of(&whole4[..len]), None);
    }
    for len in 0..whole6.len() {
        assert_eq!(steering.owner_of(&whole6[..len]), None);
    }
    let mut fragment = segment4(5);
    fragment[20] = 0x20;
    assert_eq!(steering.owner_of(&fragment), None);
    let mut icmp = segment4(5);
    icmp[23] = 1;
    assert_eq!(steering.owner_of(&icmp), None);
}

proptest! {
    #[test]
    fn any_octets_may_come(octets: Vec<u8>, v6: bool) {
        let mut frame = if v6 { segment6(true) } else { segment4(5) };
        let steering = Steering::new(0, 4, 1).unwrap();
        for (at, octet) in octets.into_iter().enumerate() {
            let place = (at * 7 + 12) % frame.len();
            frame[place] ^= octet;
            let _ = steering.owner_of(&frame);
        }
    }
}
