//! Devices on the kernel's sockets, as programs without any settings have them: real time, the loopback, an ordinary user.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use urnic::*;

/// Nothing takes that long but a stopped machine.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What a program has of a device.
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
        let init = QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        let qp = pd.create_qp(&init).unwrap();
        let events = device.create_event_channel().unwrap();
        Self { device, pd, cq, qp, events }
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

/// Connects the client to a listener of the server, and gives the peer that the server sees.
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

/// A message of every kind, larger than whatever carries it, gets across.
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
fn each_way_of_driving_works() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let mut config = Config::default();
        config.engine.progress = progress;
        let (server, client) = (Node::of(&config), Node::of(&config));
        let listener = server.events.listen(0, 4).unwrap();
        let to: SocketAddr = (LOOPBACK, listener.port()).into();
        // Ends that only their program's polls drive need both to be polled.
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

/// RFC 3493 §5.3: a listener on any address has both families.
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

/// RDMA and TCP share ports, as on any iWARP.
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

/// MPA-64: who speaks no iWARP is sent away, and nobody else notices.
#[test]
fn strangers_are_sent_away() {
    let (server, client) = (Node::new(), Node::new());
    let listener = server.events.listen(0, 4).unwrap();
    let to: SocketAddr = (LOOPBACK, listener.port()).into();
    for words in [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], &[0; 100_000]] {
        let mut stranger = TcpStream::connect(to).unwrap();
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be gone before it has said all.
        let _ = stranger.write_all(words);
        let mut answer = Vec::new();
        let heard = stranger.read_to_end(&mut answer);
        let reset = heard.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(answer.is_empty() && (heard.is_ok() || reset), "{heard:?} {answer:?}");
    }
    connect(&server, &client, to);
    works(&server, &client);
}

/// Nobody listens there: told at once, and the queue pair can be connected again.
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

/// What was sent arrives though the device goes at once.
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

/// Set in the process that has few descriptors.
const FEW: &str = "URNIC_TEST_FEW_DESCRIPTORS";

/// In a process of its own, as the limit is the process's: what cannot be had is said, what is there goes on, and comes
/// again when there are descriptors again.
#[test]
fn without_descriptors_what_is_there_goes_on() {
    if std::env::var_os(FEW).is_some() {
        return with_few_descriptors();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "without_descriptors_what_is_there_goes_on", "--nocapture"]).env(FEW, "1");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    let other = client.pd.create_qp(&QpInit {
        send_cq: &client.cq,
        recv_cq: &client.cq,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
    });
    let other = other.unwrap();
    let refused = client.events.connect(&other, to, &ConnParam::default()).err().map(|e| e.to_string());
    assert!(refused.as_ref().is_some_and(|words| words.contains("ulimit -n")), "{refused:?}");
    // One for our end of the next connection, and none for its end at the listener, until there are more.
    hoard.pop();
    client.events.connect(&other, to, &ConnParam::default()).unwrap();
    drop(hoard);
    let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
    drop(request);
    assert!(matches!(client.event(), CmEvent::Rejected { .. }));
    works(&server, &client);
}
