use super::*;

const MIN_RTT: Duration = Duration::from_millis(4);

/// Returns the reordering window, in quarters of the minimum round-trip time.
fn window(r: &Rack) -> u32 {
    let patience = r.patience(false, MIN_RTT, Duration::from_secs(1));
    (4 * patience.as_nanos() / MIN_RTT.as_nanos()) as u32
}

fn with_duplicates(rounds: u32) -> Rack {
    let mut r = Rack::new(Seq(0));
    for i in 0..rounds {
        r.on_dsack(Seq(100 * i), Seq(100 * i + 100));
    }
    r
}

/// RFC 8985 §6.2 step 4: the window grows once per round trip.
#[test]
fn a_round_trip_with_duplicates_widens_the_window_once() {
    assert_eq!(window(&Rack::new(Seq(0))), 1);
    let mut r = with_duplicates(1);
    assert_eq!(window(&r), 2);
    r.on_dsack(Seq(99), Seq(200));
    assert_eq!(window(&r), 2);
    r.on_dsack(Seq(100), Seq(200));
    assert_eq!(window(&r), 3);
    // The window is no longer than the smoothed round-trip time.
    assert_eq!(with_duplicates(300).patience(false, MIN_RTT, MIN_RTT), MIN_RTT);
}

/// RFC 8985 §6.2 step 4: after sixteen recoveries without a duplicate, the window has its initial size again.
#[test]
fn recoveries_without_duplicates_make_the_window_small_again() {
    let mut r = with_duplicates(4);
    for _ in 0..15 {
        r.on_recovery_exit();
        assert_eq!(window(&r), 5);
    }
    r.on_recovery_exit();
    assert_eq!(window(&r), 1);
    // A duplicate restarts the count.
    let mut r = with_duplicates(4);
    (0..15).for_each(|_| r.on_recovery_exit());
    r.on_dsack(Seq(1000), Seq(1100));
    (0..15).for_each(|_| r.on_recovery_exit());
    assert_eq!(window(&r), 6);
}

/// RFC 8985 §6.2 step 4: once the round trip of a duplicate is over, it stays over. Later, sequence numbers wrap so far
/// that the end of this round trip seems to lie ahead again.
#[test]
fn a_round_trip_of_long_ago_is_over() {
    let mut r = with_duplicates(1);
    for una in (1..=3).map(|i| Seq(i << 30)) {
        r.follow(una);
    }
    r.on_dsack(Seq(3 << 30), Seq((3 << 30) + 100));
    assert_eq!(window(&r), 3);
}

/// RFC 8985 §6.2 step 3: after the first reordering, `reordering` stays set, in whatever order later segments arrive.
#[test]
fn reordering_once_seen_stays_seen() {
    let mut r = Rack::new(Seq(1000));
    let arrived = |end| {
        let mut d = Delivered::new(Seq(0));
        (d.lowest_original, d.highest) = (Some(Seq(end)), Some(Seq(end)));
        d
    };
    for (end, seen) in [(2000, false), (3000, false), (2500, true), (2400, true), (4000, true)] {
        r.update(&arrived(end), Seq(1000), Time::from_secs(1), MIN_RTT);
        assert_eq!(r.reordering, seen, "{end}");
    }
}
