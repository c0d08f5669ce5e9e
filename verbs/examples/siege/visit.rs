//! The honest client. The siege is judged by this client's experience.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use urnic::{
    Access, CmEvent, CompChannel, ConnParam, Connection, Cq, CqInit, Device, Mr, Pd, Qp, QpInit, RecvWr,
    SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};

use crate::{Result, hall};

/// A server that is silent for longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Octets of a message, a Write, and a Read.
const SIZE: usize = 64;
/// Pause after each round, and after a visit that failed.
const PAUSE: Duration = Duration::from_micros(500);

/// The client's experience since the last mark. Times are in microseconds.
#[derive(Default)]
struct Felt {
    connects: Vec<u64>,
    rounds: Vec<u64>,
    /// Number of connects that failed and connections that were lost.
    failed: u64,
    wrong: u64,
    why: Option<String>,
    /// Start of the wait under way: of the connection that comes and goes, then of the connection that stays.
    /// `None`: the connection does not wait.
    waiting: [Option<Instant>; 2],
    longest: u64,
}

type Shared = Arc<Mutex<Felt>>;

fn lock(felt: &Shared) -> MutexGuard<'_, Felt> {
    felt.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the number of times, their median, 99th percentile and maximum, as JSON.
fn quantiles(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let at = |permille: usize| {
        let index = (times.len() * permille / 1000).min(times.len().saturating_sub(1));
        times.get(index).map_or("null".to_owned(), u64::to_string)
    };
    format!(
        "{{\"count\": {}, \"p50\": {}, \"p99\": {}, \"max\": {}}}",
        times.len(),
        at(500),
        at(990),
        at(1000)
    )
}

impl Felt {
    /// Returns everything as text, and starts anew.
    fn mark(&mut self) -> String {
        let now = Instant::now();
        let pending = self.waiting.iter().flatten().map(|since| micros(now - *since)).max();
        let felt = std::mem::replace(self, Self { waiting: self.waiting, ..Self::default() });
        let why = felt.why.map_or("null".to_owned(), |why| format!("{why:?}"));
        format!(
            "{{\"connects\": {}, \"rounds\": {}, \"failed\": {}, \"wrong\": {}, \"stall_us\": {}, \"why\": {why}}}",
            quantiles(felt.connects),
            quantiles(felt.rounds),
            felt.failed,
            felt.wrong,
            felt.longest.max(pending.unwrap_or(0)),
        )
    }
}

pub fn run(device: &Device, server: SocketAddr, orders: &Receiver<String>) -> Result<()> {
    ENGINES.store(device.attributes()?.engines.max(1), Ordering::Relaxed);
    let felt = Shared::default();
    for stays in [true, false] {
        let (device, felt) = (device.clone(), felt.clone());
        thread::spawn(move || {
            loop {
                if let Err(why) = visit(&device, server, stays, &felt) {
                    let mut felt = lock(&felt);
                    felt.failed += 1;
                    felt.waiting[usize::from(stays)] = None;
                    felt.why.get_or_insert(why.to_string());
                    drop(felt);
                    thread::sleep(PAUSE);
                }
            }
        });
    }
    while let Ok(order) = orders.recv() {
        match order.as_str() {
            "mark" => println!("{}", lock(&felt).mark()),
            _ => return Err(format!("{order}: no such order").into()),
        }
    }
    Ok(())
}

/// A place in the server's memory.
#[derive(Clone, Copy)]
struct Place {
    addr: u64,
    rkey: u32,
    len: u32,
}

impl Place {
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let place = Self {
            addr: u64::from_be_bytes(*addr),
            rkey: u32::from_be_bytes(*rkey),
            len: u32::from_be_bytes(*len),
        };
        Some((place, rest))
    }
}

/// Number of engines of the device.
static ENGINES: AtomicU32 = AtomicU32::new(1);
/// Number of visits so far. Each visit uses the next engine.
static NEXT_VISIT: AtomicU32 = AtomicU32::new(0);

struct Visit<'a> {
    felt: &'a Shared,
    stays: usize,
    channel: CompChannel,
    cq: Cq,
    qp: Qp,
    /// Local memory: first the message to send, then the received message, then the octets that were read.
    local: Mr,
    received: u32,
    done: u32,
}

/// Makes one connection: with two rounds if it comes and goes, otherwise with rounds for as long as it lasts.
fn visit(device: &Device, server: SocketAddr, stays: bool, felt: &Shared) -> Result<()> {
    let pd = device.alloc_pd();
    let mut visit = Visit::new(device, &pd, stays, felt)?;
    let events = device.create_event_channel()?;
    let began = Instant::now();
    visit.waits(Some(began));
    let param = ConnParam { timeout: PATIENCE, ..ConnParam::default() };
    let connection: Connection = events.connect(&visit.qp, server, &param)?;
    let (room, all) = match events.wait(PATIENCE) {
        Some(CmEvent::Established { private_data, .. }) => {
            let places =
                Place::decode(&private_data).and_then(|(room, rest)| Some((room, Place::decode(rest)?.0)));
            places.ok_or("connect: the server does not say where its memory is")?
        }
        Some(CmEvent::ConnectError { reason, .. }) => return Err(format!("connect: {reason}").into()),
        other => return Err(format!("connect: {other:?}").into()),
    };
    visit.waits(None);
    lock(felt).connects.push(micros(began.elapsed()));
    let mut number = 0;
    while stays || number < 2 {
        visit.round(number, room, all)?;
        number += 1;
        thread::sleep(PAUSE);
    }
    visit.waits(Some(Instant::now()));
    connection.disconnect().map_err(|error| format!("disconnect: {error}"))?;
    loop {
        match events.wait(PATIENCE) {
            Some(CmEvent::Disconnected { .. }) => break,
            Some(_) => {}
            None => return Err("disconnect: the end of the connection is not reported".into()),
        }
    }
    visit.waits(None);
    Ok(())
}

impl<'a> Visit<'a> {
    fn new(device: &Device, pd: &Pd, stays: bool, felt: &'a Shared) -> Result<Self> {
        let channel = device.create_comp_channel()?;
        let vector = NEXT_VISIT.fetch_add(1, Ordering::Relaxed) % ENGINES.load(Ordering::Relaxed);
        let cq = device.create_cq_with(&CqInit {
            depth: 16,
            channel: Some(&channel),
            timestamps: false,
            vector,
        })?;
        let qp = pd.create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 4,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        })?;
        let local = pd.alloc_mr(3 * SIZE, Access::LOCAL_WRITE)?;
        Ok(Self { felt, stays: usize::from(stays), channel, cq, qp, local, received: 0, done: 0 })
    }

    /// Notes the start of a wait; `None` notes its end.
    fn waits(&self, since: Option<Instant>) {
        let mut felt = lock(self.felt);
        if let Some(before) = felt.waiting[self.stays] {
            felt.longest = felt.longest.max(micros(before.elapsed()));
        }
        felt.waiting[self.stays] = since;
    }

    /// Writes to the room, has a message echoed, reads the room and a part of the hall, and checks every octet.
    fn round(&mut self, number: u64, room: Place, all: Place) -> Result<()> {
        let text: Vec<u8> =
            (0..SIZE as u64).map(|i| (number * 31 + i * 7 + self.stays as u64) as u8).collect();
        let (sent, echo, read) = (0, SIZE as u64, 2 * SIZE as u64);
        self.local.write_at(sent, &text)?;
        self.local.write_at(echo, &[0; 2 * SIZE])?;
        self.qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&self.local, echo, SIZE as u32)] })?;
        let began = Instant::now();
        self.waits(Some(began));
        self.post(SendOp::Write { addr: room.addr, rkey: room.rkey }, sent)?;
        self.post(SendOp::Send, sent)?;
        self.until(|visit| visit.received > 0 && visit.done >= 2)?;
        self.post(SendOp::Read { addr: room.addr, rkey: room.rkey }, read)?;
        self.until(|visit| visit.done >= 3)?;
        let mut found = [0; 2 * SIZE];
        self.local.read_at(echo, &mut found)?;
        let right = found[..SIZE] == text[..] && found[SIZE..] == text[..];
        let at = (number * 4099 % u64::from(all.len - SIZE as u32)) as usize;
        self.post(SendOp::Read { addr: all.addr + at as u64, rkey: all.rkey }, read)?;
        self.until(|visit| visit.done >= 4)?;
        self.waits(None);
        self.local.read_at(read, &mut found[..SIZE])?;
        let right = right && found[..SIZE].iter().enumerate().all(|(i, octet)| *octet == hall(at + i));
        (self.received, self.done) = (0, 0);
        let mut felt = lock(self.felt);
        felt.wrong += u64::from(!right);
        felt.rounds.push(micros(began.elapsed()));
        Ok(())
    }

    fn post(&self, op: SendOp, at: u64) -> Result<()> {
        let sges = [Sge::of(&self.local, at, SIZE as u32)];
        Ok(self.qp.post_send(&SendWr { wr_id: 0, op, sges: &sges, flags: SendFlags::SIGNALED })?)
    }

    /// Takes completions until `enough` returns `true`.
    fn until(&mut self, enough: impl Fn(&Self) -> bool) -> Result<()> {
        let mut found = [Wc::default(); 4];
        while !enough(self) {
            let mut count = self.cq.poll(&mut found);
            if count == 0 {
                self.cq.arm(false);
                count = self.cq.poll(&mut found);
                if count == 0 {
                    self.channel.get_event(Some(PATIENCE)).ok_or("round: nothing happens for 20 s")?;
                    continue;
                }
            }
            for wc in found.iter().take(count) {
                if wc.status != WcStatus::Success {
                    return Err(format!("round: connection lost: {}", wc.status).into());
                }
                if wc.opcode == WcOpcode::Recv { self.received += 1 } else { self.done += 1 }
            }
        }
        Ok(())
    }
}
