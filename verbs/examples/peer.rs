//! Runs every operation of the verbs API against a peer that checks every byte. This is one half of
//! `scripts/interop-siw`; the other half is the same program in C on libibverbs (`scripts/lab/peer.c`). Two instances
//! of this program also interoperate.
//!
//! ```text
//! peer serve  [-p PORT] [-q CONNECTIONS] [-m BYTES]               answer, until that many connections have ended
//! peer drive  -a ADDR [-p PORT] [-q QPS] [-n ROUNDS] [-m BYTES]   on QPS connections at once, each ROUNDS times anew
//! peer stream -a ADDR [-p PORT] [-m BYTES]                        Writes without end, until the connection ends
//! peer stale  -a ADDR [-p PORT]                                   Writes by an invalidated STag: must be refused
//! ```
//! `-m`: largest message. `-P N`: the connections are spread over N ports, the first of which is PORT. Settings
//! come from the environment (`URNIC_PORT`, `URNIC_IP`, ...). Exit status: 0 done and verified, 1 failed, 3 the
//! connection was lost.
//!
//! The protocol: the private data of request and answer contain the place of the sender's target region ([`Region`]).
//! Then one end drives: it works on the other's target, and tells by a Send of 16 bytes what the other end must check
//! or prepare there ([`Control`]). The other end answers with `DONE`. One receive is posted at any time: for a
//! control message, or for the message that the last control message announced. When a client has driven, it hands
//! the turn to the server.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use urnic::{
    Access, CmEvent, CompChannel, ConnParam, Connection, Cq, Device, Mr, Pd, Qp, QpInit, RecvWr, SendFlags,
    SendOp, SendWr, Sge, Wc, WcFlags, WcOpcode, WcStatus,
};
use urnic_config::{Config, Sources};

/// The answer to a control message. It has a value if that message asks for one. Otherwise it is an empty message,
/// because siw may answer a Read of 0 bytes with as many bytes as its previous request had (`tell` in peer.c).
const DONE: u32 = 0;
/// The target holds a message: check it.
const WRITTEN: u32 = 1;
/// Fill the target, so that it can be read.
const FILL: u32 = 2;
/// Post a receive for a message, answer, and answer again when the message has come and is right.
const RECEIVE: u32 = 3;
/// Do as for `RECEIVE`, but the first answer carries the STag of a fresh region, which the message will invalidate.
/// The region is the first 4096 bytes of the target. Value 1: keep the region registered until the connection ends.
const INVALIDATE: u32 = 4;
/// It is your turn to drive.
const TURN: u32 = 5;
/// The connection may end.
const END: u32 = 6;

/// Sizes of the messages of a turn, in octets. 1424 octets are the longest Send that fits into one segment of
/// 1448 octets.
const SIZES: [u32; 12] = [0, 1, 7, 8, 64, 1420, 1424, 1425, 4096, 65_536, 1 << 20, 16 << 20];
const PATIENCE: Duration = Duration::from_secs(60);
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("connection lost: {0}")]
    Lost(String),
    #[error("{0}")]
    Wrong(String),
    #[error(transparent)]
    Device(#[from] urnic::Error),
    #[error(transparent)]
    Post(#[from] urnic::PostError),
}

type Result<T> = std::result::Result<T, Trouble>;

fn wrong<T>(what: impl Into<String>) -> Result<T> {
    Err(Trouble::Wrong(what.into()))
}

/// Where a target is. Encoded as address, STag and length, each big endian; the receiving end ignores the length.
#[derive(Clone, Copy)]
struct Region {
    addr: u64,
    rkey: u32,
}

impl Region {
    fn encode(self, len: u32) -> Vec<u8> {
        [&self.addr.to_be_bytes()[..], &self.rkey.to_be_bytes(), &len.to_be_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((addr, rest)) = bytes.split_first_chunk() else { return wrong("no private data") };
        let Some((rkey, _)) = rest.split_first_chunk() else { return wrong("no private data") };
        Ok(Self { addr: u64::from_be_bytes(*addr), rkey: u32::from_be_bytes(*rkey) })
    }
}

/// A control message: four numbers, big endian.
#[derive(Clone, Copy, Debug)]
struct Control {
    kind: u32,
    size: u32,
    seed: u32,
    value: u32,
}

const CONTROL_LEN: u32 = 16;

impl Control {
    fn encode(self) -> [u8; CONTROL_LEN as usize] {
        let words = [self.kind, self.size, self.seed, self.value].map(u32::to_be_bytes);
        let mut bytes = [0; CONTROL_LEN as usize];
        bytes.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
        bytes
    }

    fn decode(bytes: [u8; CONTROL_LEN as usize]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let [kind, size, seed, value] =
            [0, 1, 2, 3].map(|i| words.get(i).copied().map_or(0, u32::from_be_bytes));
        Self { kind, size, seed, value }
    }
}

/// Returns the bytes of a message.
fn pattern(seed: u32, size: u32) -> Vec<u8> {
    (0..size).map(|i| seed.wrapping_add(i).wrapping_add(i >> 8).wrapping_add(3 * (i >> 16)) as u8).collect()
}

fn check(what: &str, at: &Mr, size: u32, seed: u32) -> Result<()> {
    let mut found = vec![0; size as usize];
    at.read_at(0, &mut found)?;
    match found.iter().zip(pattern(seed, size)).position(|(found, wanted)| *found != wanted) {
        Some(at) => wrong(format!("{what} of {size} bytes: byte {at} is wrong")),
        None => Ok(()),
    }
}

#[derive(Clone, Copy)]
struct Options {
    address: SocketAddrV4,
    qps: u32,
    rounds: u32,
    max_size: u32,
    ports: u16,
}

/// One end of a connection.
struct Lane {
    qp: Qp,
    pd: Pd,
    cq: Cq,
    channel: CompChannel,
    /// A region over the memory of `target` that the peer has invalidated, and that is still registered. Before
    /// `target`, because it must be dropped first.
    stale: Option<Mr>,
    target: Mr,
    local: Mr,
    control: Mr,
    peer: Option<Region>,
    /// Completion of a receive that came while this end waited for a send; `None` if there is none.
    received: Option<Wc>,
    max_size: u32,
    seed: u32,
}

impl Lane {
    fn new(device: &Device, max_size: u32) -> Result<Self> {
        let pd = device.alloc_pd();
        let channel = device.create_comp_channel()?;
        let cq = device.create_cq(16, Some(&channel))?;
        let qp = pd.create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 8,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: CONTROL_LEN,
            signal_all: true,
        })?;
        let room = max_size.max(4096) as usize;
        let (target, local) = (pd.alloc_mr(room, RIGHTS)?, pd.alloc_mr(room, RIGHTS)?);
        let control = pd.alloc_mr(CONTROL_LEN as usize, Access::LOCAL_WRITE)?;
        let lane = Self {
            qp,
            pd,
            cq,
            channel,
            target,
            local,
            control,
            peer: None,
            received: None,
            stale: None,
            max_size,
            seed: 0,
        };
        lane.post_control()?;
        Ok(lane)
    }

    fn param(&self) -> ConnParam {
        let region = Region { addr: self.target.addr(), rkey: self.target.rkey() };
        ConnParam { private_data: region.encode(self.max_size), ird: 4, ord: 4, ..ConnParam::default() }
    }

    fn peer(&self) -> Result<Region> {
        self.peer.ok_or_else(|| Trouble::Wrong("the peer's region is not known".to_owned()))
    }

    // --- completions ------------------------------------------------------------------------------------------------

    /// Waits for the completion of a receive, or of a send.
    fn complete(&mut self, receive: bool) -> Result<Wc> {
        if receive && let Some(wc) = self.received.take() {
            return Ok(wc);
        }
        let mut found = [Wc::default()];
        loop {
            if self.cq.poll(&mut found) == 0 {
                self.cq.arm(false);
                if self.cq.poll(&mut found) == 0 {
                    if self.channel.get_event(Some(PATIENCE)).is_none() {
                        return wrong("nothing happens for a minute");
                    }
                    continue;
                }
            }
            let [wc] = found;
            if wc.status != WcStatus::Success {
                let why = self.qp.terminate().map(|why| format!(", {why}")).unwrap_or_default();
                return Err(Trouble::Lost(format!("{}{why}", wc.status)));
            }
            if (wc.opcode == WcOpcode::Recv) == receive {
                return Ok(wc);
            }
            if !receive {
                self.received = Some(wc);
            }
        }
    }

    fn post_control(&self) -> Result<()> {
        Ok(self.qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&self.control, 0, CONTROL_LEN)] })?)
    }

    /// Does one request from the local region, or into it if the request is a Read.
    fn request(&mut self, op: SendOp, size: u32) -> Result<()> {
        let sges = [Sge::of(&self.local, 0, size)];
        self.qp.post_send(&SendWr { wr_id: 0, op, sges: &sges, flags: SendFlags::SIGNALED })?;
        self.complete(false)?;
        Ok(())
    }

    fn tell(&mut self, kind: u32, size: u32, seed: u32, value: u32) -> Result<()> {
        let wr = SendWr { wr_id: 0, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
        let message = Control { kind, size, seed, value }.encode();
        let bytes = if kind == DONE && value == 0 { &[][..] } else { &message };
        self.qp.post_send_inline(&wr, bytes)?;
        self.complete(false)?;
        Ok(())
    }

    /// Waits for a control message. Does not post the receive for the next one.
    fn hear(&mut self) -> Result<Control> {
        let wc = self.complete(true)?;
        if wc.byte_len == 0 {
            return Ok(Control { kind: DONE, size: 0, seed: 0, value: 0 });
        }
        if wc.byte_len != CONTROL_LEN {
            return wrong(format!("a control message of {} bytes", wc.byte_len));
        }
        let mut bytes = [0; CONTROL_LEN as usize];
        self.control.read_at(0, &mut bytes)?;
        Ok(Control::decode(bytes))
    }

    fn expect_done(&mut self) -> Result<u32> {
        let message = self.hear()?;
        self.post_control()?;
        match message.kind {
            DONE => Ok(message.value),
            _ => wrong(format!("{message:?} instead of an answer")),
        }
    }

    // --- the two sides of a turn ------------------------------------------------------------------------------------

    fn next_seed(&mut self) -> u32 {
        self.seed += 1;
        self.seed
    }

    /// Puts a new message into the local region. Returns its seed.
    fn fill_local(&mut self, size: u32) -> Result<u32> {
        let seed = self.next_seed();
        self.local.write_at(0, &pattern(seed, size))?;
        Ok(seed)
    }

    fn drive_size(&mut self, size: u32) -> Result<()> {
        let Region { addr, rkey } = self.peer()?;
        let seed = self.fill_local(size)?;
        self.request(SendOp::Write { addr, rkey }, size)?;
        self.tell(WRITTEN, size, seed, 0)?;
        self.expect_done()?;

        let seed = self.next_seed();
        self.local.write_at(0, &vec![0; size as usize])?;
        self.tell(FILL, size, seed, 0)?;
        self.expect_done()?;
        self.request(SendOp::Read { addr, rkey }, size)?;
        check("a Read", &self.local, size, seed)?;

        let seed = self.fill_local(size)?;
        self.tell(RECEIVE, size, seed, 0)?;
        self.expect_done()?;
        self.request(SendOp::Send, size)?;
        self.expect_done()?;

        let seed = self.fill_local(size)?;
        self.tell(INVALIDATE, size, seed, 0)?;
        let fresh = self.expect_done()?;
        self.request(SendOp::SendInv(fresh), size)?;
        self.expect_done()?;
        Ok(())
    }

    fn drive(&mut self) -> Result<()> {
        let max_size = self.max_size;
        for size in SIZES.into_iter().filter(|&size| size <= max_size) {
            self.drive_size(size).map_err(|trouble| match trouble {
                Trouble::Lost(_) => trouble,
                _ => Trouble::Wrong(format!("while driving, {size} bytes: {trouble}")),
            })?;
        }
        Ok(())
    }

    fn receive_message(&mut self, message: Control, fresh: Option<&Mr>) -> Result<()> {
        self.qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&self.local, 0, message.size)] })?;
        self.tell(DONE, 0, 0, fresh.map_or(0, Mr::rkey))?;
        let wc = self.complete(true)?;
        self.post_control()?;
        if wc.byte_len != message.size {
            return wrong(format!("a Send of {} bytes instead of {}", wc.byte_len, message.size));
        }
        let invalidated = wc.flags.contains(WcFlags::WITH_INV).then_some(wc.invalidated_rkey);
        if invalidated != fresh.map(Mr::rkey) {
            return wrong(format!(
                "{invalidated:08x?} was invalidated instead of {:08x?}",
                fresh.map(Mr::rkey)
            ));
        }
        check("a Send", &self.local, message.size, message.seed)?;
        self.tell(DONE, 0, 0, 0)
    }

    /// Serves the peer until it sends [`END`], or, if `drives_too` is set, [`TURN`]: then this end drives, and sends
    /// `END`.
    fn serve(&mut self, drives_too: bool) -> Result<()> {
        loop {
            let message = self.hear()?;
            if message.size > self.max_size {
                return wrong(format!("the peer wants {} bytes; -m allows {}", message.size, self.max_size));
            }
            // While an announced message is awaited, no control message can come.
            if !matches!(message.kind, RECEIVE | INVALIDATE | END) {
                self.post_control()?;
            }
            match message.kind {
                END => return Ok(()),
                WRITTEN => {
                    check("a Write", &self.target, message.size, message.seed)?;
                    self.tell(DONE, 0, 0, 0)?;
                }
                FILL => {
                    self.target.write_at(0, &pattern(message.seed, message.size))?;
                    self.tell(DONE, 0, 0, 0)?;
                }
                RECEIVE => self.receive_message(message, None)?,
                INVALIDATE => {
                    // SAFETY: the memory is the target's. The lane frees it only after its queue pair, which is
                    // the only one of the domain, so nothing can use the region by then.
                    let fresh = unsafe {
                        self.pd.reg_mr(self.target.as_ptr(), 4096, RIGHTS | Access::REMOTE_INVALIDATE)?
                    };
                    self.receive_message(message, Some(&fresh))?;
                    self.stale = (message.value == 1).then_some(fresh);
                }
                TURN if drives_too => {
                    self.drive()?;
                    return self.tell(END, 0, 0, 0);
                }
                _ => return wrong(format!("{message:?} out of turn")),
            }
        }
    }

    fn stream(&mut self) -> Result<()> {
        let Region { addr, rkey } = self.peer()?;
        for n in 1u64.. {
            self.request(SendOp::Write { addr, rkey }, self.max_size)?;
            if n == 20 {
                println!("streaming");
            }
        }
        Ok(())
    }

    /// Checks that a region's STag works until a Send with Invalidate names it, and that a later use of the
    /// STag ends the connection.
    fn stale(&mut self) -> Result<()> {
        let Region { addr, .. } = self.peer()?;
        self.local.write_at(0, &pattern(1, 8))?;
        self.tell(INVALIDATE, 8, 1, 1)?;
        let fresh = self.expect_done()?;
        let by_fresh = SendOp::Write { addr, rkey: fresh };
        self.request(by_fresh, 8)?;
        self.request(SendOp::SendInv(fresh), 8)?;
        self.expect_done()?;
        match self.request(by_fresh, 8).and_then(|()| self.hear()) {
            Err(Trouble::Lost(how)) => {
                println!("refused: {how}");
                Ok(())
            }
            Err(trouble) => Err(trouble),
            Ok(_) => wrong("a Write by an invalidated STag was not refused"),
        }
    }
}

// --- connections ----------------------------------------------------------------------------------------------------

/// Connects with a new lane.
fn connect(device: &Device, options: &Options) -> Result<(Lane, Connection)> {
    let mut lane = Lane::new(device, options.max_size)?;
    let events = device.create_event_channel()?;
    let connection = events.connect(&lane.qp, options.address, &lane.param())?;
    match events.wait(PATIENCE) {
        Some(CmEvent::Established { private_data, .. }) => lane.peer = Some(Region::decode(&private_data)?),
        Some(CmEvent::ConnectError { reason, .. }) => return wrong(format!("cannot connect: {reason}")),
        event => return wrong(format!("cannot connect: {event:?}")),
    }
    Ok((lane, connection))
}

fn client(device: &Device, options: &Options, mode: &str) -> Result<()> {
    for round in 0..options.rounds {
        let (mut lane, connection) = connect(device, options)?;
        lane.seed = round;
        match mode {
            "stream" => lane.stream()?,
            "stale" => lane.stale()?,
            _ => {
                lane.drive()?;
                lane.tell(TURN, 0, 0, 0)?;
                lane.serve(false)?;
            }
        }
        // The peer may have ended the connection first.
        let _ = connection.disconnect();
    }
    Ok(())
}

fn clients(device: &Device, options: Options, mode: &'static str, done: &Sender<Result<()>>) {
    for number in 0..options.qps {
        let mut options = options;
        let port = options.address.port() + (number % u32::from(options.ports)) as u16;
        options.address.set_port(port);
        let (device, done) = (device.clone(), done.clone());
        thread::spawn(move || done.send(client(&device, &options, mode)));
    }
}

/// Accepts connections and hands each to a thread, until the requested number of connections has ended.
fn server(device: &Device, options: Options, done: &Sender<Result<()>>) -> Result<()> {
    let events = device.create_event_channel()?;
    let first = options.address.port();
    let _listeners = (first..first + options.ports)
        .map(|port| events.listen(port, 128))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    println!("listening");
    let mut waiting = HashMap::new();
    let (ended, ends) = channel();
    let mut left = options.qps;
    while left > 0 {
        match events.wait(Duration::from_millis(20)) {
            Some(CmEvent::ConnectRequest(request)) => {
                let mut lane = Lane::new(device, options.max_size)?;
                lane.peer = Some(Region::decode(request.private_data())?);
                let connection = request.accept(&lane.qp, &lane.param())?;
                waiting.insert(lane.qp.qpn(), (lane, connection));
            }
            Some(CmEvent::Established { qpn, .. }) => {
                if let Some((mut lane, connection)) = waiting.remove(&qpn) {
                    let ended = ended.clone();
                    thread::spawn(move || {
                        let result = lane.serve(true);
                        let _ = connection.disconnect();
                        drop(lane);
                        ended.send(result)
                    });
                }
            }
            _ => {}
        }
        while let Ok(result) = ends.try_recv() {
            left -= 1;
            let _ = done.send(result);
        }
    }
    Ok(())
}

fn options(mut args: impl Iterator<Item = String>) -> std::result::Result<Options, String> {
    let mut options = Options {
        address: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7471),
        qps: 1,
        rounds: 1,
        max_size: 65_536,
        ports: 1,
    };
    while let Some(option) = args.next() {
        let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = value.parse::<u32>().map_err(|_| format!("{option} {value}: not a number"));
        match option.as_str() {
            "-a" => options.address.set_ip(value.parse().map_err(|_| format!("{value}: no IPv4 address"))?),
            "-p" => options.address.set_port(number? as u16),
            "-q" => options.qps = number?,
            "-n" => options.rounds = number?,
            "-P" => options.ports = (number? as u16).max(1),
            "-m" => options.max_size = number?,
            _ => return Err(format!("{option}: no such option")),
        }
    }
    Ok(options)
}

fn run() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let modes = ["serve", "drive", "stream", "stale"];
    let mode = args.next().and_then(|mode| modes.into_iter().find(|known| *known == mode));
    let Some(mode) = mode else { return wrong("usage: peer serve|drive|stream|stale [options]") };
    let options = options(args).map_err(Trouble::Wrong)?;
    let config = Config::load(&Sources::process()).map_err(|error| Trouble::Wrong(error.to_string()))?;
    let device = Device::open(&config)?;
    let (done, results) = channel();
    match mode {
        "serve" => server(&device, options, &done)?,
        _ => clients(&device, options, mode, &done),
    }
    drop(done);
    let (mut ended, mut failed, mut lost) = (0, 0, false);
    for result in results {
        ended += 1;
        if let Err(trouble) = result {
            eprintln!("peer: {trouble}");
            failed += 1;
            lost |= matches!(trouble, Trouble::Lost(_));
        }
    }
    println!("connections {ended}, failed {failed}");
    Ok(ExitCode::from(if lost { 3 } else { u8::from(failed > 0) }))
}

fn main() -> ExitCode {
    run().unwrap_or_else(|trouble| {
        eprintln!("peer: {trouble}");
        ExitCode::FAILURE
    })
}
