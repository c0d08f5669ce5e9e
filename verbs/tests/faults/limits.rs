//! Descriptors, ports and addresses that are missing, or disappear.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use nix::sys::resource::{Resource, setrlimit};
use urnic::config::KernelAddresses;
use urnic::*;

use crate::ends::*;
use crate::phases::completions;
use crate::process::*;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Takes all descriptors that are left.
fn hoard() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Returns `n` peers that have connected and sent a Request, while this process has no descriptor left to accept
/// them.
fn waiting(n: usize, port: u16) -> (Vec<TcpStream>, Vec<File>) {
    let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let sockets: Vec<_> = (0..n).map(|_| socket()).collect();
    let hoard = hoard();
    let connect = |socket: socket2::Socket| {
        socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
        let mut peer = TcpStream::from(socket);
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.write_all(REQUEST).unwrap();
        peer
    };
    (sockets.into_iter().map(connect).collect(), hoard)
}

/// If accepting fails with EMFILE, the connection waits in the kernel's queue, no thread spins, and one line of the log
/// tells the user what to do.
#[test]
fn connections_wait_for_descriptors() {
    alone("limits::connections_wait_for_descriptors", false, || {
        const PEERS: usize = 6;
        setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
        let log = Log::new();
        let server = Node::new();
        let listener = server.events.listen(0, 16).unwrap();
        let before = descriptors();
        for _ in 0..2 {
            let (mut peers, hoard) = waiting(PEERS, listener.port());
            is_idle(Duration::from_secs(1));
            assert!(server.events.poll().is_none() && server.device.connections().unwrap().is_empty());
            drop(hoard);
            let requests: Vec<_> = peers.iter().map(|_| server.event()).collect();
            assert!(requests.iter().all(|event| matches!(event, CmEvent::ConnectRequest(_))), "{requests:?}");
            drop(requests);
            for peer in &mut peers {
                // The device has rejected the request, and closed the connection.
                assert!(heard(peer, 16).starts_with(b"MPA ID Rep Frame"));
            }
            drop(peers);
            nothing_left(&server.device, before);
        }
        let said = log.text();
        assert_eq!(said.lines().count(), 2, "once each time: {said}");
        assert!(said.lines().all(|line| line.contains("ulimit -n") && line.contains("wait")), "{said}");
        is_idle(Duration::from_millis(500));
    });
}

/// Peers that close their connections while they wait for descriptors are forgotten.
#[test]
fn peers_that_go_while_they_wait_for_descriptors_are_forgotten() {
    alone("limits::peers_that_go_while_they_wait_for_descriptors_are_forgotten", false, || {
        setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
        let server = Node::new();
        let listener = server.events.listen(0, 16).unwrap();
        let before = descriptors();
        let (mut peers, hoard) = waiting(3, listener.port());
        let last = peers.pop().unwrap();
        socket2::SockRef::from(&peers[0]).set_linger(Some(Duration::ZERO)).unwrap();
        drop(peers);
        drop(hoard);
        let mut requests = Vec::new();
        until("the last one is heard", || {
            requests.extend(server.events.poll());
            requests.iter().any(|event| {
                let local = last.local_addr().unwrap();
                matches!(event, CmEvent::ConnectRequest(request) if request.peer() == local)
            })
        });
        drop((requests, last));
        nothing_left(&server.device, before);
        is_idle(Duration::from_millis(500));
    });
}

/// EMFILE on a call of the program: the error states which limit to raise, and nothing is left of the attempt. The
/// device keeps the addresses that it had.
#[test]
fn without_descriptors_errors_say_what_to_raise() {
    alone("limits::without_descriptors_errors_say_what_to_raise", false, || {
        setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
        let (server, client) = (Node::new(), Node::new());
        let listener = server.events.listen(0, 16).unwrap();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
        let addresses = || client.device.attributes().unwrap().addresses;
        let before = addresses();
        let hoard = hoard();
        for _ in 0..100 {
            let errors = [
                Device::open(&Config::default()).err(),
                client.device.create_event_channel().err(),
                client.device.create_comp_channel().err(),
                client.device.source_for(to).err(),
                client.events.connect(&client.qp, to, &plain()).err(),
                client.device.bind((LOOPBACK, 0), false).err(),
                client.device.bind((LOOPBACK, 7471), false).err(),
                client.events.listen(0, 1).err(),
            ];
            for error in errors {
                let error = error.expect("there is no descriptor for it");
                assert!(matches!(error, Error::NoDescriptor), "{error:?}");
                assert!(error.to_string().contains("ulimit -n"), "{error}");
            }
            assert_eq!(addresses(), before);
        }
        drop(hoard);
        client.events.connect(&client.qp, to, &plain()).unwrap();
        let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
        request.accept(&server.qp, &plain()).unwrap();
        server.established();
        client.established();
        works(&client, &server);
    });
}

/// RDMA and TCP share ports, and so do all devices of the host.
#[test]
fn a_port_that_is_in_use_is_said() {
    alone("limits::a_port_that_is_in_use_is_said", false, || {
        let (one, other) = (Node::new(), Node::new());
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let before = descriptors();
        let listener = one.events.listen(0, 4).unwrap();
        for (node, port) in
            [(&one, listener.port()), (&other, listener.port()), (&one, tcp.local_addr().unwrap().port())]
        {
            for ip in [LOOPBACK, Ipv4Addr::UNSPECIFIED.into()] {
                let refused =
                    node.device.bind((ip, port), false).and_then(|bound| node.events.listen_at(bound, 1));
                let error = refused.err();
                assert!(matches!(error, Some(Error::PortInUse(taken)) if taken == port), "{error:?}");
                assert!(error.unwrap().to_string().contains("is in use"));
            }
        }
        // There cannot be two connections from one port to one listener.
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
        let from = other.device.bind((LOOPBACK, 0), false).unwrap();
        other.events.connect_from(&from, &other.qp, to, &plain()).unwrap();
        let third = Node::of(&other.device);
        let refused = third.events.connect_from(&from, &third.qp, to, &plain()).err();
        let port = from.address().port();
        assert!(matches!(refused, Some(Error::PortInUse(taken)) if taken == port), "{refused:?}");
        let CmEvent::ConnectRequest(request) = one.event() else { panic!("no request") };
        request.accept(&one.qp, &plain()).unwrap();
        one.established();
        other.established();
        works(&other, &one);
        drop((third, from, listener, other));
        assert!(matches!(one.event(), CmEvent::Disconnected { .. }));
        until("no connection is left", || one.device.connections().unwrap().is_empty());
        until("no descriptor is left", || descriptors() <= before);
    });
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

const HOME: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// Makes two devices, and a connection from the second to the first, over an address that may disappear.
fn connected(config: &Config) -> (Node, Node, Listener) {
    let [server, client] = [(); 2].map(|()| Node::of(&Device::open(config).unwrap()));
    let bound = server.device.bind((HOME, 0), false).unwrap();
    let listener = server.events.listen_at(bound, 4).unwrap();
    connect(&server, &server.events, &client, listener.port());
    (server, client, listener)
}

fn connect(server: &Node, requests: &EventChannel, client: &Node, port: u16) {
    client.events.connect(&client.qp, (HOME, port), &ConnParam::default()).unwrap();
    let Some(CmEvent::ConnectRequest(request)) = requests.wait(PATIENCE) else { panic!("no request") };
    request.accept(&server.qp, &ConnParam::default()).unwrap();
    assert!(matches!(requests.wait(PATIENCE), Some(CmEvent::Established { .. })));
    client.established();
    works(client, server);
}

/// The address of a listener and of a connection disappears. Each end learns that the other does not answer, even an
/// end that has sent nothing. The listener works again when the address is back. RFC 9293 §3.9.2.2: a missing route
/// does not end a connection.
#[test]
#[ignore = "needs root, for a network namespace"]
fn needs_root_an_address_may_go() {
    alone("limits::needs_root_an_address_may_go", true, || {
        ip("link set lo up");
        ip("address add 10.9.0.1/24 dev lo");
        let mut config = Config::default();
        config.tcp.user_timeout = Some(Duration::from_secs(2));
        config.tcp.keepalive_idle = Some(Duration::from_secs(1));
        config.tcp.keepalive_interval = Duration::from_secs(1);
        config.tcp.keepalive_count = 2;
        let (server, client, listener) = connected(&config);
        let has = |node: &Node| {
            let there = node.device.attributes().unwrap().addresses;
            there.iter().any(|a| a.address == IpAddr::V4(HOME))
        };
        assert!(has(&server));
        ip("address del 10.9.0.1/24 dev lo");
        until("the device follows", || !has(&server));
        let memory = client.pd.alloc_mr(100, Access::empty()).unwrap();
        client.qp.post_recv(&RecvWr { wr_id: 1, sges: &[] }).unwrap();
        let sges = [Sge::of(&memory, 0, 100)];
        let wr = SendWr { wr_id: 2, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
        client.qp.post_send(&wr).unwrap();
        server.qp.post_recv(&RecvWr { wr_id: 3, sges: &[] }).unwrap();
        for node in [&client, &server] {
            let event = node.event();
            let expected = DisconnectReason::TimedOut;
            assert!(matches!(event, CmEvent::Disconnected { reason, .. } if reason == expected), "{event:?}");
            assert_eq!(node.qp.state(), QpState::Error);
        }
        assert_eq!(completions(&server, 1), [(3, WcStatus::Flushed)]);
        let ids: Vec<_> = completions(&client, 2).iter().map(|(id, _)| *id).collect();
        assert!(ids.contains(&1) && ids.contains(&2), "{ids:?}");
        let other = Node::of(&client.device);
        let refused = other.events.connect(&other.qp, (HOME, listener.port()), &ConnParam::default()).err();
        assert!(matches!(refused, Some(Error::NoRoute { .. })), "{refused:?}");
        let refused = server.device.bind((HOME, 0), false).err();
        assert!(matches!(refused, Some(Error::NotOurAddress(_))), "{refused:?}");
        is_idle(Duration::from_millis(500));
        ip("address add 10.9.0.1/24 dev lo");
        until("the device follows", || has(&server));
        connect(&Node::of(&server.device), &server.events, &other, listener.port());
    });
}

/// The messages distinguish addresses without a route from addresses that the host forbids, and name the host as the
/// cause.
#[test]
#[ignore = "needs root, for a network namespace"]
fn needs_root_no_way_to_an_address() {
    alone("limits::needs_root_no_way_to_an_address", true, || {
        ip("link set lo up");
        ip("address add 10.9.0.1/24 dev lo");
        ip("route add unreachable 10.9.1.0/24");
        ip("route add prohibit 10.9.2.0/24");
        let mut config = Config::default();
        for from in [KernelAddresses::All, KernelAddresses::One(HOME.into())] {
            config.port.kernel = from.clone();
            let node = Node::of(&Device::open(&config).unwrap());
            let to = |third, last| SocketAddr::from((Ipv4Addr::new(10, 9, third, last), 7471));
            for there in [to(1, 1), to(3, 1)] {
                assert_eq!(node.device.source_for(there).unwrap(), None);
                let error = node.events.connect(&node.qp, there, &plain()).err();
                assert!(matches!(error, Some(Error::NoRoute { to, .. }) if to == there.ip()), "{error:?}");
                let words = error.unwrap().to_string();
                assert!(words.contains("ip route get") && !words.contains("gateway"), "{words}");
                assert_eq!(words.contains("kernel:"), from != KernelAddresses::All, "{words}");
            }
            let there = to(2, 1);
            let errors =
                [node.device.source_for(there).err(), node.events.connect(&node.qp, there, &plain()).err()];
            for error in errors {
                assert!(matches!(error, Some(Error::Forbidden(to)) if to == there.ip()), "{error:?}");
            }
        }
        // The kernel refuses a connection to a broadcast address.
        ip("link add one type veth peer name other");
        ip("address add 10.8.0.1/24 dev one");
        ip("link set one up");
        ip("link set other up");
        let node = Node::new();
        let all = SocketAddr::from((Ipv4Addr::new(10, 8, 0, 255), 7471));
        assert_eq!(node.device.source_for(all).unwrap(), None);
        let error = node.events.connect(&node.qp, all, &plain()).err();
        assert!(matches!(error, Some(Error::NoRoute { .. } | Error::Forbidden(_))), "{error:?}");
    });
}

/// If the address returns before a time limit has passed, nothing is lost.
#[test]
#[ignore = "needs root, for a network namespace"]
fn needs_root_an_address_may_go_for_a_while() {
    alone("limits::needs_root_an_address_may_go_for_a_while", true, || {
        ip("link set lo up");
        ip("address add 10.9.0.1/24 dev lo");
        let (server, client, _listener) = connected(&Config::default());
        let inbox = server.pd.alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
        let memory = client.pd.alloc_mr(1 << 20, Access::empty()).unwrap();
        memory.write_at(0, &pattern(1 << 20)).unwrap();
        server.qp.post_recv(&RecvWr { wr_id: 3, sges: &[Sge::of(&inbox, 0, 1 << 20)] }).unwrap();
        ip("address del 10.9.0.1/24 dev lo");
        let sges = [Sge::of(&memory, 0, 1 << 20)];
        let wr = SendWr { wr_id: 2, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
        client.qp.post_send(&wr).unwrap();
        is_idle(Duration::from_secs(1));
        ip("address add 10.9.0.1/24 dev lo");
        assert_eq!(completions(&server, 1), [(3, WcStatus::Success)]);
        let mut found = vec![0; 1 << 20];
        inbox.read_at(0, &mut found).unwrap();
        assert!(found == pattern(1 << 20));
        assert_eq!(completions(&client, 1), [(2, WcStatus::Success)]);
        works(&client, &server);
    });
}
