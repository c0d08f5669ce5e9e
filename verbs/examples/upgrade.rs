//! A program with a text protocol of its own over TCP that switches to RDMA on the same connection. The client asks
//! for room, and the server answers with the place of the room. Then both make their socket the connection of a queue
//! pair, and the client writes to the room. `docs/write-a-program.md` explains it.
//!
//! ```text
//! upgrade serve ADDRESS:PORT          one client, then exit
//! upgrade say ADDRESS:PORT WORDS
//! ```
//!
//! The program needs a device on the kernel's sockets, which is the default.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use urnic::{
    Access, CmEvent, ConnParam, Connection, Cq, Device, EventChannel, Pd, Qp, QpInit, RecvWr, Role,
    SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use urnic_config::{Config, Sources};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum room of a client, in octets.
const ROOM: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// The text part: a socket, and the octets that were read from it but not used.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn new(socket: TcpStream) -> Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(socket)))
    }

    fn say(&mut self, line: &str) -> Result<()> {
        Ok(self.0.get_mut().write_all(format!("{line}\n").as_bytes())?)
    }

    /// Reads a line, whose first word must be `verb`, and returns its other words.
    fn hear(&mut self, verb: &str) -> Result<Vec<String>> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next() {
            Some(first) if first == verb => Ok(words.collect()),
            _ => Err(format!("expected {verb}, heard {line:?}").into()),
        }
    }

    /// Switches to RDMA. The buffered reader may hold octets of the start-up.
    fn upgrade(self, role: Role, end: &End) -> Result<Connection> {
        let already_read = self.0.buffer().to_vec();
        let socket = self.0.into_inner();
        let connection = end.events.convert(&end.qp, socket, role, &already_read, &ConnParam::default())?;
        match end.events.wait(PATIENCE) {
            Some(CmEvent::Established { .. }) => Ok(connection),
            Some(CmEvent::ConnectError { reason, .. }) => Err(format!("no RDMA: {reason}").into()),
            other => Err(format!("no RDMA: {other:?}").into()),
        }
    }
}

/// The RDMA part.
struct End {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    events: EventChannel,
}

impl End {
    fn new() -> Result<Self> {
        let device = Device::open(&Config::load(&Sources::process())?)?;
        let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None)?);
        let qp = pd.create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        })?;
        let events = device.create_event_channel()?;
        Ok(Self { pd, cq, qp, events })
    }

    /// Polls until a request completes. `greet.rs` shows how to sleep.
    fn complete(&self) -> Result<Wc> {
        let mut found = [Wc::default()];
        while self.cq.poll(&mut found) == 0 {}
        let [wc] = found;
        if wc.status == WcStatus::Success { Ok(wc) } else { Err(wc.status.to_string().into()) }
    }

    fn request(&self, op: SendOp, sges: &[Sge]) -> Result<Wc> {
        self.qp.post_send(&SendWr { wr_id: 0, op, sges, flags: SendFlags::SIGNALED })?;
        self.complete()
    }
}

fn serve(at: &str) -> Result<()> {
    let listener = TcpListener::bind(at)?;
    let end = End::new()?;
    eprintln!("listening at {}", listener.local_addr()?);
    let mut client = Lines::new(listener.accept()?.0)?;
    let wanted =
        client.hear("ROOM")?.first().ok_or("the client names no size")?.parse::<usize>()?.clamp(1, ROOM);
    let room = end.pd.alloc_mr(wanted, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    // This receive is for the message that says that all octets are written.
    end.qp.post_recv(&RecvWr { wr_id: 0, sges: &[] })?;
    client.say(&format!("AT {} {} {wanted}", room.addr(), room.rkey()))?;
    // The client's next octets are the MPA Request.
    let _connection = client.upgrade(Role::Responder, &end)?;
    end.complete()?;
    let mut words = vec![0; wanted];
    room.read_at(0, &mut words)?;
    println!("{}", String::from_utf8_lossy(&words));
    // The client ends the connection.
    while !matches!(end.events.wait(PATIENCE), Some(CmEvent::Disconnected { .. }) | None) {}
    Ok(())
}

fn say(to: &str, words: &str) -> Result<()> {
    let end = End::new()?;
    let mut server = Lines::new(TcpStream::connect(to)?)?;
    server.say(&format!("ROOM {}", words.len()))?;
    let place = server.hear("AT")?;
    let [addr, rkey, size] = &place[..] else { return Err("the server names no room".into()) };
    let (addr, rkey, size) = (addr.parse()?, rkey.parse()?, size.parse::<usize>()?.min(words.len()));
    let connection = server.upgrade(Role::Initiator, &end)?;
    let local = end.pd.alloc_mr(size.max(1), Access::LOCAL_WRITE)?;
    local.write_at(0, &words.as_bytes()[..size])?;
    end.request(SendOp::Write { addr, rkey }, &[Sge::of(&local, 0, u32::try_from(size)?)])?;
    end.request(SendOp::Send, &[])?;
    println!("said");
    connection.disconnect()?;
    while !matches!(end.events.wait(PATIENCE), Some(CmEvent::Disconnected { .. }) | None) {}
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", at] => serve(at),
        ["say", to, words] => say(to, words),
        _ => Err("usage: upgrade serve ADDRESS:PORT | upgrade say ADDRESS:PORT WORDS".into()),
    }
}
