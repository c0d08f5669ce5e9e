use super::*;
use std::fs;

/// Returns the blocks of a file: type and body.
fn blocks(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let bytes = fs::read(path).expect("the capture");
    let mut rest = bytes.as_slice();
    let mut out = Vec::new();
    while !rest.is_empty() {
        let len = word(rest, 4) as usize;
        assert!(len.is_multiple_of(4) && len >= 12);
        assert_eq!(word(rest, len - 4), word(rest, 4), "both lengths");
        out.push((word(rest, 0), rest[8..len - 4].to_vec()));
        rest = &rest[len..];
    }
    out
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("a word"))
}

fn time(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

/// Returns the value of option `wanted` among the options that start at `at`.
fn option(body: &[u8], mut at: usize, wanted: u16) -> Vec<u8> {
    loop {
        let (code, len) = (word(body, at) & 0xffff, (word(body, at) >> 16) as usize);
        assert_ne!(code, 0, "no option {wanted}");
        if code == u32::from(wanted) {
            return body[at + 4..at + 4 + len].to_vec();
        }
        at += 4 + len.next_multiple_of(4);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

/// Returns the handle of the only engine.
fn one(started: Result<Vec<Capture>, CaptureError>) -> Capture {
    started.expect("starts").pop().expect("one")
}

#[test]
fn engines_share_a_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("shared.pcapng");
    let captures = Capture::start(&path, "ring:x", Clock::system(), 3).expect("starts");
    thread::scope(|scope| {
        for (engine, mut capture) in captures.into_iter().enumerate() {
            scope.spawn(move || {
                for i in 0..500_usize {
                    capture.record(Direction::Inbound, false, &[&[engine as u8; 60], &i.to_le_bytes()]);
                }
                assert_eq!(capture.stats(), CaptureStats { recorded: 500, dropped: 0 });
            });
        }
    });
    let mut next = [0; 3];
    let all = blocks(&path);
    for (_, packet) in &all[2..all.len() - 1] {
        let (engine, i) = (usize::from(packet[20]), word(packet, 20 + 60));
        assert_eq!(i, next[engine], "the frames of engine {engine} are in order");
        next[engine] += 1;
    }
    assert_eq!(next, [500; 3]);
}

#[test]
fn the_file_has_every_frame_and_the_statistics() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("all.pcapng");
    let before = now();
    let mut capture = one(Capture::start(&path, "ring:x", Clock::system(), 1));
    let frames: Vec<Vec<u8>> = (0..1500).map(|n| (0..n).map(|i| (i * 7 + n) as u8).collect()).collect();
    for (i, frame) in frames.iter().enumerate() {
        let (a, b) = frame.split_at(frame.len() / 3);
        let way = if i % 2 == 0 { Direction::Inbound } else { Direction::Outbound };
        capture.record(way, false, &[a, b, &[]]);
    }
    assert_eq!(capture.stats(), CaptureStats { recorded: 1500, dropped: 0 });
    drop(capture);
    let after = now();

    let blocks = blocks(&path);
    assert_eq!(blocks.len(), 1500 + 3);
    assert_eq!((blocks[0].0, word(&blocks[0].1, 0)), (0x0a0d_0d0a, 0x1a2b_3c4d));
    assert_eq!(blocks[1].0, 1);
    assert_eq!(option(&blocks[1].1, 8, 2), b"ring:x");
    assert_eq!(option(&blocks[1].1, 8, 9), [9], "nanoseconds");
    let mut last = before;
    for (i, frame) in frames.iter().enumerate() {
        let (kind, body) = &blocks[2 + i];
        assert_eq!((*kind, word(body, 0)), (6, 0));
        assert_eq!((word(body, 12), word(body, 16)), (frame.len() as u32, frame.len() as u32));
        assert_eq!(&body[20..20 + frame.len()], frame.as_slice());
        let flags = option(body, 20 + frame.len().next_multiple_of(4), 2);
        assert_eq!(word(&flags, 0), if i % 2 == 0 { 1 } else { 2 });
        // The monotonic clock and the time of day were not read at the same moment.
        let t = time(body, 4);
        assert!(t + 1_000_000 >= last && t <= after + 1_000_000, "{last} {t} {after}");
        last = t;
    }
    let (kind, body) = &blocks[1502];
    assert_eq!(*kind, 5);
    assert_eq!(option(body, 12, 4), 1500u64.to_le_bytes());
    assert_eq!(option(body, 12, 5), 0u64.to_le_bytes());
    assert_eq!(time(&option(body, 12, 3), 0), last);
}

/// A frame that finds no room is not recorded, and the file states how many such frames there were.
#[test]
fn a_full_ring_drops_and_counts() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("some.pcapng");
    let mut capture = one(Capture::with_rings(&path, "ring:x", Clock::system(), 1, 100));
    for _ in 0..10 {
        capture.record(Direction::Inbound, false, &[&[1; 85]]);
    }
    capture.record(Direction::Inbound, false, &[&[2; 84]]);
    assert_eq!(capture.stats(), CaptureStats { recorded: 1, dropped: 10 });
    drop(capture);
    let blocks = blocks(&path);
    assert_eq!(blocks.iter().map(|b| b.0).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 6, 5]);
    assert_eq!(blocks[2].1[20..104], [2; 84]);
    assert_eq!(option(&blocks[3].1, 12, 4), 11u64.to_le_bytes());
    assert_eq!(option(&blocks[3].1, 12, 5), 10u64.to_le_bytes());
}

/// The recorded copy has the checksum that the link did not need, however the frame is cut into pieces.
#[test]
fn unfilled_checksums_are_filled() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("sums.pcapng");
    let mut frame = vec![0u8; 60];
    frame[12] = 8;
    frame[14..34].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut filled = frame.clone();
    fill_checksum(&mut filled);
    assert_ne!(frame, filled);
    let mut capture = one(Capture::start(&path, "", Clock::system(), 1));
    capture.record(Direction::Outbound, true, &[&frame[..41], &frame[41..]]);
    capture.record(Direction::Outbound, false, &[&frame]);
    drop(capture);
    let blocks = blocks(&path);
    assert_eq!((&blocks[2].1[20..80], &blocks[3].1[20..80]), (filled.as_slice(), frame.as_slice()));
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    for path in ["/nonexistent/x.pcapng", "/dev/full", "/"] {
        let error = Capture::start(Path::new(path), "", Clock::system(), 1).expect_err(path).to_string();
        assert!(error.starts_with(&format!("cannot write the capture {path}: ")), "{error}");
    }
}
