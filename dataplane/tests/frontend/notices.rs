//! When a peer is notified, and when its chains come back.

use arrayvec::ArrayVec;
use urnic_dataplane::{BURST, Mbuf, TxQueue};

use super::inbox::INBOX;
use super::peer::{FEATURES, LOG_ALL, LONG, MRG_RXBUF, RING, SIZE, meet, meet_with, message, with_port};
use super::sending::queue_frame;
use super::{receive, receive_nothing};

const SHORT: usize = 100;

/// A peer that wants notifications of frames is notified with each burst.
#[test]
fn a_receiver_that_sleeps_is_notified() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        let mut queue = TxQueue::new();
        for n in 0..3 {
            peer.lend(&[1000]);
            peer.was_notified();
            queue_frame(port, &mut queue, n, 100);
            port.tx_burst(&mut queue);
            assert!(peer.was_notified());
            receive_nothing(port);
            assert!(!peer.was_notified(), "it was notified already");
        }
    });
}

/// A peer that begins to want notifications when a frame is already there may have missed it. It is notified when the
/// port receives next, and not again.
#[test]
fn a_receiver_that_goes_to_sleep_is_notified() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        let mut queue = TxQueue::new();
        for n in 0..3 {
            peer.lend(&[1000]);
            peer.want_notifications(INBOX, false);
            peer.was_notified();
            queue_frame(port, &mut queue, n, 100);
            port.tx_burst(&mut queue);
            assert!(!peer.was_notified());
            peer.want_notifications(INBOX, true);
            receive_nothing(port);
            assert!(peer.was_notified());
            receive_nothing(port);
            assert!(!peer.was_notified());
        }
    });
}

/// A peer that goes to sleep while one of its messages is being handled is notified afterwards, whoever serves its ring
/// then.
#[test]
fn a_receiver_that_goes_to_sleep_during_a_message_is_notified() {
    for features in [FEATURES, FEATURES | LOG_ALL] {
        with_port(|port, listener| {
            let mut peer = meet(port, listener);
            let (mut queue, mut waiting) = (TxQueue::new(), TxQueue::new());
            peer.lend(&[1000]);
            peer.want_notifications(INBOX, false);
            queue_frame(port, &mut queue, 1, 100);
            port.tx_burst(&mut queue);
            peer.was_notified();
            peer.want_notifications(INBOX, true);
            // After a message that fails, nothing is served until the next one, as if it were still being handled.
            assert!(!peer.tell(message::SET_FEATURES, &[FEATURES | MRG_RXBUF], &[]));
            queue_frame(port, &mut waiting, 2, 100);
            assert_eq!(port.tx_burst(&mut waiting), 0);
            receive_nothing(port);
            assert!(!peer.was_notified());
            assert!(peer.tell(message::SET_FEATURES, &[features], &[]));
            peer.was_notified();
            receive_nothing(port);
            assert!(peer.was_notified());
            receive_nothing(port);
            assert!(!peer.was_notified());
        });
    }
}

/// A peer that begins to want notifications of its frames when these were given back just then is notified when the
/// port finds no frames.
#[test]
fn a_sender_that_goes_to_sleep_is_notified() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        // The frames of the first round come back together, that of the second when it is no longer in use.
        for (frames, len) in [(16, SHORT), (1, LONG)] {
            peer.want_notifications(RING, false);
            peer.was_notified();
            let mut frames_in = ArrayVec::<Mbuf, BURST>::new();
            (0..frames).for_each(|_| peer.offer(len));
            assert_eq!(port.rx_burst(&mut frames_in), frames);
            frames_in.clear();
            if len == LONG {
                peer.offer(SHORT);
                assert_eq!(port.rx_burst(&mut frames_in), 1);
                frames_in.clear();
            }
            peer.want_notifications(RING, true);
            assert!(!peer.was_notified());
            receive_nothing(port);
            assert!(peer.was_notified());
            receive_nothing(port);
            assert!(!peer.was_notified());
        }
    });
}

/// Chains of short frames come back 32 at a time, or earlier if the ring is small.
#[test]
fn chains_of_short_frames_come_back_together() {
    for (size, together) in [(256, 32), (SIZE, 16), (4, 1), (2, 1), (1, 1)] {
        with_port(|port, listener| {
            let mut peer = meet_with(port, listener, FEATURES, size);
            peer.want_notifications(RING, false);
            for n in 1..=100_u16 {
                peer.offer(SHORT);
                receive(port, 1);
                assert_eq!(peer.used(), n - n % together, "ring of {size}");
            }
            assert!(!peer.was_notified());
        });
    }
}

/// Chains that wait come back when nothing has come for a while.
#[test]
fn chains_come_back_when_it_is_quiet() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        peer.want_notifications(RING, false);
        for round in 1..4 {
            (0..3).for_each(|_| peer.offer(SHORT));
            receive(port, 3);
            (0..300).for_each(|_| receive_nothing(port));
            assert_eq!(peer.used(), 3 * (round - 1));
            (0..100).for_each(|_| receive_nothing(port));
            assert_eq!(peer.used(), 3 * round);
        }
        // Also if a long frame has come meanwhile.
        peer.offer(SHORT);
        peer.offer(LONG);
        peer.offer(SHORT);
        receive(port, 3);
        receive_nothing(port);
        assert_eq!(peer.used(), 12);
    });
}

/// Chains come back at once to a peer that wants to be notified of them, and it is notified.
#[test]
fn chains_come_back_at_once_to_a_peer_that_waits_for_them() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        peer.was_notified();
        for n in 1..5 {
            peer.offer(SHORT);
            receive(port, 1);
            assert_eq!(peer.used(), n);
            assert!(peer.was_notified());
        }
        // It begins to wait while chains wait.
        peer.want_notifications(RING, false);
        peer.offer(SHORT);
        receive(port, 1);
        assert_eq!(peer.used(), 4);
        peer.want_notifications(RING, true);
        (0..400).for_each(|_| receive_nothing(port));
        assert_eq!(peer.used(), 5);
        assert!(peer.was_notified());
    });
}

/// Chains that wait come back before the port sleeps until the next frame comes. If the driver takes the ring over
/// before, their frames come again.
#[test]
fn chains_come_back_before_the_port_sleeps() {
    with_port(|port, listener| {
        let mut peer = meet(port, listener);
        peer.want_notifications(RING, false);
        peer.offer(SHORT);
        receive(port, 1);
        assert_eq!(peer.used(), 0);
        let _event = port.arm();
        assert_eq!(peer.used(), 1);
        peer.offer(SHORT);
        receive(port, 1);
        assert_eq!(peer.used(), 1);
        assert!(peer.tell(message::SET_FEATURES, &[FEATURES | LOG_ALL], &[]));
        peer.offer(SHORT);
        // The driver begins with the frame that was received but not given back.
        assert_eq!(receive(port, 2), (vec![1, 2], 0));
    });
}
