//! Frames that a port sends in place arrive as they should, whatever buffers the peer offers.

use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arrayvec::ArrayVec;
use urnic_dataplane::{BURST, Mbuf, Part, Port, TxFrame, TxPayload, TxQueue, retired_pools};

use super::inbox::{Found, HEADER, INBOX, Inbox};
use super::peer::{
    FEATURES, GUEST_CSUM, LOG_ALL, MQ, MRG_RXBUF, PATIENCE, Peer, RING, SIZE, VERSION_1, await_link, meet,
    meet_with, message, with_port, with_queues,
};
use super::{receive, receive_nothing};

pub const HEADERS: usize = 54;

/// Returns the headers of a TCP segment over IPv4 with `payload` octets, whose checksum is the sum of the
/// pseudo-header.
pub fn headers(payload: usize) -> [u8; HEADERS] {
    let mut h = [0; HEADERS];
    let start = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6];
    h[..24].copy_from_slice(&start);
    h[16..18].copy_from_slice(&(40 + payload as u16).to_be_bytes());
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    h[26..30].copy_from_slice(&from.octets());
    h[30..34].copy_from_slice(&to.octets());
    (h[46], h[47]) = (0x50, 0x10);
    let sum = sum(&h[26..34]) + 6 + 20 + payload as u32;
    h[50..52].copy_from_slice(&fold(sum).to_be_bytes());
    h
}

fn sum(octets: &[u8]) -> u32 {
    octets.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns `n` octets that depend on `seed`.
fn pattern(seed: usize, n: usize) -> Vec<u8> {
    (0..n).map(|i| ((seed * 131 + i * 7) >> (i % 3)) as u8).collect()
}

fn payload(port: &mut Port, octets: &[u8]) -> TxPayload {
    let mut buffer = port.tx_pool().buffer().expect("a buffer");
    buffer.append(octets.len()).expect("room").copy_from_slice(octets);
    buffer.freeze()
}

/// Makes a frame with `n` octets of payload, and returns its octets too.
fn frame(port: &mut Port, seed: usize, n: usize) -> (TxFrame, Vec<u8>) {
    let (headers, octets) = (headers(n), pattern(seed, n));
    let payload = payload(port, &octets);
    let part = Part { payload: &payload, range: 0..n };
    (port.frame(&headers, &[part], false).expect("a frame"), [&headers[..], &octets].concat())
}

/// Queues a frame with `n` octets of payload, and returns its octets.
pub fn queue_frame(port: &mut Port, queue: &mut TxQueue, seed: usize, n: usize) -> Vec<u8> {
    let (frame, octets) = frame(port, seed, n);
    queue.push(frame).expect("room");
    octets
}

/// Sends all that is queued. The driver sends at most 32 frames at a time.
fn send_all(port: &mut Port, queue: &mut TxQueue) {
    let start = Instant::now();
    while !queue.is_empty() {
        assert!(start.elapsed() < PATIENCE, "{} frames stay queued, {:?}", queue.len(), port.stats());
        port.tx_burst(queue);
    }
}

/// Frames arrive whole and in order in chains of any shape, and their mbufs come back.
#[test]
fn frames_fill_chains_of_any_shape() {
    for features in [FEATURES, FEATURES | MRG_RXBUF] {
        with_port(|port, listener| {
            let mut peer = meet_with(port, listener, features, SIZE);
            let before = port.tx_available();
            let mut queue = TxQueue::new();
            let shapes: [&[usize]; 6] = [
                &[4096],
                &[12, 4000],
                &[5, 7, 60, 4000],
                &[0, 11, 0, 1, 4000],
                &[1000, 1000, 1000],
                &[66, 3000],
            ];
            for n in 0..500 {
                let shape = shapes[n % shapes.len()];
                peer.lend(shape);
                let len = [0, 1, 100, 1460, 2930][n % 5];
                let want = queue_frame(port, &mut queue, n, len);
                assert_eq!(port.tx_burst(&mut queue), 1, "{shape:?}");
                let Found { header, octets, written } = peer.found().expect("a frame");
                assert!(octets == want, "frame {n} of {} octets in {shape:?}", want.len());
                assert_eq!(header, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
                assert_eq!(written, [(HEADER + want.len()) as u32]);
            }
            assert_eq!(port.tx_available(), before);
            let stats = port.stats();
            assert_eq!((stats.tx_frames, stats.tx_dropped), (500, 0));
            let bytes = (0..500).map(|n| HEADERS + [0, 1, 100, 1460, 2930][n % 5]).sum::<usize>();
            assert_eq!(stats.tx_bytes, bytes as u64);
        });
    }
}

/// A frame may lie in several chains, if the peer has agreed to that. Each of them but the last is full.
#[test]
fn frames_lie_in_several_chains() {
    with_port(|port, listener| {
        let mut peer = meet_with(port, listener, FEATURES | MRG_RXBUF, SIZE);
        let before = port.tx_available();
        let mut queue = TxQueue::new();
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut want = std::collections::VecDeque::new();
            let mut lens = Vec::new();
            for n in 0..rng.usize(1..6) {
                let octets = queue_frame(port, &mut queue, n, rng.usize(..1000));
                let mut left = HEADER + octets.len();
                let mut written = Vec::new();
                // Few enough buffers for the whole ring.
                while left > 0 {
                    let len = rng.usize(12..1400).max(left.div_ceil(10).min(12));
                    lens.push(len);
                    written.push(left.min(len) as u32);
                    left = left.saturating_sub(len);
                }
                want.push_back((octets, written));
            }
            if lens.len() > SIZE.into() {
                queue.take_copies(|_, _| ());
                continue;
            }
            // The chains come by and by.
            for len in lens {
                peer.lend(&[len]);
                if rng.bool() {
                    port.tx_burst(&mut queue);
                }
            }
            port.tx_burst(&mut queue);
            assert!(queue.is_empty(), "seed {seed}");
            while let Some((octets, written)) = want.pop_front() {
                let found = peer.found().expect("a frame");
                assert!(found.octets == octets, "seed {seed}");
                assert_eq!(found.written, written, "seed {seed}");
            }
            assert_eq!(peer.found(), None, "seed {seed}");
        }
        assert_eq!(port.tx_available(), before);
        assert_eq!(port.stats().tx_dropped, 0);
    });
}

/// Frames of several mbufs are gathered. What they share with a payload stays the payload's, however often it is sent.
#[test]
fn segments_are_gathered_and_released() {
    with_port(|port, listener| {
        let mut peer = meet_with(port, listener, FEATURES | MRG_RXBUF, SIZE);
        let before = port.tx_available();
        let mut queue = TxQueue::new();
        let octets = [pattern(1, 500), pattern(2, 300), pattern(3, 7)];
        let lent: &'static [u8] = Vec::leak(pattern(4, 900));
        for round in 0..50 {
            let payloads = [0, 1, 2].map(|i| payload(port, &octets[i]));
            let mut buffer = port.tx_pool().buffer().expect("a buffer");
            buffer.append(20).expect("room").copy_from_slice(&[7; 20]);
            // SAFETY: the memory lives for ever.
            let is_lent = unsafe { buffer.lend(port.tx_pool(), NonNull::from(lent).cast(), 900) };
            assert!(is_lent);
            buffer.append(3).expect("room").copy_from_slice(&[8; 3]);
            let chain = buffer.freeze();
            let kept = chain.clone();
            let whole = |i: usize| Part { payload: &payloads[i], range: 0..octets[i].len() };
            let cases: [(Vec<Part<'_>>, Vec<u8>); 5] = [
                (vec![whole(0), whole(1), whole(2)], octets.concat()),
                (
                    vec![whole(0), Part { payload: &payloads[0], range: 10..20 }],
                    [&octets[0][..], &octets[0][10..20]].concat(),
                ),
                (vec![Part { payload: &payloads[1], range: 5..300 }], octets[1][5..].to_vec()),
                (vec![Part { payload: &chain, range: 0..923 }], [&[7; 20][..], lent, &[8; 3]].concat()),
                (
                    vec![Part { payload: &chain, range: 10..921 }, whole(2)],
                    [&[7; 10][..], lent, &[8; 1], &octets[2]].concat(),
                ),
            ];
            let mut want = Vec::new();
            for (parts, octets) in &cases {
                let headers = headers(octets.len());
                // Twice, and the second time the first is queued still.
                for _ in 0..2 {
                    queue.push(port.frame(&headers, parts, false).expect("a frame")).expect("room");
                    want.push([&headers[..], octets].concat());
                    peer.lend(&[1000]);
                    peer.lend(&[1000]);
                }
                if round % 2 == 0 {
                    send_all(port, &mut queue);
                }
            }
            send_all(port, &mut queue);
            for want in want {
                assert!(peer.found().expect("a frame").octets == want, "round {round}");
            }
            // Chains that were not needed.
            while peer.inbox.offers != peer.inbox.found {
                let octets = queue_frame(port, &mut queue, round, 10);
                send_all(port, &mut queue);
                assert!(peer.found().expect("a frame").octets == octets);
            }
            assert!(payloads.iter().chain([&chain]).all(|payload| !payload.is_empty()));
            assert!(payloads.iter().all(TxPayload::is_unshared), "no frame is left");
            assert!(!chain.is_unshared(), "there is a clone");
            let mut copy = Vec::new();
            kept.append_to(0..923, &mut copy).expect("all of it");
            assert!(copy == [&[7; 20][..], lent, &[8; 3]].concat());
        }
        assert_eq!(port.tx_available(), before);
    });
}

/// A frame for which the buffers are too small is dropped, and the next ones go. A frame for which there are too few
/// buffers waits.
#[test]
fn small_buffers_cost_a_frame_and_few_buffers_time() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        let before = port.tx_available();
        let mut queue = TxQueue::new();
        peer.lend(&[10, 90]);
        peer.lend(&[1000]);
        queue_frame(port, &mut queue, 1, 35);
        let short = queue_frame(port, &mut queue, 2, 34);
        let long = queue_frame(port, &mut queue, 3, 500);
        let waits = queue_frame(port, &mut queue, 4, 600);
        assert_eq!(port.tx_burst(&mut queue), 3);
        assert_eq!(peer.found().expect("a frame").octets, short);
        assert!(peer.found().expect("a frame").octets == long);
        assert_eq!(peer.found(), None);
        let stats = port.stats();
        assert_eq!((stats.tx_frames, stats.tx_dropped, queue.len()), (2, 1, 1));
        for _ in 0..10 {
            assert_eq!(port.tx_burst(&mut queue), 0);
            receive_nothing(port);
        }
        peer.lend(&[1000]);
        assert_eq!(port.tx_burst(&mut queue), 1);
        assert!(peer.found().expect("a frame").octets == waits);
        assert_eq!(port.tx_available(), before);
    });
}

/// A frame for which even all buffers that the ring can hold are too small is dropped, because it would wait for ever.
#[test]
fn a_frame_longer_than_the_ring_is_dropped() {
    with_port(|port, listener| {
        let mut peer = meet_with(port, listener, FEATURES | MRG_RXBUF, 4);
        let mut queue = TxQueue::new();
        (0..4).for_each(|_| peer.lend(&[200]));
        queue_frame(port, &mut queue, 1, 1000);
        let next = queue_frame(port, &mut queue, 2, 100);
        assert_eq!(port.tx_burst(&mut queue), 2);
        assert_eq!(peer.found().expect("a frame").octets, next);
        assert_eq!(port.stats().tx_dropped, 1);
    });
}

/// The header says which checksum is left to the receiver, and how a train is to be cut.
#[test]
fn headers_tell_what_is_left_to_the_receiver() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        let mut queue = TxQueue::new();
        let plain = headers(1000);
        let tagged = [&plain[..12], &[0x81, 0x00, 0, 5], &plain[12..]].concat();
        let mut six = [&plain[..12], &[0x86, 0xdd], &[0; 40][..], &plain[34..]].concat();
        (six[14], six[20], six[21]) = (0x60, 6, 64);
        let tagged_six = [&six[..12], &[0x81, 0x00, 0, 5], &six[12..]].concat();
        for (headers, kind) in [(&plain[..], 1), (&tagged, 1), (&six, 4), (&tagged_six, 4)] {
            for size in [0, 400] {
                let payload = payload(port, &pattern(1, 1000));
                let part = Part { payload: &payload, range: 0..1000 };
                let mut frame = port.frame(headers, &[part], true).expect("a frame");
                if size > 0 {
                    frame.segmented(size, headers);
                }
                queue.push(frame).expect("room");
                peer.lend(&[4096]);
                assert_eq!(port.tx_burst(&mut queue), 1);
                let found = peer.found().expect("a frame");
                let [start, len] = [headers.len() - 20, headers.len()].map(|n| n as u8);
                let want = match size {
                    0 => [1, 0, 0, 0, 0, 0, start, 0, 16, 0, 1, 0],
                    _ => [1, kind, len, 0, 0x90, 1, start, 0, 16, 0, 1, 0],
                };
                assert_eq!(found.header, want);
            }
        }
    });
}

/// A peer that takes no frames without checksums gets them with checksums.
#[test]
fn a_peer_that_wants_checksums_gets_them() {
    with_port(|port, listener| {
        let mut peer = meet_with(port, listener, FEATURES & !GUEST_CSUM, SIZE);
        let mut queue = TxQueue::new();
        peer.lend(&[4096]);
        let headers = headers(500);
        let payload = payload(port, &pattern(1, 500));
        let part = Part { payload: &payload, range: 0..500 };
        queue.push(port.frame(&headers, &[part], true).expect("a frame")).expect("room");
        send_all(port, &mut queue);
        let found = peer.found().expect("a frame");
        assert_eq!(found.header[0], 0, "nothing is left to the peer");
        let all = sum(&found.octets[26..34]) + 6 + 520 + sum(&found.octets[34..]);
        assert_eq!(fold(all), 0xffff, "the checksum is right");
    });
}

/// When the peer stops its ring, or the driver takes it over and gives it back, no frame is lost or sent twice.
#[test]
fn frames_survive_a_change_of_hands() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        let before = port.tx_available();
        let (mut queue, mut sent) = (TxQueue::new(), 0);
        let mut exchange = |port: &mut Port, peer: &mut Peer| {
            for _ in 0..5 {
                peer.lend(&[1000]);
            }
            for _ in 0..4 {
                let want = queue_frame(port, &mut queue, sent, 100 + sent);
                send_all(port, &mut queue);
                assert!(peer.found().expect("a frame").octets == want, "frame {sent}");
                assert_eq!(peer.found(), None);
                sent += 1;
            }
            // One chain more than is needed stays.
            let want = queue_frame(port, &mut queue, sent, 100 + sent);
            send_all(port, &mut queue);
            assert!(peer.found().expect("a frame").octets == want, "frame {sent}");
            sent += 1;
        };
        peer.lend(&[1000]);
        for round in 0..4 {
            exchange(port, &mut peer);
            assert!(peer.tell(message::SET_FEATURES, &[FEATURES | LOG_ALL], &[]));
            exchange(port, &mut peer);
            assert!(peer.tell(message::SET_FEATURES, &[FEATURES], &[]));
            exchange(port, &mut peer);
            assert!(peer.share(peer_memory(round)));
            exchange(port, &mut peer);
            let base = peer.stop(INBOX);
            assert_eq!(base, peer.inbox.found);
            let other = peer.stop(RING);
            await_link(port, false);
            assert_eq!(port.tx_burst(&mut TxQueue::new()), 0);
            peer.start(INBOX, base);
            peer.start(RING, other);
            peer.await_handled();
            await_link(port, true);
            exchange(port, &mut peer);
            let enable = |value: u64| [u64::from(INBOX) | value << 32];
            assert!(peer.tell(message::SET_VRING_ENABLE, &enable(0), &[]));
            let mut waiting = TxQueue::new();
            let want = queue_frame(port, &mut waiting, 77, 77);
            for _ in 0..10 {
                assert_eq!(port.tx_burst(&mut waiting), 0, "the ring is disabled");
            }
            assert_eq!(peer.found(), None);
            assert!(peer.tell(message::SET_VRING_ENABLE, &enable(1), &[]));
            send_all(port, &mut waiting);
            assert!(peer.found().expect("a frame").octets == want);
            peer.lend(&[1000]);
        }
        assert_eq!(port.tx_available(), before);
    });
}

const fn peer_memory(round: u64) -> u64 {
    super::peer::MEMORY as u64 - 4096 * (round % 2)
}

/// Each queue sends to its own ring. The mbufs of all of them come back, so that the port's pools go away with it.
#[test]
fn each_queue_has_its_own_ring() {
    with_queues(2, |queues, listener| {
        let mut peer = Peer::accept_with(listener, FEATURES | MQ, SIZE);
        [2, 3].into_iter().for_each(|index| peer.start(index, 0));
        await_link(&mut queues[0], true);
        let start = Instant::now();
        while !queues.iter_mut().all(|port| port.link_up() && port.is_served()) {
            assert!(start.elapsed() < PATIENCE, "a queue is not served");
        }
        for index in [0, 2, 2, 0, 2] {
            let port = &mut queues[index as usize / 2];
            let before = port.tx_available();
            peer.inbox = Inbox::of(index, peer_offers(&peer, index));
            peer.lend(&[1000]);
            peer.want_notifications(index, false);
            let mut queue = TxQueue::new();
            let want = queue_frame(port, &mut queue, 1, 100);
            send_all(port, &mut queue);
            assert_eq!(peer.found().expect("a frame").octets, want);
            // Only a port that sends in place notifies a receiver later.
            peer.was_notified();
            peer.want_notifications(index, true);
            receive_nothing(port);
            assert!(peer.was_notified());
            assert_eq!(port.tx_available(), before);
        }
        let frames = queues.iter().map(|port| port.stats().tx_frames).collect::<Vec<_>>();
        assert_eq!(frames, [2, 3]);
        // Frames that were not sent are the queue's to release.
        let mut queue = TxQueue::new();
        queue_frame(&mut queues[1], &mut queue, 1, 100);
        queues[1].tx_burst(&mut queue);
        assert_eq!(queue.len(), 1);
    });
    assert_eq!(retired_pools(), 0);
}

/// Returns how many chains the peer has offered in a ring.
fn peer_offers(peer: &Peer, index: u32) -> u16 {
    // SAFETY: within the memory.
    unsafe { peer.at.add(super::peer::ring(index)[1] + 2).cast::<u16>().as_ptr().read_volatile() }
}

/// After a message about memory that fails nothing is sent, and the next peer gets all.
#[test]
fn frames_wait_for_the_next_peer() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        let before = port.tx_available();
        let mut queue = TxQueue::new();
        (0..3).for_each(|_| peer.lend(&[1000]));
        let want = queue_frame(port, &mut queue, 1, 100);
        send_all(port, &mut queue);
        assert_eq!(peer.found().expect("a frame").octets, want);
        assert!(!peer.share(1 << 56));
        let want = queue_frame(port, &mut queue, 2, 200);
        for _ in 0..10 {
            assert_eq!(port.tx_burst(&mut queue), 0);
            receive_nothing(port);
        }
        assert_eq!(peer.found(), None);
        drop(peer);
        await_link(port, false);
        assert_eq!(port.tx_burst(&mut queue), 0);
        let mut peer = meet(port, listener);
        peer.lend(&[1000]);
        send_all(port, &mut queue);
        assert_eq!(peer.found().expect("a frame").octets, want);
        peer.offer(super::peer::LONG);
        assert_eq!(receive(port, 1), (vec![0], 1));
        assert_eq!(port.tx_available(), before);
    });
}

/// Frames arrive once and in order while the peer changes its rings and its memory, and goes.
#[test]
fn restless_peers_get_each_frame_once() {
    with_port(|port, listener| {
        let before = port.tx_available();
        let mut frames = ArrayVec::<Mbuf, BURST>::new();
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let merges = rng.bool();
            let features = VERSION_1 | GUEST_CSUM | if merges { MRG_RXBUF } else { 0 };
            let mut peer = Peer::accept_with(listener, features, SIZE);
            let is_gone = AtomicBool::new(false);
            await_link(port, true);
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let last = receive_restlessly(&mut peer, seed, merges);
                    drop(peer);
                    is_gone.store(true, Ordering::Relaxed);
                    last
                });
                let (mut queue, mut number) = (TxQueue::new(), 0_u64);
                while !is_gone.load(Ordering::Relaxed) && !thread.is_finished() {
                    port.link_up();
                    for _ in 0..20 {
                        if queue.room() > 0 {
                            let octets = [&number.to_le_bytes()[..], &[number as u8; 500]].concat();
                            let len = 8 + number as usize % 500;
                            let payload = payload(port, &octets[..len]);
                            let part = Part { payload: &payload, range: 0..len };
                            let frame = port.frame(&headers(len), &[part], false).expect("a frame");
                            queue.push(frame).expect("room");
                            number += 1;
                        }
                        port.tx_burst(&mut queue);
                        port.rx_burst(&mut frames);
                        frames.clear();
                    }
                }
                assert!(thread.join().expect("the peer") <= number);
            });
            await_link(port, false);
            assert_eq!(port.tx_available(), before, "seed {seed}");
        }
        assert_eq!(port.stats().tx_dropped, 0);
    });
}

/// Takes frames with ascending numbers, and changes everything that can be changed. Returns how many frames came.
fn receive_restlessly(peer: &mut Peer, seed: u64, merges: bool) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut number = 0;
    for _ in 0..rng.u32(..300) {
        while peer.inbox.offers.wrapping_sub(peer.inbox.found) < rng.u16(1..SIZE) {
            peer.lend(&[if merges { rng.usize(12..400) } else { 1000 }]);
        }
        match rng.u32(..40) {
            0 => peer.restart(INBOX),
            1 => peer.restart(RING),
            2 => assert!(peer.tell(message::SET_FEATURES, &[peer.features | LOG_ALL], &[])),
            3 => assert!(peer.tell(message::SET_FEATURES, &[peer.features], &[])),
            4 => assert!(peer.share(peer_memory(rng.u64(..2)))),
            _ => {}
        }
        while let Some(found) = peer.found() {
            let got = u64::from_le_bytes(found.octets[HEADERS..HEADERS + 8].try_into().expect("a number"));
            assert_eq!(got, number, "seed {seed}");
            assert_eq!(found.octets.len(), HEADERS + 8 + number as usize % 500, "seed {seed}");
            let rest = &found.octets[HEADERS + 8..];
            assert!(rest.iter().all(|octet| *octet == number as u8), "seed {seed}");
            number += 1;
        }
    }
    number
}
