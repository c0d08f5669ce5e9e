//! Ping-pong over the kernel's TCP and UDP: one small message each way, between two ends that both spin or both sleep.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::perf::{Latency, measure::histogram, report::cdf};

/// Time that an end waits for the other one.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between attempts to reach a server that is still starting.
const RESEND: Duration = Duration::from_millis(20);
/// Unsuccessful polls of a socket between two readings of the clock.
const LOOKS: u32 = 1 << 12;
/// The largest message, in bytes.
pub const MAX_SIZE: usize = 1024;

/// The transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Protocol {
    Tcp,
    Udp,
}

/// How an end waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// Non-blocking receive in a loop.
    Spin,
    /// Blocking receive: the kernel wakes the process.
    Block,
}

/// The parameters of one end of a ping-pong.
#[derive(Clone, Copy, Debug)]
pub struct PingPong {
    /// The transport protocol.
    pub protocol: Protocol,
    /// How this end waits.
    pub wait: Wait,
    /// The server's address.
    pub server: SocketAddrV4,
    /// Bytes of a message, 8 to [`MAX_SIZE`].
    pub size: usize,
}

/// The client's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// Number of round trips.
    pub iters: u64,
    /// Percentiles of the round trips, in us.
    pub rtt_us: Latency,
    /// Distribution of the round trips: microseconds, and the share that took no longer.
    pub rtt_cdf: Vec<[f64; 2]>,
}

impl Rounds {
    fn of(histogram: &Histogram<u64>) -> io::Result<Self> {
        let rtt_us = Latency::of(histogram).ok_or_else(|| io::Error::other("not one round trip"))?;
        Ok(Self { iters: histogram.len(), rtt_us, rtt_cdf: cdf(histogram) })
    }
}

/// A connected socket that carries messages of a known size.
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Socket {
    fn set_wait(&self, wait: Wait) -> io::Result<()> {
        match self {
            Self::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_nonblocking(wait == Wait::Spin)
            }
            Self::Udp(s) => {
                s.set_read_timeout(Some(PATIENCE))?;
                s.set_nonblocking(wait == Wait::Spin)
            }
        }
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(s) => s.write_all(message),
            Self::Udp(s) => s.send(message).map(drop),
        }
    }

    /// Waits for a whole message; returns `false` if the other end is done.
    #[inline]
    fn receive(&mut self, message: &mut [u8], wait: Wait) -> io::Result<bool> {
        let (mut have, mut looks, mut since) = (0, 0_u32, None);
        loop {
            let got = match self {
                Self::Tcp(s) => s.read(&mut message[have..]),
                Self::Udp(s) => s.recv(message),
            };
            match got {
                Ok(0) => return Ok(false),
                Ok(n) => have += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock && wait == Wait::Spin => {
                    looks += 1;
                    if looks.is_multiple_of(LOOKS)
                        && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
                    {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(e) => return Err(e),
            }
            if have == message.len() {
                return Ok(true);
            }
        }
    }
}

/// Echoes every message until the client is done.
///
/// # Errors
/// A socket failed, or no message arrived for ten seconds. A TCP server waits for its client without a limit.
pub fn serve(game: &PingPong) -> io::Result<()> {
    let mut message = vec![0; game.size];
    let mut socket = match game.protocol {
        Protocol::Tcp => Socket::Tcp(TcpListener::bind(game.server)?.accept()?.0),
        Protocol::Udp => {
            let socket = UdpSocket::bind(game.server)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            let (_, client) = socket.recv_from(&mut message)?;
            socket.connect(client)?;
            socket.send(&message)?;
            Socket::Udp(socket)
        }
    };
    socket.set_wait(game.wait)?;
    while socket.receive(&mut message, game.wait)? {
        socket.send(&message)?;
    }
    Ok(())
}

/// Plays for `time`, and does not count the round trips of its first tenth.
///
/// # Errors
/// A socket failed, the server did not appear, or a message was lost.
pub fn play(game: &PingPong, time: Duration) -> io::Result<Rounds> {
    let mut socket = connect(game)?;
    let (mut ping, mut pong) = (vec![0; game.size], vec![0; game.size]);
    let mut histogram = histogram();
    let start = Instant::now();
    let mut now = start;
    let mut number = 0_u64;
    while now < start + time {
        number += 1;
        ping[..8].copy_from_slice(&number.to_le_bytes());
        let sent = Instant::now();
        socket.send(&ping)?;
        loop {
            if !socket.receive(&mut pong, game.wait)? {
                return Err(ErrorKind::ConnectionReset.into());
            }
            // The answer to this ping has the same number. Any other message is ignored.
            if pong == ping {
                break;
            }
        }
        now = Instant::now();
        if now > start + time / 10 {
            histogram.saturating_record((now - sent).as_nanos() as u64);
        }
    }
    // TCP announces the end by closing; UDP needs an empty datagram.
    if let Socket::Udp(socket) = &socket {
        socket.send(&[])?;
    }
    Rounds::of(&histogram)
}

/// Connects as soon as the server listens.
fn connect(game: &PingPong) -> io::Result<Socket> {
    let start = Instant::now();
    let absent = |e: &io::Error| {
        matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::TimedOut)
    };
    loop {
        let tried = match game.protocol {
            Protocol::Tcp => TcpStream::connect(game.server).map(Socket::Tcp),
            Protocol::Udp => greet(game).map(Socket::Udp),
        };
        match tried {
            Err(e) if absent(&e) && start.elapsed() < PATIENCE => std::thread::sleep(RESEND),
            tried => {
                let socket = tried?;
                socket.set_wait(game.wait)?;
                return Ok(socket);
            }
        }
    }
}

/// Returns a socket whose first datagram has been answered.
fn greet(game: &PingPong) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(game.server)?;
    socket.set_read_timeout(Some(RESEND))?;
    let mut message = vec![0; game.size];
    socket.send(&message)?;
    socket.recv(&mut message)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
