//! Makes connections on which something is unusual, and prints what the application sees. This is one half of the
//! trials of `scripts/interop-siw`; the other half is the same program in C on libibverbs (`scripts/lab/trial.c`).
//! Two instances of this program also work with each other.
//!
//! ```text
//! trial offer          serve trials until one is named "end"
//! trial ADDR TRIAL... run trials, one after the other
//! ```
//! Settings come from the environment (`URNIC_PORT`, `URNIC_IP`, ...). A trial is its name, then `key=value`, all in
//! one argument; `scripts/lab/siw-trials` has the lab's trials.
//!
//! The head of the connecting side's private data ([`Ask`]) contains instructions for the other side. The other
//! side's private data contain the places of its regions: one with all rights, one readable, one writable, and one of
//! another protection domain. The operation of the trial follows, once or more often, then a short Send, unless the
//! operation was a Send. When a Send arrives, the connection ends. Each side has one receive posted, unless
//! the trial wants none at the serving side.
//!
//! Each side prints a line of what its application saw: private data, completions, the end, asynchronous events,
//! Terminate.

use std::fmt::{Display, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use urnic::{
    Access, AsyncEvent, CmEvent, ConnParam, ConnRequest, Cq, Device, EventChannel, Mr, Pd, PostError, Qp,
    QpInit, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use urnic_config::{Config, RtrChoice, Sources};

const ROOM: u32 = 65_536;
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u16 = 7472;
const SENDS: u32 = 72;
/// Number that is added to an STag to make an unknown STag.
const UNKNOWN: u32 = 0x11_1100;
const REGIONS: [&str; 4] = ["all", "readable", "writable", "elsewhere"];
const ALL: usize = 0;
const READABLE: usize = 1;
const WRITABLE: usize = 2;
/// Length of address and STag, big endian, in octets.
const REGION_LEN: usize = 12;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Instructions for the serving side.
struct Ask {
    /// Whether to reject the connection.
    reject: bool,
    /// Whether to send a message before anything has arrived.
    first: bool,
    ird: u8,
    ord: u8,
    /// Length of the answer's private data, in octets.
    answer: u16,
    /// Size of the receive, in octets; 0: none is posted.
    receive: u16,
    name: String,
}

impl Ask {
    const LEN: usize = 32;

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.reject), u8::from(self.first), self.ird, self.ord];
        bytes.extend(self.answer.to_be_bytes());
        bytes.extend(self.receive.to_be_bytes());
        bytes.extend(self.name.bytes());
        bytes.resize(Self::LEN, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((&[reject, first, ird, ord, a, n, r, e, ref name @ ..], _)) =
            bytes.split_first_chunk::<{ Self::LEN }>()
        else {
            return Err("the private data are too short".into());
        };
        let name = name.iter().take_while(|byte| **byte != 0).copied().collect();
        Ok(Self {
            reject: reject != 0,
            first: first != 0,
            ird,
            ord,
            answer: u16::from_be_bytes([a, n]),
            receive: u16::from_be_bytes([r, e]),
            name: String::from_utf8(name)?,
        })
    }
}

/// A trial, parsed.
struct Trial {
    ask: Ask,
    op: String,
    /// Name of the peer's region, or "unknown".
    stag: String,
    /// Name of the local region, or "unknown".
    local: String,
    off: i64,
    len: u32,
    count: u32,
    /// Length of the request's private data, in octets.
    data: usize,
    ord: u16,
    rtr: RtrChoice,
}

impl Trial {
    fn parse(text: &str) -> Result<Self> {
        let mut words = text.split_whitespace();
        let mut trial = Self {
            ask: Ask {
                reject: false,
                first: false,
                ird: 4,
                ord: 4,
                answer: (REGIONS.len() * REGION_LEN) as u16,
                receive: 64,
                name: words.next().unwrap_or_default().to_owned(),
            },
            op: String::new(),
            stag: "all".to_owned(),
            local: "all".to_owned(),
            off: 0,
            len: 8,
            count: 1,
            data: Ask::LEN,
            ord: 4,
            rtr: RtrChoice::Off,
        };
        for word in words {
            let (key, value) = word.split_once('=').ok_or(format!("{word}: not key=value"))?;
            match key {
                "op" => trial.op = value.to_owned(),
                "stag" => trial.stag = value.to_owned(),
                "local" => trial.local = value.to_owned(),
                "off" => trial.off = value.parse()?,
                "len" => trial.len = value.parse()?,
                "count" => trial.count = value.parse()?,
                "data" => trial.data = value.parse()?,
                "ord" => trial.ord = value.parse()?,
                "rtr" => {
                    trial.rtr = match value {
                        "write" => RtrChoice::Write,
                        "read" => RtrChoice::Read,
                        "send" => RtrChoice::Send,
                        "any" => RtrChoice::Any,
                        _ => RtrChoice::Off,
                    }
                }
                "their_ird" => trial.ask.ird = value.parse()?,
                "answer" => trial.ask.answer = value.parse()?,
                "receive" => trial.ask.receive = value.parse()?,
                "reject" => trial.ask.reject = value == "1",
                "first" => trial.ask.first = value == "1",
                _ => return Err(format!("{word}: no such key").into()),
            }
        }
        Ok(trial)
    }
}

fn pattern(i: usize) -> u8 {
    (i + (i >> 8)) as u8
}

/// Returns the head, followed by the pattern, cut to `len`.
fn private_data(mut head: Vec<u8>, len: usize) -> Vec<u8> {
    head.extend((head.len()..len).map(pattern));
    head.truncate(len);
    head
}

/// Text about what the application saw in a trial.
#[derive(Default)]
struct Seen(String);

impl Seen {
    fn see(&mut self, what: impl Display) {
        let comma = if self.0.is_empty() { "" } else { ", " };
        let _ = write!(self.0, "{comma}{what}");
    }

    fn see_private(&mut self, data: &[u8], head: usize) {
        let right = data.iter().enumerate().skip(head).all(|(i, byte)| *byte == pattern(i));
        self.see(format_args!("private {}{}", data.len(), if right { "" } else { " (wrong)" }));
    }

    fn see_error(&mut self, event: Option<&CmEvent>) {
        match event {
            Some(CmEvent::Rejected { private_data, .. }) => {
                self.see("connect rejected");
                self.see_private(private_data, 0);
            }
            Some(CmEvent::ConnectError { reason, .. }) => self.see(format_args!("connect {reason}")),
            Some(CmEvent::Disconnected { reason, .. }) => self.see(format_args!("connect {reason}")),
            event => self.see(format_args!("connect {event:?}")),
        }
    }
}

/// One end of a connection.
struct End {
    qp: Qp,
    send_cq: Cq,
    receive_cq: Cq,
    regions: Vec<Mr>,
    _pds: [Pd; 2],
}

impl End {
    fn new(device: &Device) -> Result<Self> {
        let (pd, other) = (device.alloc_pd(), device.alloc_pd());
        let (send_cq, receive_cq) = (device.create_cq(SENDS, None)?, device.create_cq(4, None)?);
        let qp = pd.create_qp(&QpInit {
            send_cq: &send_cq,
            recv_cq: &receive_cq,
            max_send_wr: SENDS,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        })?;
        let full = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let rights =
            [(&pd, full), (&pd, Access::REMOTE_READ), (&pd, full - Access::REMOTE_READ), (&other, full)];
        let contents: Vec<u8> = (0..ROOM as usize).map(pattern).collect();
        let mut regions = Vec::new();
        for (pd, access) in rights {
            let region = pd.alloc_mr(ROOM as usize, access)?;
            region.write_at(0, &contents)?;
            regions.push(region);
        }
        Ok(Self { qp, send_cq, receive_cq, regions, _pds: [pd, other] })
    }

    fn post_receive(&self, size: u32) -> Result<()> {
        Ok(self.qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&self.regions[WRITABLE], 0, size)] })?)
    }

    fn post_send(&self, op: SendOp, sge: Sge) -> Result<(), PostError> {
        self.qp.post_send(&SendWr { wr_id: 0, op, sges: &[sge], flags: SendFlags::SIGNALED })
    }

    /// Sends a short message. Returns the outcome.
    fn send_short(&self) -> String {
        match self.post_send(SendOp::Send, Sge::of(&self.regions[ALL], 0, 8)) {
            Ok(()) => complete(&self.send_cq, 1),
            Err(error) => error.to_string(),
        }
    }

    /// Encodes the places of our regions.
    fn encode(&self) -> Vec<u8> {
        self.regions
            .iter()
            .flat_map(|r| [&r.addr().to_be_bytes()[..], &r.rkey().to_be_bytes()].concat())
            .collect()
    }

    /// Does the operation of the trial. Returns the outcome.
    fn operate(&self, trial: &Trial, theirs: &[u8]) -> Result<String> {
        let named = |name: &str| REGIONS.iter().position(|known| *known == name);
        let shift = |name: &str| if name == "unknown" { UNKNOWN } else { 0 };
        let theirs = theirs.get(named(&trial.stag).unwrap_or(ALL) * REGION_LEN..).unwrap_or_default();
        let Some((&[ref addr @ .., a, b, c, d], _)) = theirs.split_first_chunk::<REGION_LEN>() else {
            return Err("the peer's regions are not known".into());
        };
        let addr = u64::from_be_bytes(addr.first_chunk().copied().unwrap_or_default());
        let rkey = u32::from_be_bytes([a, b, c, d]) + shift(&trial.stag);
        let here = named(&trial.local).unwrap_or(ALL);
        let local = &self.regions[here];
        if trial.op == "read" && here != READABLE {
            local.write_at(0, &vec![0; ROOM as usize])?;
        }
        for i in 0..trial.count {
            let from = u64::from(i * trial.len);
            let addr = addr.wrapping_add_signed(trial.off) + from;
            let op = match trial.op.as_str() {
                "write" => SendOp::Write { addr, rkey },
                "read" => SendOp::Read { addr, rkey },
                "send" => SendOp::Send,
                "inv" => SendOp::SendInv(rkey),
                "imm" => SendOp::WriteImm { addr, rkey, imm: 1 },
                "add" => SendOp::FetchAdd { addr, rkey, add: 1 },
                op => return Err(format!("{op}: no such operation").into()),
            };
            let mut sge = Sge::of(local, from, trial.len);
            sge.lkey += shift(&trial.local);
            if let Err(error) = self.post_send(op, sge) {
                return Ok(error.to_string());
            }
        }
        let status = complete(&self.send_cq, trial.count);
        if trial.op == "read" && status == WcStatus::Success.as_str() {
            let mut found = vec![0; (trial.count * trial.len) as usize];
            local.read_at(0, &mut found)?;
            if found.iter().enumerate().any(|(i, byte)| *byte != pattern(i)) {
                return Ok("wrong data".to_owned());
            }
        }
        Ok(status)
    }

    /// Waits for the connection's end, and notes what else the application can know.
    fn see_end(&self, device: &Device, events: &EventChannel, seen: &mut Seen) {
        match events.wait(PATIENCE) {
            Some(CmEvent::Disconnected { reason, .. }) => seen.see(format_args!("end {reason}")),
            event => seen.see(format_args!("end {event:?}")),
        }
        let asynchronous = device.async_events();
        while let Some(event) = asynchronous.poll() {
            let (name, fault) = match event {
                AsyncEvent::QpFatal(fault) => ("QP fatal", fault),
                AsyncEvent::QpRequestError(fault) => ("QP request error", fault),
                AsyncEvent::QpAccessError(fault) => ("QP access error", fault),
                _ => continue,
            };
            seen.see(format_args!("event {name}: {}", fault.cause));
        }
        if let Some(why) = self.qp.terminate() {
            let who = if why.sent { "sent" } else { "received" };
            seen.see(format_args!("Terminate {who} {:x}{:x} {:02x}", why.layer, why.etype, why.code));
        }
    }
}

/// Waits for the next `count` completions. Returns the status of the first failure, or `Success` if there is
/// none; "nothing" if a completion does not come in time.
fn complete(cq: &Cq, count: u32) -> String {
    let until = Instant::now() + PATIENCE;
    let mut status = WcStatus::Success;
    let mut left = count;
    while left > 0 {
        let mut wc = [Wc::default()];
        if cq.poll(&mut wc) == 0 {
            if Instant::now() > until {
                return "nothing".to_owned();
            }
            std::thread::sleep(Duration::from_micros(100));
            continue;
        }
        let [wc] = wc;
        if status == WcStatus::Success {
            status = wc.status;
        }
        left -= 1;
    }
    status.to_string()
}

fn act(device: &Device, trial: &Trial, to: Ipv4Addr, seen: &mut Seen) -> Result<()> {
    let end = End::new(device)?;
    end.post_receive(64)?;
    let events = device.create_event_channel()?;
    let param = ConnParam {
        private_data: private_data(trial.ask.encode(), trial.data),
        ird: 4,
        ord: trial.ord,
        rtr: Some(trial.rtr),
        // A Send that finds no receive must be an error here (ERR-22).
        rnr_retry: 0,
        ..ConnParam::default()
    };
    let connection = match events.connect(&end.qp, SocketAddrV4::new(to, PORT), &param) {
        Ok(connection) => connection,
        Err(error) => {
            seen.see(format_args!("connect {error}"));
            return Ok(());
        }
    };
    let theirs = match events.wait(PATIENCE) {
        Some(CmEvent::Established { private_data, terms, .. }) => {
            seen.see_private(&private_data, REGIONS.len() * REGION_LEN);
            if let Some(rtr) = terms.rtr {
                seen.see(format_args!("RTR {rtr:?}"));
            }
            if terms.rev != 2 {
                seen.see(format_args!("revision {}", terms.rev));
            }
            private_data
        }
        event => {
            seen.see_error(event.as_ref());
            return Ok(());
        }
    };
    if trial.ask.first {
        seen.see(format_args!("first {}", complete(&end.receive_cq, 1)));
    }
    if !trial.op.is_empty() {
        seen.see(format_args!("{} {}", trial.op, end.operate(trial, &theirs)?));
    }
    if !matches!(trial.op.as_str(), "send" | "inv") {
        seen.see(format_args!("then {}", end.send_short()));
    }
    if !trial.ask.first {
        seen.see(format_args!("receive {}", complete(&end.receive_cq, 1)));
    }
    end.see_end(device, &events, seen);
    // The peer may have ended the connection first.
    let _ = connection.disconnect();
    Ok(())
}

fn serve(
    device: &Device,
    events: &EventChannel,
    request: ConnRequest,
    ask: &Ask,
    seen: &mut Seen,
) -> Result<()> {
    seen.see_private(request.private_data(), Ask::LEN);
    let length = usize::from(ask.answer);
    if ask.reject {
        return Ok(request.reject(&private_data(Vec::new(), length))?);
    }
    let end = End::new(device)?;
    if ask.receive > 0 {
        end.post_receive(u32::from(ask.receive))?;
    }
    let param = ConnParam {
        private_data: private_data(end.encode(), length),
        ird: u16::from(ask.ird),
        ord: u16::from(ask.ord),
        // A Send that finds no receive must be an error here (ERR-22).
        rnr_retry: 0,
        ..ConnParam::default()
    };
    let connection = match request.accept(&end.qp, &param) {
        Ok(connection) => connection,
        Err(error) => {
            seen.see(format_args!("accept {error}"));
            return Ok(());
        }
    };
    match events.wait(PATIENCE) {
        Some(CmEvent::Established { .. }) => {}
        event => {
            seen.see_error(event.as_ref());
            return Ok(());
        }
    }
    if ask.first {
        seen.see(format_args!("first {}", end.send_short()));
    }
    if ask.receive > 0 {
        let status = complete(&end.receive_cq, 1);
        seen.see(format_args!("receive {status}"));
        if status == WcStatus::Success.as_str() {
            let _ = connection.disconnect();
        }
    }
    end.see_end(device, events, seen);
    Ok(())
}

fn offer(device: &Device) -> Result<()> {
    let events = device.create_event_channel()?;
    let _listener = events.listen(PORT, 8)?;
    println!("listening");
    loop {
        let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE * 6) else { continue };
        let ask = Ask::decode(request.private_data())?;
        let mut seen = Seen::default();
        serve(device, &events, request, &ask, &mut seen)?;
        println!("{}: {}", ask.name, seen.0);
        if ask.name == "end" {
            return Ok(());
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let to = args.next().ok_or("usage: trial offer | ADDR TRIAL...")?;
    let device = Device::open(&Config::load(&Sources::process())?)?;
    if to == "offer" {
        return offer(&device);
    }
    let to = to.parse()?;
    for text in args {
        let trial = Trial::parse(&text)?;
        let mut seen = Seen::default();
        act(&device, &trial, to, &mut seen)?;
        println!("{}: {}", trial.ask.name, seen.0);
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("trial: {error}");
            ExitCode::FAILURE
        }
    }
}
