//! The two devices of a process, and a thread's queue pairs between them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process,
    time::{Duration, Instant},
};

use urnic::{
    Access, CmEvent, ConnParam, Cq, CqInit, Device, EventChannel, Listener, Mr, Pd, Qp, QpInit, RecvWr,
    SendFlags, SendOp, SendWr, Sge, Srq, SrqInit, Wc, WcOpcode, WcStatus,
};
use urnic_config::{Cidr, Config, Progress};

use super::{Load, Shape, Task};
use crate::perf::PerfError;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 2, 2);
/// Base port: thread `i` of the server listens on this port plus `i`.
const PORT: u16 = 18_600;
const PATIENCE: Duration = Duration::from_secs(20);
/// Number of receives in a shared receive queue for each thread that uses the queue.
const RECEIVES: u32 = 512;
/// Attempts to find a local port that belongs to the desired engine.
const TRIES: usize = 256;
/// The maximum number of completions that a poll takes.
const POLL: usize = 32;
/// MiB of EAL's memory for each engine, for both devices of the process together.
const MEMORY_MB: u32 = 160;

pub(super) fn device(doing: &'static str) -> impl Fn(urnic::Error) -> PerfError {
    move |source| PerfError::Device { doing, source }
}

/// Both ends of the ring.
pub(super) struct Ends {
    pub(super) server: Device,
    pub(super) client: Device,
}

impl Ends {
    pub(super) fn open(task: &Task) -> Result<Self, PerfError> {
        let mut config = Config::default();
        config.engine.progress = Progress::Inline;
        config.engine.engines = Some(task.cores.len());
        // While a process is traced, a round trip may take longer than the default timeout.
        config.tcp.user_timeout = None;
        config.memory.mb = Some(MEMORY_MB * task.cores.len() as u32);
        config.port.spec = Some(format!("ring:scaling-{}", process::id()).parse().map_err(PerfError::Usage)?);
        let open = |address: Ipv4Addr| {
            let mut config = config.clone();
            config.ip.addresses = vec![Cidr { address: address.into(), prefix: 24 }];
            Device::open(&config).map_err(device("opening the device"))
        };
        Ok(Self { server: open(SERVER)?, client: open(CLIENT)? })
    }

    /// Returns the number of frames that engines have handed to each other.
    pub(super) fn handed_over(&self) -> Result<u64, PerfError> {
        let mut sum = 0;
        for end in [&self.server, &self.client] {
            let attributes = end.attributes().map_err(device("reading the attributes of the device"))?;
            let of = |(name, count): &(&str, u64)| if *name == "frames_handed_over" { *count } else { 0 };
            sum += attributes.counters.iter().map(of).sum::<u64>();
        }
        Ok(sum)
    }
}

/// Objects that the queue pairs of the serving end use. The objects belong to one thread, or all threads share them.
pub(super) struct Served {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    region: Mr,
    notes: Mr,
}

impl Served {
    /// Makes the objects for `threads` threads, whose numbers start at `first`.
    pub(super) fn new(server: &Device, task: &Task, first: usize, threads: usize) -> Result<Self, PerfError> {
        let pd = server.alloc_pd();
        let receives = RECEIVES * threads as u32;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let slots = threads * task.ways;
        let init = CqInit { depth: 2 * receives, channel: None, timestamps: false, vector: first as u32 };
        let served = Self {
            cq: server.create_cq_with(&init).map_err(device("creating a completion queue"))?,
            srq: pd
                .create_srq(&SrqInit { max_wr: receives, max_sge: 1, limit: 0 })
                .map_err(device("creating a shared receive queue"))?,
            region: pd.alloc_mr(slots * task.load.size(), access).map_err(device("allocating the region"))?,
            notes: pd
                .alloc_mr(receives as usize * 64, Access::LOCAL_WRITE)
                .map_err(device("allocating memory"))?,
            pd,
        };
        if task.load == Load::Send8 {
            (0..receives.into()).try_for_each(|slot| served.post(slot))?;
        }
        Ok(served)
    }

    fn post(&self, slot: u64) -> Result<(), PerfError> {
        let sge = Sge::of(&self.notes, slot * 64, 8);
        Ok(self.srq.post_recv(&RecvWr { wr_id: slot, sges: &[sge] })?)
    }

    /// Drives the serving end, and reposts a receive for each message that has arrived.
    #[inline]
    fn serve(&self) -> Result<(), PerfError> {
        let mut found = [Wc::default(); POLL];
        let n = self.cq.poll(&mut found);
        for wc in found.iter().take(n) {
            succeeded(wc)?;
            self.post(wc.wr_id)?;
        }
        Ok(())
    }
}

fn succeeded(wc: &Wc) -> Result<(), PerfError> {
    if wc.status == WcStatus::Success {
        return Ok(());
    }
    Err(PerfError::Completion { qpn: wc.qpn, status: wc.status, detail: String::new() })
}

/// A queue pair of the client, the parameters of its requests, and their progress.
struct Way {
    qp: Qp,
    op: SendOp,
    sge: Sge,
    posted: u32,
    outstanding: u32,
}

/// A thread's queue pairs, at both ends.
pub(super) struct Station<'a> {
    served: &'a Served,
    load: Load,
    cq: Cq,
    ways: Vec<Way>,
    _memory: Mr,
    _events: [EventChannel; 2],
    _accepted: Vec<Qp>,
    _listener: Listener,
}

impl<'a> Station<'a> {
    /// Connects the queue pairs of a thread.
    pub(super) fn new(
        ends: &Ends,
        served: &'a Served,
        task: &Task,
        thread: usize,
    ) -> Result<Self, PerfError> {
        let engines = task.cores.len();
        let pd = ends.client.alloc_pd();
        let init = CqInit { depth: 4096, channel: None, timestamps: false, vector: thread as u32 };
        let cq = ends.client.create_cq_with(&init).map_err(device("creating a completion queue"))?;
        let channel = |end: &Device| end.create_event_channel().map_err(device("creating an event channel"));
        let events = [channel(&ends.server)?, channel(&ends.client)?];
        let [server_events, client_events] = &events;
        let to = SocketAddr::new(SERVER.into(), PORT + thread as u16);
        let listener = server_events.listen(to.port(), 128).map_err(device("listening"))?;
        let size = task.load.size();
        let memory =
            pd.alloc_mr(task.ways * size, Access::LOCAL_WRITE).map_err(device("allocating memory"))?;
        let (mut accepted, mut ways) = (Vec::new(), Vec::new());
        // Both shapes have the same number of queue pairs, so that they differ only in the engines.
        for place in 0..task.ways {
            let engine = if task.shape == Shape::Own { thread } else { place % engines };
            let mut found = None;
            for _ in 0..TRIES {
                let qp = create_qp(&pd, &cq, None)?;
                let passive = create_qp(&served.pd, &served.cq, Some(&served.srq))?;
                let before = connections(&ends.client, engine)?;
                let bound = ends.client.bind((CLIENT, 0), false).map_err(device("reserving a port"))?;
                client_events
                    .connect_from(&bound, &qp, to, &ConnParam::default())
                    .map_err(device("connecting"))?;
                if connections(&ends.client, engine)? == before {
                    continue;
                }
                establish(&events, &passive)?;
                found = Some((qp, passive));
                break;
            }
            let Some((qp, passive)) = found else {
                return Err(PerfError::Failed("no local port leads to the engine".to_owned()));
            };
            let slots = served.region.len() as usize / size;
            let slot = (thread * task.ways + place) % slots;
            let (addr, rkey) = (served.region.addr() + (slot * size) as u64, served.region.rkey());
            let op = match task.load {
                Load::Write8 | Load::Write64k => SendOp::Write { addr, rkey },
                Load::Read4k => SendOp::Read { addr, rkey },
                Load::Send8 => SendOp::Send,
            };
            let sge = Sge::of(&memory, (place * size) as u64, size as u32);
            ways.push(Way { qp, op, sge, posted: 0, outstanding: 0 });
            accepted.push(passive);
        }
        Ok(Self {
            served,
            load: task.load,
            cq,
            ways,
            _memory: memory,
            _events: events,
            _accepted: accepted,
            _listener: listener,
        })
    }

    /// Posts as many requests as the windows allow, drives both ends, and returns how many messages have completed.
    #[inline]
    pub(super) fn turn(&mut self) -> Result<u64, PerfError> {
        let (window, interval) = (self.load.window(), self.load.interval());
        for (number, way) in (0..).zip(&mut self.ways) {
            while way.outstanding < window {
                way.posted = way.posted.wrapping_add(1);
                let signaled = way.posted.is_multiple_of(interval);
                let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
                let sges = [way.sge];
                way.qp.post_send(&SendWr { wr_id: number, op: way.op, sges: &sges, flags })?;
                way.outstanding += 1;
            }
        }
        self.reap()
    }

    /// Drives both ends, and returns whether all posted requests have completed.
    pub(super) fn drain(&mut self) -> Result<bool, PerfError> {
        self.reap()?;
        Ok(self.ways.iter().all(|way| way.outstanding == 0))
    }

    /// Takes the completions of both ends, and returns how many messages have completed.
    #[inline]
    fn reap(&mut self) -> Result<u64, PerfError> {
        let interval = self.load.interval();
        let mut found = [Wc::default(); POLL];
        let n = self.cq.poll(&mut found);
        for wc in found.iter().take(n) {
            succeeded(wc)?;
            if wc.opcode == WcOpcode::Recv {
                continue;
            }
            if let Some(way) = self.ways.get_mut(wc.wr_id as usize) {
                way.outstanding -= interval;
            }
        }
        self.served.serve()?;
        Ok(n as u64 * u64::from(interval))
    }
}

/// Returns the number of connections of an engine.
fn connections(end: &Device, engine: usize) -> Result<u32, PerfError> {
    let attributes = end.attributes().map_err(device("reading the attributes of the device"))?;
    Ok(attributes.per_engine.get(engine).map_or(0, |engine| engine.connections))
}

fn create_qp(pd: &Pd, cq: &Cq, srq: Option<&Srq>) -> Result<Qp, PerfError> {
    let init = QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 256,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
    };
    let qp = match srq {
        Some(srq) => pd.create_qp_with_srq(&init, srq),
        None => pd.create_qp(&init),
    };
    qp.map_err(device("creating a queue pair"))
}

/// Accepts the requested connection, and waits until both ends report it established.
fn establish(events: &[EventChannel; 2], passive: &Qp) -> Result<(), PerfError> {
    let deadline = Instant::now() + PATIENCE;
    let mut established = 0;
    while established < 2 {
        for event in events.iter().filter_map(EventChannel::poll) {
            match event {
                CmEvent::ConnectRequest(request) => {
                    request.accept(passive, &ConnParam::default()).map_err(device("accepting"))?;
                }
                CmEvent::Established { .. } => established += 1,
                // These events belong to an earlier attempt, whose connection belonged to another engine.
                CmEvent::Disconnected { .. } | CmEvent::ConnectError { .. } => {}
                other => return Err(PerfError::Failed(format!("a connection did not come up: {other:?}"))),
            }
        }
        if Instant::now() > deadline {
            return Err(PerfError::Stalled { what: "a connection", seconds: PATIENCE.as_secs() });
        }
    }
    Ok(())
}
