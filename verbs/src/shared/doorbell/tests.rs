use super::*;

/// The counts of rings wrap. No ring is lost then, and none comes twice.
#[test]
fn rings_are_taken_in_order_across_the_wrap() {
    let bells = Doorbells::new(4);
    let start = u32::MAX - 5;
    bells.rung.store(start, Ordering::Relaxed);
    bells.taken.store(start, Ordering::Relaxed);
    for round in 0..5 {
        assert!(bells.is_empty());
        let rung = [10, 11, 12].map(|qpn| qpn + 3 * round);
        rung.iter().for_each(|qpn| bells.ring(*qpn));
        assert!(bells.are_at_most(3) && !bells.are_at_most(2), "round {round}");
        bells.forget(rung[1]);
        assert_eq!(std::iter::from_fn(|| bells.pop()).collect::<Vec<_>>(), [rung[0], rung[2]]);
    }
}
