//! One-sided operations on a target whose application sleeps, so that only the engine's own thread serves them.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use nix::unistd::pause;
use serde::{Deserialize, Serialize};
use urnic::{
    Access, CmEvent, Cq, Device, Mr, Pd, Qp, QpInit, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use urnic_config::{Cidr, Config, PortSpec};

use super::{
    end::PATIENCE,
    error::{Doing, PerfError},
    measure::histogram,
    process::{self, End, Process},
    report::Latency,
    server::conn_param,
    wire::{self, Answer, Target},
};

/// Result of [`run_sleeping`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SleepReport {
    /// Time of an 8-byte Read, from post to completion, us.
    pub read_us: Latency,
    /// Time of an 8-byte Write followed by a Read of the same bytes, from posting both until the Read completes, us.
    /// The Read shows that the Write has arrived, because the bytes read are compared with those written.
    pub write_us: Latency,
    /// CPU time of the sleeping process while it is idle, in percent of one core.
    pub idle_cpu_percent: f64,
}

/// Number of operations of each kind.
const OPERATIONS: u64 = 1000;
/// Maximum length of the random silence before each operation. It lets operations arrive in every state of the target
/// engine's sleep.
const SILENCE: Duration = Duration::from_millis(5);
/// Time for which the CPU time of the idle process is measured.
const WATCH: Duration = Duration::from_secs(5);

const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PORT: u16 = 18517;
const LEN: u32 = 8;

/// Measures Reads and Writes whose target sleeps in `pause()`, over virtio and vhost, between two processes.
///
/// Starts this program twice more, with its own arguments. In these processes this function does not return.
///
/// # Errors
/// [`PerfError`] of either process.
pub fn run_sleeping(config: &Config) -> Result<SleepReport, PerfError> {
    if let Some((end, dir)) = process::own_end() {
        let result = match end {
            End::Server => sleep(config, &dir),
            End::Client => measure(config, &dir),
        };
        process::leave(end, &dir, result);
    }
    let dir =
        tempfile::Builder::new().prefix("urnic-sleep-").tempdir().doing("making a folder for the sockets")?;
    let mut server = Process::start(End::Server, dir.path())?;
    let mut client = Process::start(End::Client, dir.path())?;
    loop {
        if let Some(report) = client.result(dir.path())? {
            return Ok(report);
        }
        // The target ends by itself only if it fails.
        server.result::<SleepReport>(dir.path())?;
        thread::sleep(Duration::from_millis(10));
    }
}

fn end_config(whole: &Config, dir: &Path, end: End) -> Result<Config, PerfError> {
    let mut config = whole.clone();
    let port = format!("virtio_user:{}", dir.join("link.sock").display());
    let port: PortSpec = port.parse().map_err(PerfError::Usage)?;
    let (spec, address) = match end {
        End::Server => (port, SERVER_IP),
        End::Client => (port.peer(), CLIENT_IP),
    };
    config.port.spec = Some(spec);
    config.ip.addresses = vec![Cidr { address: address.into(), prefix: 24 }];
    Ok(config)
}

/// Objects that both ends make.
pub(super) struct Made {
    pub(super) pd: Pd,
    pub(super) cq: Cq,
    pub(super) qp: Qp,
    pub(super) memory: Mr,
}

pub(super) fn make(device: &Device) -> Result<Made, PerfError> {
    let pd = device.alloc_pd();
    let cq = device.create_cq(64, None).doing("creating a completion queue")?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let memory = pd.alloc_mr(4096, access).doing("allocating memory")?;
    let qp = make_qp(&pd, &cq)?;
    Ok(Made { pd, cq, qp, memory })
}

pub(super) fn make_qp(pd: &Pd, cq: &Cq) -> Result<Qp, PerfError> {
    let init = QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
    };
    pd.create_qp(&init).doing("creating a queue pair")
}

/// Runs the target: accepts one connection, and sleeps until it is killed.
fn sleep(config: &Config, dir: &Path) -> Result<SleepReport, PerfError> {
    let config = end_config(config, dir, End::Server)?;
    let device = Device::open(&config).doing("opening the device")?;
    let events = device.create_event_channel().doing("creating an event channel")?;
    let _listener = events.listen(PORT, 8).doing("listening")?;
    let made = make(&device)?;
    loop {
        match events.wait(PATIENCE) {
            Some(CmEvent::ConnectRequest(request)) => {
                let target = Target { addr: made.memory.addr(), rkey: made.memory.rkey() };
                let param = conn_param(&config, &Answer::Lane(target));
                request.accept(&made.qp, &param).doing("accepting the client")?;
                break;
            }
            Some(_) => {}
            None => return Err(PerfError::Stalled { what: "the client", seconds: PATIENCE.as_secs() }),
        }
    }
    fs::write(dir.join("target.pid"), std::process::id().to_string()).doing("writing the process id")?;
    loop {
        pause();
    }
}

/// Runs the client.
fn measure(config: &Config, dir: &Path) -> Result<SleepReport, PerfError> {
    let config = end_config(config, dir, End::Client)?;
    let device = Device::open(&config).doing("opening the device")?;
    let events = device.create_event_channel().doing("creating an event channel")?;
    let server = SocketAddr::new(SERVER_IP.into(), PORT);
    let deadline = Instant::now() + PATIENCE;
    let (made, target) = loop {
        let made = make(&device)?;
        events.connect(&made.qp, server, &conn_param(&config, &Answer::Welcome)).doing("connecting")?;
        match events.wait(PATIENCE) {
            Some(CmEvent::Established { private_data, .. }) => match wire::decode(&private_data) {
                Some(Answer::Lane(target)) => break (made, target),
                _ => return Err(PerfError::Protocol("an answer without an address")),
            },
            Some(CmEvent::ConnectError { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            event => return Err(PerfError::Connect { server, reason: format!("{event:?}") }),
        }
    };
    let (read_us, write_us) = operate(&made, target)?;
    Ok(SleepReport { read_us, write_us, idle_cpu_percent: watch(dir)? })
}

/// Times Reads, and Writes that are read back, after silences of random length.
pub(super) fn operate(made: &Made, target: Target) -> Result<(Latency, Latency), PerfError> {
    let mut moods = Silences(0x5eed);
    let mut reads = histogram();
    for _ in 0..OPERATIONS {
        moods.silence();
        let posted = Instant::now();
        post(made, target, Operation::Read)?;
        await_read(made)?;
        reads.saturating_record(posted.elapsed().as_nanos() as u64);
    }
    let mut writes = histogram();
    for number in 0..OPERATIONS {
        moods.silence();
        let bytes = number.to_be_bytes();
        made.memory.write_at(SOURCE, &bytes).doing("writing")?;
        let posted = Instant::now();
        post(made, target, Operation::Write)?;
        post(made, target, Operation::Read)?;
        await_read(made)?;
        writes.saturating_record(posted.elapsed().as_nanos() as u64);
        let mut found = [0; LEN as usize];
        made.memory.read_at(SINK, &mut found).doing("reading")?;
        if let Some(at) = found.iter().zip(&bytes).position(|(f, b)| f != b) {
            let (found, expected) = (found[at], bytes[at]);
            return Err(PerfError::Data { lane: 0, number, offset: at as u64, expected, found });
        }
    }
    let nothing = || PerfError::Failed("no operation was measured".to_owned());
    Ok((Latency::of(&reads).ok_or_else(nothing)?, Latency::of(&writes).ok_or_else(nothing)?))
}

/// Offsets in this end's memory region.
const SOURCE: u64 = 0;
const SINK: u64 = 64;

enum Operation {
    Write,
    Read,
}

fn post(made: &Made, target: Target, operation: Operation) -> Result<(), PerfError> {
    let Target { addr, rkey } = target;
    let (op, at, flags) = match operation {
        Operation::Write => (SendOp::Write { addr, rkey }, SOURCE, SendFlags::empty()),
        Operation::Read => (SendOp::Read { addr, rkey }, SINK, SendFlags::SIGNALED),
    };
    Ok(made.qp.post_send(&SendWr { wr_id: 0, op, sges: &[Sge::of(&made.memory, at, LEN)], flags })?)
}

fn await_read(made: &Made) -> Result<(), PerfError> {
    let started = Instant::now();
    let mut found = [Wc::default(); 4];
    for polls in 1u64.. {
        let n = made.cq.poll(&mut found);
        for wc in found.iter().take(n) {
            match (wc.status, wc.opcode) {
                (WcStatus::Success, WcOpcode::Read) => return Ok(()),
                (WcStatus::Success, _) => {}
                (status, _) => {
                    return Err(PerfError::Completion { qpn: wc.qpn, status, detail: String::new() });
                }
            }
        }
        if polls.is_multiple_of(4096) && started.elapsed() > PATIENCE {
            break;
        }
    }
    Err(PerfError::Stalled { what: "a Read", seconds: PATIENCE.as_secs() })
}

/// Silences of random length.
struct Silences(u64);

impl Silences {
    fn silence(&mut self) {
        // A linear congruential generator, whose upper bits are random enough.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_nanos((self.0 >> 32) % SILENCE.as_nanos() as u64));
    }
}

/// Measures and returns the CPU time of the idle target, in percent of one core.
fn watch(dir: &Path) -> Result<f64, PerfError> {
    let pid = fs::read_to_string(dir.join("target.pid")).doing("reading the process id")?;
    let before = (Instant::now(), cpu_of(&pid)?);
    thread::sleep(WATCH);
    let cpu = cpu_of(&pid)?.saturating_sub(before.1);
    Ok(100.0 * cpu.as_secs_f64() / before.0.elapsed().as_secs_f64())
}

/// Returns the CPU time of all threads of a process.
fn cpu_of(pid: &str) -> Result<Duration, PerfError> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).doing("reading /proc")?;
    let mut ns = 0;
    for task in tasks {
        let path = task.doing("reading /proc")?.path().join("schedstat");
        let text = fs::read_to_string(path).doing("reading a thread's schedstat")?;
        ns += text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(ns))
}
