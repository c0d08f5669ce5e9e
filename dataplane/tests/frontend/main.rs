//! Peers of a `vhost` port that are no urnic: they speak the vhost-user protocol, and serve their rings, as they like.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use urnic_dataplane::{BURST, Mbuf, Port};

use self::peer::{FEATURES, LOG_ALL, LONG, PATIENCE, Peer, RING, await_link, meet, message, with_port};

mod inbox;
mod notices;
mod peer;
mod sending;

/// Receives `n` frames, and returns their numbers, and how many were in place. Gives none of the last burst back.
pub fn receive(port: &mut Port, n: usize) -> (Vec<u8>, usize) {
    let (mut frames, mut numbers, mut borrowed) = (ArrayVec::<Mbuf, BURST>::new(), Vec::new(), 0);
    let start = Instant::now();
    while numbers.len() < n {
        assert!(start.elapsed() < PATIENCE, "{} of {n} frames, {:?}", numbers.len(), port.stats());
        port.rx_burst(&mut frames);
        for mut frame in frames.drain(..) {
            borrowed += usize::from(frame.is_borrowed());
            frame.keep();
            numbers.push(*frame.data().last().expect("a frame"));
        }
    }
    (numbers, borrowed)
}

/// Receives nothing, and so gives back what was lent.
pub fn receive_nothing(port: &mut Port) {
    let mut frames = ArrayVec::<Mbuf, BURST>::new();
    for _ in 0..3 {
        assert_eq!(port.rx_burst(&mut frames), 0);
    }
}

/// A peer that stops its rings learns how far they have been served, whichever ring it stops first. It gets its frames
/// back when it starts the ring there again.
#[test]
fn a_peer_that_stops_learns_how_far_its_ring_was_served() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        (0..5).for_each(|_| peer.offer(LONG));
        assert_eq!(receive(port, 5), ((0..5).collect(), 5));
        receive_nothing(port);
        (0..3).for_each(|_| peer.offer(LONG));
        assert_eq!(receive(port, 3), ((5..8).collect(), 3));
        assert_eq!(peer.used(), 5);
        // Three frames are lent.
        peer.stop(0);
        assert_eq!(peer.stop(RING), 5, "what is lent has not been served");
        await_link(port, false);
        receive_nothing(port);
        assert_eq!(peer.used(), 5, "the ring is stopped");
        peer.offer(LONG);
        peer.start(0, 0);
        peer.start(RING, 5);
        peer.await_handled();
        await_link(port, true);
        assert_eq!(receive(port, 4), ((5..9).collect(), 4));
        receive_nothing(port);
        assert_eq!(peer.used(), 9);
        // The port has not opened this ring yet.
        assert_eq!(peer.stop(RING), 9);
        peer.start(0, 0);
        peer.start(RING, 9);
        peer.await_handled();
        await_link(port, true);
        peer.stop(0);
        assert_eq!(peer.stop(RING), 9);
    });
}

/// The longest packets, in as many buffers as a peer likes, are received as by the driver.
#[test]
fn the_longest_frames_are_split() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        for pieces in [17, 60] {
            peer.offer_longest(pieces);
            let (mut payload, mut frames, start) = (0, ArrayVec::<Mbuf, BURST>::new(), Instant::now());
            while payload < 65535 - 40 {
                assert!(
                    start.elapsed() < PATIENCE,
                    "{payload} octets of {pieces} pieces, {:?}",
                    port.stats()
                );
                port.rx_burst(&mut frames);
                payload += frames.drain(..).map(|frame| frame.len() - 54).sum::<usize>();
            }
            assert_eq!(payload, 65535 - 40);
        }
        assert_eq!(port.stats().rx_dropped, 0);
    });
}

/// A ring that the peer has disabled is not served, until the peer enables it again.
#[test]
fn a_disabled_ring_is_not_served() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        peer.offer(LONG);
        assert_eq!(receive(port, 1), (vec![0], 1));
        let enable = |value: u64| [u64::from(RING) | value << 32];
        assert!(peer.tell(message::SET_VRING_ENABLE, &enable(0), &[]));
        peer.offer(LONG);
        receive_nothing(port);
        assert!(peer.tell(message::SET_VRING_ENABLE, &enable(1), &[]));
        // The frame of before was lent when the ring was disabled.
        assert_eq!(receive(port, 2), (vec![0, 1], 2));
        receive_nothing(port);
        assert_eq!(peer.used(), 2);
    });
}

/// While writes are logged, the driver serves the ring, from where we stopped.
#[test]
fn a_guest_that_is_being_moved_is_left_to_the_driver() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        for (round, features) in [FEATURES, FEATURES | LOG_ALL, FEATURES].into_iter().enumerate() {
            assert!(peer.tell(message::SET_FEATURES, &[features], &[]));
            receive_nothing(port);
            (0..5).for_each(|_| peer.offer(LONG));
            let first = 5 * round as u8;
            let in_place = if features & LOG_ALL == 0 { 5 } else { 0 };
            assert_eq!(receive(port, 5), ((first..first + 5).collect(), in_place));
            receive_nothing(port);
            assert_eq!(peer.used(), peer.offers);
        }
    });
}

/// After a message about memory that fails, the library has no memory of the peer. Nothing may ask it for that,
/// whatever message comes next.
#[test]
fn memory_that_cannot_be_shared_does_no_harm() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        peer.offer(LONG);
        assert_eq!(receive(port, 1), (vec![0], 1));
        // More than the file has can be mapped, but no more than there are addresses.
        assert!(!peer.share(1 << 56));
        assert!(peer.tell(message::SET_VRING_BASE, &[u64::from(RING)], &[]));
        peer.offer(LONG);
        receive_nothing(port);
        drop(peer);
        await_link(port, false);
        let mut peer = meet(port, listener);
        peer.offer(LONG);
        assert_eq!(receive(port, 1), (vec![0], 1));
    });
}

/// The port's thread receives, and notifies the peer, while the peer changes its rings and its memory, and goes.
#[test]
fn peers_that_change_and_go_do_no_harm() {
    with_port(|port, listener| {
        let mut frames = ArrayVec::<Mbuf, BURST>::new();
        for seed in 0..1000 {
            let (mut peer, is_gone) = (Peer::accept(listener), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    peer.be_restless(seed);
                    drop(peer);
                    is_gone.store(true, Ordering::Relaxed);
                });
                while !is_gone.load(Ordering::Relaxed) && !thread.is_finished() {
                    port.link_up();
                    for _ in 0..100 {
                        port.rx_burst(&mut frames);
                        frames.clear();
                    }
                }
                thread.join().expect("the peer");
            });
            await_link(port, false);
        }
    });
}

/// A port closes while the library's thread notices that the peer is gone, and connects to the next one. Without the
/// pause of that thread, one in some 200 closes ended the process.
#[test]
fn ports_close_while_their_peers_are_replaced() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..500 {
        with_port(|port, listener| {
            drop(meet(port, listener));
            let (start, after) = (Instant::now(), Duration::from_nanos(random.u64(..200_000)));
            while start.elapsed() < after {
                std::hint::spin_loop();
            }
        });
    }
}
