//! Live peers that stop reading for longer than any time-out, which shuts their windows.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use urnic::*;

use crate::ends::*;
use crate::phases::completions;
use crate::process::*;

const LEN: usize = 4 << 20;
/// Number of Writes: far more than the kernel's buffers take.
const WRITES: usize = 12;
/// Maximum memory of a stalled connection, in octets: the data that it queues, and some overhead of the allocator.
const BOUND: usize = 8 << 20;

/// Returns a configuration with time-outs much shorter than the stall. Those of keep-alive are whole seconds, because
/// the kernel counts them in seconds.
fn impatient_config() -> Config {
    let mut config = Config::default();
    config.tcp.user_timeout = Some(Duration::from_millis(500));
    config.tcp.keepalive_idle = Some(Duration::from_secs(1));
    config.tcp.keepalive_interval = Duration::from_secs(1);
    config.tcp.keepalive_count = 1;
    config.mpa.startup_timeout = Duration::from_millis(500);
    config
}

/// Makes a peer with a small buffer, which asks for a connection.
fn small(port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    socket.connect(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
    let mut peer = TcpStream::from(socket);
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.write_all(REQUEST).unwrap();
    peer
}

/// Makes a peer with a small buffer, and accepts its connection.
fn accepted(events: &EventChannel, node: &Node, port: u16) -> (TcpStream, Connection) {
    let mut peer = small(port);
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE) else { panic!("no request") };
    let connection = request.accept(&node.qp, &plain()).unwrap();
    assert_eq!(heard(&mut peer, REPLY.len()), REPLY);
    assert!(matches!(events.wait(PATIENCE), Some(CmEvent::Established { .. })));
    peer.write_all(WRITE).unwrap();
    (peer, connection)
}

fn write(node: &Node, memory: &Mr, wr_id: u64, len: usize) {
    let sges = [Sge::of(memory, 0, len as u32)];
    let op = SendOp::Write { addr: wr_id << 32, rkey: 0x0a0b_0c0d };
    node.qp.post_send(&SendWr { wr_id, op, sges: &sges, flags: SendFlags::empty() }).unwrap();
}

/// Reads the FPDUs of a Write, and checks every octet of it.
fn read_write(peer: &mut TcpStream, number: u64, len: usize, expected: &[u8]) {
    let mut at = 0;
    while at < len {
        let head = heard(peer, 16);
        let ulpdu = usize::from(u16::from_be_bytes([head[0], head[1]]));
        let rest = heard(peer, (2 + ulpdu).next_multiple_of(4) + 4 - 16);
        let payload = ulpdu - 14;
        // RFC 5041 §4.2: the tagged flag, the last flag, the steering tag, and the offset.
        assert_eq!(head[2], if at + payload == len { 0xC1 } else { 0x81 });
        assert_eq!(head[4..8], 0x0a0b_0c0d_u32.to_be_bytes());
        assert_eq!(head[8..16], ((number << 32) + at as u64).to_be_bytes());
        assert!(rest[..payload] == expected[at..at + payload], "{number} at {at}");
        at += payload;
    }
}

/// Checks RFC 9293 §3.8.6.1: a window may be shut for as long as the peer acknowledges probes. The waiting data
/// arrives whole when the peer reads again. Meanwhile no thread spins, memory is bounded, and other connections
/// go on.
fn goes_on_after(stall: Duration) {
    let device = Device::open(&impatient_config()).unwrap();
    let events = device.create_event_channel().unwrap();
    let listener = events.listen(0, 4).unwrap();
    drop(Node::of(&device));
    let before = descriptors();
    let node = Node::of(&device);
    let memory = node.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let content = pattern(LEN);
    memory.write_at(0, &content).unwrap();
    let (mut peer, _) = accepted(&events, &node, listener.port());
    let had = self::memory();
    for number in 0..WRITES as u64 {
        write(&node, &memory, number, LEN);
    }
    until("the window is shut", || {
        let connections = device.connections().unwrap();
        connections.len() == 1 && connections[0].tcp.snd_wnd < 1000
    });
    is_idle(stall / 2);
    let (one, other) = (Node::of(&device), Node::of(&device));
    one.events.connect(&one.qp, (Ipv4Addr::LOCALHOST, listener.port()), &plain()).unwrap();
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE) else { panic!("no request") };
    request.accept(&other.qp, &plain()).unwrap();
    assert!(matches!(events.wait(PATIENCE), Some(CmEvent::Established { .. })));
    one.established();
    works(&one, &other);
    drop((one, other));
    assert!(matches!(events.wait(PATIENCE), Some(CmEvent::Disconnected { .. })));
    is_idle(stall / 2);
    let grown = self::memory().saturating_sub(had);
    println!("{grown} octets more than before the stall");
    assert!(grown < BOUND, "{grown}");
    let event = events.poll();
    assert!(event.is_none(), "{event:?}");
    for number in 0..WRITES as u64 {
        read_write(&mut peer, number, LEN, &content);
    }
    let expected: Vec<_> = (0..WRITES as u64).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(completions(&node, WRITES), expected);
    drop((peer, memory));
    assert!(matches!(events.wait(PATIENCE), Some(CmEvent::Disconnected { .. })));
    drop(node);
    nothing_left(&device, before);
    is_idle(Duration::from_millis(500));
}

#[test]
fn a_peer_that_stops_reading_is_waited_for() {
    alone("stalls::a_peer_that_stops_reading_is_waited_for", false, || {
        goes_on_after(Duration::from_secs(4));
    });
}

#[test]
#[ignore = "takes more than a minute"]
fn long_a_peer_that_stops_reading_for_a_minute_is_waited_for() {
    alone("stalls::long_a_peer_that_stops_reading_for_a_minute_is_waited_for", false, || {
        goes_on_after(Duration::from_secs(66));
    });
}

/// A peer stops reading small messages. Each message takes far more of the peer's memory than of its window, so the
/// memory may be used up before the window is. Then the peer drops segments, perhaps without reporting that.
#[test]
fn a_peer_that_stops_reading_small_messages_is_waited_for() {
    alone("stalls::a_peer_that_stops_reading_small_messages_is_waited_for", false, || {
        const EACH: usize = 40;
        const MESSAGES: u64 = 20_000;
        let device = Device::open(&impatient_config()).unwrap();
        let events = device.create_event_channel().unwrap();
        let listener = events.listen(0, 4).unwrap();
        let node = Node::of(&device);
        let memory = node.pd.alloc_mr(EACH, Access::LOCAL_WRITE).unwrap();
        let content = pattern(EACH);
        memory.write_at(0, &content).unwrap();
        let (mut peer, _) = accepted(&events, &node, listener.port());
        let (mut posted, mut done) = (0, 0);
        let mut go = |node: &Node| {
            let mut wc = [Wc::default()];
            while node.cq.poll(&mut wc) > 0 {
                assert_eq!(wc[0].status, WcStatus::Success);
                assert_eq!(wc[0].wr_id, done);
                done += 1;
            }
            while posted < MESSAGES && posted < done + 16 {
                write(node, &memory, posted, EACH);
                posted += 1;
            }
            done
        };
        let mut last = (0, std::time::Instant::now());
        until("nothing more is taken", || {
            let done = go(&node);
            if done != last.0 {
                last = (done, std::time::Instant::now());
            }
            last.1.elapsed() > Duration::from_secs(4)
        });
        println!("{} messages were taken", last.0);
        let event = events.poll();
        assert!(event.is_none(), "{event:?}");
        assert!(last.0 < MESSAGES, "all fit");
        SockRef::from(&peer).set_recv_buffer_size(1 << 20).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for number in 0..MESSAGES {
                    read_write(&mut peer, number, EACH, &content);
                }
            });
            until("all is done", || go(&node) == MESSAGES);
            reader.join().unwrap();
        });
    });
}

/// How a program leaves a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// The program disconnects, and waits for the end.
    Disconnects,
    /// The program destroys the queue pair instead, and is told of the end at once.
    Destroys,
}

/// Posts Writes until no further Write completes. Returns the number of completed Writes, and the number of posted
/// Writes.
fn fill(node: &Node, memory: &Mr, each: usize) -> (u64, u64) {
    const DEPTH: u64 = 15;
    let (mut posted, mut done) = (0, 0);
    let mut last = std::time::Instant::now();
    until("nothing more is taken", || {
        let mut wc = [Wc::default()];
        while node.cq.poll(&mut wc) > 0 {
            assert_eq!((wc[0].wr_id, wc[0].status), (done, WcStatus::Success));
            done += 1;
            last = std::time::Instant::now();
        }
        while posted < done + DEPTH {
            write(node, memory, posted, each);
            posted += 1;
        }
        last.elapsed() > Duration::from_secs(1)
    });
    (done, posted)
}

/// Checks DDP-43, RFC 9293 §3.8.6.1: the data of requests that were completed, or were posted before the
/// disconnect, arrives when the peer reads again, however long the peer's window was shut. Then a FIN follows,
/// not a reset.
fn arrives_after(leaves: Leaves) {
    // Longer than the time limit for the end of a connection whose peer is silent.
    const STALL: Duration = Duration::from_secs(8);
    const EACH: usize = 64 << 10;
    let device = Device::open(&impatient_config()).unwrap();
    let events = device.create_event_channel().unwrap();
    let listener = events.listen(0, 4).unwrap();
    drop(Node::of(&device));
    let before = descriptors();
    let node = Node::of(&device);
    let memory = node.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    let content = pattern(LEN);
    memory.write_at(0, &content).unwrap();
    let (mut peer, connection) = accepted(&events, &node, listener.port());
    let (done, posted) = fill(&node, &memory, EACH);
    println!("{leaves:?}: {done} of {posted} were completed");
    assert!(done > 0);
    // A queue pair that is not destroyed sends the data of all posted requests.
    let (node, left) = match leaves {
        Leaves::Disconnects => {
            connection.disconnect().unwrap();
            is_idle(STALL);
            assert!(events.poll().is_none(), "the peer is there");
            (Some((node, memory)), posted)
        }
        Leaves::Destroys => {
            drop((memory, node));
            assert!(matches!(events.wait(PATIENCE), Some(CmEvent::Disconnected { .. })));
            is_idle(STALL);
            (None, done)
        }
    };
    for number in 0..left {
        read_write(&mut peer, number, EACH, &content);
    }
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut peer, &mut rest).unwrap();
    drop(peer);
    if let Some((node, memory)) = node {
        assert!(rest.is_empty());
        let event = events.wait(PATIENCE);
        assert!(
            matches!(event, Some(CmEvent::Disconnected { reason: DisconnectReason::Local, .. })),
            "{event:?}"
        );
        let expected: Vec<_> = (done..posted).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(completions(&node, expected.len()), expected);
        drop((node, memory));
    }
    nothing_left(&device, before);
}

#[test]
fn what_was_posted_before_a_disconnect_waits_for_the_peer() {
    alone("stalls::what_was_posted_before_a_disconnect_waits_for_the_peer", false, || {
        arrives_after(Leaves::Disconnects);
    });
}

#[test]
fn what_was_completed_waits_for_the_peer_without_its_queue_pair() {
    alone("stalls::what_was_completed_waits_for_the_peer_without_its_queue_pair", false, || {
        arrives_after(Leaves::Destroys);
    });
}

/// Environment variable that is set in the process that ends.
const LEAVER: &str = "URNIC_TEST_LEAVER";

/// The device has five seconds to close its connections, and the peer's window is shut for longer. The kernel already
/// has the data of completed requests, and delivers it after the process has ended.
#[test]
fn what_was_completed_arrives_although_the_process_ends() {
    const EACH: usize = 3000;
    if std::env::var_os(LEAVER).is_some() {
        return leave(EACH);
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "stalls::what_was_completed_arrives_although_the_process_ends", "--nocapture"])
        .env(LEAVER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut number = |what: &str| -> u64 {
        let line = said.by_ref().map(Result::unwrap).find(|line| line.starts_with(what));
        line.unwrap_or_else(|| panic!("the process says no {what}"))[what.len()..].parse().unwrap()
    };
    let mut peer = small(number("port ") as u16);
    assert_eq!(heard(&mut peer, REPLY.len()), REPLY);
    peer.write_all(WRITE).unwrap();
    let done = number("completed ");
    assert!(child.wait().unwrap().success());
    println!("{done} were completed");
    assert!(done > 0);
    let content = pattern(EACH);
    for number in 0..done {
        read_write(&mut peer, number, EACH, &content);
    }
    std::io::Read::read_to_end(&mut peer, &mut Vec::new()).unwrap();
}

/// Posts Writes until no further Write completes, and exits.
fn leave(each: usize) {
    let device = Device::open(&impatient_config()).unwrap();
    let events = device.create_event_channel().unwrap();
    let listener = events.listen(0, 4).unwrap();
    let node = Node::of(&device);
    println!("\nport {}", listener.port());
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE) else { panic!("no request") };
    request.accept(&node.qp, &plain()).unwrap();
    assert!(matches!(events.wait(PATIENCE), Some(CmEvent::Established { .. })));
    let memory = node.pd.alloc_mr(each, Access::LOCAL_WRITE).unwrap();
    memory.write_at(0, &pattern(each)).unwrap();
    println!("completed {}", fill(&node, &memory, each).0);
    std::process::exit(0);
}
