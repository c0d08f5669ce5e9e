//! The floor: how fast the raw port carries frames of a given size, without urnic's protocols above it.
//!
//! `lat` is a ping-pong of one frame. `bw` sends frames one way as fast as the port takes them; the receiver
//! counts and times them. Neither end reads the contents of measured frames, because the layers below the
//! engine do not read the contents either. With [`FloorOptions::copies`] both ends do what every program does that moves
//! data with frames.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use arrayvec::ArrayVec;
use urnic_config::{Config, PortSpec};
use urnic_dataplane::{BURST, Clock, Eal, EalConfig, Mbuf, Port, PortOptions, TxFrame, TxQueue};

use super::{
    end::PATIENCE,
    error::PerfError,
    measure::{Counted, Extent, Outcome, Stopwatch, histogram},
    options::{Amount, Mode, PerfOptions},
    pair::{self, Link},
    process::{self, End},
    report::{self, Latency, PerfReport},
};

/// The shortest Ethernet frame in bytes, without FCS.
pub const MIN_FRAME: usize = 60;
/// The longest frame in bytes: an MTU of 9000 bytes.
pub const MAX_FRAME: usize = 9014;

/// Header of every frame: two locally administered addresses, and an EtherType reserved for experiments.
const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];

/// The parameters of a floor measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct FloorOptions {
    /// `lat` or `bw`.
    pub mode: Mode,
    /// Bytes of a frame, without FCS.
    pub size: usize,
    /// The number of frames, or the length of the measurement.
    pub amount: Amount,
    /// Whether the sender copies the frames' payload from memory, and the receiver copies it into memory.
    pub copies: bool,
}

impl FloorOptions {
    /// Returns options with the usual amount for the size.
    pub fn new(mode: Mode, size: usize) -> Self {
        let iters = match mode {
            Mode::Lat => PerfOptions::usual_iters(mode, size),
            _ => ((16 << 30) / size.max(1) as u64).min(30_000_000),
        };
        Self { mode, size, amount: Amount::Iters(iters), copies: false }
    }

    fn check(&self) -> Result<(), PerfError> {
        if self.mode == Mode::Rate {
            return Err(PerfError::Usage("--mode: a floor measures lat or bw".to_owned()));
        }
        if !(MIN_FRAME..=MAX_FRAME).contains(&self.size) {
            return Err(PerfError::Usage(format!("--size: a frame has {MIN_FRAME} to {MAX_FRAME} bytes")));
        }
        Ok(())
    }

    /// Returns the length in bytes of control frames, which are not measured. It differs from that of measured
    /// frames, because a receiver tells the two kinds apart by their length alone. After the last measured
    /// frame, the sender asks for the receiver's count with a control frame, and the receiver answers with a
    /// control frame.
    fn control_size(&self) -> usize {
        if self.size == 64 { 65 } else { 64 }
    }
}

/// Measures between two ends on this machine, each on its own core if there are two cores. If `bar` is set and stderr
/// is a terminal, shows the progress.
///
/// If the link joins two processes, starts this program twice more, as [`run_pair`](super::run_pair) does.
///
/// # Errors
/// [`PerfError`] of either end.
pub fn run_floor(
    config: &Config,
    link: Link,
    options: &FloorOptions,
    bar: bool,
) -> Result<PerfReport, PerfError> {
    if let Some((end, dir)) = process::own_end() {
        let port = raw_port(link, &dir.join("link.sock"));
        process::leave(end, &dir, port.and_then(|port| run_end(end, config, &port, options, bar)));
    }
    options.check()?;
    if link != Link::Ring {
        return pair::in_two_processes();
    }
    let port = raw_port(link, Path::new("floor"))?;
    thread::scope(|scope| {
        let server = scope.spawn(|| run_end(End::Server, config, &port, options, false));
        let report = run_end(End::Client, config, &port, options, bar);
        match server.join() {
            Ok(Err(why)) if report.is_ok() => Err(why),
            _ => report,
        }
    })
}

/// Returns the server's port of a link that carries frames.
fn raw_port(link: Link, path: &Path) -> Result<PortSpec, PerfError> {
    link.server_port(path)?.ok_or_else(|| {
        PerfError::Usage("a floor needs a port: over the kernel's sockets urnic sends no frames".to_owned())
    })
}

fn run_end(
    end: End,
    config: &Config,
    server: &PortSpec,
    options: &FloorOptions,
    bar: bool,
) -> Result<PerfReport, PerfError> {
    let eal = EalConfig {
        memory_mb: config.memory.mb.unwrap_or(if options.size > 1514 { 256 } else { 128 }),
        hugepages: config.memory.hugepages,
        ..EalConfig::default()
    };
    let eal = Eal::start(&eal)?;
    let spec = if end == End::Server { server.clone() } else { server.peer() };
    let mtu = options.size.saturating_sub(HEADER.len()).max(1500) as u16;
    let mut raw = Raw {
        port: Port::open(&eal, &spec, &PortOptions { mtu, ..PortOptions::default() })?,
        queue: TxQueue::new(),
        frames: ArrayVec::new(),
        quiet: None,
        polls: 0,
        memory: options.copies.then(Memory::new),
    };
    if let Some(&core) = end.cores(config, 1).first() {
        urnic_dataplane::pin_current_thread(core)?;
    }
    let outcome = match end {
        End::Server => serve(&mut raw, options)?,
        End::Client => measure(&mut raw, options, bar)?,
    };
    let (messages, seconds) = (outcome.messages as f64, outcome.lap.wall.as_secs_f64().max(1e-9));
    let rtt = outcome.histogram.as_ref().and_then(Latency::of);
    let stream = options.mode == Mode::Bw;
    Ok(PerfReport {
        op: if options.copies { "floor+copies" } else { "floor" }.to_owned(),
        mode: options.mode.to_string(),
        size: options.size as u64,
        mtu: None,
        crc: None,
        qps: None,
        window: None,
        engines: None,
        threads: None,
        progress: None,
        port: link_name(&spec).to_owned(),
        iters: outcome.messages,
        verified: false,
        rtt_us: rtt,
        rtt_cdf: outcome.histogram.as_ref().map(report::cdf),
        beside: None,
        beside_gbit_s: None,
        half_rtt_us: rtt.map(Latency::half),
        gbit_s: stream.then(|| messages * options.size as f64 * 8.0 / seconds / 1e9),
        mmsg_s: stream.then(|| messages / seconds / 1e6),
        cpu_ns_per_msg: (messages > 0.0).then(|| outcome.lap.cpu.as_secs_f64() * 1e9 / messages),
    })
}

fn link_name(spec: &PortSpec) -> &'static str {
    match spec.kind() {
        "vhost" => "virtio_user",
        kind => kind,
    }
}

/// A port, with the received frames and the frames to be sent.
struct Raw {
    port: Port,
    queue: TxQueue,
    frames: ArrayVec<Mbuf, BURST>,
    /// When the present silence was first noticed; `None`: no silence has been noticed since the last frame.
    quiet: Option<Instant>,
    polls: u32,
    /// The payload of measured frames; `None`: they are neither written nor read.
    memory: Option<Memory>,
}

/// The memory of a message of 64 KiB, from and to which payload is copied in order, time and again.
struct Memory {
    octets: Vec<u8>,
    next: usize,
}

impl Memory {
    fn new() -> Self {
        Self { octets: vec![0; 64 << 10], next: 0 }
    }

    /// Returns the next `len` octets.
    #[inline]
    fn next(&mut self, len: usize) -> &mut [u8] {
        let start = if self.next + len > self.octets.len() { 0 } else { self.next };
        self.next = start + len;
        self.octets.get_mut(start..start + len).unwrap_or_default()
    }
}

impl Raw {
    /// Receives, and returns the number of frames. From time to time checks the link and the clock.
    #[inline]
    fn receive(&mut self, waiting_for: &'static str) -> Result<usize, PerfError> {
        let n = self.port.rx_burst(&mut self.frames);
        if n > 0 {
            self.quiet = None;
            self.polls = 0;
        } else {
            self.polls = self.polls.wrapping_add(1);
            if self.polls.is_multiple_of(1 << 16) {
                self.look(waiting_for)?;
            }
        }
        Ok(n)
    }

    #[cold]
    fn look(&mut self, what: &'static str) -> Result<(), PerfError> {
        // This call lets the port accept a peer that has started or restarted.
        self.port.link_up();
        if self.quiet.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(PerfError::Stalled { what, seconds: PATIENCE.as_secs() });
        }
        Ok(())
    }

    fn await_link(&mut self) -> Result<(), PerfError> {
        while !self.port.link_up() {
            self.look("the other end")?;
            thread::sleep(Duration::from_millis(1));
        }
        self.quiet = None;
        Ok(())
    }

    /// Waits without polling until the other end is gone, for at most a second. The other end disconnects when this end
    /// is silent, and memif's driver crashes a process that polls while its peer disconnects.
    #[cold]
    fn await_peers_end(&mut self) {
        const MOMENT: Duration = Duration::from_secs(1);
        let began = Instant::now();
        while self.port.link_up() && began.elapsed() < MOMENT {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes a frame of `size` bytes. Without copies only its header is written. Returns `None` if the pool is empty.
    #[inline]
    fn frame(&mut self, size: usize) -> Option<TxFrame> {
        let mut frame = self.port.tx_pool().mbuf()?;
        let (header, payload) = frame.append(size)?.split_first_chunk_mut()?;
        *header = HEADER;
        if let Some(memory) = &mut self.memory {
            payload.copy_from_slice(memory.next(payload.len()));
        }
        Some(frame.into())
    }

    /// Queues a frame and sends the queued frames.
    #[inline]
    fn send(&mut self, size: usize) {
        if self.queue.room() > 0
            && let Some(frame) = self.frame(size)
        {
            // The push succeeds, because the queue had space above.
            let _ = self.queue.push(frame);
        }
        self.port.tx_burst(&mut self.queue);
    }
}

/// Copies the payload of a received frame into memory.
#[inline]
fn keep(memory: &mut Option<Memory>, frame: &Mbuf) {
    if let (Some(memory), Some(payload)) = (memory, frame.data().get(HEADER.len()..)) {
        memory.next(payload.len()).copy_from_slice(payload);
    }
}

/// Runs the end that echoes or counts, until the other end reports that all frames have been sent.
fn serve(raw: &mut Raw, options: &FloorOptions) -> Result<Outcome, PerfError> {
    let control = options.control_size();
    let mut counted = 0;
    let mut watch = Stopwatch::start();
    loop {
        if raw.receive("the client")? == 0 && raw.queue.is_empty() {
            continue;
        }
        let mut end = None;
        if counted == 0 {
            watch = Stopwatch::start();
        }
        for frame in raw.frames.drain(..) {
            if frame.len() == control {
                end = Some(frame);
                continue;
            }
            counted += 1;
            keep(&mut raw.memory, &frame);
            if options.mode == Mode::Lat {
                // The push succeeds, because only one frame is in flight at a time.
                let _ = raw.queue.push(frame.into());
            }
        }
        raw.port.tx_burst(&mut raw.queue);
        if let Some(frame) = end {
            let lap = watch.lap();
            answer(raw, frame, counted, lap.wall)?;
            return Ok(Outcome { messages: counted, lap, histogram: None, beside_gbit_s: 0.0 });
        }
    }
}

/// Sends the client the count, until the client is silent. The client repeats its question until it gets an answer.
fn answer(raw: &mut Raw, mut frame: Mbuf, counted: u64, wall: Duration) -> Result<(), PerfError> {
    const SILENCE: Duration = Duration::from_millis(100);
    let mut verdict = ArrayVec::<u8, 16>::new();
    verdict.extend(counted.to_le_bytes());
    verdict.extend((wall.as_nanos() as u64).to_le_bytes());
    let mut heard = Instant::now();
    loop {
        if let Some(place) = frame.data_mut().get_mut(HEADER.len()..HEADER.len() + verdict.len()) {
            place.copy_from_slice(&verdict);
        }
        let _ = raw.queue.push(frame.into());
        loop {
            raw.port.tx_burst(&mut raw.queue);
            if raw.receive("the client")? > 0 {
                break;
            }
            if heard.elapsed() > SILENCE {
                return Ok(());
            }
        }
        heard = Instant::now();
        let Some(next) = raw.frames.pop() else { return Ok(()) };
        raw.frames.clear();
        frame = next;
    }
}

/// Runs the end that sends and reports.
fn measure(raw: &mut Raw, options: &FloorOptions, bar: bool) -> Result<Outcome, PerfError> {
    raw.await_link()?;
    let mut extent = Extent::new(options.amount, bar);
    let mut outcome = match options.mode {
        Mode::Lat => ping(raw, options.size, &mut extent)?,
        _ => send_frames(raw, options.size, &mut extent)?,
    };
    let (counted, wall) = ask(raw, options.control_size())?;
    if matches!(raw.port.spec(), PortSpec::Memif { .. }) {
        raw.await_peers_end();
    }
    if options.mode == Mode::Bw {
        // The result is the receiver's count, and the receiver's time from the first frame to the client's
        // question.
        outcome.messages = counted;
        outcome.lap.wall = wall;
    }
    Ok(outcome)
}

/// Sends one frame back and forth.
fn ping(raw: &mut Raw, size: usize, extent: &mut Extent) -> Result<Outcome, PerfError> {
    let clock = Clock::calibrate();
    let mut histogram = histogram();
    let mut counted = Counted::new();
    let mut done = 0;
    while extent.goes_on(done) {
        let counts = counted.after(done, extent);
        let start = clock.now();
        raw.send(size);
        while raw.receive("an echo")? == 0 {
            if !raw.queue.is_empty() {
                raw.port.tx_burst(&mut raw.queue);
            }
        }
        if counts {
            histogram.saturating_record(clock.now() - start);
        }
        for frame in raw.frames.drain(..) {
            keep(&mut raw.memory, &frame);
        }
        done += 1;
    }
    Ok(counted.outcome(done, Some(histogram)))
}

/// Sends frames one way.
fn send_frames(raw: &mut Raw, size: usize, extent: &mut Extent) -> Result<Outcome, PerfError> {
    let total = extent.total().unwrap_or(u64::MAX);
    let watch = Stopwatch::start();
    let (mut done, mut stuck) = (0, None);
    while done < total && extent.has_time(done) {
        while raw.queue.len() < BURST
            && let Some(frame) = raw.frame(size)
        {
            let _ = raw.queue.push(frame);
        }
        let sent = raw.port.tx_burst(&mut raw.queue) as u64;
        done += sent;
        if sent > 0 {
            stuck = None;
        } else if stuck.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(PerfError::Stalled { what: "the port to take a frame", seconds: PATIENCE.as_secs() });
        }
    }
    Ok(Outcome { messages: done, lap: watch.lap(), histogram: None, beside_gbit_s: 0.0 })
}

/// Asks the receiver how many frames have arrived, and in what time.
fn ask(raw: &mut Raw, control: usize) -> Result<(u64, Duration), PerfError> {
    loop {
        raw.send(control);
        for _ in 0..100_000 {
            raw.port.tx_burst(&mut raw.queue);
            if raw.receive("the receiver's count of frames")? > 0 {
                break;
            }
        }
        for frame in raw.frames.drain(..).filter(|f| f.len() == control) {
            let number = |at: usize| {
                frame.get(at..at + 8).and_then(|b| b.first_chunk()).map(|b| u64::from_le_bytes(*b))
            };
            if let (Some(counted), Some(nanos)) = (number(HEADER.len()), number(HEADER.len() + 8)) {
                return Ok((counted, Duration::from_nanos(nanos)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
