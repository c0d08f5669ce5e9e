//! Which sockets can be converted, and what happens to them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use socket2::SockRef;
use urnic::config::KernelAddresses;
use urnic::simulation::{Options, Simulation};
use urnic::*;

use crate::ends::*;

/// The device gives back a descriptor that is not a connected TCP socket, unchanged.
#[test]
fn what_cannot_be_converted_is_given_back() {
    let node = Node::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    udp.connect(listener.local_addr().unwrap()).unwrap();
    let fresh = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let (shut, _peer) = wire();
    shut.shutdown(Shutdown::Write).unwrap();
    let (gone, peer) = wire();
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
    drop(peer);
    assert!((&gone).read(&mut [0]).is_err());
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    for (socket, why) in [
        (OwnedFd::from(listener), NotConvertible::Listening),
        (udp.into(), NotConvertible::NotTcp),
        (UnixStream::pair().unwrap().0.into(), NotConvertible::NotTcp),
        (fresh.into(), NotConvertible::NotConnected),
        (gone.into(), NotConvertible::NotConnected),
        (shut.into(), NotConvertible::ShutDown),
        (file.into(), NotConvertible::NoSocket),
    ] {
        for role in [Role::Initiator, Role::Responder] {
            let number = socket.as_raw_fd();
            let refused = node.events.convert(&node.qp, socket.try_clone().unwrap(), role, &[], &plain());
            let refused = refused.err().unwrap();
            assert!(matches!(refused.error(), Error::NotConvertible(found) if *found == why), "{refused}");
            assert_ne!(refused.into_parts().1.as_raw_fd(), number);
        }
    }
    assert_eq!(node.qp.state(), QpState::Idle);
}

/// The device also gives the socket back if it refuses the conversion for another reason. The program can then use the
/// socket, or convert it again.
#[test]
fn what_is_refused_goes_on() {
    let (ours, mut peer) = wire();
    let number = ours.as_raw_fd();
    SockRef::from(&ours).set_linger(Some(Duration::from_secs(3))).unwrap();
    let simulation = Simulation::new(&Options::default()).unwrap();
    let simulated = Node::of(&simulation.device(0));
    let refuse = |node: &Node, socket: OwnedFd, param: &ConnParam| {
        let refused = node.events.convert(&node.qp, socket, Role::Initiator, &[], param);
        let (error, socket) = refused.err().unwrap().into_parts();
        assert_eq!(socket.as_raw_fd(), number);
        (error, socket)
    };
    // A device with its own TCP cannot take over sockets.
    let (error, socket) = refuse(&simulated, ours.into(), &plain());
    assert!(matches!(error, Error::NoConversion), "{error}");
    // A device that is limited to one address refuses a socket of another address.
    let mut elsewhere = Config::default();
    elsewhere.port.kernel = KernelAddresses::One(Ipv4Addr::new(127, 0, 0, 9).into());
    let elsewhere = Node::of(&Device::open(&elsewhere).unwrap());
    let (error, socket) = refuse(&elsewhere, socket, &plain());
    assert!(matches!(error, Error::NotOurAddress(ip) if ip == Ipv4Addr::LOCALHOST), "{error}");
    let node = Node::new();
    let talkative = ConnParam { private_data: vec![0; 513], ..plain() };
    let (error, socket) = refuse(&node, socket, &talkative);
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    // A queue pair that already has a connection refuses the socket.
    let (busy, mut other) = wire();
    node.convert(busy, Role::Initiator, REPLY, &plain());
    node.established();
    let (error, socket) = refuse(&node, socket, &plain());
    assert!(matches!(error, Error::QpState { .. }), "{error}");
    assert_eq!(heard(&mut other, REQUEST.len()), REQUEST);
    // The device has sent nothing, and has changed no option.
    let mut socket = TcpStream::from(socket);
    assert_eq!(SockRef::from(&socket).linger().unwrap(), Some(Duration::from_secs(3)));
    socket.write_all(b"still here").unwrap();
    assert_eq!(heard(&mut peer, 10), b"still here");
    let node = Node::new();
    node.convert(socket, Role::Initiator, REPLY, &plain());
    assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
    node.established();
}

/// Whatever options the program has set on its socket, the connection behaves as any other: calls do not wait, small
/// messages leave at once, and the connection does not end by a reset.
#[test]
fn options_of_the_socket_are_not_in_the_way() {
    for nonblocking in [false, true] {
        let (one, other) = (Node::new(), Node::new());
        let (ours, theirs) = wire();
        for socket in [&ours, &theirs] {
            let options = SockRef::from(socket);
            options.set_linger(Some(Duration::ZERO)).unwrap();
            options.set_tcp_cork(true).unwrap();
            options.set_tcp_nodelay(false).unwrap();
            options.set_tcp_user_timeout(Some(Duration::from_millis(1))).unwrap();
            options.set_nonblocking(nonblocking).unwrap();
            let many: libc::c_int = 100_000;
            // SAFETY: the option is one number of the stated length.
            let status = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_RCVLOWAT,
                    (&raw const many).cast(),
                    size_of::<libc::c_int>() as libc::socklen_t,
                )
            };
            assert_eq!(status, 0);
        }
        // Duplicates of the descriptor, such as a forked child has, do not keep a connection open. This test reads the
        // options from them.
        let duplicates = [&ours, &theirs].map(|socket| socket.try_clone().unwrap());
        other.convert(theirs, Role::Responder, &[], &plain());
        let connection = one.convert(ours, Role::Initiator, &[], &plain());
        for socket in &duplicates {
            let options = SockRef::from(socket);
            // A linger time of zero would lose unsent data when the connection ends. With another linger time, `close`
            // would wait.
            assert_eq!(options.linger().unwrap(), None);
            assert!(options.tcp_nodelay().unwrap() && !options.tcp_cork().unwrap());
            assert_eq!(options.tcp_user_timeout().unwrap(), None);
        }
        one.established();
        other.established();
        works(&one, &other);
        let inbox = other.pd.alloc_mr(8, Access::LOCAL_WRITE).unwrap();
        other.qp.post_recv(&RecvWr { wr_id: 2, sges: &[Sge::of(&inbox, 0, 8)] }).unwrap();
        one.send_nothing();
        connection.disconnect().unwrap();
        assert_eq!((one.completion().wr_id, other.completion().wr_id), (1, 2));
        let event = other.event();
        assert!(matches!(event, CmEvent::Disconnected { reason: DisconnectReason::Peer, .. }), "{event:?}");
    }
}

/// Returns this process's descriptors of one socket: those whose link in `/proc/self/fd` is `inode`.
fn descriptors(inode: &std::path::Path) -> Vec<i32> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let same = all.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == inode));
    same.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The device has one descriptor of the socket, with a number that programs do not use, and `exec` closes this
/// descriptor. No descriptor is left after the connection. The program's duplicate does not keep the connection open.
#[test]
fn a_socket_is_the_devices() {
    for (role, resets) in [(Role::Responder, true), (Role::Initiator, false)] {
        let node = Node::new();
        let (ours, mut peer) = wire();
        let inode = std::fs::read_link(format!("/proc/self/fd/{}", ours.as_raw_fd())).unwrap();
        let duplicate = ours.try_clone().unwrap();
        let connection = node.convert(ours, role, &[], &plain());
        let open = descriptors(&inode);
        assert_eq!(open.len(), 2, "{open:?}");
        let own = open.into_iter().find(|fd| *fd != duplicate.as_raw_fd()).unwrap();
        assert!(own >= 1024, "{own}");
        let flags = std::fs::read_to_string(format!("/proc/self/fdinfo/{own}")).unwrap();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        assert_ne!(u32::from_str_radix(flags, 8).unwrap() & libc::O_CLOEXEC as u32, 0);
        if resets {
            connection.disconnect().unwrap();
            assert_eq!(end(&mut peer), Some(ErrorKind::ConnectionReset));
        } else {
            assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
            peer.write_all(REJECTION).unwrap();
            assert_eq!(end(&mut peer), None);
            peer.shutdown(Shutdown::Write).unwrap();
        }
        let start = Instant::now();
        while descriptors(&inode) != [duplicate.as_raw_fd()] {
            assert!(start.elapsed() < PATIENCE, "a descriptor is left");
            std::thread::yield_now();
        }
    }
}

/// Environment variable that is set in the process with few descriptors.
const FEW: &str = "URNIC_TEST_FEW_DESCRIPTORS";

/// The device needs a new descriptor, and takes the socket once a descriptor is free. The test runs in its own process,
/// because the limit belongs to the process.
#[test]
fn without_a_descriptor_the_socket_is_given_back() {
    if std::env::var_os(FEW).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "sockets::without_a_descriptor_the_socket_is_given_back", "--nocapture"])
            .env(FEW, "1");
        let output = child.output().unwrap();
        let said =
            [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        return assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    let node = Node::new();
    let (ours, mut peer) = wire();
    let mut hoard: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    let refused = node.events.convert(&node.qp, ours, Role::Initiator, REPLY, &plain()).err().unwrap();
    assert!(refused.to_string().contains("ulimit -n"), "{refused}");
    hoard.pop();
    node.convert(refused.into_parts().1.into(), Role::Initiator, REPLY, &plain());
    node.established();
    assert_eq!(heard(&mut peer, REQUEST.len()), REQUEST);
}

/// The program's data precedes the Request, even if the kernel has not sent the data yet because the peer does not
/// read.
#[test]
fn what_is_unsent_goes_first() {
    let node = Node::new();
    let (ours, mut peer) = wire();
    SockRef::from(&ours).set_send_buffer_size(64 << 10).unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut said = 0;
    while let Ok(n) = (&ours).write(&pattern(1000)) {
        said += n;
    }
    node.convert(ours, Role::Initiator, &[], &plain());
    let mut all = heard(&mut peer, said + REQUEST.len());
    assert_eq!(all.split_off(said), REQUEST);
    peer.write_all(REPLY).unwrap();
    node.established();
}
