//! Records frames in a pcapng file, off the path of the engines: each engine copies frames into a bounded ring of its
//! own, and a thread writes the file. A frame that finds the ring full is counted but not recorded.

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

/// Octets of all rings together.
const RING: usize = 32 << 20;
/// Octets of the record in front of each frame in the ring.
const HEADER: usize = 16;
/// How long the writer sleeps when all rings are empty.
const NAP: Duration = Duration::from_millis(2);

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The frame was received.
    Inbound,
    /// The frame was sent.
    Outbound,
}

/// Why a capture could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the capture {}: {source}", .path.display())]
pub struct CaptureError {
    path: PathBuf,
    source: io::Error,
}

/// How many frames a capture recorded and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Frames copied into the ring, for the file.
    pub recorded: u64,
    /// Frames that the file lacks. Either the ring was full, or the frame was in the ring but could not be written to
    /// the file; `recorded` counts the latter as well.
    pub dropped: u64,
}

/// One engine's handle to a capture that is being written. When all handles are dropped, the file is completed; its
/// last block states how many frames were dropped.
#[derive(Debug)]
pub struct Capture {
    /// Dropped before `_file`, because dropping `_file` waits until the rings have no producers.
    ring: Producer<u8>,
    clock: Clock,
    /// Time of day at the clock's origin, in ns since the Unix epoch.
    origin: u64,
    recorded: u64,
    dropped: Arc<AtomicU64>,
    _file: Arc<Written>,
}

/// A file that a thread writes. Dropping it waits until the file is complete.
#[derive(Debug)]
struct Written {
    path: PathBuf,
    writer: Option<JoinHandle<Summary>>,
}

/// The outcome of writing a file.
#[derive(Debug, Default)]
struct Summary {
    written: u64,
    dropped: u64,
    failure: Option<io::Error>,
}

/// The record in front of a frame in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    /// Time of day, in ns since the Unix epoch.
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
    /// Creates the file, or empties an existing one, and starts the thread that writes it. `interface` names the port
    /// in the file. Returns one handle for each of `engines` engines.
    ///
    /// # Errors
    /// If the file cannot be written, or the thread cannot be started.
    pub fn start(
        path: &Path,
        interface: &str,
        clock: Clock,
        engines: usize,
    ) -> Result<Vec<Self>, CaptureError> {
        Self::with_rings(path, interface, clock, engines, RING / engines.max(1))
    }

    fn with_rings(
        path: &Path,
        interface: &str,
        clock: Clock,
        engines: usize,
        octets: usize,
    ) -> Result<Vec<Self>, CaptureError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let (rings, streams): (Vec<_>, Vec<_>) = (0..engines)
            .map(|_| {
                let (ring, frames) = RingBuffer::new(octets);
                let dropped = Arc::default();
                ((ring, Arc::clone(&dropped)), Stream { frames, header: None, dropped })
            })
            .unzip();
        let writer =
            begin(path, interface).and_then(|file| Writer { file, streams, last: now, written: 0 }.spawn());
        let writer = writer.map_err(|source| CaptureError { path: path.to_owned(), source })?;
        let file = Arc::new(Written { path: path.to_owned(), writer: Some(writer) });
        let capture = |(ring, dropped)| Self {
            ring,
            origin: now.saturating_sub(clock.now()),
            clock,
            recorded: 0,
            dropped,
            _file: Arc::clone(&file),
        };
        Ok(rings.into_iter().map(capture).collect())
    }

    /// Records a frame, passed in pieces. `fill`: the frame's TCP or UDP checksum may be unfilled, because the link
    /// does not need it; the recorded copy gets a real one.
    pub fn record(&mut self, direction: Direction, fill: bool, pieces: &[&[u8]]) {
        let ring = &mut self.ring;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let Ok(record_len) = u32::try_from(len) else { return };
        if ring.slots() < HEADER + len {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let time = self.origin.saturating_add(self.clock.now());
        let record = Record { time, len: record_len, direction, fill_checksum: fill };
        // The room was checked above, and no one else fills this ring.
        let _ = ring.push_entire_slice(&record.encode());
        for piece in pieces {
            let _ = ring.push_entire_slice(piece);
        }
        self.recorded += 1;
    }

    /// Returns how many of this engine's frames have been recorded and dropped so far.
    pub fn stats(&self) -> CaptureStats {
        CaptureStats { recorded: self.recorded, dropped: self.dropped.load(Ordering::Relaxed) }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // The writer ends once the rings are empty and have no producers.
        let path = self.path.display();
        let summary = match self.writer.take().map(JoinHandle::join) {
            Some(Ok(summary)) => summary,
            Some(Err(_)) => {
                tracing::warn!("the capture {path} is incomplete: its writer failed");
                Summary::default()
            }
            None => Summary::default(),
        };
        if let Some(failure) = summary.failure {
            tracing::warn!("the capture {path} is incomplete: {failure}");
        }
        let Summary { written, dropped, .. } = summary;
        if dropped > 0 {
            tracing::warn!(
                "the capture {path} has {written} frames and lacks {dropped}, which came too fast or could not be \
                 written; a faster file system, such as /dev/shm, may keep up"
            );
        }
    }
}

/// Creates the file and writes its first blocks.
fn begin(path: &Path, interface: &str) -> io::Result<BufWriter<File>> {
    let mut file = BufWriter::with_capacity(1 << 18, File::create(path)?);
    pcapng::section(&mut file)?;
    pcapng::interface(&mut file, interface)?;
    file.flush()?;
    Ok(file)
}

/// The frames that one engine has recorded.
struct Stream {
    frames: Consumer<u8>,
    /// The record of the next frame, taken from the ring before its frame; `None` if it has not been taken.
    header: Option<Record>,
    dropped: Arc<AtomicU64>,
}

impl Stream {
    /// Returns the record of the next frame, if all of the frame is in the ring.
    fn next(&mut self) -> Option<Record> {
        if self.header.is_none() {
            let mut bytes = [0; HEADER];
            self.frames.pop_entire_slice(&mut bytes).ok()?;
            self.header = Some(Record::decode(bytes));
        }
        self.header.filter(|record| self.frames.slots() >= record.len as usize)
    }

    /// Takes the frame that [`next`](Self::next) announced, and puts its octets into `buffer`.
    fn take(&mut self, buffer: &mut Vec<u8>) -> Option<Record> {
        let record = self.next()?;
        buffer.resize(record.len as usize, 0);
        self.frames.pop_entire_slice(buffer).ok()?;
        self.header = None;
        Some(record)
    }

    fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// The thread that writes the file.
struct Writer {
    file: BufWriter<File>,
    streams: Vec<Stream>,
    /// Time of the latest frame, in ns since the Unix epoch; before the first frame, time of the start.
    last: u64,
    written: u64,
}

impl Writer {
    fn spawn(self) -> io::Result<JoinHandle<Summary>> {
        // The writer's thread blocks all signals, because they are for the program's own threads.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let thread = thread::Builder::new().name("urnic-capture".into()).spawn(move || self.run());
        before.thread_set_mask()?;
        thread
    }

    /// Writes until the rings are empty and have no producers. After a failure, frames are only counted.
    fn run(mut self) -> Summary {
        let first = self.last;
        let mut buffer = Vec::new();
        let mut failure = None;
        let mut flushed = true;
        loop {
            // Checked before the rings are read, so that the last read leaves nothing in them.
            let last_look = self.streams.iter().all(|stream| stream.frames.is_abandoned());
            if let Some((record, from)) = self.next(&mut buffer) {
                flushed = false;
                if failure.is_none() {
                    failure = self.write(record, &mut buffer).err();
                }
                if failure.is_some() {
                    self.streams.iter().skip(from).take(1).for_each(Stream::count_dropped);
                }
            } else if last_look {
                break;
            } else {
                // While the writer waits for more frames, readers of the file should see those recorded so far.
                if !flushed && failure.is_none() {
                    failure = self.file.flush().err();
                    flushed = true;
                }
                thread::sleep(NAP);
            }
        }
        let dropped = self.streams.iter().map(|stream| stream.dropped.load(Ordering::Relaxed)).sum();
        if failure.is_none() {
            let written = self.written + dropped;
            let end = pcapng::statistics(&mut self.file, first, self.last, written, dropped);
            failure = end.and_then(|()| self.file.flush()).err();
        }
        Summary { written: self.written, dropped, failure }
    }

    /// Takes the earliest of the frames that are in the rings, and puts its octets into `buffer`. Returns its record
    /// and the number of its engine; `None` if no frame is complete. The writer does not wait for slow engines: if an
    /// engine records a frame late, that frame is out of order in the file.
    fn next(&mut self, buffer: &mut Vec<u8>) -> Option<(Record, usize)> {
        let waiting = self.streams.iter_mut().enumerate();
        let waiting = waiting.filter_map(|(i, stream)| Some((stream.next()?.time, i)));
        let (_, from) = waiting.min()?;
        Some((self.streams.get_mut(from)?.take(buffer)?, from))
    }

    fn write(&mut self, record: Record, frame: &mut [u8]) -> io::Result<()> {
        if record.fill_checksum {
            fill_checksum(frame);
        }
        pcapng::packet(&mut self.file, record.time, record.direction, frame)?;
        self.last = self.last.max(record.time);
        self.written += 1;
        Ok(())
    }
}
