use super::*;

fn link(s: &str) -> Link<Vec<u8>> {
    Link::new(&s.parse().expect(s))
}

/// Sends `n` numbered frames of `len` octets, `gap` nanoseconds apart. Returns the arrivals as (time, number).
fn run(link: &mut Link<Vec<u8>>, n: u32, len: usize, gap: u64) -> Vec<(u64, u32)> {
    for i in 0..n {
        let mut frame = vec![0; len];
        frame[..4].copy_from_slice(&i.to_be_bytes());
        link.push(u64::from(i) * gap, frame);
    }
    let mut out = Vec::new();
    while let Some(at) = link.next_arrival() {
        assert!(at == 0 || link.pop(at - 1).is_none());
        let f = link.pop(at).expect("has arrived");
        out.push((at, u32::from_be_bytes([f[0], f[1], f[2], f[3]])));
    }
    assert!(link.is_empty());
    assert_eq!(link.statistics().delivered, out.len() as u64);
    out
}

#[test]
fn an_unimpaired_link_is_instant_and_in_order() {
    let out = run(&mut link(""), 100, 64, 1000);
    assert_eq!(out, (0..100).map(|i| (u64::from(i) * 1000, i)).collect::<Vec<_>>());
}

#[test]
fn the_same_seed_gives_the_same_arrivals() {
    let s = "loss=0.1,dup=0.1,reorder=0.1,delay=10us,jitter=50us,corrupt=0.1,rate=1gbit,seed=";
    let a = run(&mut link(&format!("{s}1")), 1000, 100, 500);
    assert_eq!(a, run(&mut link(&format!("{s}1")), 1000, 100, 500));
    assert_ne!(a, run(&mut link(&format!("{s}2")), 1000, 100, 500));
}

/// The random decisions about a frame do not depend on the times of the frames, even if a full queue drops some of
/// them.
#[test]
fn decisions_do_not_depend_on_time() {
    let fates = |gap: u64, queue: &str| {
        let s = format!("loss=0.1,dup=0.1,corrupt=0.1,mark=0.1,delay=10us,rate=1gbit{queue},seed=1");
        let mut l = link(&s);
        let mut fates = Vec::new();
        let mut before = l.statistics();
        for i in 0..2000 {
            l.push(i * gap, capable_frame());
            let after = l.statistics();
            let change = |f: fn(&Statistics) -> u64| f(&after) - f(&before);
            fates.push((
                change(|s| s.overflowed),
                [change(|s| s.lost), change(|s| s.duplicated), change(|s| s.corrupted), change(|s| s.marked)],
            ));
            before = after;
        }
        fates
    };
    let calm = fates(100_000, "");
    assert!((0..4).all(|i| calm.iter().any(|f| f.1[i] > 0)) && calm.iter().all(|f| f.0 == 0));
    assert_eq!(fates(1, ",queue=10000"), calm);
    let dropping = fates(300, ",queue=5");
    assert!(dropping.iter().any(|f| f.0 > 0));
    assert!(dropping.iter().zip(&calm).all(|(d, c)| d.0 > 0 || d.1 == c.1));
}

#[test]
fn what_is_under_way_is_bounded() {
    let mut l = link("delay=1ms,limit=10,dup=1");
    (0..100).for_each(|_| l.push(0, vec![0; 100]));
    assert_eq!((l.len(), l.bytes(), l.statistics().over_limit), (10, 1000, 190));
    while l.pop(1_000_000).is_some() {}
    assert_eq!((l.len(), l.bytes()), (0, 0));
    l.push(1_000_000, vec![0; 100]);
    assert_eq!(l.len(), 2);

    let mut l = link("delay=1ms,limit_bytes=1000");
    for n in [400, 400, 201, 200, 1] {
        l.push(0, vec![0; n]);
    }
    assert_eq!((l.len(), l.bytes(), l.statistics().over_limit), (3, 1000, 2));
    assert_eq!(l.pop(1_000_000).map(|f| f.len()), Some(400));
    l.push(0, vec![0; 401]);
    l.push(0, vec![0; 400]);
    assert_eq!((l.len(), l.bytes(), l.statistics().over_limit), (3, 1000, 3));
}

#[test]
fn probabilities_are_kept() {
    let near = |n: u64, p: f64| (n as f64 - 20_000.0 * p).abs() < 5.0 * (20_000.0 * p).sqrt();
    let mut l = link("loss=0.05,seed=3");
    let out = run(&mut l, 20_000, 64, 10);
    assert!(near(l.statistics().lost, 0.05) && out.len() as u64 + l.statistics().lost == 20_000);
    let mut l = link("dup=0.05,seed=3");
    let out = run(&mut l, 20_000, 64, 10);
    assert!(near(l.statistics().duplicated, 0.05));
    assert_eq!(out.len() as u64, 20_000 + l.statistics().duplicated);
    let mut l = link("reorder=0.05,seed=3");
    let out = run(&mut l, 20_000, 64, 1000);
    assert!(near(l.statistics().reordered, 0.05));
    assert!(out.windows(2).filter(|w| w[0].1 > w[1].1).count() > 500);
    let mut l = link("mark=0.05,seed=3");
    (0..20_000).for_each(|i| l.push(i, capable_frame()));
    assert!(near(l.statistics().marked, 0.05));
    let mut l = link("loss=1");
    assert_eq!(run(&mut l, 10, 64, 1), []);
}

#[test]
fn delay_and_jitter_keep_the_order() {
    let out = run(&mut link("delay=50us,jitter=20us,seed=1"), 1000, 64, 100);
    assert!(out.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 < w[1].1));
    assert!(
        out.iter().all(|&(at, i)| at >= u64::from(i) * 100 + 50_000 && at <= u64::from(i) * 100 + 70_000)
    );
    assert!(out.iter().any(|&(at, i)| at > u64::from(i) * 100 + 60_000));
}

#[test]
fn the_rate_spaces_frames_and_the_queue_is_bounded() {
    // 101 octets and 24 of overhead are 1000 bits: 1 µs each at 1 Gbit/s.
    let mut l = link("rate=1gbit,queue=10");
    let out = run(&mut l, 100, 101, 0);
    assert_eq!(out, (0..10).map(|i| (u64::from(i + 1) * 1000, i)).collect::<Vec<_>>());
    assert_eq!(l.statistics().overflowed, 90);
    // If frames come no faster than the rate, none wait.
    let out = run(&mut link("rate=1gbit,queue=1"), 100, 101, 1000);
    assert_eq!(out.len(), 100);
}

#[test]
fn corruption_flips_one_bit() {
    let mut l = link("corrupt=1,dup=1,seed=9");
    l.push(0, vec![0; 100]);
    for _ in 0..2 {
        let f = l.pop(0).expect("arrives");
        assert_eq!(f.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
    }
    l.push(0, vec![]);
    assert!(l.pop(0).is_some_and(|f| f.is_empty()));
}

#[test]
fn swapping_changes_words_but_not_their_sum() {
    let frame: Vec<u8> = (0..200).map(|i| i as u8).collect();
    let sum = |f: &[u8]| f.chunks(2).map(|w| u64::from(w[0]) * 256 + u64::from(w[1])).sum::<u64>();
    let mut l = link("swap=1,seed=9");
    for _ in 0..50 {
        l.push(0, frame.clone());
        let f = l.pop(0).expect("arrives");
        assert_eq!(f[..BEHIND_HEADERS], frame[..BEHIND_HEADERS]);
        assert_eq!(sum(&f), sum(&frame));
    }
    assert!(l.statistics().swapped > 40);
    // Too short for an exchange of words.
    l.push(0, vec![7; 95]);
    assert_eq!(l.pop(0), Some(vec![7; 95]));
}

fn checksum(ip: &[u8]) -> u32 {
    let s: u32 = ip.chunks(2).map(|w| u32::from(w[0]) * 256 + u32::from(w[1])).sum();
    (s & 0xffff) + (s >> 16)
}

/// Returns an IPv4 frame whose type-of-service octet, which has the ECN bits, is `tos`.
fn frame(tos: u8) -> Vec<u8> {
    let mut f = vec![0u8; 60];
    f[12] = 8;
    f[14..34].copy_from_slice(&[0x45, tos, 0, 46, 1, 2, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let c = !(checksum(&f[14..34]) as u16);
    f[24..26].copy_from_slice(&c.to_be_bytes());
    f
}

fn capable_frame() -> Vec<u8> {
    frame(2)
}

#[test]
fn ecn_marks_capable_frames_when_the_queue_is_long() {
    let mut l = link("rate=1gbit,ecn=2");
    for tos in [2, 2, 2, 1, 3, 0] {
        l.push(0, frame(tos));
    }
    let mut tos = Vec::new();
    while let Some(at) = l.next_arrival() {
        let f = l.pop(at).expect("arrives");
        assert_eq!(checksum(&f[14..34]), 0xffff);
        tos.push(f[15]);
    }
    assert_eq!(tos, [2, 2, 3, 3, 3, 0]);
}

#[test]
fn what_is_not_ip_is_never_marked() {
    for n in 0..60 {
        assert!(!mark_congestion(&mut vec![0xff; n]));
    }
}

#[test]
fn bursts_lose_frames_in_a_row() {
    let mut link = link("burst=0.01,burst_len=10,seed=3");
    for n in 0..20_000u64 {
        link.push(n, n.to_be_bytes().to_vec());
    }
    let mut expected = 0;
    let mut longest = 0;
    let (mut gaps, mut lost) = (0, 0);
    while let Some(frame) = link.pop(u64::MAX) {
        let n = u64::from_be_bytes(frame[..8].try_into().expect("eight octets"));
        gaps += u64::from(n > expected);
        lost += n - expected;
        longest = longest.max(n - expected);
        expected = n + 1;
    }
    // One frame in a hundred begins a burst of 5.5 frames on average.
    assert!((140..=220).contains(&gaps), "{gaps}");
    assert!((4 * gaps..=7 * gaps).contains(&lost), "{lost} in {gaps}");
    assert!((10..=20).contains(&longest), "{longest}");
}
