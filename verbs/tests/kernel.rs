//! Devices on the kernel's sockets: a program without any settings gets such a device. The tests run in real time, over
//! the loopback, as an ordinary user unless a test needs root.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urnic::*;
use urnic_config::Lend;

/// Time limit of a step, which only a stopped machine exceeds.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A device, and a program's objects on it.
struct Node {
    device: Device,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    events: EventChannel,
}

impl Node {
    fn new() -> Self {
        Self::of(&Config::default())
    }

    fn of(config: &Config) -> Self {
        let device = Device::open(config).unwrap();
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
        let qp = queue_pair(&pd, &cq);
        let events = device.create_event_channel().unwrap();
        Self { device, pd, cq, qp, events }
    }

    /// Makes another queue pair of this node.
    fn queue_pair(&self) -> Qp {
        queue_pair(&self.pd, &self.cq)
    }

    fn event(&self) -> CmEvent {
        self.events.wait(PATIENCE).expect("an event")
    }

    /// Waits for a completion, which must be a success.
    fn completion(&self) -> Wc {
        let mut wc = [Wc::default()];
        let start = Instant::now();
        while self.cq.poll(&mut wc) == 0 {
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
        assert_eq!(wc[0].status, WcStatus::Success);
        wc[0]
    }
}

fn queue_pair(pd: &Pd, cq: &Cq) -> Qp {
    let init = QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
    };
    pd.create_qp(&init).unwrap()
}

/// Connects the client to a listener of the server. Returns the peer's address as the server sees it.
fn connect(server: &Node, client: &Node, to: SocketAddr) -> SocketAddr {
    client.events.connect(&client.qp, to, &ConnParam::default()).unwrap();
    let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
    let peer = request.peer();
    request.accept(&server.qp, &ConnParam::default()).unwrap();
    for node in [server, client] {
        assert!(matches!(node.event(), CmEvent::Established { .. }));
    }
    peer
}

/// Checks that a Write, a Read and a Send arrive. The messages are longer than a segment or record of any
/// carrier.
fn works(server: &Node, client: &Node) {
    const LEN: usize = 1_000_003;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let [here, there] = [client, server].map(|node| node.pd.alloc_mr(LEN, access).unwrap());
    let pattern: Vec<u8> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    let content = |mr: &Mr| {
        let mut bytes = vec![0; LEN];
        mr.read_at(0, &mut bytes).unwrap();
        bytes
    };
    let post = |op| {
        let sges = [Sge::of(&here, 0, LEN as u32)];
        client.qp.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::empty() }).unwrap();
        client.completion()
    };
    here.write_at(0, &pattern).unwrap();
    post(SendOp::Write { addr: there.addr(), rkey: there.rkey() });
    here.write_at(0, &vec![0; LEN]).unwrap();
    post(SendOp::Read { addr: there.addr(), rkey: there.rkey() });
    assert!(content(&here) == pattern, "what was written is read");
    there.write_at(0, &vec![0; LEN]).unwrap();
    server.qp.post_recv(&RecvWr { wr_id: 2, sges: &[Sge::of(&there, 0, LEN as u32)] }).unwrap();
    post(SendOp::Send);
    assert_eq!(server.completion().byte_len, LEN as u32);
    assert!(content(&there) == pattern, "what was sent is received");
}

/// Some programs number their connections: the client in the order of its connects, the server in the order of the
/// connection requests. Both ends must get the same numbers.
#[test]
fn requests_come_in_the_order_of_connects() {
    const CONNECTIONS: u8 = 24;
    let (server, client) = (Node::new(), Node::new());
    let listener = server.events.listen(0, CONNECTIONS.into()).unwrap();
    let to: SocketAddr = (LOOPBACK, listener.port()).into();
    for round in 0..20 {
        let qps: Vec<_> = (0..CONNECTIONS).map(|_| client.queue_pair()).collect();
        for (i, qp) in (0..).zip(&qps) {
            let param = ConnParam { private_data: vec![i], ..ConnParam::default() };
            client.events.connect(qp, to, &param).unwrap();
        }
        for i in 0..CONNECTIONS {
            let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
            assert_eq!(request.private_data(), [i], "round {round}");
            request.reject(&[]).unwrap();
        }
        for _ in &qps {
            assert!(matches!(client.event(), CmEvent::Rejected { .. }));
        }
    }
}

#[test]
fn a_device_needs_no_settings() {
    let (server, client) = (Node::new(), Node::new());
    let attributes = server.device.attributes().unwrap();
    assert!(attributes.addresses.iter().any(|a| a.address == LOOPBACK), "{:?}", attributes.addresses);
    assert_ne!(attributes.mac, [0; 6]);
    let listener = server.events.listen(0, 4).unwrap();
    let peer = connect(&server, &client, (LOOPBACK, listener.port()).into());
    assert_eq!(peer.ip(), LOOPBACK);
    works(&server, &client);
    let connections = client.device.connections().unwrap();
    assert_eq!(connections.len(), 1);
    assert!(connections[0].tcp.delivered > 1_000_000 && connections[0].peer.port() == listener.port());
}

#[test]
fn a_device_tells_what_each_of_its_engines_has() {
    let mut config = Config::default();
    config.engine.engines = Some(2);
    config.engine.cores = vec![0];
    let device = Device::open(&config).unwrap();
    let pd = device.alloc_pd();
    let cqs = [0, 1].map(|vector| {
        let init = CqInit { depth: 16, channel: None, timestamps: false, vector };
        device.create_cq_with(&init).unwrap()
    });
    let _qps = [&cqs[0], &cqs[1], &cqs[1]].map(|cq| queue_pair(&pd, cq));
    let told = device.attributes().unwrap();
    assert_eq!((told.engines, told.per_engine.len()), (2, 2));
    let of = |number: usize| &told.per_engine[number];
    assert_eq!([of(0).number, of(1).number], [0, 1]);
    assert_eq!([of(0).core, of(1).core], [Some(0), None], "one core for two engines");
    assert_eq!([of(0).queue_pairs, of(1).queue_pairs], [1, 2]);
    assert!(of(1).passes >= of(1).busy_passes && of(1).passes > 0, "{told:?}");
    for (name, sum) in &told.counters {
        let parts = told.per_engine.iter().flat_map(|engine| &engine.counters);
        let parts: u64 = parts.filter(|(other, _)| other == name).map(|(_, count)| count).sum();
        assert_eq!(parts, *sum, "{name}");
    }
}

/// Returns whether the kernel reports the window that it has announced to the peer (Linux 6.2 and later).
fn tells_windows() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

#[test]
fn each_end_shows_the_window_that_the_other_sees() {
    let (server, client) = (Node::new(), Node::new());
    let listener = server.events.listen(0, 4).unwrap();
    connect(&server, &client, (LOOPBACK, listener.port()).into());
    works(&server, &client);
    let start = Instant::now();
    loop {
        let [here, there] = [&client, &server].map(|node| node.device.connections().unwrap()[0].tcp);
        assert!(here.rcv_wnd > 0 && there.rcv_wnd > 0);
        if !tells_windows() || here.rcv_wnd == there.snd_wnd && there.rcv_wnd == here.snd_wnd {
            break;
        }
        // The loop waits, because the last ACK may be delayed.
        assert!(start.elapsed() < PATIENCE, "{here:?} {there:?}");
    }
}

#[test]
fn each_way_of_driving_works() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let mut config = Config::default();
        config.engine.progress = progress;
        let (server, client) = (Node::of(&config), Node::of(&config));
        let listener = server.events.listen(0, 4).unwrap();
        let to: SocketAddr = (LOOPBACK, listener.port()).into();
        // The loop polls both ends, because polls may be all that drives them.
        client.events.connect(&client.qp, to, &ConnParam::default()).unwrap();
        let start = Instant::now();
        let mut established = 0;
        while established < 2 {
            assert!(start.elapsed() < PATIENCE, "{progress:?}");
            match server.events.poll().or_else(|| client.events.poll()) {
                Some(CmEvent::ConnectRequest(request)) => {
                    request.accept(&server.qp, &ConnParam::default()).unwrap();
                }
                Some(CmEvent::Established { .. }) => established += 1,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        if progress != Progress::Inline {
            works(&server, &client);
        }
    }
}

/// A guard: dropping it tells a thread to stop, even if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// If the device copies all payload, a program may change a buffer while it is sent. The peer gets octets of the buffer
/// as they were at some moment, and the connection stays.
#[test]
fn a_buffer_may_change_under_a_write_if_all_is_copied() {
    const LEN: usize = 4 << 20;
    let mut config = Config::default();
    config.memory.lend = Lend::Off;
    let (server, client) = (Node::of(&config), Node::of(&config));
    let listener = server.events.listen(0, 4).unwrap();
    connect(&server, &client, (LOOPBACK, listener.port()).into());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let [here, there] = [&client, &server].map(|node| node.pd.alloc_mr(LEN, access).unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                here.write_at((n * 4099) % (LEN as u64 - 64), &[n as u8; 64]).unwrap();
            }
        });
        let _stop = Stop(&stop);
        for _ in 0..50 {
            let sges = [Sge::of(&here, 0, LEN as u32)];
            let op = SendOp::Write { addr: there.addr(), rkey: there.rkey() };
            client.qp.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::empty() }).unwrap();
            client.completion();
        }
    });
    works(&server, &client);
}

/// RFC 3493 §5.3: a listener on any address accepts connections of both families.
#[test]
fn both_families_reach_a_listener() {
    let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    let server = Node::new();
    let listener = server.events.listen(0, 4).unwrap();
    for ip in [LOOPBACK, Ipv6Addr::LOCALHOST.into()].into_iter().take(1 + usize::from(has_ipv6)) {
        let (one, client) = (Node::new(), Node::new());
        client.events.connect(&client.qp, (ip, listener.port()), &ConnParam::default()).unwrap();
        let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
        assert_eq!(request.peer().ip(), ip);
        drop((request, one));
        assert!(matches!(client.event(), CmEvent::Rejected { .. }));
    }
}

/// RDMA and TCP share the port numbers, as always in iWARP.
#[test]
fn ports_are_those_of_tcp() {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = tcp.local_addr().unwrap().port();
    let node = Node::new();
    let refused = node.device.bind((LOOPBACK, port), false).and_then(|bound| node.events.listen_at(bound, 1));
    assert!(matches!(&refused, Err(Error::PortInUse(taken)) if *taken == port), "{:?}", refused.err());
    drop(tcp);
    let bound = node.device.bind((LOOPBACK, port), false).unwrap();
    let _listener = node.events.listen_at(bound, 1).unwrap();
    assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err());
    let elsewhere = node.device.bind((Ipv4Addr::new(192, 0, 2, 1), 0), false);
    assert!(matches!(elsewhere, Err(Error::NotOurAddress(_))), "{:?}", elsewhere.err());
}

/// MPA-64: the device cuts off a peer that does not speak iWARP, without an effect on other peers.
#[test]
fn strangers_are_sent_away() {
    let (server, client) = (Node::new(), Node::new());
    let listener = server.events.listen(0, 4).unwrap();
    let to: SocketAddr = (LOOPBACK, listener.port()).into();
    for words in [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], &[0; 100_000]] {
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        // The connection may end before the stranger has sent everything.
        let _ = stranger.write_all(words);
        let mut answer = Vec::new();
        let heard = stranger.read_to_end(&mut answer);
        let reset = heard.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(answer.is_empty() && (heard.is_ok() || reset), "{heard:?} {answer:?}");
    }
    connect(&server, &client, to);
    works(&server, &client);
}

/// Without a listener, the refusal is reported at once, and the queue pair can be connected again.
#[test]
fn a_refusal_is_told_at_once() {
    let (server, client) = (Node::new(), Node::new());
    let unused = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    client.events.connect(&client.qp, unused, &ConnParam::default()).unwrap();
    let event = client.event();
    assert!(matches!(event, CmEvent::ConnectError { reason: ConnectFailure::Refused, .. }), "{event:?}");
    let listener = server.events.listen(0, 4).unwrap();
    connect(&server, &client, (LOOPBACK, listener.port()).into());
    works(&server, &client);
}

/// Data of completed Sends arrives, even if the device is dropped at once.
#[test]
fn a_device_that_goes_says_its_last_words() {
    let (server, client) = (Node::new(), Node::new());
    let listener = server.events.listen(0, 4).unwrap();
    connect(&server, &client, (LOOPBACK, listener.port()).into());
    const LEN: usize = 4 << 20;
    let inbox = server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    server.qp.post_recv(&RecvWr { wr_id: 2, sges: &[Sge::of(&inbox, 0, LEN as u32)] }).unwrap();
    let words = client.pd.alloc_mr(LEN, Access::empty()).unwrap();
    let sges = [Sge::of(&words, 0, LEN as u32)];
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
    client.qp.post_send(&wr).unwrap();
    client.completion();
    drop((words, client));
    assert_eq!(server.completion().byte_len, LEN as u32);
    let event = server.event();
    assert!(matches!(event, CmEvent::Disconnected { reason: DisconnectReason::Peer, .. }), "{event:?}");
}

/// MPAE-8, MPAE-9: the server knows only revision 1 of MPA, and closes the first connection. The second try comes from
/// the reserved port too.
#[test]
fn a_second_try_comes_from_the_reserved_port() {
    let mut old = Config::default();
    old.mpa.rev = 1;
    let (server, client) = (Node::of(&old), Node::new());
    let listener = server.events.listen(0, 4).unwrap();
    let bound = client.device.bind((LOOPBACK, 0), false).unwrap();
    let to = SocketAddr::from((LOOPBACK, listener.port()));
    client.events.connect_from(&bound, &client.qp, to, &ConnParam::default()).unwrap();
    let event = loop {
        // If the second try fails, there is no request to wait for.
        if let Some(event) = server.events.wait(Duration::from_millis(1)) {
            break event;
        }
        let failed = client.events.poll();
        assert!(failed.is_none(), "{failed:?}");
    };
    let CmEvent::ConnectRequest(request) = event else { panic!("no request") };
    assert_eq!(request.peer(), bound.address());
    request.accept(&server.qp, &ConnParam::default()).unwrap();
    for node in [&server, &client] {
        assert!(matches!(node.event(), CmEvent::Established { .. }));
    }
    works(&server, &client);
}

/// Runs a test of this file in its own process, with `mark` set in the environment. A `command` that is not empty
/// starts the process.
fn in_a_process_of_its_own(command: &[&str], test: &str, mark: &str) {
    let exe = std::env::current_exe().unwrap();
    let mut words = command.iter().map(std::ffi::OsStr::new).chain([exe.as_os_str()]);
    let mut child = std::process::Command::new(words.next().unwrap());
    child.args(words).args(["--exact", test, "--nocapture", "--include-ignored"]).env(mark, "1");
    let output = child.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn ip(arguments: &str) {
    let status = std::process::Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Environment variable that is set in the process with an interface of its own.
const LINK: &str = "URNIC_TEST_LINK";

/// If a device is limited to one of the host's addresses (`kernel:ADDRESS`), and that is not a loopback address, then
/// loopback addresses stand for it, as on a DPDK port.
#[test]
#[ignore = "needs root, for a network namespace"]
fn needs_root_a_device_with_one_address_is_its_own_loopback() {
    let test = "needs_root_a_device_with_one_address_is_its_own_loopback";
    if std::env::var_os(LINK).is_none() {
        return in_a_process_of_its_own(&["unshare", "--net"], test, LINK);
    }
    ip("link set lo up");
    ip("address add 10.9.0.1/24 dev lo");
    let home: IpAddr = [10, 9, 0, 1].into();
    let mut config = Config::default();
    config.port.kernel = urnic_config::KernelAddresses::One(home);
    for loopback in [LOOPBACK, [127, 3, 2, 1].into(), Ipv6Addr::LOCALHOST.into()] {
        let (server, client) = (Node::of(&config), Node::of(&config));
        let at = |port| SocketAddr::from((loopback, port));
        let bound = server.device.bind(at(0), false).unwrap();
        let to = bound.address();
        assert!(to.ip() == loopback && to.port() > 0, "{to}");
        for taken in [to, (home, to.port()).into(), (Ipv4Addr::UNSPECIFIED, to.port()).into()] {
            let refused = server.device.bind(taken, false).err();
            assert!(matches!(refused, Some(Error::PortInUse(_))), "{taken}: {refused:?}");
        }
        let _listener = server.events.listen_at(bound, 4).unwrap();
        assert_eq!(client.device.source_for(to).unwrap(), Some(home));
        let from = client.device.bind(at(0), false).unwrap();
        client.events.connect_from(&from, &client.qp, to, &ConnParam::default()).unwrap();
        let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
        assert_eq!(request.local().unwrap(), (home, to.port()).into());
        assert_eq!(request.peer(), (home, from.address().port()).into());
        request.accept(&server.qp, &ConnParam::default()).unwrap();
        for node in [&server, &client] {
            assert!(matches!(node.event(), CmEvent::Established { .. }));
        }
        works(&server, &client);
    }
}

/// RFC 4007 §6: a link-local address has a meaning only together with its link. The request names the link in the
/// addresses of both ends, whether the client has reserved its address or not.
#[test]
#[ignore = "needs root, for a network namespace"]
fn needs_root_addresses_of_a_link_alone() {
    if std::env::var_os(LINK).is_none() {
        return in_a_process_of_its_own(&["unshare", "--net"], "needs_root_addresses_of_a_link_alone", LINK);
    }
    ip("link set lo up");
    ip("link add urnic0 type veth peer name urnic1");
    for name in ["urnic0", "urnic1"] {
        ip(&format!("link set {name} up"));
        ip(&format!("address add fe80::7/64 dev {name} nodad"));
    }
    let scope = nix::net::if_::if_nametoindex("urnic1").unwrap();
    let own: Ipv6Addr = "fe80::7".parse().unwrap();
    let at = |port| SocketAddr::from(std::net::SocketAddrV6::new(own, port, 0, scope));
    for reserved in [false, true] {
        let (server, client) = (Node::new(), Node::new());
        let to = server.device.bind(at(0), true).unwrap();
        let port = to.address().port();
        let _listener = server.events.listen_at(to, 4).unwrap();
        assert_eq!(client.device.source_for(at(port)).unwrap(), Some(own.into()));
        let from = reserved.then(|| client.device.bind(at(0), true).unwrap());
        match &from {
            Some(from) => {
                client.events.connect_from(from, &client.qp, at(port), &ConnParam::default()).unwrap()
            }
            None => client.events.connect(&client.qp, at(port), &ConnParam::default()).unwrap(),
        };
        let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
        assert_eq!(request.local().unwrap(), at(port));
        assert_eq!(request.peer(), at(request.peer().port()));
        request.accept(&server.qp, &ConnParam::default()).unwrap();
        for node in [&server, &client] {
            assert!(matches!(node.event(), CmEvent::Established { .. }));
        }
        works(&server, &client);
    }
}

/// If the peer has reset the connection, the kernel refuses a Send whose payload is lent to it. The Send then must not
/// succeed.
#[test]
fn a_send_that_the_kernel_refuses_does_not_succeed() {
    const LEN: u32 = 96 << 10;
    let mut config = Config::default();
    config.engine.progress = Progress::Inline;
    let (server, client) = (Node::of(&config), Node::of(&config));
    let listener = server.events.listen(0, 4).unwrap();
    let to: SocketAddr = (LOOPBACK, listener.port()).into();
    client.events.connect(&client.qp, to, &ConnParam::default()).unwrap();
    let event = |node: &Node| {
        let start = Instant::now();
        loop {
            for end in [&server, &client] {
                end.cq.poll(&mut []);
            }
            match node.events.poll() {
                Some(event) => return event,
                None => assert!(start.elapsed() < PATIENCE, "no event"),
            }
        }
    };
    let CmEvent::ConnectRequest(request) = event(&server) else { panic!("no request") };
    let _accepted = request.accept(&server.qp, &ConnParam::default()).unwrap();
    for node in [&client, &server] {
        assert!(matches!(event(node), CmEvent::Established { .. }));
    }
    server.qp.to_error();
    let memory = client.pd.alloc_mr(LEN as usize, Access::LOCAL_WRITE).unwrap();
    let sges = [Sge::of(&memory, 0, LEN)];
    client
        .qp
        .post_send(&SendWr { wr_id: 2, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() })
        .unwrap();
    let (mut wc, start) = ([Wc::default()], Instant::now());
    while client.cq.poll(&mut wc) == 0 {
        assert!(start.elapsed() < PATIENCE, "no completion");
    }
    assert_eq!((wc[0].wr_id, wc[0].status), (2, WcStatus::Flushed));
}

/// A peer that has received a Send may close the connection before our end looks at it again. The Send has succeeded
/// even then, also if its payload was lent to the kernel.
#[test]
fn a_send_succeeds_although_the_peer_closes_at_once() {
    const LEN: u32 = 96 << 10;
    let mut config = Config::default();
    config.engine.progress = Progress::Inline;
    for _ in 0..20 {
        let (server, client) = (Node::new(), Node::of(&config));
        // Only polls drive the client.
        let event = |node: &Node| {
            let start = Instant::now();
            loop {
                client.cq.poll(&mut []);
                match node.events.poll() {
                    Some(event) => return event,
                    None => assert!(start.elapsed() < PATIENCE, "no event"),
                }
            }
        };
        let listener = server.events.listen(0, 4).unwrap();
        let to: SocketAddr = (LOOPBACK, listener.port()).into();
        client.events.connect(&client.qp, to, &ConnParam::default()).unwrap();
        let CmEvent::ConnectRequest(request) = event(&server) else { panic!("no request") };
        let accepted = request.accept(&server.qp, &ConnParam::default()).unwrap();
        for node in [&client, &server] {
            assert!(matches!(event(node), CmEvent::Established { .. }));
        }
        let [here, there] =
            [&client, &server].map(|node| node.pd.alloc_mr(LEN as usize, Access::LOCAL_WRITE).unwrap());
        server.qp.post_recv(&RecvWr { wr_id: 1, sges: &[Sge::of(&there, 0, LEN)] }).unwrap();
        let sges = [Sge::of(&here, 0, LEN)];
        let send = SendWr { wr_id: 2, op: SendOp::Send, sges: &sges, flags: SendFlags::empty() };
        client.qp.post_send(&send).unwrap();
        assert_eq!(server.completion().wr_id, 1);
        accepted.disconnect().unwrap();
        // The server's end closes while the client does not look.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            assert_eq!(server.cq.poll(&mut [Wc::default()]), 0);
        }
        assert_eq!(client.completion().wr_id, 2);
    }
}

/// Environment variable that is set in the process with few descriptors.
const FEW: &str = "URNIC_TEST_FEW_DESCRIPTORS";

/// The device reports a lack of descriptors, existing connections go on, and everything works again when descriptors
/// are free. The test runs in its own process, because the limit belongs to the process.
#[test]
fn without_descriptors_what_is_there_goes_on() {
    if std::env::var_os(FEW).is_some() {
        return with_few_descriptors();
    }
    in_a_process_of_its_own(&[], "without_descriptors_what_is_there_goes_on", FEW);
}

fn with_few_descriptors() {
    use nix::sys::resource::{Resource, setrlimit};

    setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    let (server, client) = (Node::new(), Node::new());
    let listener = server.events.listen(0, 4).unwrap();
    let to: SocketAddr = (LOOPBACK, listener.port()).into();
    connect(&server, &client, to);
    let mut hoard: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    works(&server, &client);
    let other = client.queue_pair();
    let refused = client.events.connect(&other, to, &ConnParam::default()).err().map(|e| e.to_string());
    assert!(refused.as_ref().is_some_and(|words| words.contains("ulimit -n")), "{refused:?}");
    // This frees one descriptor for our end of the next connection. The listener's end has none until the test frees
    // more.
    hoard.pop();
    client.events.connect(&other, to, &ConnParam::default()).unwrap();
    drop(hoard);
    let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
    drop(request);
    assert!(matches!(client.event(), CmEvent::Rejected { .. }));
    works(&server, &client);
}
