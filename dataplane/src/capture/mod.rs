//! Records frames in a pcapng file, off the path of the engine: frames are copied into a bounded ring, and a thread
//! writes the file. A frame that finds the ring full is counted and not recorded.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use nix::sys::signal::{SigSet, SigmaskHow};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::{Clock, fill_checksum};

mod pcapng;

#[cfg(test)]
mod tests;

/// Octets of the ring.
const RING: usize = 32 << 20;
/// Octets in front of each frame in the ring.
const HEADER: usize = 16;
/// How long the writer sleeps when the ring is empty.
const NAP: Duration = Duration::from_millis(2);

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    Inbound,
    /// It was sent.
    Outbound,
}

/// Why a capture could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the capture {}: {source}", .path.display())]
pub struct CaptureError {
    path: PathBuf,
    source: io::Error,
}

/// What recording has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Frames recorded.
    pub recorded: u64,
    /// Frames not recorded, because the ring was full or the file could not be written.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Shared {
    dropped: AtomicU64,
}

/// A capture that is being written. Dropping it completes the file, and says if frames are missing in it.
#[derive(Debug)]
pub struct Capture {
    /// Gone when the file is to be completed.
    ring: Option<Producer<u8>>,
    clock: Clock,
    /// Time of day at the clock's origin, ns.
    origin: u64,
    recorded: u64,
    shared: Arc<Shared>,
    path: PathBuf,
    writer: Option<JoinHandle<io::Result<()>>>,
}

/// What the ring holds in front of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Time of day, ns.
    time: u64,
    len: u32,
    direction: Direction,
    fill_checksum: bool,
}

impl Record {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.time.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_ne_bytes());
        bytes[12] = u8::from(self.direction == Direction::Outbound);
        bytes[13] = u8::from(self.fill_checksum);
        bytes
    }

    fn decode(bytes: [u8; HEADER]) -> Self {
        let [t0, t1, t2, t3, t4, t5, t6, t7, l0, l1, l2, l3, outbound, fill, ..] = bytes;
        Self {
            time: u64::from_ne_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
            direction: if outbound == 1 { Direction::Outbound } else { Direction::Inbound },
            fill_checksum: fill == 1,
        }
    }
}

impl Capture {
    /// Creates the file, or empties the one that is there, and starts the thread that writes it. `interface` names the
    /// port in the file.
    ///
    /// # Errors
    /// If the file cannot be written, or the thread not be started.
    pub fn start(path: &Path, interface: &str, clock: Clock) -> Result<Self, CaptureError> {
        Self::with_ring(path, interface, clock, RING)
    }

    fn with_ring(path: &Path, interface: &str, clock: Clock, octets: usize) -> Result<Self, CaptureError> {
        let (ring, frames) = RingBuffer::new(octets);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let shared = Arc::new(Shared::default());
        let writer = begin(path, interface)
            .and_then(|file| Writer { file, frames, last: now, written: 0, shared: shared.clone() }.spawn());
        let writer = writer.map_err(|source| CaptureError { path: path.to_owned(), source })?;
        Ok(Self {
            ring: Some(ring),
            origin: now.saturating_sub(clock.now()),
            clock,
            recorded: 0,
            shared,
            path: path.to_owned(),
            writer: Some(writer),
        })
    }

    /// Records a frame, given in pieces. `fill`: its TCP or UDP checksum may be unfilled, as the link vouches for it; the
    /// recorded copy gets a real one.
    pub fn record(&mut self, direction: Direction, fill: bool, pieces: &[&[u8]]) {
        let Some(ring) = &mut self.ring else { return };
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let Ok(record_len) = u32::try_from(len) else { return };
        if ring.slots() < HEADER + len {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let time = self.origin.saturating_add(self.clock.now());
        let record = Record { time, len: record_len, direction, fill_checksum: fill };
        // There is room for all of it, which nobody else takes.
        let _ = ring.push_entire_slice(&record.encode());
        for piece in pieces {
            let _ = ring.push_entire_slice(piece);
        }
        self.recorded += 1;
    }

    /// What has been recorded so far.
    pub fn stats(&self) -> CaptureStats {
        CaptureStats { recorded: self.recorded, dropped: self.shared.dropped.load(Ordering::Relaxed) }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // The writer ends when it has emptied a ring that nobody fills any more.
        self.ring = None;
        let path = self.path.display();
        match self.writer.take().map(JoinHandle::join) {
            Some(Ok(Err(e))) => tracing::warn!("the capture {path} is incomplete: {e}"),
            Some(Err(_)) => tracing::warn!("the capture {path} is incomplete: its writer failed"),
            _ => {}
        }
        let CaptureStats { recorded, dropped } = self.stats();
        if dropped > 0 {
            tracing::warn!(
                "the capture {path} has {recorded} frames and lacks {dropped}, which came too fast"
            );
        }
    }
}

/// The file with its first blocks.
fn begin(path: &Path, interface: &str) -> io::Result<BufWriter<File>> {
    let mut file = BufWriter::with_capacity(1 << 18, File::create(path)?);
    pcapng::section(&mut file)?;
    pcapng::interface(&mut file, interface)?;
    file.flush()?;
    Ok(file)
}

/// The thread that writes the file.
struct Writer {
    file: BufWriter<File>,
    frames: Consumer<u8>,
    /// Time of the latest frame.
    last: u64,
    written: u64,
    shared: Arc<Shared>,
}

impl Writer {
    fn spawn(self) -> io::Result<JoinHandle<io::Result<()>>> {
        // Signals are the program's.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = thread::Builder::new().name("urnic-capture".into()).spawn(move || self.run());
        before.thread_set_mask()?;
        thread
    }

    /// Writes until the ring is empty and nobody fills it. After a failure frames are only counted.
    fn run(mut self) -> io::Result<()> {
        let first = self.last;
        let mut buffer = Vec::new();
        let mut failure = None;
        let mut header = None;
        let mut flushed = true;
        loop {
            // Before the last look into the ring, so that nothing is left in it.
            let last_look = self.frames.is_abandoned();
            if let Some(record) = self.next(&mut header, &mut buffer) {
                flushed = false;
                if failure.is_none() {
                    failure = self.write(record, &mut buffer).err();
                }
                if failure.is_some() {
                    self.shared.dropped.fetch_add(1, Ordering::Relaxed);
                }
            } else if last_look {
                break;
            } else {
                // What has happened is to be seen in the file while more is awaited.
                if !flushed && failure.is_none() {
                    failure = self.file.flush().err();
                    flushed = true;
                }
                thread::sleep(NAP);
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        pcapng::statistics(&mut self.file, first, self.last, self.written + dropped, dropped)?;
        self.file.flush()
    }

    /// The next frame, with its octets in `buffer`. `header` keeps what was read of a frame that is not all there.
    fn next(&mut self, header: &mut Option<Record>, buffer: &mut Vec<u8>) -> Option<Record> {
        if header.is_none() {
            let mut bytes = [0; HEADER];
            self.frames.pop_entire_slice(&mut bytes).ok()?;
            *header = Some(Record::decode(bytes));
        }
        let record = (*header)?;
        buffer.resize(record.len as usize, 0);
        self.frames.pop_entire_slice(buffer).ok()?;
        *header = None;
        Some(record)
    }

    fn write(&mut self, record: Record, frame: &mut [u8]) -> io::Result<()> {
        if record.fill_checksum {
            fill_checksum(frame);
        }
        pcapng::packet(&mut self.file, record.time, record.direction, frame)?;
        self.last = record.time;
        self.written += 1;
        Ok(())
    }
}
