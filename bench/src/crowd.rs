//! The cost of many queue pairs, and the latency of a small Write beside many queue pairs or concurrent
//! registrations. A crowd is two devices of one process, joined by a ring, with the same number of engines, and
//! the queue pairs between them.

use std::{
    net::Ipv4Addr,
    process,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use serde::Serialize;
use urnic::{
    Access, Bound, CmEvent, ConnParam, Cq, CqInit, Device, EventChannel, Listener, Mr, Pd, Qp, QpInit,
    SendFlags, SendOp, SendWr, Sge, Wc, WcStatus,
};
use urnic_config::{Cidr, Config, Hugepages, Progress};

use crate::{memory::Usage, perf::PerfError};

mod turns;

pub use turns::turns;

const PORT: u16 = 18_700;
/// Host numbers of the two ends.
const SERVER: u8 = 1;
const CLIENT: u8 = 2;
/// Number of connections whose local ports the engine chooses; it can choose from 28,232 ports.
const CHOSEN: usize = 25_000;
/// Number of listeners. Connections after the first [`CHOSEN`] have local ports that this program chooses; each of
/// these ports connects to all listeners.
const LISTENERS: usize = 8;
/// The first local port that this program chooses.
const FURTHER: u16 = 1024;
/// [`Crowd::write`] drives only the engines of its own two completion queues at first, and all engines from this poll
/// on.
const OWN_POLLS: u32 = 8;
const ENTRIES: u32 = 16;
/// Maximum number of connections being set up at once.
const CONNECTING: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of registrations for which each round of [`storm`] waits.
const REGISTRATIONS: u64 = 500;
/// Writes in one turn, before the other crowd has its turn.
const TURN: usize = 500;

fn device(doing: &'static str) -> impl Fn(urnic::Error) -> PerfError {
    move |source| PerfError::Device { doing, source }
}

/// Memory of a device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Hugepages, if there are any.
    Huge,
    /// Ordinary pages, as valgrind needs them.
    Ordinary,
}

/// One device.
struct End {
    device: Device,
    pd: Pd,
    /// One completion queue at each engine.
    cqs: Vec<Cq>,
    events: EventChannel,
    memory: Mr,
}

impl End {
    fn open(link: &str, engines: usize, network: u8, host: u8, memory: Memory) -> Result<Self, PerfError> {
        let mut config = Config::default();
        config.engine.progress = Progress::Inline;
        config.engine.engines = Some(engines);
        if memory == Memory::Ordinary {
            config.memory.hugepages = Hugepages::Off;
            config.memory.mb = Some(512);
        }
        config.port.spec = Some(format!("ring:{link}").parse().map_err(PerfError::Usage)?);
        let address = Ipv4Addr::new(10, 77, network, host);
        config.ip.addresses = vec![Cidr { address: address.into(), prefix: 24 }];
        let opened = Device::open(&config).map_err(device("opening the device"))?;
        let pd = opened.alloc_pd();
        let cq = |vector| {
            let init = CqInit { depth: 1024, channel: None, timestamps: false, vector };
            opened.create_cq_with(&init).map_err(device("creating a completion queue"))
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        Ok(Self {
            cqs: (0..engines as u32).map(cq).collect::<Result<_, _>>()?,
            events: opened.create_event_channel().map_err(device("creating an event channel"))?,
            memory: pd.alloc_mr(4096, access).map_err(device("allocating memory"))?,
            pd,
            device: opened,
        })
    }

    fn create_qp(&self, number: usize) -> Result<Qp, PerfError> {
        let Some(cq) = self.cqs.get(number % self.cqs.len()) else {
            return Err(PerfError::Usage("a device without engines".to_owned()));
        };
        let init = QpInit {
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: ENTRIES,
            max_recv_wr: ENTRIES,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
        };
        self.pd.create_qp(&init).map_err(device("creating a queue pair"))
    }
}

/// Two devices and the queue pairs between them.
struct Crowd {
    server: End,
    client: End,
    network: u8,
    _listeners: Vec<Listener>,
    /// The local port of the latest connections, and its index; `None` while the engine chooses the ports.
    bound: Option<(usize, Bound)>,
    active: Vec<Qp>,
    passive: Vec<Qp>,
}

impl Crowd {
    fn open(name: &str, engines: usize, network: u8, memory: Memory) -> Result<Self, PerfError> {
        let link = format!("{name}-{}", process::id());
        let server = End::open(&link, engines, network, SERVER, memory)?;
        let client = End::open(&link, engines, network, CLIENT, memory)?;
        let listen = |i| server.events.listen(PORT + i, 1024).map_err(device("listening"));
        let listeners = (0..LISTENERS as u16).map(listen).collect::<Result<_, _>>()?;
        Ok(Self {
            server,
            client,
            network,
            _listeners: listeners,
            bound: None,
            active: Vec::new(),
            passive: Vec::new(),
        })
    }

    /// Connects `more` queue pairs.
    fn grow(&mut self, mut more: usize) -> Result<(), PerfError> {
        while more > 0 {
            let some = more.min(CONNECTING);
            self.connect(some)?;
            more -= some;
        }
        Ok(())
    }

    fn connect(&mut self, some: usize) -> Result<(), PerfError> {
        for _ in 0..some {
            let number = self.active.len();
            let qp = self.client.create_qp(number)?;
            let ip = |host| Ipv4Addr::new(10, 77, self.network, host);
            let to = (ip(SERVER), PORT + (number % LISTENERS) as u16);
            let events = &self.client.events;
            let param = ConnParam::default();
            let port = number.checked_sub(CHOSEN).map(|further| further / LISTENERS);
            if let Some(port) = port
                && self.bound.as_ref().is_none_or(|(bound, _)| *bound != port)
            {
                let from = (ip(CLIENT), FURTHER + port as u16);
                let bound = self.client.device.bind(from, false).map_err(device("reserving a port"))?;
                self.bound = Some((port, bound));
            }
            let begun = match &self.bound {
                Some((_, bound)) => events.connect_from(bound, &qp, to, &param),
                None => events.connect(&qp, to, &param),
            };
            begun.map_err(device("connecting"))?;
            self.active.push(qp);
        }
        let (mut established, deadline) = (0, Instant::now() + PATIENCE);
        while established < 2 * some {
            for event in [self.server.events.poll(), self.client.events.poll()].into_iter().flatten() {
                match event {
                    CmEvent::ConnectRequest(request) => {
                        let qp = self.server.create_qp(self.passive.len())?;
                        request.accept(&qp, &ConnParam::default()).map_err(device("accepting"))?;
                        self.passive.push(qp);
                    }
                    CmEvent::Established { .. } => established += 1,
                    other => {
                        return Err(PerfError::Failed(format!("a connection did not come up: {other:?}")));
                    }
                }
            }
            if Instant::now() > deadline {
                return Err(PerfError::Stalled { what: "connections", seconds: PATIENCE.as_secs() });
            }
        }
        // Each connection is used once, as [`Many::setup_us`] says.
        for number in self.active.len() - some..self.active.len() {
            self.write(number)?;
        }
        Ok(())
    }

    /// Posts an 8-byte Write on one of the queue pairs, and returns the time until its completion. The calling thread
    /// drives both ends.
    fn write(&self, number: usize) -> Result<Duration, PerfError> {
        let (Some(qp), Some(cq), Some(there)) = (
            self.active.get(number),
            self.client.cqs.get(number % self.client.cqs.len()),
            self.server.cqs.get(number % self.server.cqs.len()),
        ) else {
            return Err(PerfError::Usage("no such queue pair".to_owned()));
        };
        let op = SendOp::Write { addr: self.server.memory.addr(), rkey: self.server.memory.rkey() };
        let sges = [Sge::of(&self.client.memory, 0, 8)];
        let start = Instant::now();
        qp.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::SIGNALED })?;
        let mut found = [Wc::default()];
        let mut polls = 0;
        loop {
            polls += 1;
            if polls < OWN_POLLS {
                there.poll(&mut found);
            } else {
                // The queue pair may be at another engine than its completion queue: connecting has moved it to the
                // engine that its local port belongs to.
                self.server.cqs.iter().chain(&self.client.cqs).filter(|other| !other.is(cq)).for_each(|cq| {
                    cq.poll(&mut []);
                });
            }
            if cq.poll(&mut found) > 0 {
                break;
            }
            if start.elapsed() > PATIENCE {
                return Err(PerfError::Stalled { what: "a Write", seconds: PATIENCE.as_secs() });
            }
        }
        let [wc] = found;
        if wc.status != WcStatus::Success {
            return Err(PerfError::Completion { qpn: wc.qpn, status: wc.status, detail: String::new() });
        }
        Ok(start.elapsed())
    }
}

/// Result of [`many`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Many {
    /// Queue pairs of each device.
    pub qps: usize,
    /// Engines of each device.
    pub engines: usize,
    /// Queue pairs at the server's engine that has the fewest.
    pub least_at_engine: u32,
    /// Queue pairs at the server's engine that has the most.
    pub most_at_engine: u32,
    /// Resident memory and EAL heap of one queue pair, in bytes.
    pub bytes_per_qp: f64,
    /// Processor time to make a connection and use it once, both ends together, in us.
    pub setup_us: f64,
    /// The same processor time, for the last tenth of the connections, in us.
    pub last_setup_us: f64,
    /// Time of an 8-byte Write on one of 16 queue pairs, from posting to completion: median, in us.
    pub write_of_few_us: f64,
    /// The same time on one of all queue pairs: median, in us.
    pub write_of_many_us: f64,
    /// The same time when each queue pair is used once in turn, so that its state has left the caches: median, in us.
    pub write_on_each_us: f64,
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns a quantile of sorted times, in us.
fn quantile(times: &[Duration], part: f64) -> f64 {
    let at = (times.len() as f64 * part) as usize;
    times.get(at.min(times.len().saturating_sub(1))).map_or(f64::NAN, |time| us(*time))
}

/// Connects `qps` queue pairs between devices of `engines` engines. Compares a Write on one of them with a Write on one
/// of 16 queue pairs between another pair of devices; the two are measured alternately.
///
/// # Errors
/// [`PerfError`].
pub fn many(qps: usize, engines: usize) -> Result<Many, PerfError> {
    let mut few = Crowd::open("few", engines, 3, Memory::Huge)?;
    let mut all = Crowd::open("many", engines, 4, Memory::Huge)?;
    few.grow(16)?;
    all.grow(CONNECTING)?;
    let (before, started) = (Usage::now()?, processor_time());
    let most = qps.saturating_sub(CONNECTING).max(10);
    all.grow(most - most / 10)?;
    let tenth = processor_time();
    all.grow(most / 10)?;
    let (ended, after) = (processor_time(), Usage::now()?);
    let bytes = after.growth(&before) as f64;
    let (mut of_few, mut of_many) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        for (crowd, times) in [(&few, &mut of_few), (&all, &mut of_many)] {
            for _ in 0..TURN {
                times.push(crowd.write(5)?);
            }
        }
    }
    let each = (0..all.active.len()).map(|number| all.write(number));
    let mut of_each = each.collect::<Result<Vec<_>, _>>()?;
    for times in [&mut of_few, &mut of_many, &mut of_each] {
        times.sort_unstable();
    }
    let attributes =
        all.server.device.attributes().map_err(device("reading the attributes of the device"))?;
    let at_engines = || attributes.per_engine.iter().map(|engine| engine.queue_pairs);
    let report = Many {
        qps: all.active.len(),
        engines,
        least_at_engine: at_engines().min().unwrap_or(0),
        most_at_engine: at_engines().max().unwrap_or(0),
        bytes_per_qp: bytes / most as f64 / 2.0,
        setup_us: us(ended.saturating_sub(started)) / most as f64,
        last_setup_us: us(ended.saturating_sub(tenth)) / (most / 10) as f64,
        write_of_few_us: quantile(&of_few, 0.5),
        write_of_many_us: quantile(&of_many, 0.5),
        write_on_each_us: quantile(&of_each, 0.5),
    };
    // The crowds are not dropped, because that takes long and callers end the process next.
    std::mem::forget((few, all));
    Ok(report)
}

/// Result of [`storm`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Storm {
    /// Time of an 8-byte Write, from posting to completion, without registrations: median, in us.
    pub alone_p50_us: f64,
    /// The 99th percentile of this time, in us.
    pub alone_p99_us: f64,
    /// The median during registrations on the other core, in us.
    pub beside_p50_us: f64,
    /// The 99th percentile during registrations, in us.
    pub beside_p99_us: f64,
    /// Regions registered and deregistered per second during the Writes.
    pub registrations_s: f64,
}

/// Measures Writes through engine 0, which a thread on the first of `cores` drives. Calm and storm alternate: in a
/// storm, a thread on the second core registers and deregisters regions of both devices without a pause.
///
/// # Errors
/// [`PerfError`].
pub fn storm(cores: [usize; 2], rounds: usize) -> Result<Storm, PerfError> {
    let mut crowd = Crowd::open("storm", 2, 5, Memory::Huge)?;
    crowd.grow(2)?;
    let [own, other] = cores;
    let (blows, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let registered = AtomicU64::new(0);
    let devices = [(&crowd.server.device, &crowd.server.pd), (&crowd.client.device, &crowd.client.pd)];
    let pds = devices.map(|(_, pd)| pd.clone());
    let register = || -> Result<(), PerfError> {
        urnic_dataplane::pin_current_thread(other)?;
        while !stop.load(Ordering::Acquire) {
            if !blows.load(Ordering::Acquire) {
                thread::yield_now();
                continue;
            }
            for pd in &pds {
                let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
                mr.map_err(device("allocating memory"))?
                    .deregister()
                    .map_err(|(_, error)| device("deregistering")(error))?;
                registered.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    let (mut alone, mut beside, mut time) = (Vec::new(), Vec::new(), Duration::ZERO);
    thread::scope(|scope| -> Result<(), PerfError> {
        let registering = scope.spawn(register);
        let work = || -> Result<(), PerfError> {
            urnic_dataplane::pin_current_thread(own)?;
            for _ in 0..rounds {
                for (blow, times) in [(false, &mut alone), (true, &mut beside)] {
                    blows.store(blow, Ordering::Release);
                    let start = Instant::now();
                    let before = registered.load(Ordering::Relaxed);
                    let calm = || blow && registered.load(Ordering::Relaxed) < before + REGISTRATIONS;
                    let mut writes = 0;
                    // Writes at least until the storm has made its registrations, because the storm's thread may get
                    // its core late.
                    while writes < 20 * TURN || calm() && start.elapsed() < PATIENCE / 10 {
                        times.push(crowd.write(0)?);
                        writes += 1;
                    }
                    if blow {
                        time += start.elapsed();
                    }
                }
            }
            Ok(())
        };
        let mut work = work;
        let worked = work();
        stop.store(true, Ordering::Release);
        registering.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))?;
        worked
    })?;
    alone.sort_unstable();
    beside.sort_unstable();
    let report = Storm {
        alone_p50_us: quantile(&alone, 0.5),
        alone_p99_us: quantile(&alone, 0.99),
        beside_p50_us: quantile(&beside, 0.5),
        beside_p99_us: quantile(&beside, 0.99),
        registrations_s: registered.load(Ordering::Relaxed) as f64 / time.as_secs_f64(),
    };
    std::mem::forget(crowd);
    Ok(report)
}
