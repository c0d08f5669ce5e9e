use super::*;
use proptest::prelude::*;

const MSS: u32 = 100;

fn block(start: u32, end: u32) -> Block {
    Block::new(Seq(start), Seq(end))
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// Returns a scoreboard with twenty segments of 100 octets from 1000 on, sent one per millisecond, of which `blocks`
/// are SACKed.
fn with(blocks: &[(u32, u32)]) -> Scoreboard {
    let mut s = Scoreboard::new(Seq(1000));
    for i in 1..=20 {
        s.sent(Seq(1000 + 100 * i), at(u64::from(i)));
    }
    for &(a, b) in blocks {
        s.sack(&[block(a, b)], &mut Delivered::new(Seq(0)));
    }
    s
}

fn yardstick(sent: u64, end: u32, patience: u64, now: u64) -> RackReference {
    let latest = Sent { at: at(sent), end: Seq(end), again: false };
    RackReference { latest, patience: Duration::from_millis(patience), now: at(now) }
}

fn found(s: &mut Scoreboard, y: &RackReference) -> (u32, Option<Time>) {
    let found = s.detect_lost(y);
    (found.lost, found.due)
}

#[test]
fn a_burst_is_one_run() {
    let mut s = Scoreboard::new(Seq(0));
    for i in 1..=50 {
        s.sent(Seq(i * 100), at(u64::from(i) / 10));
    }
    assert_eq!(s.runs.len(), 6);
    let mut d = Delivered::new(Seq(5000));
    s.acknowledge(Seq(2500), &mut d);
    assert_eq!((d.octets, s.runs.len()), (2500, 4));
    assert_eq!(d.newest, Some(Sent { at: at(2), end: Seq(2500), again: false }));
    s.acknowledge(Seq(5000), &mut d);
    assert!(s.runs.is_empty());
    s.shrink();
    assert!(s.runs.capacity() <= 2 * IDLE_CAPACITY);
}

#[test]
fn memory_that_a_long_burst_needed_goes_back() {
    let mut s = Scoreboard::new(Seq(0));
    for i in 1..=100 {
        s.sent(Seq(i * 100), at(u64::from(i)));
    }
    s.acknowledge(Seq(9500), &mut Delivered::new(Seq(0)));
    s.shrink();
    assert!(s.runs.capacity() >= 100, "five runs are more than an idle connection has");
    s.acknowledge(Seq(9600), &mut Delivered::new(Seq(0)));
    s.shrink();
    assert!(s.runs.capacity() <= 2 * IDLE_CAPACITY);
}

#[test]
fn what_goes_again_together_is_one_run() {
    let mut s = with(&[]);
    s.on_timeout(at(30));
    for i in 0..5 {
        s.sent_again(Seq(1000 + 100 * i)..Seq(1100 + 100 * i), at(31));
    }
    assert_eq!((s.runs.len(), s.lost()), (16, 1500));
    // A run that was sent again is not merged with octets that were sent again at another time, or sent for the first
    // time.
    s.sent_again(Seq(1500)..Seq(1600), at(32));
    s.sent(Seq(3100), at(32));
    assert_eq!((s.runs.len(), s.lost()), (17, 1400));
}

#[test]
fn sacked_or_lost_is_disturbed() {
    assert!(!with(&[]).is_disturbed());
    let mut s = with(&[(1300, 1400)]);
    assert!(s.is_disturbed());
    found(&mut s, &yardstick(4, 1400, 10, 14));
    assert!((s.sacked(), s.lost()) == (100, 300) && s.is_disturbed());
    let mut lost = with(&[]);
    lost.on_timeout(at(0));
    assert!((lost.sacked(), lost.lost()) == (0, 100) && lost.is_disturbed());
    // The scoreboard is also disturbed if as many octets are SACKed as are lost.
    let mut s = with(&[(1100, 1200)]);
    s.on_timeout(at(0));
    assert!(s.sacked() == s.lost() && s.is_disturbed());
}

#[test]
fn three_ranges_or_more_than_two_segments_mean_loss() {
    assert!(!with(&[(1100, 1200)]).dup_thresh_reached(MSS));
    assert!(!with(&[(1100, 1300)]).dup_thresh_reached(MSS));
    assert!(with(&[(1100, 1301)]).dup_thresh_reached(MSS));
    assert!(with(&[(1100, 1101), (1200, 1201), (1300, 1301)]).dup_thresh_reached(MSS));
}

/// RFC 8985 §6.2 step 5.
#[test]
fn what_was_sent_before_what_arrived_is_lost_in_time() {
    let mut s = with(&[(1300, 1400)]);
    // 1300..1400 was sent at 4 ms and took 10 ms; the reordering window is 2 ms.
    let (lost, due) = found(&mut s, &yardstick(4, 1400, 12, 14));
    assert_eq!((lost, due), (200, Some(at(15)))); // lost: sent at 1 and 2 ms; the segment sent at 3 ms has 1 ms left
    assert_eq!(s.next_lost(), Some(Seq(1000)..Seq(1200)));
    let (lost, due) = found(&mut s, &yardstick(4, 1400, 12, 15));
    assert_eq!((lost, due, s.lost()), (100, None, 300));
    s.sent_again(Seq(1000)..Seq(1100), at(15));
    assert_eq!((s.lost(), s.next_lost()), (200, Some(Seq(1100)..Seq(1300))));
    s.sent_again(Seq(1100)..Seq(1300), at(15));
    assert_eq!((s.lost(), s.next_lost()), (0, None));
    // Once a segment arrives that was sent after a retransmission, the retransmission is lost.
    s.sent(Seq(3100), at(26));
    let mut d = Delivered::new(Seq(0));
    s.sack(&[block(3000, 3100)], &mut d);
    assert_eq!(d.newest, Some(Sent { at: at(26), end: Seq(3100), again: false }));
    let (lost, _) = found(&mut s, &yardstick(26, 3100, 10, 36));
    assert_eq!(lost, 300 + 1600);
}

#[test]
fn sent_at_the_same_time_order_decides() {
    let mut s = Scoreboard::new(Seq(0));
    s.sent(Seq(1000), at(1));
    s.sack(&[block(400, 500)], &mut Delivered::new(Seq(0)));
    let (lost, due) = found(&mut s, &yardstick(1, 500, 1, 2));
    assert_eq!((lost, due), (400, None));
    assert_eq!(s.next_lost(), Some(Seq(0)..Seq(400)));
}

#[test]
fn reneging_makes_it_lost() {
    let mut s = with(&[(1100, 1200), (1300, 1600)]);
    assert!(!s.drop_reneged());
    // The ACK stops at a SACKed range, so the receiver has discarded it.
    s.acknowledge(Seq(1100), &mut Delivered::new(Seq(0)));
    assert!(s.drop_reneged());
    assert_eq!((s.sacked(), s.lost()), (0, 400));
    assert_eq!(s.next_lost(), Some(Seq(1100)..Seq(1200)));
}

#[test]
fn a_timeout_loses_all_but_the_recent() {
    let mut s = with(&[(1100, 1200)]);
    s.on_timeout(at(10));
    assert_eq!((s.lost(), s.sacked()), (900, 100));
    s.revive_lost();
    assert_eq!((s.lost(), s.next_lost()), (0, None));
    s.on_timeout(at(0));
    assert_eq!(s.lost(), 100);
}

#[test]
fn duplicates_are_not_sacks() {
    let mut s = with(&[]);
    let mut d = Delivered::new(Seq(0));
    // RFC 2883 §5: below the ACK, or inside the second block.
    assert_eq!(s.sack(&[block(900, 1000), block(1500, 1600)], &mut d), Some(block(900, 1000)));
    assert_eq!(d.sacked, 100);
    let mut d = Delivered::new(Seq(0));
    assert_eq!(s.sack(&[block(1500, 1550), block(1500, 1600)], &mut d), Some(block(1500, 1550)));
    assert_eq!(d.sacked, 0);
}

/// RFC 2018 §3: a block lies above the ACK, is not empty, and covers only octets that were sent.
#[test]
fn nonsense_is_no_sack() {
    let mut s = with(&[]);
    let mut d = Delivered::new(Seq(0));
    for (a, b) in [(1000, 1100), (1300, 1300), (1400, 1300), (2900, 3001), (900, 1100)] {
        s.sack(&[block(a, b)], &mut d);
        assert_eq!((d.sacked, s.sacked(), s.runs.len()), (0, 0, 20), "{a}..{b}");
        assert_eq!(s.audit(Seq(1000), Seq(3000)), Ok(()), "{a}..{b}");
    }
    s.sack(&[block(2900, 3000)], &mut d);
    assert_eq!((d.sacked, s.sacked()), (100, 100));
}

#[test]
fn ranges_are_bounded() {
    let mut s = Scoreboard::new(Seq(0));
    s.sent(Seq(100_000), at(1));
    for i in 0..3000 {
        s.sack(&[block(2 + 4 * i, 3 + 4 * i)], &mut Delivered::new(Seq(0)));
    }
    assert_eq!((s.ranges, s.sacked()), (MAX_RANGES, MAX_RANGES));
    assert!(s.runs.len() <= 2 * MAX_RANGES as usize + 1);
    // Ranges that are kept still grow.
    s.sack(&[block(2, 10)], &mut Delivered::new(Seq(0)));
    assert_eq!((s.ranges, s.sacked()), (MAX_RANGES - 2, MAX_RANGES + 6));
}

/// A model of the scoreboard with one entry per octet.
#[derive(Clone)]
struct Model {
    una: u32,
    octets: Vec<Run>,
}

impl Model {
    fn each(&mut self, range: Range<u32>, mut f: impl FnMut(&mut Run)) {
        for o in &mut self.octets {
            if range.contains(&(o.end.0.wrapping_sub(1))) {
                f(o);
            }
        }
    }

    fn count(&self, fate: Fate) -> u32 {
        self.octets.iter().filter(|o| o.fate == fate).count() as u32
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Ack(u32),
    Sack(Vec<(u32, u32)>),
    Detect { sent: u64, end: u32, patience: u64 },
    SendLost(u32),
    SendAgain(u32, u32),
    Timeout(u64),
    Lose(u32, u32),
    Revive,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..30).prop_map(Step::Send),
        2 => (0u32..20).prop_map(Step::Ack),
        4 => prop::collection::vec((0u32..60, 1u32..20), 1..4).prop_map(Step::Sack),
        3 => (0u64..60, 0u32..80, 0u64..20).prop_map(|(sent, end, patience)| Step::Detect { sent, end, patience }),
        4 => (1u32..10).prop_map(Step::SendLost),
        2 => (0u32..60, 1u32..20).prop_map(|(from, n)| Step::SendAgain(from, n)),
        1 => (0u64..60).prop_map(Step::Timeout),
        1 => (0u32..60, 0u32..40).prop_map(|(a, n)| Step::Lose(a, n)),
        1 => Just(Step::Revive),
    ]
}

proptest! {
    #[test]
    fn runs_are_octets(steps in prop::collection::vec(step(), 1..60)) {
        let base = 0x7fff_fff0u32;
        let mut s = Scoreboard::new(Seq(base));
        let mut m = Model { una: base, octets: Vec::new() };
        let mut nxt = base;
        for (i, step) in steps.into_iter().enumerate() {
            let now = at(i as u64);
            match step {
                Step::Send(n) => {
                    for k in 1..=n {
                        m.octets.push(Run { end: Seq(nxt + k), fate: Fate::Sent, again: false, at: now });
                    }
                    nxt += n;
                    s.sent(Seq(nxt), now);
                }
                Step::Ack(n) => {
                    let una = (m.una + n).min(nxt);
                    let mut d = Delivered::new(Seq(0));
                    s.acknowledge(Seq(una), &mut d);
                    let (gone, left): (Vec<Run>, Vec<Run>) = m.octets.iter().partition(|o| o.end.0 <= una);
                    prop_assert_eq!(d.octets as usize, gone.iter().filter(|o| o.fate != Fate::Sacked).count());
                    let newest = gone.iter().filter(|o| o.fate != Fate::Sacked).map(|o| o.at).max();
                    prop_assert_eq!(d.newest.map(|n| n.at), newest);
                    (m.una, m.octets) = (una, left);
                    let reneged = s.drop_reneged();
                    prop_assert_eq!(reneged, m.octets.first().is_some_and(|o| o.fate == Fate::Sacked));
                    if reneged {
                        // The scoreboard does not keep a sending time for each SACKed octet, so the model takes over
                        // that of the run.
                        for run in &s.runs {
                            m.each(una..run.end.0, |o| if o.fate == Fate::Sacked {
                                *o = Run { end: o.end, ..*run };
                            });
                        }
                    }
                }
                Step::Sack(blocks) => {
                    let blocks: Vec<Block> =
                        blocks.iter().map(|&(a, n)| block(m.una + 1 + a, m.una + 1 + a + n)).collect();
                    let mut d = Delivered::new(Seq(0));
                    s.sack(&blocks, &mut d);
                    let before = m.count(Fate::Sacked);
                    for b in blocks.iter().filter(|b| b.end.0 <= nxt) {
                        m.each(b.start.0..b.end.0, |o| o.fate = Fate::Sacked);
                    }
                    prop_assert_eq!(d.sacked, m.count(Fate::Sacked) - before);
                }
                Step::Detect { sent, end, patience } => {
                    // The arrived segment may lie anywhere, and may have been sent at any time up to now.
                    let y = RackReference {
                        latest: Sent { at: at(sent.min(i as u64)), end: Seq(m.una + end), again: end % 2 == 1 },
                        patience: Duration::from_millis(patience),
                        now,
                    };
                    let (lost, due) = found(&mut s, &y);
                    let before = m.count(Fate::Lost);
                    let mut latest = None;
                    // The scoreboard compares only the end of a run, so the model uses this end for every octet of the
                    // run.
                    let mut start = m.una;
                    for run in s.runs.clone() {
                        m.each(start..run.end.0, |o| {
                            let sent = Sent { at: o.at, end: run.end, again: o.again };
                            let later = sent.after(&y.latest);
                            if o.fate == Fate::Sent && !later {
                                if o.at + y.patience <= now {
                                    o.fate = Fate::Lost;
                                } else {
                                    latest = latest.max(Some(o.at + y.patience));
                                }
                            }
                        });
                        start = run.end.0;
                    }
                    prop_assert_eq!((lost, due), (m.count(Fate::Lost) - before, latest));
                }
                Step::SendLost(n) => {
                    let first = m.octets.iter().find(|o| o.fate == Fate::Lost).map(|o| o.end - 1);
                    let lost = s.next_lost();
                    prop_assert_eq!(lost.as_ref().map(|r| r.start), first);
                    if let Some(r) = lost {
                        let end = r.end.min(r.start + n);
                        s.sent_again(r.start..end, now);
                        m.each(r.start.0..end.0, |o| *o = Run { fate: Fate::Sent, again: true, at: now, ..*o });
                    }
                }
                Step::SendAgain(from, n) => {
                    // Any range may be sent again; its SACKed octets stay SACKed.
                    let (from, end) = ((m.una + from).min(nxt), (m.una + from + n).min(nxt));
                    s.sent_again(Seq(from)..Seq(end), now);
                    m.each(from..end, |o| if o.fate != Fate::Sacked {
                        *o = Run { fate: Fate::Sent, again: true, at: now, ..*o };
                    });
                }
                Step::Timeout(recent) => {
                    s.on_timeout(at(recent));
                    let first = s.runs.front().map_or(m.una, |r| r.end.0);
                    let una = m.una;
                    m.each(una..nxt, |o| {
                        if o.fate == Fate::Sent && (o.at <= at(recent) || o.end.0 <= first) {
                            o.fate = Fate::Lost;
                        }
                    });
                }
                Step::Lose(a, n) => {
                    let (start, end) = ((m.una + a).min(nxt), (m.una + a + n).min(nxt));
                    s.lose(Seq(start)..Seq(end));
                    m.each(start..end, |o| if o.fate == Fate::Sent { o.fate = Fate::Lost });
                }
                Step::Revive => {
                    s.revive_lost();
                    m.each(base..nxt, |o| if o.fate == Fate::Lost { o.fate = Fate::Sent });
                }
            }
            // The runs agree with the model about every octet, and the sums are right.
            let mut octets = Vec::new();
            let mut start = s.una.0;
            for r in &s.runs {
                prop_assert!(start < r.end.0, "an empty run");
                octets.extend((start + 1..=r.end.0).map(|end| Run { end: Seq(end), ..*r }));
                start = r.end.0;
            }
            let told = |o: &Run| (o.end, o.fate, (o.fate != Fate::Sacked).then_some((o.again, o.at)));
            prop_assert_eq!(octets.iter().map(told).collect::<Vec<_>>(), m.octets.iter().map(told).collect::<Vec<_>>());
            prop_assert_eq!((s.sacked(), s.lost()), (m.count(Fate::Sacked), m.count(Fate::Lost)));
            prop_assert_eq!(s.audit(Seq(m.una), Seq(nxt)), Ok(()));
            let ranges = s.runs.iter().filter(|r| r.fate == Fate::Sacked).count() as u32;
            prop_assert_eq!(s.ranges, ranges);
        }
    }
}
