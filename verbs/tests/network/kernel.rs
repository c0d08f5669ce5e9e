//! The kernel's end of the tests: TCP through ordinary sockets, and ping.

use std::io::{Read, Write};
use std::mem;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::netns::Namespace;
use super::stack::{CLIENT_PORT, Content, SERVER_PORT};
use super::{OURS, child};

/// The data of an exchange, as the kernel's end has seen it.
pub struct Exchange {
    sent: u32,
    received: u32,
    bytes: u64,
}

impl Exchange {
    /// Returns the line that the other end prints if it has received and sent the same data.
    pub fn seen_from_the_other_end(&self, bytes: u64) -> String {
        assert_eq!(self.bytes, bytes, "octets that the kernel received");
        format!("closed by both ends: {bytes} bytes, sent {:08x}, received {:08x}", self.received, self.sent)
    }
}

/// Starts a thread that connects to the engine, and sends and receives `bytes` octets.
pub fn connect(ns: &Namespace, to: IpAddr, bytes: u64, stops_every: u64) -> JoinHandle<Exchange> {
    ns.run(move || {
        let to = SocketAddr::new(to, SERVER_PORT);
        exchange(TcpStream::connect_timeout(&to, child::PATIENCE).expect("a connection"), bytes, stops_every)
    })
}

/// Starts a thread that waits for the engine's connection, and sends and receives `bytes` octets. The first
/// part of the result reports when the thread listens.
pub fn serve(
    ns: &Namespace,
    at: IpAddr,
    bytes: u64,
    stops_every: u64,
) -> (Receiver<()>, JoinHandle<Exchange>) {
    let (ready, listening) = mpsc::channel();
    let thread = ns.run(move || {
        let listener = TcpListener::bind((at, CLIENT_PORT)).expect("a listener");
        ready.send(()).expect("the test waits");
        exchange(accept(&listener), bytes, stops_every)
    });
    (listening, thread)
}

/// Returns the next connection, within [`child::PATIENCE`].
pub fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("an option");
    let start = std::time::Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("an option");
                return stream;
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                assert!(start.elapsed() < child::PATIENCE, "nobody connects");
                thread::sleep(Duration::from_millis(1));
            }
            Err(e) => panic!("accept: {e}"),
        }
    }
}

fn exchange(mut stream: TcpStream, bytes: u64, stops_every: u64) -> Exchange {
    stream.set_read_timeout(Some(child::PATIENCE)).expect("an option");
    stream.set_write_timeout(Some(child::PATIENCE)).expect("an option");
    let mut out = stream.try_clone().expect("a descriptor");
    let sender = thread::spawn(move || {
        let mut content = Content::new(1);
        while content.at < bytes {
            let chunk = content.next(bytes, 64 << 10);
            out.write_all(&chunk).expect("sending");
        }
        out.shutdown(Shutdown::Write).expect("the end");
        content.hash()
    });
    let mut content = Content::new(2);
    let mut buffer = vec![0; 64 << 10];
    let mut stop_at = if stops_every > 0 { stops_every } else { u64::MAX };
    loop {
        if content.at >= stop_at {
            stop_at += stops_every;
            wait_until_nothing_comes(&stream);
        }
        match stream.read(&mut buffer).expect("receiving") {
            0 => break,
            n => content.check(&buffer[..n]),
        }
    }
    Exchange { sent: sender.join().expect("the sender"), received: content.hash(), bytes: content.at }
}

/// Waits until the readable data has not grown for half a second, so that the window is shut or all data has arrived.
fn wait_until_nothing_comes(stream: &TcpStream) {
    let (mut before, mut unchanged) = (-1, 0);
    while unchanged < 10 {
        let mut unread: libc::c_int = 0;
        // SAFETY: the descriptor is open, and the kernel writes an int.
        let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        unchanged = if unread == before { unchanged + 1 } else { 0 };
        before = unread;
        thread::sleep(Duration::from_millis(50));
    }
}

/// Pings the engine `times` times, with up to `largest` bytes. Every ping must be answered with the same bytes.
pub fn ping(ns: &Namespace, times: u16, largest: usize) {
    let done = ns.run(move || {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP) };
        assert!(fd >= 0, "a raw socket");
        let limit = libc::timeval { tv_sec: child::PATIENCE.as_secs() as i64, tv_usec: 0 };
        // SAFETY: integers only.
        let mut to: libc::sockaddr_in = unsafe { mem::zeroed() };
        to.sin_family = libc::AF_INET as u16;
        to.sin_addr.s_addr = u32::from(OURS.parse::<std::net::Ipv4Addr>().expect("an address")).to_be();
        // SAFETY: the option and the address have the stated sizes.
        unsafe {
            let size = mem::size_of_val(&limit) as u32;
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
            libc::connect(fd, (&raw const to).cast(), mem::size_of_val(&to) as u32);
        }
        for n in 0..times {
            let body =
                super::node::pattern(n.into(), if n == 0 { largest } else { largest.min(usize::from(n)) });
            let id = std::process::id() as u16;
            let message = |kind: u8| {
                let [i, j] = id.to_be_bytes();
                let [k, l] = n.to_be_bytes();
                let mut packet = vec![kind, 0, 0, 0, i, j, k, l];
                packet.extend_from_slice(&body);
                let sum = !urnic_crc::sum(&packet);
                packet[2..4].copy_from_slice(&sum.to_be_bytes());
                packet
            };
            let request = message(8);
            // SAFETY: the buffer has the stated length.
            let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
            assert_eq!(sent, request.len() as isize, "{}", std::io::Error::last_os_error());
            let mut answer = vec![0u8; 10_000];
            // SAFETY: the buffer has the stated length.
            let got = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
            assert!(got >= 28, "ping {n} is not answered: {}", std::io::Error::last_os_error());
            assert_eq!(answer[20..got as usize], message(0), "the answer to ping {n}");
        }
        // SAFETY: the descriptor is ours, and no longer used.
        unsafe { libc::close(fd) };
    });
    done.join().expect("pings");
}

/// Pings over IPv6, on the interface `link`.
pub fn ping6(ns: &Namespace, to: Ipv6Addr, link: &str, times: u16, largest: usize) {
    let link = std::ffi::CString::new(link).expect("a name");
    let done = ns.run(move || {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6) };
        assert!(fd >= 0, "a raw socket");
        let limit = libc::timeval { tv_sec: child::PATIENCE.as_secs() as i64, tv_usec: 0 };
        // SAFETY: integers only.
        let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
        address.sin6_family = libc::AF_INET6 as u16;
        address.sin6_addr.s6_addr = to.octets();
        // SAFETY: the name ends with a zero, and the option and the address have the stated sizes.
        unsafe {
            address.sin6_scope_id = libc::if_nametoindex(link.as_ptr());
            let size = mem::size_of_val(&limit) as u32;
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, (&raw const limit).cast(), size);
            libc::connect(fd, (&raw const address).cast(), mem::size_of_val(&address) as u32);
        }
        for n in 0..times {
            let size = if n == 0 { largest } else { largest.min(usize::from(n)) };
            let body = super::node::pattern(n.into(), size);
            let [k, l] = n.to_be_bytes();
            // The kernel fills in the checksum.
            let request = [&[128, 0, 0, 0, 0, 7, k, l][..], &body].concat();
            // SAFETY: the buffer has the stated length.
            let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
            assert_eq!(sent, request.len() as isize, "{}", std::io::Error::last_os_error());
            let answer = loop {
                let mut answer = vec![0u8; 10_000];
                // SAFETY: the buffer has the stated length.
                let got = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
                assert!(got >= 8, "ping {n} is not answered: {}", std::io::Error::last_os_error());
                answer.truncate(got as usize);
                // The socket also receives the messages of neighbour discovery, which this loop skips.
                if answer[0] == 129 {
                    break answer;
                }
            };
            assert_eq!(answer[4..], request[4..], "the answer to ping {n}");
        }
        // SAFETY: the descriptor is ours, and no longer used.
        unsafe { libc::close(fd) };
    });
    done.join().expect("pings");
}
