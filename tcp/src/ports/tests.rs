use super::*;
use core::net::Ipv6Addr;
use proptest::prelude::*;

fn peer(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 2].into(), port)
}

#[test]
fn a_reserved_port_is_exclusive() {
    let mut p = LocalPorts::new(1);
    assert_eq!(p.bind(Scope::All, 7471), Ok(7471));
    assert_eq!(p.bind(Scope::All, 7471), Err(PortError::InUse));
    p.unbind(Scope::All, 7471);
    assert_eq!(p.bind(Scope::All, 7471), Ok(7471));
    let any = p.bind(Scope::All, 0).unwrap();
    assert!(EPHEMERAL.contains(&any));
    assert_eq!(p.bind(Scope::All, any), Err(PortError::InUse));
}

#[test]
fn a_port_of_each_address_and_family_is_one_of_its_own() {
    let mut p = LocalPorts::new(1);
    let one = |n| Scope::One([10, 0, 0, n].into());
    assert_eq!(p.bind(one(1), 4420), Ok(4420));
    assert_eq!(p.bind(one(1), 4420), Err(PortError::InUse));
    assert_eq!(p.bind(Scope::V4, 4420), Err(PortError::InUse));
    assert_eq!(p.bind(Scope::All, 4420), Err(PortError::InUse));
    assert_eq!(p.bind(one(2), 4420), Ok(4420));
    assert_eq!(p.bind(Scope::V6, 4420), Ok(4420));
    p.unbind(one(1), 4420);
    assert_eq!(p.bind(Scope::V4, 4420), Err(PortError::InUse), "the other address has it");
    p.unbind(one(2), 4420);
    assert_eq!(p.bind(Scope::V4, 4420), Ok(4420));
}

/// RFC 3493 §5.3: `::` covers both families unless restricted to IPv6.
#[test]
fn unspecified_addresses_stand_for_their_families() {
    let (any4, any6) = (IpAddr::from([0, 0, 0, 0]), IpAddr::from(Ipv6Addr::UNSPECIFIED));
    assert_eq!(Scope::of(any4, false), Scope::V4);
    assert_eq!(Scope::of(any6, true), Scope::V6);
    assert_eq!(Scope::of(any6, false), Scope::All);
    let mapped = "::ffff:10.0.0.1".parse().unwrap();
    assert_eq!(Scope::of(mapped, true), Scope::One([10, 0, 0, 1].into()));
}

#[test]
fn connections_from_a_reserved_port_keep_it() {
    let mut p = LocalPorts::new(1);
    assert_eq!(p.bind(Scope::V4, 900), Ok(900));
    assert_eq!(p.connect_from(900, peer(1)), Ok(()));
    assert_eq!(p.connect_from(900, peer(1)), Err(PortError::InUse));
    assert_eq!(p.connect_from(900, peer(2)), Ok(()));
    p.unbind(Scope::V4, 900);
    p.release(900, peer(1));
    assert_eq!(p.bind(Scope::V4, 900), Err(PortError::InUse), "one connection is left");
    p.release(900, peer(2));
    assert_eq!(p.bind(Scope::V4, 900), Ok(900));
}

#[test]
fn connections_to_one_peer_differ_and_run_out() {
    let mut p = LocalPorts::new(2);
    let mut seen = HashSet::new();
    for _ in EPHEMERAL {
        assert!(seen.insert(p.connect(peer(1), &|_| true).unwrap()));
    }
    assert_eq!(p.connect(peer(1), &|_| true), Err(PortError::Exhausted));
    assert!(p.connect(peer(2), &|_| true).is_ok(), "another peer has all ports of its own");
    p.release(40_000, peer(1));
    assert_eq!(p.connect(peer(1), &|_| true), Ok(40_000));
    assert_eq!(p.bind(Scope::All, 40_000), Err(PortError::InUse));
    p.release(40_000, peer(1));
    p.release(40_000, peer(1));
    p.release(40_000, peer(2));
}

/// RFC 6056 §3.3: two adjacent ports that fit are chosen equally often.
#[test]
fn ports_that_fit_are_chosen_equally_often() {
    let mut p = LocalPorts::new(3);
    let mut chosen = [0; 2];
    for _ in 0..1000 {
        let port = p.connect(peer(1), &|port| matches!(port, 40_000 | 40_001)).unwrap();
        chosen[usize::from(port - 40_000)] += 1;
        p.release(port, peer(1));
    }
    assert!(chosen.iter().all(|&n| n > 400), "{chosen:?}");
}

/// RFC 6056: successively chosen ports are not consecutive.
#[test]
fn ports_are_scattered() {
    let mut p = LocalPorts::new(3);
    let ports: Vec<u16> = (0..64).map(|i| p.connect(peer(i), &|_| true).unwrap()).collect();
    let near = ports.windows(2).filter(|w| w[0].abs_diff(w[1]) < 16).count();
    assert!(near < 8, "{ports:?}");
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![
        Just(Scope::All),
        Just(Scope::V4),
        Just(Scope::V6),
        (0u8..3).prop_map(|n| Scope::One([10, 0, 0, n].into())),
        (0u16..3).prop_map(|n| Scope::One(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n).into())),
    ]
}

/// Returns the scope as a set of the six addresses in this test.
fn members(scope: Scope) -> Vec<IpAddr> {
    let v4 = (0u8..3).map(|n| IpAddr::from([10, 0, 0, n]));
    let v6 = (0u16..3).map(|n| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)));
    let mut all: Vec<IpAddr> = v4.chain(v6).collect();
    all.retain(|ip| match scope {
        Scope::All => true,
        Scope::V4 => ip.is_ipv4(),
        Scope::V6 => ip.is_ipv6(),
        Scope::One(one) => *ip == one,
    });
    all
}

proptest! {
    /// A reservation of a port succeeds if and only if it shares no address with an earlier reservation of the port.
    #[test]
    fn scopes_are_sets_of_addresses(scopes in prop::collection::vec(scope(), 1..8)) {
        let mut ports = LocalPorts::new(1);
        let mut taken: Vec<IpAddr> = Vec::new();
        for scope in scopes {
            let wanted = members(scope);
            let free = !wanted.iter().any(|ip| taken.contains(ip));
            prop_assert_eq!(ports.bind(scope, 5).is_ok(), free);
            if free {
                taken.extend(wanted);
            }
        }
    }
}

#[test]
fn a_port_for_a_connection_fits() {
    let mut p = LocalPorts::new(3);
    for _ in 0..200 {
        let port = p.connect(peer(1), &|port| port % 64 == 7).unwrap();
        assert_eq!(port % 64, 7);
    }
    assert_eq!(p.connect(peer(1), &|_| false), Err(PortError::Exhausted));
}

/// One stack cannot get a port that another has reserved or uses, and can get it once the other has released it.
#[test]
fn stacks_share_ports() {
    let [mut a, mut b] = SharedPorts::new(1, 2).try_into().unwrap();
    assert_eq!(a.bind(Scope::All, 7471), Ok(7471));
    assert_eq!(b.bind(Scope::V4, 7471), Err(PortError::InUse));
    let port = b.connect(peer(1), &|_| true).unwrap();
    assert_eq!(a.bind(Scope::All, port), Err(PortError::InUse));
    assert_eq!(a.connect(peer(2), &|p| p == port), Ok(port), "another peer");
    b.release(port, peer(1));
    assert_eq!(b.bind(Scope::All, port), Err(PortError::InUse), "one connection is left");
    drop(a);
    assert_eq!(b.bind(Scope::All, port), Ok(port), "it ended with its stack");
    b.unbind(Scope::All, 7471);
    assert_eq!(b.bind(Scope::V4, 7471), Ok(7471));
}

proptest! {
    /// With a single stack, shared ports behave like unshared ones, except that they choose other ports.
    #[test]
    fn shared_ports_do_as_others(
        steps in proptest::collection::vec((0..5u8, 0..3u16, 0..3u16, 0..4usize), 1..60),
    ) {
        let (mut alone, mut shared) = (LocalPorts::new(1), SharedPorts::new(1, 1).pop().unwrap());
        let scopes = [Scope::All, Scope::V4, Scope::V6, Scope::One([10, 0, 0, 1].into())];
        let mut bound: Vec<(Scope, u16)> = Vec::new();
        for (step, port, to, scope) in steps {
            let (port, to, scope) = (40_000 + port, peer(to), scopes[scope]);
            match step {
                0 => {
                    let answer = shared.bind(scope, port);
                    prop_assert_eq!(alone.bind(scope, port), answer);
                    bound.extend(answer.map(|port| (scope, port)));
                }
                1 => {
                    if let Some((scope, port)) = bound.pop() {
                        alone.unbind(scope, port);
                        shared.unbind(scope, port);
                    }
                }
                2 => prop_assert_eq!(alone.connect(to, &|p| p == port), shared.connect(to, &|p| p == port)),
                3 => prop_assert_eq!(alone.connect_from(port, to), shared.connect_from(port, to)),
                _ => {
                    alone.release(port, to);
                    shared.release(port, to);
                }
            }
        }
    }
}

/// A reservation and connections that choose their ports at the same time never get the same port.
#[test]
fn a_port_is_not_reserved_while_it_is_chosen() {
    let [mut a, mut b] = SharedPorts::new(1, 2).try_into().unwrap();
    let few = |p: u16| p.is_multiple_of(7000);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            for round in 0..20_000 {
                if let Ok(port) = b.connect(peer(1), &few) {
                    let word = b.shared.word(port).unwrap().load(std::sync::atomic::Ordering::Relaxed);
                    assert_eq!(word, 1, "round {round}: port {port} is reserved, or was given back");
                    b.release(port, peer(1));
                }
            }
        });
        for _ in 0..20_000 {
            for port in [35_000, 42_000, 49_000, 56_000] {
                if a.bind(Scope::All, port).is_ok() {
                    a.unbind(Scope::All, port);
                }
            }
        }
    });
}

/// A free port is not refused because another stack counts its own connections from it.
#[test]
fn a_port_that_others_use_is_not_refused() {
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|threads| {
        for ports in SharedPorts::new(1, 2) {
            let start = &start;
            threads.spawn(move || {
                let word = ports.shared.word(42_000).unwrap();
                start.wait();
                for round in 0..2_000_000 {
                    assert!(ports.shared.use_free(42_000), "round {round}");
                    word.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
}
