//! tshark must understand what a port captures.
//!
//! Two devices in this process perform every operation over an in-process link, and one of them captures the frames.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use urnic::*;
use urnic_config::{Cidr, Config};

const PATIENCE: Duration = Duration::from_secs(60);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const PORT: u16 = 7777;
const SIZE: usize = 1 << 20;
/// Bytes of one message, which the test looks for in the file.
const MARK: &[u8] = b"find me and break me";

/// A device and its objects.
struct Node {
    device: Device,
    pd: Pd,
    cq: Cq,
    events: EventChannel,
    memory: Mr,
}

impl Node {
    fn open(link: &str, ip: Ipv4Addr, capture: Option<&Path>) -> Self {
        let mut config = Config::default();
        config.port.spec = Some(format!("ring:{link}").parse().expect("a port"));
        config.ip.addresses = vec![Cidr { address: ip.into(), prefix: 24 }];
        config.port.capture = capture.map(Path::to_owned);
        let device = Device::open(&config).expect("the device opens");
        let pd = device.alloc_pd();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Self {
            cq: device.create_cq(1024, None).expect("a queue"),
            events: device.create_event_channel().expect("a channel"),
            memory: pd.alloc_mr(SIZE, all).expect("memory"),
            pd,
            device,
        }
    }

    fn qp(&self) -> Qp {
        let init = QpInit {
            send_cq: &self.cq,
            recv_cq: &self.cq,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        self.pd.create_qp(&init).expect("a queue pair")
    }

    fn event(&self, what: &str) -> CmEvent {
        self.events.wait(PATIENCE).unwrap_or_else(|| panic!("waiting for {what}"))
    }

    /// Waits for the next completion.
    fn completion(&self, what: &str) -> Wc {
        let start = Instant::now();
        let mut found = [Wc::default()];
        while self.cq.poll(&mut found) == 0 {
            assert!(start.elapsed() < PATIENCE, "waiting for {what}");
            thread::yield_now();
        }
        found[0]
    }
}

/// A node that listens, and a node that connects.
struct Pair {
    server: Node,
    client: Node,
    _listener: Listener,
}

impl Pair {
    fn open(link: &str, capture: &Path) -> Self {
        let server = Node::open(link, SERVER, None);
        let client = Node::open(link, CLIENT, Some(capture));
        let listener = server.events.listen(PORT, 8).expect("a listener");
        Self { server, client, _listener: listener }
    }

    /// Makes a connection. Returns the queue pairs of the server and of the client, and the client's handle of
    /// the connection.
    fn connect(&self) -> (Qp, Qp, Connection) {
        let (server, client) = (self.server.qp(), self.client.qp());
        let param = ConnParam { private_data: b"may I?".to_vec(), ..ConnParam::default() };
        let connection = self.ask(&client, &param);
        match self.server.event("a request") {
            CmEvent::ConnectRequest(request) => {
                // With this setting, the server answers a Send that finds no receive by a Terminate.
                request
                    .accept(&server, &ConnParam { rnr_retry: 0, ..ConnParam::default() })
                    .expect("accepted")
            }
            other => panic!("{other:?} instead of a request"),
        };
        let event = self.client.event("the connection");
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        let event = self.server.event("the connection");
        assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
        (server, client, connection)
    }

    fn ask(&self, qp: &Qp, param: &ConnParam) -> Connection {
        self.client.events.connect(qp, SocketAddrV4::new(SERVER, PORT), param).expect("on its way")
    }

    /// Posts an operation at the client, and waits for its completion. If the server receives, also waits for the
    /// completion of the receive.
    fn run(&self, (server, client): (&Qp, &Qp), op: SendOp, len: u32, flags: SendFlags) {
        let receives = matches!(op, SendOp::Send | SendOp::SendInv(_) | SendOp::WriteImm { .. });
        if receives {
            let sges = [Sge::of(&self.server.memory, 0, len)];
            server.post_recv(&RecvWr { wr_id: 1, sges: &sges }).expect("posted");
        }
        let sges = [Sge::of(&self.client.memory, 0, len)];
        let wr = SendWr { wr_id: 2, op, sges: &sges, flags: flags | SendFlags::SIGNALED };
        client.post_send(&wr).expect("posted");
        let wc = self.client.completion("the client's completion");
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, 2), "{op:?} {len}");
        if receives {
            let wc = self.server.completion("the server's completion");
            assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, len), "{op:?} {len}");
        }
    }

    fn disconnected(&self) {
        for node in [&self.client, &self.server] {
            let event = node.event("the end");
            assert!(matches!(event, CmEvent::Disconnected { .. }), "{event:?}");
        }
    }

    /// Runs every operation with small and large messages, a rejection, Terminates, and orderly ends.
    fn everything(&self) {
        let (server, client, connection) = self.connect();
        let qps = (&server, &client);
        let there = (self.server.memory.addr(), self.server.memory.rkey());
        for len in [0, 1, 8, 1000, 5000, 300_000] {
            let (addr, rkey) = there;
            self.run(qps, SendOp::Write { addr, rkey }, len, SendFlags::empty());
            self.run(qps, SendOp::Read { addr, rkey }, len, SendFlags::empty());
            self.run(qps, SendOp::Send, len, SendFlags::empty());
            self.run(qps, SendOp::Send, len, SendFlags::SOLICITED);
            for flags in [SendFlags::empty(), SendFlags::SOLICITED] {
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
                let passing = self.server.pd.alloc_mr(4096, access).expect("memory");
                self.run(qps, SendOp::SendInv(passing.rkey()), len, flags);
            }
        }
        let (addr, rkey) = there;
        for op in [
            SendOp::FetchAdd { addr, rkey, add: 1 },
            SendOp::MaskedFetchAdd { addr, rkey, add: 1, mask: 1 << 31 },
            SendOp::CmpSwap { addr, rkey, compare: 1, swap: 2 },
            SendOp::MaskedCmpSwap { addr, rkey, compare: 1, compare_mask: 0, swap: 2, swap_mask: 0xFF },
        ] {
            self.run(qps, op, 8, SendFlags::empty());
        }
        for (len, flags) in [(0, SendFlags::empty()), (5000, SendFlags::empty()), (8, SendFlags::SOLICITED)] {
            self.run(qps, SendOp::WriteImm { addr, rkey, imm: 0x0102_0304 }, len, flags);
        }
        self.client.memory.write_at(0, MARK).expect("in bounds");
        self.run(qps, SendOp::Send, MARK.len() as u32, SendFlags::empty());
        connection.disconnect().expect("connected");
        self.disconnected();

        let refused = self.client.qp();
        self.ask(&refused, &ConnParam::default());
        match self.server.event("a request") {
            CmEvent::ConnectRequest(request) => request.reject(b"no").expect("rejected"),
            other => panic!("{other:?} instead of a request"),
        }
        let event = self.client.event("the rejection");
        assert!(
            matches!(&event, CmEvent::Rejected { private_data, .. } if private_data == b"no"),
            "{event:?}"
        );

        // The server answers each refused request with a Terminate. The Terminate contains a tagged header, an untagged
        // header, or the header of a Read.
        let sges = [Sge::of(&self.client.memory, 0, 8)];
        let (addr, rkey) = (0, 0xdead_beef);
        for op in [
            SendOp::Write { addr, rkey },
            SendOp::Send,
            SendOp::Read { addr, rkey },
            SendOp::FetchAdd { addr: there.0 + 4, rkey: there.1, add: 1 },
        ] {
            let (_server, client, _connection) = self.connect();
            let wr = SendWr { wr_id: 3, op, sges: &sges, flags: SendFlags::SIGNALED };
            client.post_send(&wr).expect("posted");
            self.disconnected();
            assert!(client.terminate().is_some());
            self.client.completion("the end of the request");
        }
    }
}

/// Returns what tshark prints about a file.
fn tshark(file: &Path, args: &[&str]) -> String {
    let mut command = Command::new("tshark");
    // The other home folder hides the user's own settings of tshark. The options make tshark verify checksums, which is
    // off by default, and keep it from decoding the test's data as protocols that often run over RDMA.
    command.env("HOME", file.parent().expect("a folder")).arg("-r").arg(file).arg("-n");
    command.args(["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE"]);
    command.args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]);
    let output = command.args(args).output().expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns how often each value of a field occurs.
fn count(file: &Path, field: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for value in tshark(file, &["-Y", field, "-T", "fields", "-e", field]).split([',', '\n']) {
        if !value.is_empty() {
            *counts.entry(value.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Returns tshark's verdict on the CRC of every FPDU: the number of good CRCs, and tshark's text about the others. The
/// verdict is parsed from text, because tshark has no field for it.
fn crcs(file: &Path) -> (usize, Vec<String>) {
    let text = tshark(file, &["-Y", "iwarp_mpa.fpdu", "-O", "iwarp_mpa"]);
    let verdicts = text.lines().map(str::trim).filter(|line| line.starts_with("CRC"));
    let (good, bad): (Vec<&str>, Vec<&str>) = verdicts.partition(|line| line.contains("(Good CRC32)"));
    (good.len(), bad.into_iter().map(str::to_owned).collect())
}

/// Returns the frames that tshark calls malformed or wrong, such as frames with a wrong checksum.
fn errors(file: &Path) -> String {
    const ERRORS: &str = "_ws.malformed || ip.checksum.status == 0 || tcp.checksum.status == 0 || \
                          _ws.expert.severity == \"Error\"";
    tshark(file, &["-Y", ERRORS])
}

#[test]
#[ignore = "needs tshark"]
fn needs_tshark_a_capture_of_everything() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("all.pcapng");
    let pair = Pair::open("capture", &file);
    pair.everything();
    let counters = pair.client.device.attributes().expect("attributes").counters;
    let counter = |name| counters.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
    assert_eq!(counter("capture_dropped"), Some(0));
    // Dropping the pair ends the connections, and drops the devices, which ends the capture.
    drop(pair);

    assert_eq!(errors(&file), "");
    let opcodes = count(&file, "iwarp_rdma.opcode");
    let fpdus: usize = opcodes.values().sum();
    let (good, bad) = crcs(&file);
    assert_eq!((good, bad), (fpdus, vec![]), "every FPDU has a CRC, and it is right");
    for (opcode, least) in [
        ("0x00", 6),
        ("0x01", 6),
        ("0x02", 6),
        ("0x03", 7),
        ("0x04", 6),
        ("0x05", 6),
        ("0x06", 6),
        ("0x08", 2),
        ("0x09", 1),
        ("0x0a", 4),
        ("0x0b", 4),
    ] {
        assert!(opcodes.get(opcode).is_some_and(|&n| n >= least), "{opcode}: {opcodes:?}");
    }
    assert_eq!(opcodes.get("0x07"), Some(&4), "four Terminates: {opcodes:?}");
    // The capture has six Requests and six Replies. One of the Replies is a rejection.
    assert_eq!(count(&file, "iwarp_mpa.key.req").values().sum::<usize>(), 6);
    assert_eq!(count(&file, "iwarp_mpa.key.rep").values().sum::<usize>(), 6);
    let replies = tshark(&file, &["-Y", "iwarp_mpa.rep && iwarp_mpa.rej_flag == 1"]);
    assert_eq!(replies.lines().count(), 1, "{replies}");
    // The capture distinguishes both directions, and has all frames in order of time.
    let frames = tshark(
        &file,
        &["-T", "fields", "-e", "ip.src", "-e", "frame.packet_flags_direction", "-e", "frame.time_epoch"],
    );
    let mut last = 0.0;
    for line in frames.lines() {
        let mut columns = line.split('\t');
        let (ip, direction, time) = (columns.next(), columns.next(), columns.next());
        let expected = match ip {
            Some("10.8.0.1") => "0x00000001",
            Some("10.8.0.2") => "0x00000002",
            // An ARP frame.
            _ => direction.unwrap_or_default(),
        };
        assert_eq!(direction, Some(expected), "{line}");
        let time: f64 = time.and_then(|t| t.parse().ok()).expect("a time");
        assert!(time >= last, "{line}");
        last = time;
    }

    // With one wrong bit in a payload, tshark must report an error. If it did not, the checks above would prove
    // nothing.
    let mut bytes = fs::read(&file).expect("the capture");
    let places: Vec<usize> =
        bytes.windows(MARK.len()).enumerate().filter(|(_, w)| *w == MARK).map(|(at, _)| at).collect();
    assert_eq!(places.len(), 1, "the message is in the file once");
    bytes[places[0]] ^= 1;
    let damaged = dir.path().join("damaged.pcapng");
    fs::write(&damaged, bytes).expect("written");
    let (good, bad) = crcs(&damaged);
    assert_eq!((good, bad.len()), (fpdus - 1, 1));
    assert!(bad[0].contains("Bad CRC32"), "{bad:?}");
    assert_eq!(errors(&damaged).lines().count(), 1, "its TCP checksum is wrong");
}

/// Frames that a device sends to its own address do not reach the port. Nevertheless, the capture contains each of them
/// once.
#[test]
#[ignore = "needs tshark"]
fn needs_tshark_frames_to_ourselves() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("self.pcapng");
    let node = Node::open("capture-self", SERVER, Some(&file));
    let ports = node.device.create_event_channel().expect("a channel");
    let _listener = ports.listen(PORT, 8).expect("a listener");
    let (here, there) = (node.qp(), node.qp());
    let _connection = node
        .events
        .connect(&here, SocketAddrV4::new(SERVER, PORT), &ConnParam::default())
        .expect("on its way");
    match ports.wait(PATIENCE) {
        Some(CmEvent::ConnectRequest(request)) => {
            request.accept(&there, &ConnParam::default()).expect("accepted")
        }
        other => panic!("{other:?} instead of a request"),
    };
    let event = node.event("the connection");
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
    let sges = [Sge::of(&node.memory, 0, 20_000)];
    let op = SendOp::Write { addr: node.memory.addr() + 20_000, rkey: node.memory.rkey() };
    here.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::SIGNALED }).expect("posted");
    assert_eq!(node.completion("the Write").status, WcStatus::Success);
    drop((here, there, _listener, _connection, ports, node));

    assert_eq!(errors(&file), "");
    let (good, bad) = crcs(&file);
    assert!(good >= 14 && bad.is_empty(), "{good} {bad:?}");
    assert_eq!(tshark(&file, &["-Y", "tcp.analysis.retransmission || tcp.analysis.duplicate_ack"]), "");
}
