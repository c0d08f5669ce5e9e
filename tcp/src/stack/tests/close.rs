use crate::testing::*;
use crate::*;
use std::time::Duration;

#[test]
fn active_close_waits_passive_does_not() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.send(c, Shared::new(b"last words")).unwrap();
    p.a.stack.close(p.now, c, &mut p.a.out);
    p.settle();
    assert_eq!(p.b.data(s), b"last words");
    assert!(p.b.finished(s));
    assert_eq!(p.a.stack.info(c).unwrap().state, State::FinWait2);
    assert_eq!(p.b.stack.info(s).unwrap().state, State::CloseWait);
    assert_eq!(p.a.stack.send(c, Shared::new(b"x")), Err(SendError::Closed));
    // The other direction still works.
    p.b.stack.send(s, Shared::new(b"reply")).unwrap();
    p.b.stack.close(p.now, s, &mut p.b.out);
    p.settle();
    assert_eq!(p.a.data(c), b"reply");
    assert!(p.a.finished(c));
    assert_eq!(p.a.closed(c), Some(CloseReason::Graceful));
    assert_eq!(p.b.closed(s), Some(CloseReason::Graceful));
    assert_eq!(p.a.stack.census(), (0, 0, 1));
    assert_eq!(p.b.stack.census(), (0, 0, 0));
    p.run(Duration::from_secs(61));
    assert_eq!(p.a.stack.census(), (0, 0, 0));
}

#[test]
fn simultaneous_close() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.close(p.now, c, &mut p.a.out);
    p.b.stack.close(p.now, s, &mut p.b.out);
    p.settle();
    assert_eq!(p.a.closed(c), Some(CloseReason::Graceful));
    assert_eq!(p.b.closed(s), Some(CloseReason::Graceful));
    assert_eq!((p.a.stack.census().2, p.b.stack.census().2), (1, 1));
}

/// Each frame of the closing is lost once.
#[test]
fn any_frame_of_the_closing_may_be_lost() {
    for lost in 0..8 {
        for both in [false, true] {
            let mut p = Pair::new(|_| {});
            let (c, s) = p.connect();
            p.a.stack.close(p.now, c, &mut p.a.out);
            if both {
                p.b.stack.close(p.now, s, &mut p.b.out);
            }
            let mut n = 0;
            let mut wire = |_: Side, _: &Sent| {
                n += 1;
                if n - 1 == lost { Act::Drop } else { Act::Pass }
            };
            p.run_with(Duration::from_secs(3), &mut wire);
            p.b.stack.close(p.now, s, &mut p.b.out);
            p.run_with(Duration::from_secs(5), &mut wire);
            assert_eq!(p.a.closed(c), Some(CloseReason::Graceful), "lost {lost}, both {both}");
            assert_eq!(p.b.closed(s), Some(CloseReason::Graceful), "lost {lost}, both {both}");
        }
    }
}

#[test]
fn abort_resets_the_peer() {
    let mut p = Pair::new(|_| {});
    let (c, s) = p.connect();
    p.a.stack.abort(p.now, c, &mut p.a.out);
    assert_eq!(p.a.stack.info(c), None);
    p.settle();
    assert_eq!(p.b.closed(s), Some(CloseReason::Reset));
    p.a.advance(p.now);
    assert_eq!(p.a.closed(c), Some(CloseReason::Aborted));
    // Calls with the id of a closed connection do nothing.
    p.a.stack.abort(p.now, c, &mut p.a.out);
    p.a.stack.close(p.now, c, &mut p.a.out);
    p.a.stack.output(p.now, c, &mut p.a.out);
    assert_eq!(p.a.stack.room(c), 0);
    assert_eq!(p.a.stack.send(c, Shared::new(b"x")), Err(SendError::Closed));
    assert_eq!(p.settle(), 0);
}

/// We closed our side long ago, and the peer never closes its own.
#[test]
fn fin_wait_2_ends() {
    let mut p = Pair::new(|_| {});
    let (c, _) = p.connect();
    p.a.stack.close(p.now, c, &mut p.a.out);
    p.settle();
    p.run(Duration::from_secs(61));
    assert_eq!(p.a.closed(c), Some(CloseReason::TimedOut));
}

/// A stack does not choose a port again that it has in TIME-WAIT. But its peer may connect from the old port; the new
/// connection then replaces the one in TIME-WAIT.
#[test]
fn time_wait_is_reopened_by_a_newer_syn() {
    let mut p = Pair::new(|_| {});
    p.a = Node::with_ports(config(A), Box::new(Fixed(50_000)));
    let (c, s) = p.connect();
    p.b.stack.close(p.now, s, &mut p.b.out);
    p.settle();
    p.a.stack.close(p.now, c, &mut p.a.out);
    p.settle();
    assert_eq!(p.b.stack.census(), (0, 0, 1));
    p.run(Duration::from_millis(10));
    let (c2, s2) = p.connect();
    assert_ne!(s, s2);
    p.transfer(c2, s2, &pattern(10_000), 1000, Duration::from_secs(1), |_, _| Act::Pass);
    assert_eq!(p.b.stack.census(), (1, 0, 0));
}
