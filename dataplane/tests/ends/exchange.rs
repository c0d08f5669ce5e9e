//! Exchanges frames of all kinds with the other end, and verifies each when it comes back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use urnic_config::PortSpec;
use urnic_dataplane::{Arena, BURST, Eal, Mbuf, Part, Port, TxChecksum, TxFrame, TxPayload, TxQueue};

use super::{BORROWED, PATIENCE, await_link};

const HEADERS: [u8; 54] = headers(0x99);
const PROBE: [u8; 54] = headers(0x77);

/// Returns Ethernet, IPv4 and TCP headers, valid enough for a driver that parses them.
const fn headers(mark: u8) -> [u8; 54] {
    let mut h = [mark; 54];
    let start = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6];
    let mut i = 0;
    while i < start.len() {
        h[i] = start[i];
        i += 1;
    }
    h[46] = 0x50;
    // The sum of the pseudo-header: addresses, protocol 6, 40 bytes.
    let sum = 4 * (mark as u32 * 0x101) + 6 + 40;
    let sum = (sum & 0xffff) + (sum >> 16);
    [h[50], h[51]] = [(sum >> 8) as u8, sum as u8];
    h
}

pub fn is_checksum_probe(frame: &[u8]) -> bool {
    frame.starts_with(&PROBE)
}

/// Returns `n` bytes that depend on `seed`.
fn pattern(seed: usize, n: usize) -> Vec<u8> {
    (0..n).map(|i| ((seed * 131 + i * 7) >> (i % 3)) as u8).collect()
}

fn payload(port: &mut Port, bytes: &[u8]) -> TxPayload {
    let mut buffer = port.tx_pool().buffer().expect("a buffer");
    buffer.append(bytes.len()).expect("room").copy_from_slice(bytes);
    buffer.freeze()
}

/// Sends and receives until all `expected` frames are back, in order.
fn until_back(port: &mut Port, queue: &mut TxQueue, expected: &mut VecDeque<Vec<u8>>) {
    let start = Instant::now();
    let mut frames = ArrayVec::<Mbuf, BURST>::new();
    while !expected.is_empty() {
        port.tx_burst(queue);
        if port.rx_burst(&mut frames) == 0 {
            assert!(start.elapsed() < PATIENCE, "{} frames are missing, {:?}", expected.len(), port.stats());
            std::thread::yield_now();
        }
        for frame in frames.drain(..) {
            let want = expected.pop_front().expect("as many as sent");
            assert!(frame.data() == want, "a frame of {} bytes came back wrong", want.len());
        }
    }
}

fn send(port: &mut Port, frame: TxFrame, expected: Vec<u8>) {
    let mut queue = TxQueue::new();
    assert_eq!(frame.len(), expected.len());
    queue.push(frame).expect("empty");
    until_back(port, &mut queue, &mut VecDeque::from([expected]));
}

/// Runs all exchanges.
pub fn all(eal: &Arc<Eal>, port: &mut Port) {
    await_link(port, true);
    // A device that is still starting may discard frames that arrive meanwhile.
    until_echoed(port);
    let rx_before = port.rx_pool().available();
    let largest = usize::from(port.mtu()) + 14;
    for size in [60, 64, 65, 1000, 1514, largest] {
        in_place_then_chained(port, size);
    }
    parts(port, largest);
    lent(eal, port);
    checksum_metadata(port);
    train(port);
    stream(port, largest);
    borrowed(port, largest);
    // Until the next burst, a port that receives in place holds on to the frames of the last one.
    assert_eq!(port.rx_burst(&mut ArrayVec::<Mbuf, BURST>::new()), 0);
    assert_eq!(port.stats().rx_dropped, 0);
    // The driver of `virtio_user` takes mbufs 32 at a time, so it may have fewer now and then. Whether all frames come
    // back in the end is checked when the port is closed.
    let late = if matches!(port.spec(), PortSpec::VirtioUser { .. }) { 31 } else { 0 };
    assert!(port.rx_pool().available() + late >= rx_before, "received frames have leaked");
}

/// Sends a payload with headers in front of it, and sends it again at once, while the driver may still hold the first
/// frame.
fn in_place_then_chained(port: &mut Port, size: usize) {
    let bytes = pattern(size, size - HEADERS.len());
    let whole = [&HEADERS[..], &bytes].concat();
    let payload = payload(port, &bytes);
    assert!(payload.is_unshared());
    let part = Part { payload: &payload, range: 0..payload.len() };
    let mut queue = TxQueue::new();
    let first = port.frame(&HEADERS, std::slice::from_ref(&part), false).expect("a frame");
    assert_eq!(first.segments(), 1, "the first transmission is linear");
    assert!(!payload.is_unshared());
    // The headers of the second frame must not reach the first frame.
    let mut others = HEADERS;
    others[20] = 0x11;
    let second = port.frame(&others, std::slice::from_ref(&part), false).expect("a frame");
    assert_eq!(second.segments(), 2, "the first frame still has the headroom");
    let clone = payload.clone();
    queue.push(first).expect("empty");
    queue.push(second).expect("nearly empty");
    let mut expected = VecDeque::from([whole.clone(), [&others[..], &bytes].concat()]);
    until_back(port, &mut queue, &mut expected);
    // The payload is dropped before its third frame is sent.
    let third =
        port.frame(&HEADERS, &[Part { payload: &clone, range: 0..clone.len() }], false).expect("a frame");
    drop((payload, clone));
    send(port, third, whole);
}

/// Sends several TCP segments in one frame, longer than the peer's mbufs: the peer splits it and sends the parts
/// back.
fn train(port: &mut Port) {
    let virtio = matches!(port.spec(), PortSpec::VirtioUser { .. } | PortSpec::Vhost { .. });
    // The other queues learn from the first queue whether the peer supports this.
    let start = Instant::now();
    while virtio && port.queue() > 0 && port.gso_max() == 0 {
        assert!(start.elapsed() < PATIENCE, "the first queue does not tell");
        std::thread::yield_now();
    }
    assert_eq!(port.gso_max() > 0, virtio, "only virtio ports send several segments in one frame");
    if !virtio {
        return;
    }
    let bytes = pattern(5, 30_000);
    let payloads: Vec<TxPayload> = bytes.chunks(6000).map(|b| payload(port, b)).collect();
    let parts: Vec<Part<'_>> = payloads.iter().map(|p| Part { payload: p, range: 0..p.len() }).collect();
    let seq = 0xffff_f000_u32; // wraps within the frame
    let tcp = |headers: &mut [u8]| {
        headers[4..8].copy_from_slice(&seq.to_be_bytes());
        headers[12..14].copy_from_slice(&[0x50, 0x18]); // PSH and ACK
    };
    let mut v4 = HEADERS.to_vec();
    v4[16..18].copy_from_slice(&30_040_u16.to_be_bytes());
    tcp(&mut v4[34..]);
    let mut v6 = HEADERS[..12].to_vec();
    v6.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    v6.extend(30_020_u16.to_be_bytes());
    v6.extend([6, 64]);
    v6.extend([0xfd; 32]);
    v6.extend(&HEADERS[34..54]);
    tcp(&mut v6[54..]);
    for headers in [v4, v6] {
        let tcp = headers.len() - 20;
        let parts = parts.clone();
        one_train(port, &headers, tcp, seq, &parts, &bytes);
    }
}

/// Sends one frame of `headers`, whose TCP header is at `tcp`, and `parts`, which are `bytes`.
fn one_train(port: &mut Port, headers: &[u8], tcp: usize, seq: u32, parts: &[Part<'_>], bytes: &[u8]) {
    let mut frame = port.frame(headers, parts, true).expect("a frame");
    frame.segmented(1448, headers);
    let mut queue = TxQueue::new();
    queue.push(frame).expect("empty");
    let (start, mut frames, mut got) = (Instant::now(), ArrayVec::<Mbuf, BURST>::new(), Vec::new());
    let mut pushes = Vec::new();
    while got.len() < bytes.len() {
        assert!(start.elapsed() < PATIENCE, "{} bytes are back, {:?}", got.len(), port.stats());
        port.tx_burst(&mut queue);
        port.rx_burst(&mut frames);
        for mut frame in frames.drain(..) {
            frame.keep();
            let frame: &[u8] = frame.data();
            let (length, from) = if frame[12] == 8 { (16, 14) } else { (18, 54) };
            let length = u16::from_be_bytes([frame[length], frame[length + 1]]);
            assert_eq!(usize::from(length), frame.len() - from, "IP's length");
            let at = u32::from_be_bytes([frame[tcp + 4], frame[tcp + 5], frame[tcp + 6], frame[tcp + 7]]);
            assert_eq!(at.wrapping_sub(seq) as usize, got.len(), "the sequence number");
            pushes.push(frame[tcp + 13] & 0x08 != 0);
            got.extend_from_slice(&frame[tcp + 20..]);
        }
    }
    assert!(got == bytes, "the payload");
    assert!(
        pushes.len() > 1 && pushes.pop() == Some(true) && !pushes.contains(&true),
        "PSH on the last only"
    );
}

/// Sends several payloads, and ranges of them, in one frame.
fn parts(port: &mut Port, largest: usize) {
    let bytes: Vec<Vec<u8>> = [100, 333, 800].iter().map(|&n| pattern(n, n)).collect();
    let payloads: Vec<TxPayload> = bytes.iter().map(|b| payload(port, b)).collect();
    for ranges in
        [[0..100, 0..333, 0..800], [0..100, 0..333, 0..800], [7..99, 0..0, 400..800], [0..1, 5..6, 799..800]]
    {
        let parts: Vec<Part> =
            payloads.iter().zip(&ranges).map(|(payload, r)| Part { payload, range: r.clone() }).collect();
        let frame = port.frame(&HEADERS, &parts, false).expect("a frame");
        let cut: Vec<&[u8]> = bytes.iter().zip(ranges).map(|(b, r)| &b[r]).collect();
        send(port, frame, [&HEADERS[..], &cut.concat()].concat());
    }
    let [a, ..] = &payloads[..] else { unreachable!() };
    for range in [0..101, 101..102, std::ops::Range { start: 5, end: 4 }] {
        assert!(port.frame(&HEADERS, &[Part { payload: a, range }], false).is_none(), "out of bounds");
    }
    // The longest frame, of the largest number of pieces.
    let piece = pattern(9, (largest - HEADERS.len()) / 8);
    let payloads: Vec<TxPayload> = (0..8).map(|_| payload(port, &piece)).collect();
    let parts: Vec<Part> = payloads.iter().map(|payload| Part { payload, range: 0..piece.len() }).collect();
    let frame = port.frame(&HEADERS, &parts, false).expect("a frame");
    assert_eq!(frame.segments(), 8);
    send(port, frame, [&HEADERS[..], &piece.repeat(8)].concat());
}

/// Sends a payload that contains memory from the arena without a copy, whole and in parts, while the driver may
/// still hold earlier frames of the payload. Then the payload gets a copy of that memory, and is sent again.
fn lent(eal: &Arc<Eal>, port: &mut Port) {
    let arena = Arena::new(eal);
    let block = arena.alloc(1 << 20, 4096).expect("a block");
    let base = block.as_ptr().as_ptr().cast_const();
    assert!(arena.holds(base, 1 << 20) && arena.holds(base.wrapping_add(77), 1));
    assert!(
        !arena.holds(base, 1 << 50)
            && !arena.holds(base, usize::MAX)
            && !arena.holds((&raw const arena).cast(), 1)
    );
    assert_eq!(block.as_ptr().as_ptr() as usize % 4096, 0);
    let bytes = pattern(3, 500);
    // SAFETY: inside the block, which has no other user.
    let at = unsafe {
        let at = block.as_ptr().add(777_777);
        assert!((0..500).all(|i| *at.as_ptr().add(i) == 0), "fresh memory is zero");
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len());
        at
    };
    let mut buffer = port.tx_pool().buffer().expect("a buffer");
    buffer.append(20).expect("room").copy_from_slice(&[1; 20]);
    for last in [[2; 4], [3; 4]] {
        for half in [at, at.map_addr(|a| a.saturating_add(250))] {
            // SAFETY: the block is EAL memory, lives until all frames are back, and no longer changes.
            assert!(unsafe { buffer.lend(port.tx_pool(), half, 250) });
        }
        buffer.append(4).expect("room").copy_from_slice(&last);
    }
    let whole = [&[1; 20], &bytes[..], &[2; 4], &bytes, &[3; 4]].concat();
    // SAFETY: as above.
    assert!(unsafe { buffer.lend(port.tx_pool(), at, 100) });
    buffer.truncate(whole.len() + 50);
    assert_eq!(
        (buffer.len(), buffer.tailroom()),
        (whole.len() + 50, 0),
        "memory of others is not written to"
    );
    assert!(buffer.append(1).is_none());
    buffer.truncate(whole.len());
    let mut payload = buffer.freeze();
    let mut copied = Vec::new();
    payload.append_to(0..payload.len(), &mut copied).expect("all of it");
    assert_eq!(copied, whole);
    assert!(payload.append_to(0..payload.len() + 1, &mut copied).is_none());
    for owned in [false, true] {
        assert!(payload.is_unshared() || owned);
        for range in [0..1028, 0..1028, 0..500, 10..270, 300..600, 510..530, 1000..1028] {
            let part = Part { payload: &payload, range: range.clone() };
            let frame = port.frame(&HEADERS, std::slice::from_ref(&part), false).expect("a frame");
            send(port, frame, [&HEADERS[..], &whole[range]].concat());
        }
        // In a frame with other payloads, the chain keeps its links.
        let other = self::payload(port, &[7; 9]);
        for parts in [
            vec![Part { payload: &other, range: 0..9 }, Part { payload: &payload, range: 0..1028 }],
            vec![Part { payload: &payload, range: 0..1028 }, Part { payload: &other, range: 0..9 }],
        ] {
            let bytes: Vec<u8> = parts
                .iter()
                .flat_map(|part| if part.range.len() == 9 { vec![7; 9] } else { whole.clone() })
                .collect();
            let frame = port.frame(&HEADERS, &parts, false).expect("a frame");
            send(port, frame, [&HEADERS[..], &bytes].concat());
        }
        let clone = payload.clone();
        assert!(!payload.is_unshared());
        drop(clone);
        // Waiting frames can be found by the memory that they contain.
        let mut queue = TxQueue::new();
        for (shown, range) in [(&other, 0..9), (&payload, 0..1028), (&other, 0..9)] {
            let part = Part { payload: shown, range };
            queue.push(port.frame(&HEADERS, &[part], false).expect("a frame")).expect("room");
        }
        let start = at.as_ptr() as usize;
        assert_eq!(queue.drop_containing_lent(&(start + 500..start + 900)), 0);
        let chained = port.caps().multi_segment_tx && !owned;
        assert_eq!(queue.drop_containing_lent(&(start + 499..start + 900)), usize::from(chained));
        let mut left = VecDeque::from([[&HEADERS[..], &[7; 9]].concat(), [&HEADERS[..], &[7; 9]].concat()]);
        if !chained {
            left.insert(1, [&HEADERS[..], &whole].concat());
        }
        until_back(port, &mut queue, &mut left);
        assert!(payload.copy_lent(port.tx_pool()));
    }
    // The driver may keep a reference to its last frames; the leak check at the end covers them.
}

/// Checks what each end learns about a checksum that the other end did not fill in.
fn checksum_metadata(port: &mut Port) {
    let bytes = pattern(1, 40);
    for leave in [false, true] {
        let payload = payload(port, &bytes);
        let frame = port.frame(&PROBE, &[Part { payload: &payload, range: 0..40 }], leave).expect("a frame");
        let mut queue = TxQueue::new();
        queue.push(frame).expect("empty");
        let mut frames = ArrayVec::<Mbuf, BURST>::new();
        let start = Instant::now();
        while frames.is_empty() {
            port.tx_burst(&mut queue);
            port.rx_burst(&mut frames);
            assert!(start.elapsed() < PATIENCE, "no answer");
        }
        let back = &frames[0];
        let works = port.caps().tx_checksum == TxChecksum::Spared;
        assert_eq!(
            back.data()[..93],
            [&PROBE[..], &bytes[..39]].concat(),
            "the frame is otherwise untouched"
        );
        assert_eq!(back.data()[93], u8::from(leave && works), "what the peer saw with the flag {leave}");
        assert_eq!(back.checksum_trusted(), works, "trust in the reply's unfilled checksum");
    }
}

/// Sends many frames of changing size, with several bursts in flight.
fn stream(port: &mut Port, largest: usize) {
    let mut queue = TxQueue::new();
    let mut expected = VecDeque::new();
    let mut frames = ArrayVec::<Mbuf, BURST>::new();
    let (mut sent, mut moved) = (0, Instant::now());
    const FRAMES: usize = 20_000;
    while sent < FRAMES || !expected.is_empty() {
        while sent < FRAMES && expected.len() < 200 && queue.room() > 0 {
            let size = HEADERS.len() + 6 + (sent * 7919) % (largest - HEADERS.len() - 5);
            let bytes = pattern(sent, size - HEADERS.len());
            let payload = payload(port, &bytes);
            let parts = [Part { payload: &payload, range: 0..payload.len() }];
            queue.push(port.frame(&HEADERS, &parts, false).expect("a frame")).expect("room");
            expected.push_back([&HEADERS[..], &bytes].concat());
            sent += 1;
        }
        port.tx_burst(&mut queue);
        if port.rx_burst(&mut frames) > 0 {
            moved = Instant::now();
        }
        assert!(moved.elapsed() < PATIENCE, "stuck after {sent} frames, {:?}", port.stats());
        for frame in frames.drain(..) {
            assert!(
                frame.data() == expected.pop_front().expect("as many as sent"),
                "a frame came back wrong"
            );
        }
    }
}

/// Returns the frame's bytes, read piece by piece.
fn read(frame: &Mbuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < frame.frame_len() {
        // SAFETY: copied before the next burst.
        let piece = unsafe { frame.piece(bytes.len()..frame.frame_len()) };
        assert!(!piece.is_empty(), "nothing at byte {} of {}", bytes.len(), frame.frame_len());
        piece.append_to(&mut bytes);
    }
    // SAFETY: as above.
    let after = unsafe { frame.piece(bytes.len()..bytes.len() + 9) };
    assert!(after.is_empty(), "there is nothing after the frame");
    bytes
}

/// Sends TCP frames whose checksum is left to the link, of changing size, in one piece or in several, with several
/// bursts in flight. The frames may come back in place. Most of them are read at once, and dropped. The others are kept
/// while further bursts are received, and read then.
fn borrowed(port: &mut Port, largest: usize) {
    const FRAMES: usize = 5000;
    let trusted = u8::from(port.caps().tx_checksum == TxChecksum::Spared);
    let (mut queue, mut expected) = (TxQueue::new(), VecDeque::new());
    let (mut frames, mut kept) = (ArrayVec::<Mbuf, BURST>::new(), VecDeque::new());
    let (mut sent, mut moved) = (0, Instant::now());
    while sent < FRAMES || !expected.is_empty() || !kept.is_empty() {
        while sent < FRAMES && expected.len() < 200 && queue.room() > 0 {
            let size = PROBE.len() + 6 + (sent * 7919) % (largest - PROBE.len() - 5);
            let bytes = pattern(sent, size - PROBE.len());
            // Up to eight parts, the first of which may be as short as the headers of an FPDU.
            let mut cuts = vec![0, bytes.len()];
            if sent % 3 > 0 {
                cuts.extend((0..sent % 8).map(|i| (16 + i * 997 * (1 + sent % 5)) % bytes.len()));
                cuts.sort_unstable();
                cuts.dedup();
            }
            let payloads: Vec<_> = cuts.windows(2).map(|c| payload(port, &bytes[c[0]..c[1]])).collect();
            let parts: Vec<_> = payloads.iter().map(|p| Part { payload: p, range: 0..p.len() }).collect();
            queue.push(port.frame(&PROBE, &parts, true).expect("a frame")).expect("room");
            let mut whole = [&PROBE[..], &bytes].concat();
            *whole.last_mut().expect("a byte") = trusted;
            expected.push_back(whole);
            sent += 1;
        }
        port.tx_burst(&mut queue);
        if port.rx_burst(&mut frames) > 0 {
            moved = Instant::now();
        }
        assert!(moved.elapsed() < PATIENCE, "stuck after {sent} frames, {:?}", port.stats());
        // These have lived through one more burst.
        for (mut frame, want) in kept.drain(..) {
            let frame: &mut Mbuf = &mut frame;
            assert!(!frame.is_borrowed(), "the peer's memory is in use after its burst");
            assert!(frame.data() == want && read(frame) == want, "a kept frame is wrong");
        }
        for mut frame in frames.drain(..) {
            let want: Vec<u8> = expected.pop_front().expect("as many as sent");
            BORROWED.fetch_add(frame.is_borrowed().into(), Ordering::Relaxed);
            assert_eq!(frame.frame_len(), want.len());
            match want.len() % 4 {
                0 => kept.push_back((frame, want)),
                1 => {
                    frame.keep();
                    assert!(!frame.is_borrowed() && frame.data() == want, "a copied frame is wrong");
                }
                _ => assert!(read(&frame) == want, "a frame came back wrong"),
            }
        }
    }
}

/// Sends frames until one of them comes back, because a new peer may lose the first frames. Each frame has a
/// stamp of its own, because frames that were sent before this call may still come back.
pub fn until_echoed(port: &mut Port) {
    let start = Instant::now();
    let mut serial = 0_usize;
    let stamp = start.elapsed().as_nanos() as usize ^ std::ptr::from_ref(&start) as usize;
    loop {
        assert!(start.elapsed() < PATIENCE, "no frame comes back, {:?}", port.stats());
        serial += 1;
        let mut bytes = pattern(serial, 100);
        bytes[..8].copy_from_slice(&stamp.wrapping_add(serial).to_le_bytes());
        let payload = payload(port, &bytes);
        let frame =
            port.frame(&HEADERS, &[Part { payload: &payload, range: 0..100 }], false).expect("a frame");
        let mut queue = TxQueue::new();
        queue.push(frame).expect("empty");
        let whole = [&HEADERS[..], &bytes].concat();
        let sent = Instant::now();
        let mut frames = ArrayVec::<Mbuf, BURST>::new();
        while sent.elapsed() < Duration::from_millis(50) {
            port.tx_burst(&mut queue);
            port.rx_burst(&mut frames);
            if frames.drain(..).any(|f| f.data() == whole) {
                return;
            }
        }
        port.link_up();
    }
}

/// Keeps sending until the link is down.
pub fn until_down(port: &mut Port, stop: &AtomicBool) {
    let start = Instant::now();
    let mut frames = ArrayVec::<Mbuf, BURST>::new();
    let mut queue = TxQueue::new();
    let mut looked = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if looked.elapsed() > Duration::from_millis(2) {
            if !port.link_up() {
                return;
            }
            looked = Instant::now();
        }
        assert!(start.elapsed() < PATIENCE, "the link does not go down");
        if queue.room() > 0
            && let Some(mut buffer) = port.tx_pool().buffer()
        {
            buffer.append(100).expect("room").fill(1);
            let payload = buffer.freeze();
            if let Some(frame) = port.frame(&HEADERS, &[Part { payload: &payload, range: 0..100 }], false) {
                queue.push(frame).expect("room");
            }
        }
        port.tx_burst(&mut queue);
        port.rx_burst(&mut frames);
        frames.clear();
    }
}
