//! Measures the memory of a queue pair, and the time to open a device.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    process,
    time::{Duration, Instant},
};

use serde::Serialize;
use urnic::{
    Access, CmEvent, ConnParam, Cq, Device, EventChannel, Mr, Pd, Qp, QpInit, RecvWr, SendFlags, SendOp,
    SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use urnic_config::{Cidr, Config, Progress};
use urnic_dataplane::{Eal, EalConfig, MemoryKind};

use crate::perf::PerfError;

/// Result of [`queue_pair_memory`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct QpMemory {
    /// Number of queue pairs that were added at each end after the first queue pair.
    pub qps: u64,
    /// Resident memory and EAL heap of each added queue pair, in bytes.
    pub bytes_per_qp: f64,
    /// EAL heap of each added queue pair, in bytes.
    pub heap_bytes_per_qp: f64,
    /// Time to open the first device of the process, EAL included, in ms.
    pub open_ms: f64,
}

const ENTRIES: u32 = 16;
const PORT: u16 = 18516;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of connections being set up at once.
const CONNECTING: usize = 32;

/// Measures the memory of an idle queue pair that is connected and has received and acknowledged one Send. Each of its
/// queues has 16 entries with one scatter-gather element.
///
/// Two devices in this process are linked by a ring. They make one connection first, and then `qps` more. Each end is
/// charged half of the growth of memory. The completion queues, which any number of queue pairs share, exist from the
/// start.
///
/// # Errors
/// [`PerfError`].
pub fn queue_pair_memory(config: &Config, qps: u32) -> Result<QpMemory, PerfError> {
    let mut config = config.clone();
    config.engine.progress = Progress::Inline;
    let name = format!("ring:memory-{}", process::id());
    config.port.spec = Some(name.parse().map_err(PerfError::Usage)?);
    let started = Instant::now();
    let server = Node::open(&config, SERVER, qps + 1)?;
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    let client = Node::open(&config, CLIENT, qps + 1)?;
    let _listener = server.events.listen(PORT, 128).map_err(device("listening"))?;

    let mut pairs = Vec::with_capacity(qps as usize + 1);
    connect(&server, &client, 1, &mut pairs)?;
    let before = Usage::now()?;
    let mut left = qps as usize;
    while left > 0 {
        let some = left.min(CONNECTING);
        connect(&server, &client, some, &mut pairs)?;
        left -= some;
    }
    let after = Usage::now()?;
    // Each connection has two ends.
    let each = |bytes: u64| bytes as f64 / (2.0 * f64::from(qps));
    Ok(QpMemory {
        qps: qps.into(),
        bytes_per_qp: each(after.growth(&before)),
        heap_bytes_per_qp: each(after.heap.saturating_sub(before.heap)),
        open_ms,
    })
}

fn device(doing: &'static str) -> impl Fn(urnic::Error) -> PerfError {
    move |source| PerfError::Device { doing, source }
}

/// A device, and the objects that its queue pairs share.
struct Node {
    _device: Device,
    pd: Pd,
    cq: Cq,
    events: EventChannel,
    memory: Mr,
}

impl Node {
    fn open(config: &Config, address: Ipv4Addr, qps: u32) -> Result<Self, PerfError> {
        let mut config = config.clone();
        config.ip.addresses = vec![Cidr { address: address.into(), prefix: 24 }];
        let opened = Device::open(&config).map_err(device("opening the device"))?;
        let pd = opened.alloc_pd();
        Ok(Self {
            cq: opened.create_cq(2 * ENTRIES * qps, None).map_err(device("creating a completion queue"))?,
            events: opened.create_event_channel().map_err(device("creating an event channel"))?,
            memory: pd.alloc_mr(4096, Access::LOCAL_WRITE).map_err(device("allocating memory"))?,
            pd,
            _device: opened,
        })
    }

    fn create_qp(&self) -> Result<Qp, PerfError> {
        let qp = self
            .pd
            .create_qp(&QpInit {
                send_cq: &self.cq,
                recv_cq: &self.cq,
                max_send_wr: ENTRIES,
                max_recv_wr: ENTRIES,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
                signal_all: true,
            })
            .map_err(device("creating a queue pair"))?;
        qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&self.memory, 0, 64)] })?;
        Ok(qp)
    }

    /// Takes completions, and returns the number of receives among them.
    fn reap(&self) -> Result<usize, PerfError> {
        let mut found = [Wc::default(); 32];
        let n = self.cq.poll(&mut found);
        let mut received = 0;
        for wc in found.iter().take(n) {
            if wc.status != WcStatus::Success {
                return Err(PerfError::Completion { qpn: wc.qpn, status: wc.status, detail: String::new() });
            }
            received += usize::from(wc.opcode == WcOpcode::Recv);
        }
        Ok(received)
    }
}

/// Connects `count` more pairs of queue pairs. Each queue pair then sends one message to its peer.
fn connect(server: &Node, client: &Node, count: usize, pairs: &mut Vec<(Qp, Qp)>) -> Result<(), PerfError> {
    let to = SocketAddrV4::new(SERVER, PORT);
    let mut active = Vec::with_capacity(count);
    for _ in 0..count {
        let qp = client.create_qp()?;
        client.events.connect(&qp, to, &ConnParam::default()).map_err(device("connecting"))?;
        active.push(qp);
    }
    let mut passive = Vec::with_capacity(count);
    let deadline = Instant::now() + PATIENCE;
    let patience = |what| {
        let late = Instant::now() > deadline;
        if late { Err(PerfError::Stalled { what, seconds: PATIENCE.as_secs() }) } else { Ok(()) }
    };
    let mut established = 0;
    while established < 2 * count {
        for event in [server.events.poll(), client.events.poll()].into_iter().flatten() {
            match event {
                CmEvent::ConnectRequest(request) => {
                    let qp = server.create_qp()?;
                    request.accept(&qp, &ConnParam::default()).map_err(device("accepting"))?;
                    passive.push(qp);
                }
                CmEvent::Established { .. } => established += 1,
                other => return Err(PerfError::Failed(format!("a connection did not come up: {other:?}"))),
            }
        }
        patience("connections")?;
    }
    let send = |node: &Node, qps: &[Qp]| {
        let sges = [Sge::of(&node.memory, 64, 8)];
        let wr = SendWr { wr_id: 0, op: SendOp::Send, sges: &sges, flags: SendFlags::SIGNALED };
        qps.iter().try_for_each(|qp| qp.post_send(&wr))
    };
    send(client, &active)?;
    let (mut there, mut back) = (0, 0);
    // The passive end may send only after it has received a message from the active one (RFC 5044 §7.1.2).
    while there < count || back < count {
        let heard = server.reap()?;
        there += heard;
        if heard > 0 && there == count {
            send(server, &passive)?;
        }
        back += client.reap()?;
        patience("messages")?;
    }
    pairs.extend(active.into_iter().zip(passive));
    Ok(())
}

/// Memory that this process uses at a moment, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) resident: u64,
    /// Memory used on EAL's heap.
    pub(crate) heap: u64,
    /// The heap is on hugepages, which `resident` leaves out. On ordinary pages, `resident` contains the heap.
    apart: bool,
}

impl Usage {
    pub(crate) fn now() -> Result<Self, PerfError> {
        let statm = fs::read_to_string("/proc/self/statm")
            .map_err(|source| PerfError::Os { doing: "reading /proc/self/statm", source })?;
        let pages: u64 = statm.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
        // This call returns the EAL that the devices already use.
        let eal = Eal::start(&EalConfig::default()).ok();
        let (total, free) = eal.as_ref().map_or((0, 0), |eal| eal.heap());
        let apart = eal.is_some_and(|eal| eal.memory() != MemoryKind::Ordinary);
        Ok(Self { resident: pages * 4096, heap: total.saturating_sub(free) as u64, apart })
    }

    /// Returns how much memory has been added since `before`, in bytes. Counts the heap once.
    pub(crate) fn growth(&self, before: &Self) -> u64 {
        let heap = if self.apart { self.heap.saturating_sub(before.heap) } else { 0 };
        self.resident.saturating_sub(before.resident) + heap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_counts_once() {
        for (apart, grown) in [(true, 7_000 + 3_000), (false, 7_000)] {
            let before = Usage { resident: 50_000, heap: 10_000, apart };
            let after = Usage { resident: 57_000, heap: 13_000, apart };
            assert_eq!(after.growth(&before), grown);
        }
    }
}
