//! Peers that reset or end the connection in each of its phases, and peers that fall silent in a phase.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;
use urnic::*;

use crate::ends::*;
use crate::process::*;

const QUIET: Duration = Duration::from_millis(500);

/// How a peer leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Reset,
    End,
}

impl Way {
    fn take(self, peer: &TcpStream) {
        match self {
            // RFC 9293 §3.10.5: the peer aborts by a reset, with or without unread data.
            Way::Reset => reset(peer),
            Way::End => peer.shutdown(Shutdown::Write).unwrap(),
        }
    }
}

/// Ends a connection by a reset, even if other descriptors of it are open.
fn reset(peer: &TcpStream) {
    use std::os::fd::AsRawFd;
    let _ = SockRef::from(peer).set_linger(Some(Duration::ZERO));
    // SAFETY: all members may be zero. The family AF_UNSPEC asks for the end of the connection.
    unsafe {
        let nowhere: libc::sockaddr = std::mem::zeroed();
        libc::connect(peer.as_raw_fd(), &raw const nowhere, size_of::<libc::sockaddr>() as libc::socklen_t);
    }
}

fn post_receive(node: &Node, memory: &Mr) {
    node.qp.post_recv(&RecvWr { wr_id: 9, sges: &[Sge::of(memory, 0, 64)] }).unwrap();
}

/// Returns the completions of `n` requests, as ids and statuses.
#[track_caller]
pub fn completions(node: &Node, n: usize) -> Vec<(u64, WcStatus)> {
    let mut all = Vec::new();
    until("completions", || {
        let mut wc = [Wc::default()];
        while all.len() < n && node.cq.poll(&mut wc) > 0 {
            all.push((wc[0].wr_id, wc[0].status));
        }
        all.len() == n
    });
    assert_eq!(node.cq.poll(&mut [Wc::default()]), 0, "each once");
    all
}

#[track_caller]
fn disconnected(events: &EventChannel, node: &Node) -> DisconnectReason {
    match events.wait(PATIENCE) {
        Some(CmEvent::Disconnected { qpn, reason }) => {
            assert_eq!(qpn, node.qp.qpn());
            reason
        }
        other => panic!("{other:?}"),
    }
}

fn connect_to(port: u16) -> TcpStream {
    let peer = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer
}

/// A device that listens, and the number of descriptors of the process.
struct Host {
    device: Device,
    events: EventChannel,
    listener: Listener,
    before: usize,
}

impl Host {
    fn of(config: &Config) -> Self {
        let device = Device::open(config).unwrap();
        let events = device.create_event_channel().unwrap();
        let listener = events.listen(0, 16).unwrap();
        // The first use of each kind of object may leave descriptors open, so it happens before they are counted.
        drop(Node::of(&device));
        let before = descriptors();
        Self { device, events, listener, before }
    }

    fn request(&self) -> ConnRequest {
        match self.events.wait(PATIENCE) {
            Some(CmEvent::ConnectRequest(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    /// Accepts a connection from a plain peer. The connection's events come to the same channel as the
    /// requests.
    fn accepted(&self, says: &[u8]) -> (Node, TcpStream) {
        let node = Node::of(&self.device);
        let mut peer = connect_to(self.listener.port());
        peer.write_all(REQUEST).unwrap();
        self.request().accept(&node.qp, &plain()).unwrap();
        assert_eq!(heard(&mut peer, REPLY.len()), REPLY);
        assert!(matches!(self.events.wait(PATIENCE), Some(CmEvent::Established { .. })));
        peer.write_all(says).unwrap();
        (node, peer)
    }

    /// Checks that two queue pairs of this device can still connect and exchange data.
    fn serves(&self) {
        let (one, other) = (Node::of(&self.device), Node::of(&self.device));
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, self.listener.port()));
        one.events.connect(&one.qp, to, &ConnParam::default()).unwrap();
        self.request().accept(&other.qp, &ConnParam::default()).unwrap();
        assert!(matches!(self.events.wait(PATIENCE), Some(CmEvent::Established { .. })));
        one.established();
        works(&one, &other);
        drop(one);
        assert!(matches!(self.events.wait(PATIENCE), Some(CmEvent::Disconnected { .. })));
    }
}

#[test]
fn a_peer_may_go_before_it_was_accepted() {
    alone("phases::a_peer_may_go_before_it_was_accepted", false, || {
        let host = Host::of(&Config::default());
        for way in [Way::Reset, Way::End] {
            for said in [0, 1, 16, 20, REQUEST.len() - 1, REQUEST.len()] {
                println!("{way:?} after {said} octets of the Request");
                let mut peer = connect_to(host.listener.port());
                peer.write_all(&REQUEST[..said]).unwrap();
                let request = (said == REQUEST.len()).then(|| host.request());
                if said < REQUEST.len() {
                    until("it is taken", || host.device.connections().unwrap().len() == 1);
                }
                way.take(&peer);
                if way == Way::End {
                    assert_eq!(end(&mut peer), None);
                }
                drop(peer);
                until("no connection is left", || host.device.connections().unwrap().is_empty());
                if let Some(request) = request {
                    let node = Node::of(&host.device);
                    let refused = request.accept(&node.qp, &plain()).err();
                    assert!(matches!(refused, Some(Error::RequestGone)), "{refused:?}");
                }
                assert!(host.events.poll().is_none());
                nothing_left(&host.device, host.before);
            }
        }
        host.serves();
        nothing_left(&host.device, host.before);
        is_idle(QUIET);
    });
}

#[test]
fn a_peer_may_go_before_it_has_answered() {
    alone("phases::a_peer_may_go_before_it_has_answered", false, || {
        let host = Host::of(&Config::default());
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let before = descriptors();
        for way in [Way::Reset, Way::End] {
            for said in [None, Some(0), Some(1), Some(20), Some(REPLY.len() - 1)] {
                println!("{way:?} after {said:?} octets of the Reply");
                let node = Node::of(&host.device);
                node.events.connect(&node.qp, to, &plain()).unwrap();
                // MPAE-9: a peer that closes without an answer may know only revision 1, so the device asks it
                // once more.
                let tries = if said.unwrap_or(0) == 0 { 1..=2 } else { 1..=1 };
                for _ in tries.clone() {
                    let (mut peer, _) = server.accept().unwrap();
                    peer.set_read_timeout(Some(PATIENCE)).unwrap();
                    if let Some(said) = said {
                        heard(&mut peer, 20);
                        peer.write_all(&REPLY[..said]).unwrap();
                    }
                    way.take(&peer);
                    if node.events.wait(Duration::from_millis(200)).is_some_and(|event| {
                        let expected = ConnectFailure::Reset;
                        assert!(
                            matches!(event, CmEvent::ConnectError { reason, .. } if reason == expected),
                            "{event:?}"
                        );
                        true
                    }) {
                        break;
                    }
                }
                assert!(node.events.poll().is_none());
                // The queue pair may be connected again.
                node.events.connect(&node.qp, to, &plain()).unwrap();
                let (mut peer, _) = server.accept().unwrap();
                peer.write_all(REPLY).unwrap();
                node.established();
                way.take(&peer);
                let reason = disconnected(&node.events, &node);
                let expected =
                    if way == Way::Reset { DisconnectReason::Reset } else { DisconnectReason::Peer };
                assert_eq!(reason, expected);
                drop((peer, node));
                nothing_left(&host.device, before);
            }
        }
        host.serves();
        nothing_left(&host.device, before);
        is_idle(QUIET);
    });
}

/// DDP-46, DDP-47: posted work is flushed. The reason tells what the peer did, and in which phase (RFC 5044 §8,
/// code 1).
#[test]
fn a_peer_may_go_in_the_middle() {
    alone("phases::a_peer_may_go_in_the_middle", false, || {
        let host = Host::of(&Config::default());
        let half = [WRITE, &WRITE[..10]].concat();
        for way in [Way::Reset, Way::End] {
            for (says, at_end) in [
                (&b""[..], DisconnectReason::Peer),
                (&WRITE[..10], DisconnectReason::Truncated),
                (WRITE, DisconnectReason::Peer),
                (&half, DisconnectReason::Truncated),
            ] {
                println!("{way:?} after {says:02x?}");
                let (node, mut peer) = host.accepted(says);
                let inbox = node.pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
                post_receive(&node, &inbox);
                way.take(&peer);
                let expected = if way == Way::Reset { DisconnectReason::Reset } else { at_end };
                assert_eq!(disconnected(&host.events, &node), expected);
                assert_eq!(completions(&node, 1), [(9, WcStatus::Flushed)]);
                assert_eq!(node.qp.state(), QpState::Error);
                if way == Way::End {
                    assert_eq!(end(&mut peer), None);
                }
                drop((inbox, peer, node));
                nothing_left(&host.device, host.before);
            }
        }
        host.serves();
        nothing_left(&host.device, host.before);
        is_idle(QUIET);
    });
}

/// The peer does not read. It resets or ends the connection while Writes wait. Every request completes once and in
/// order, and its memory is free.
#[test]
fn a_peer_may_go_while_writes_wait() {
    alone("phases::a_peer_may_go_while_writes_wait", false, || {
        const LEN: usize = 4 << 20;
        let host = Host::of(&Config::default());
        for way in [Way::Reset, Way::End] {
            println!("{way:?}");
            let (node, mut peer) = host.accepted(WRITE);
            let memory = node.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
            post_receive(&node, &memory);
            for wr_id in 0..8 {
                let sges = [Sge::of(&memory, 0, LEN as u32)];
                let op = SendOp::Write { addr: 0, rkey: 0x0a0b_0c0d };
                node.qp.post_send(&SendWr { wr_id, op, sges: &sges, flags: SendFlags::empty() }).unwrap();
            }
            // The peer has received a small part of the Write.
            heard(&mut peer, 1000);
            way.take(&peer);
            let expected =
                if way == Way::Reset { DisconnectReason::Reset } else { DisconnectReason::TerminateSent };
            assert_eq!(disconnected(&host.events, &node), expected);
            let all = completions(&node, 9);
            let sent: Vec<_> = all.iter().filter(|(id, _)| *id < 9).collect();
            assert!(sent.iter().map(|(id, _)| *id).eq(0..8), "{all:?}");
            let done = sent.iter().take_while(|(_, status)| *status == WcStatus::Success).count();
            assert!(done < 8 && sent[done..].iter().all(|(_, s)| *s == WcStatus::Flushed), "{all:?}");
            if way == Way::End {
                // ERR-46: the peer receives the rest of the data that TCP had, a Terminate, and the end.
                let mut rest = Vec::new();
                peer.read_to_end(&mut rest).unwrap();
            }
            drop((memory, peer, node));
            nothing_left(&host.device, host.before);
        }
        host.serves();
        nothing_left(&host.device, host.before);
        is_idle(QUIET);
    });
}

/// The device cuts off, within the time limit, a peer that connects and sends nothing, or only an octet now and then.
/// Other peers come and go meanwhile.
#[test]
fn slow_starters_are_sent_away() {
    alone("phases::slow_starters_are_sent_away", false, || {
        let mut config = Config::default();
        config.mpa.startup_timeout = Duration::from_millis(300);
        let host = Host::of(&config);
        for drips in [false, true] {
            let mut peer = connect_to(host.listener.port());
            peer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let start = Instant::now();
            host.serves();
            // Octet by octet, the Request would be complete after 1.2 s.
            let gone = |e: &std::io::Error| {
                !matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
            };
            let mut said = 0;
            loop {
                assert!(start.elapsed() < PATIENCE && said < REQUEST.len(), "{drips} {said}");
                if drips {
                    if peer.write_all(&REQUEST[said..=said]).is_err() {
                        break;
                    }
                    said += 1;
                }
                match peer.read(&mut [0; 8]) {
                    Ok(0) => break,
                    Err(error) if gone(&error) => break,
                    answer => assert!(answer.is_err(), "{answer:?}"),
                }
            }
            assert!(host.events.poll().is_none());
            drop(peer);
            nothing_left(&host.device, host.before);
        }
        is_idle(QUIET);
    });
}

/// If the device connects to a peer that answers too slowly, the program is told within the time limit that it has set.
#[test]
fn slow_answers_are_not_waited_for() {
    alone("phases::slow_answers_are_not_waited_for", false, || {
        let host = Host::of(&Config::default());
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let before = descriptors();
        for drips in [false, true] {
            let node = Node::of(&host.device);
            let param = ConnParam { timeout: Duration::from_millis(300), ..plain() };
            node.events.connect(&node.qp, server.local_addr().unwrap(), &param).unwrap();
            let (mut peer, _) = server.accept().unwrap();
            heard(&mut peer, REQUEST.len());
            let mut octets = REPLY[..REPLY.len() - 1].iter();
            let event = loop {
                if drips {
                    let octet = octets.next().expect("a timeout before the last octet of the Reply");
                    let _ = peer.write_all(&[*octet]);
                }
                match node.events.wait(Duration::from_millis(50)) {
                    Some(event) => break event,
                    None => continue,
                }
            };
            assert!(
                matches!(event, CmEvent::ConnectError { reason: ConnectFailure::TimedOut, .. }),
                "{event:?}"
            );
            drop((peer, node));
            nothing_left(&host.device, before);
        }
        is_idle(QUIET);
    });
}
