//! Reserved local addresses: for listeners, and for connections that come from them.

mod common;

use common::*;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use urnic::simulation::{MpaChange, Options, Simulation};
use urnic::*;

/// Returns the end of a server on device 0, and the end of a client on device 1.
fn ends(simulation: &Simulation) -> (End, End) {
    (End::new(&simulation.device(0)), End::new(&simulation.device(1)))
}

/// Connects the client from its reserved address to the server, which listens meanwhile. Returns the client's address,
/// as the server sees it.
fn connect_from(
    simulation: &mut Simulation,
    bound: &Bound,
    server: &mut End,
    client: &mut End,
) -> SocketAddr {
    let _listener = server.events.listen(PORT, 4).unwrap();
    let connection = client.events.connect_from(bound, &client.qp, address(0), &ConnParam::default());
    client.connection = Some(connection.unwrap());
    let CmEvent::ConnectRequest(request) = server.event(simulation) else { panic!("no request") };
    let peer = request.peer();
    server.connection = Some(request.accept(&server.qp, &ConnParam::default()).unwrap());
    for end in [&server, &client] {
        assert!(matches!(end.event(simulation), CmEvent::Established { .. }));
    }
    peer
}

fn port_in_use<T>(outcome: Result<T>) -> Option<u16> {
    match outcome.err()? {
        Error::PortInUse(port) => Some(port),
        error => panic!("{error}"),
    }
}

#[test]
fn a_reserved_port_is_nobody_elses() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = ends(&simulation);
    let device = simulation.device(0);
    let bound = device.bind((Ipv4Addr::UNSPECIFIED, PORT), false).unwrap();
    assert_eq!(bound.address(), (Ipv4Addr::UNSPECIFIED, PORT).into());
    assert_eq!(port_in_use(device.bind(address(0), false)), Some(PORT));
    assert_eq!(port_in_use(server.events.listen(PORT, 1)), Some(PORT));
    // There is no listener yet.
    client.events.connect(&client.qp, address(0), &ConnParam::default()).unwrap();
    let event = client.event(&mut simulation);
    assert!(matches!(event, CmEvent::ConnectError { reason: ConnectFailure::Refused, .. }), "{event:?}");
    drop(bound);
    connect(&mut simulation, &mut server, &mut client);
    works(&mut simulation, &server, &client);
}

/// RFC 3493 §5.3: IPv4 and IPv6 have separate port numbers, unless an IPv6 address covers both.
#[test]
fn families_have_ports_of_their_own() {
    let simulation = Simulation::new(&options()).unwrap();
    let (server, _client) = ends(&simulation);
    let device = simulation.device(0);
    let one = server.events.listen_at(device.bind(address(0), false).unwrap(), 1).unwrap();
    assert_eq!(one.address(), address(0));
    assert_eq!(port_in_use(device.bind((Ipv6Addr::UNSPECIFIED, PORT), false)), Some(PORT));
    let v6only =
        server.events.listen_at(device.bind((Ipv6Addr::UNSPECIFIED, PORT), true).unwrap(), 1).unwrap();
    drop((one, v6only));
    assert!(device.bind((Ipv6Addr::UNSPECIFIED, PORT), false).is_ok());
}

#[test]
fn any_port_is_a_free_one() {
    let simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let any = || device.bind((Ipv4Addr::UNSPECIFIED, 0), false).unwrap();
    let (one, other) = (any(), any());
    assert!(one.address().port() > 0 && one.address().port() != other.address().port());
}

#[test]
fn foreign_addresses_are_refused() {
    let simulation = Simulation::new(&options()).unwrap();
    let (server, client) = ends(&simulation);
    let device = simulation.device(0);
    let refused = device.bind(address(1), false).err().map(|e| e.to_string());
    assert_eq!(refused.as_deref(), Some("10.0.0.2 is not an address of this device"));
    let bound = device.bind(address(0), false).unwrap();
    let from = client.events.connect_from(&bound, &client.qp, address(0), &ConnParam::default());
    assert!(matches!(from, Err(Error::Invalid(_))), "{:?}", from.err());
    assert!(matches!(client.events.listen_at(bound, 1), Err(Error::Invalid(_))));
    assert!(server.events.listen(PORT, 1).is_ok(), "what was refused is given back");
}

#[test]
fn a_connection_comes_from_the_reserved_port() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let (mut server, mut client) = ends(&simulation);
    let own = SocketAddr::new(Simulation::address(1).into(), 1023);
    let bound = simulation.device(1).bind((Ipv4Addr::UNSPECIFIED, 1023), false).unwrap();
    assert_eq!(connect_from(&mut simulation, &bound, &mut server, &mut client), own);
    works(&mut simulation, &server, &client);
    let (_server, second) = ends(&simulation);
    let again = second.events.connect_from(&bound, &second.qp, address(0), &ConnParam::default());
    assert_eq!(port_in_use(again), Some(1023));
    // The connection outlives the reservation, and keeps the port.
    drop(bound);
    works(&mut simulation, &server, &client);
    assert_eq!(port_in_use(simulation.device(1).bind(own, false)), Some(1023));
}

/// A client that is restarted again and again can reuse its port. Neither TIME-WAIT nor the peer's state of the old
/// connection blocks the port.
#[test]
fn connections_follow_each_other_from_one_port() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let bound = simulation.device(1).bind((Ipv4Addr::UNSPECIFIED, 1023), false).unwrap();
    for client_closes in [true, false, true, true] {
        let (mut server, mut client) = ends(&simulation);
        let peer = connect_from(&mut simulation, &bound, &mut server, &mut client);
        assert_eq!(peer.port(), 1023);
        works(&mut simulation, &server, &client);
        if client_closes {
            client.disconnect()
        } else {
            server.disconnect()
        }
        for end in [&server, &client] {
            end.end(&mut simulation);
        }
        // The simulation goes on, because the last segments follow the events.
        let limit = simulation.now() + Duration::from_secs(1);
        simulation.run(limit, || false);
    }
}

/// MPAE-8, MPAE-9: the server knows only revision 1 of MPA, and closes the first connection. The second try comes from
/// the reserved port too.
#[test]
fn a_second_try_comes_from_the_reserved_port() {
    let exceptions = vec![(0, (|mpa| mpa.rev = 1) as MpaChange)];
    let mut simulation = Simulation::new(&Options { exceptions, ..options() }).unwrap();
    let bound = simulation.device(1).bind((Ipv4Addr::UNSPECIFIED, 1023), false).unwrap();
    for _ in 0..3 {
        let (mut server, mut client) = ends(&simulation);
        let peer = connect_from(&mut simulation, &bound, &mut server, &mut client);
        assert_eq!(peer.port(), 1023);
        works(&mut simulation, &server, &client);
        client.disconnect();
        for end in [&server, &client] {
            end.end(&mut simulation);
        }
        let limit = simulation.now() + Duration::from_secs(1);
        simulation.run(limit, || false);
    }
}

/// A DPDK port or simulated port has no loopback interface. Instead, loopback addresses stand for any of the device's
/// addresses, and lead to the device.
#[test]
fn loopback_addresses_lead_to_the_device_itself() {
    let mut simulation = Simulation::new(&options()).unwrap();
    let device = simulation.device(0);
    let (mut server, mut client) = (End::new(&device), End::new(&device));
    let own = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    assert_eq!(device.source_for(own).unwrap(), Some(Simulation::address(0).into()));
    let listener = server.events.listen_at(device.bind(own, false).unwrap(), 4).unwrap();
    assert_eq!(listener.address(), own, "as asked for");
    let bound = device.bind((Ipv4Addr::LOCALHOST, 0), false).unwrap();
    let connection = client.events.connect_from(&bound, &client.qp, own, &ConnParam::default());
    client.connection = Some(connection.unwrap());
    let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else { panic!("no request") };
    assert_eq!(request.peer(), (Simulation::address(0), bound.address().port()).into());
    assert_eq!(request.local().unwrap(), address(0));
    server.connection = Some(request.accept(&server.qp, &ConnParam::default()).unwrap());
    for end in [&server, &client] {
        let CmEvent::Established { peer, .. } = end.event(&mut simulation) else { panic!("refused") };
        assert_eq!(peer.ip(), std::net::IpAddr::from(Simulation::address(0)));
    }
    works(&mut simulation, &server, &client);
    // Peers reach the listener too.
    let mut other = End::new(&simulation.device(1));
    other.connection = Some(other.events.connect(&other.qp, address(0), &ConnParam::default()).unwrap());
    assert!(matches!(server.event(&mut simulation), CmEvent::ConnectRequest(_)));
}
