use super::*;

fn peer(port: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 2].into(), port)
}

#[test]
fn a_listeners_port_is_exclusive() {
    let mut p = LocalPorts::new(1);
    assert_eq!(p.listen(7471), Ok(7471));
    assert_eq!(p.listen(7471), Err(PortError::InUse));
    p.unlisten(7471);
    assert_eq!(p.listen(7471), Ok(7471));
    let any = p.listen(0).unwrap();
    assert!(EPHEMERAL.contains(&any));
    assert_eq!(p.listen(any), Err(PortError::InUse));
}

#[test]
fn connections_to_one_peer_differ_and_run_out() {
    let mut p = LocalPorts::new(2);
    let mut seen = HashSet::new();
    for _ in EPHEMERAL {
        assert!(seen.insert(p.connect(peer(1)).unwrap()));
    }
    assert_eq!(p.connect(peer(1)), Err(PortError::Exhausted));
    assert!(p.connect(peer(2)).is_ok(), "another peer has all ports of its own");
    p.release(40_000, peer(1));
    assert_eq!(p.connect(peer(1)), Ok(40_000));
    assert_eq!(p.listen(40_000), Err(PortError::InUse));
    p.release(40_000, peer(1));
    p.release(40_000, peer(1));
    p.release(40_000, peer(2));
}

/// RFC 6056: successive ports are not consecutive.
#[test]
fn ports_are_scattered() {
    let mut p = LocalPorts::new(3);
    let ports: Vec<u16> = (0..64).map(|i| p.connect(peer(i)).unwrap()).collect();
    let near = ports.windows(2).filter(|w| w[0].abs_diff(w[1]) < 16).count();
    assert!(near < 8, "{ports:?}");
}
