use super::*;
use crate::SimClock;

#[test]
fn deliveries_come_in_order_of_time() {
    let impairment = "delay=10us,jitter=100us,reorder=0.2,dup=0.1,seed=4".parse().expect("valid");
    let mut net = Network::new(3, &impairment);
    let clock = SimClock::new(5);
    for i in 0..300usize {
        net.push(clock.now(), i % 3, (i + 1) % 3, vec![i as u8; 60]);
        clock.advance_by(700);
    }
    let mut count = 0;
    let mut last = 0;
    while let Some(at) = net.next_arrival() {
        assert!(at >= last);
        clock.advance_to(at);
        let d = net.pop(at).expect("has arrived");
        assert_eq!((d.at, (d.from + 1) % 3), (at, d.to));
        last = at;
        count += 1;
    }
    assert!(count > 300);
    assert!(clock.now() >= last);
}

#[test]
fn links_are_independent() {
    let mut net: Network<Vec<u8>> = Network::pair(&Impairment::default());
    let cut = Impairment { loss: 1.0, ..Impairment::default() };
    net.link_mut(0, 1).expect("exists").set_impairment(&cut);
    net.push(0, 0, 1, vec![1]);
    net.push(0, 1, 0, vec![2]);
    assert_eq!(net.pop(0), Some(Delivery { at: 0, from: 1, to: 0, frame: vec![2] }));
    assert_eq!(net.pop(0), None);
    net.push(0, 7, 0, vec![1]);
    assert!(net.link(0, 2).is_none());
    assert_eq!(net.next_arrival(), None);
}

#[test]
fn random_sequences_differ() {
    let impairment = "loss=0.5,seed=1".parse().expect("valid");
    let mut net = Network::pair(&impairment);
    for i in 0..64 {
        net.push(i, 0, 1, vec![i as u8]);
        net.push(i, 1, 0, vec![i as u8]);
    }
    let mut seen = [Vec::new(), Vec::new()];
    while let Some(d) = net.pop(u64::MAX) {
        seen[d.to].push(d.frame);
    }
    assert_ne!(seen[0], seen[1]);
}

#[test]
fn broadcast_reaches_all_others() {
    let mut net = Network::new(4, &Impairment::default());
    net.broadcast(0, 2, &vec![9]);
    let mut to: Vec<_> = std::iter::from_fn(|| net.pop(0)).map(|d| d.to).collect();
    to.sort();
    assert_eq!(to, [0, 1, 3]);
}
