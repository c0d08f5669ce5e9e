//! A short deterministic run of the fuzz bodies: random octets, and good streams with damage.

mod support;

use support::fuzz::{iwarp_stream, marker_stream, mpa_startup, terminate};
use support::{hex, read_header, tagged, untagged, vectors};

/// Runs `body`. Prints the input if it panics.
fn run(name: &str, body: fn(&[u8]), data: &[u8]) {
    struct Report<'a>(&'a str, &'a [u8]);
    impl Drop for Report<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{} fails with {:02x?}", self.0, self.1);
            }
        }
    }
    let report = Report(name, data);
    body(data);
    std::mem::forget(report);
}

/// Changes an octet, inserts one, or cuts off the end, up to twice in all.
fn damage(rng: &mut fastrand::Rng, data: &mut Vec<u8>) {
    for _ in 0..rng.usize(0..3) {
        if data.is_empty() {
            return;
        }
        let at = rng.usize(0..data.len());
        match rng.u8(0..4) {
            0 => data[at] ^= 1 << rng.u8(0..8),
            1 => data[at] = *rng.choice(&[0, 1, 0x7F, 0x80, 0xFE, 0xFF]).unwrap(),
            2 => data.truncate(at),
            _ => data.insert(at, rng.u8(..)),
        }
    }
}

/// Returns a nearly correct ULPDU.
fn ulpdu(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = rng.usize(0..40);
    let payload: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
    let last = if rng.u8(0..4) == 0 { 0 } else { 0x40 };
    let stag: u32 = *rng.choice(&[0x11, 0x22, 0x33, 0x44]).unwrap();
    let to: u64 = *rng.choice(&[0, 16, 24, 250, 0x1000, 0x1020, u64::MAX - 64, u64::MAX - 3]).unwrap();
    let msn = rng.u32(1..4);
    let mo = if rng.bool() { 0 } else { rng.u32(0..20) };
    let atomic = |rng: &mut fastrand::Rng| {
        let mut header = [0; 52];
        rng.fill(&mut header[20..]);
        header[3] = *rng.choice(&[0, 0, 1, 2, 2, 7]).unwrap();
        header[8..12].copy_from_slice(&stag.to_be_bytes());
        header[12..20].copy_from_slice(&to.to_be_bytes());
        header
    };
    match rng.u8(0..12) {
        0 | 1 => tagged(0x81 | last, 0x40, stag, to, &payload),
        2 => tagged(0x81 | last, 0x42, stag, to, &payload),
        3 | 4 => untagged(0x01 | last, 0x43 + rng.u8(0..4), 0, msn, mo, &payload),
        8 | 9 => untagged(0x41, 0x4A, 1, msn, 0, &atomic(rng)),
        10 => untagged(0x41, 0x48 + rng.u8(0..2), 0, msn, 0, &[rng.u8(..); 8]),
        11 => untagged(0x41, 0x4B, 3, msn, 0, &[&rng.u32(1..6).to_be_bytes()[..], &[7; 8]].concat()),
        5 | 6 => untagged(0x41, 0x41, 1, msn, 0, &read_header((stag, to), rng.u32(0..70), (stag, to))),
        _ => untagged(0x41, 0x40 | rng.u8(0..16), rng.u32(0..4), msn, 0, &payload),
    }
}

#[test]
fn streams() {
    let mut rng = fastrand::Rng::with_seed(5044);
    for _ in 0..20_000 {
        let mut data = vec![rng.u8(..)];
        if rng.u8(0..4) == 0 {
            let len = rng.usize(0..200);
            data.extend(std::iter::repeat_with(|| rng.u8(..)).take(len));
        } else {
            data[0] |= 2;
            for _ in 0..rng.usize(0..8) {
                let ulpdu = ulpdu(&mut rng);
                data.push(ulpdu.len() as u8);
                data.extend(ulpdu);
            }
            damage(&mut rng, &mut data);
        }
        run("iwarp_stream", iwarp_stream, &data);
        run("marker_stream", marker_stream, &data);
    }
}

#[test]
fn startups() {
    let mut rng = fastrand::Rng::with_seed(6581);
    let frames = vectors().filter(|(_, octets)| octets.starts_with("4d504120"));
    let frames: Vec<Vec<u8>> = frames.map(|(_, octets)| hex(octets)).collect();
    assert_eq!(frames.len(), 8);
    for _ in 0..20_000 {
        let mut data = vec![rng.u8(..)];
        data.extend(&frames[rng.usize(0..frames.len())]);
        damage(&mut rng, &mut data);
        run("mpa_startup", mpa_startup, &data);
    }
}

#[test]
fn terminates() {
    let mut rng = fastrand::Rng::with_seed(5040);
    let golden: Vec<Vec<u8>> = vectors()
        .filter(|(name, _)| name.starts_with("TERM"))
        .map(|(_, octets)| hex(octets)[20..].to_vec())
        .collect();
    for _ in 0..50_000 {
        let mut data = rng.choice(&golden).unwrap().clone();
        damage(&mut rng, &mut data);
        run("terminate", terminate, &data);
    }
}
