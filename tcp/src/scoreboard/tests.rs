use super::*;
use proptest::prelude::*;

const MSS: u32 = 100;

fn block(start: u32, end: u32) -> Block {
    Block::new(Seq(start), Seq(end))
}

fn seqs(r: Range<u32>) -> Range<Seq> {
    Seq(r.start)..Seq(r.end)
}

/// 2000 octets from 1000 on are outstanding, these are SACKed.
fn with(blocks: &[(u32, u32)]) -> Scoreboard {
    let mut s = Scoreboard::new(Seq(1000));
    for &(a, b) in blocks {
        s.update(&[block(a, b)], Seq(1000), Seq(3000), MSS);
    }
    s
}

#[test]
fn three_ranges_or_more_than_two_segments_mean_loss() {
    assert!(!with(&[(1100, 1200)]).is_lost(Seq(1000)));
    assert!(!with(&[(1100, 1300)]).is_lost(Seq(1000)));
    assert!(with(&[(1100, 1301)]).is_lost(Seq(1000)));
    let s = with(&[(1100, 1101), (1200, 1201), (1300, 1301)]);
    assert!(s.is_lost(Seq(1000)) && s.is_lost(Seq(1099)));
    assert!(!s.is_lost(Seq(1101)));
}

#[test]
fn fast_retransmit_then_new_data_then_rescue() {
    let (nxt, point) = (Seq(3000), Seq(3000));
    let mut s = with(&[(1100, 1200), (1300, 1600)]);
    s.enter_recovery(Seq(1100));
    // Pipe: what is not lost above 1600, and the retransmission of 1000..1100.
    assert_eq!(s.pipe(nxt), 1400 + 100);
    assert_eq!(s.next_seg(nxt, point, MSS, true), Some(NextSeg::Retransmit(seqs(1200..1300)))); // (1)
    s.retransmitted(Seq(1300));
    assert_eq!(s.pipe(nxt), 1400 + 200);
    assert_eq!(s.next_seg(nxt, point, MSS, true), Some(NextSeg::New)); // (2)
    assert_eq!(s.next_seg(nxt, point, MSS, false), None); // a rescue only after progress
    s.update(&[block(1300, 1600)], Seq(1200), nxt, MSS);
    assert_eq!(s.next_seg(nxt, point, MSS, false), Some(NextSeg::Rescue(seqs(2900..3000)))); // (4)
    assert_eq!(s.next_seg(nxt, point, MSS, false), None); // once
}

#[test]
fn rule_3_retransmits_what_is_not_yet_lost() {
    let mut s = with(&[(1100, 1500), (1600, 1700)]);
    s.enter_recovery(Seq(1100));
    assert_eq!(s.next_seg(Seq(3000), Seq(3000), MSS, true), Some(NextSeg::New));
    assert_eq!(s.next_seg(Seq(3000), Seq(3000), MSS, false), Some(NextSeg::Retransmit(seqs(1500..1600))));
}

#[test]
fn reneging_forgets_everything() {
    let mut s = with(&[(1100, 1200), (1300, 1600)]);
    // The ACK stops at a range that was SACKed: it is not there any more.
    let u = s.update(&[], Seq(1100), Seq(3000), MSS);
    assert!(u.reneged && s.is_empty());
    assert!(!s.is_lost(Seq(1100)));
    assert_eq!(s.pipe(Seq(3000)), 1900);
    let mut s = with(&[(1100, 1200), (1300, 1600)]);
    s.on_rto();
    assert!(s.is_empty());
}

#[test]
fn duplicates_are_not_sacks() {
    let mut s = with(&[]);
    // RFC 2883 §5: below the ACK, or inside of the second block.
    let u = s.update(&[block(900, 1000), block(1500, 1600)], Seq(1000), Seq(3000), MSS);
    assert_eq!((u.newly_sacked, u.duplicate), (100, Some((Seq(900), Seq(1000)))));
    let u = s.update(&[block(1500, 1550), block(1500, 1600)], Seq(1000), Seq(3000), MSS);
    assert_eq!((u.newly_sacked, u.duplicate), (0, Some((Seq(1500), Seq(1550)))));
}

/// Sequence numbers half the space apart compare either way round: such a block is behind and ahead at once.
#[test]
fn a_block_from_the_other_side_of_the_space_is_ignored() {
    let mut s = Scoreboard::new(Seq(3_314_970_477));
    let far = block(1_108_536_299, 2_203_331_884);
    let update = s.update(&[far], Seq(3_314_970_477), Seq(3_314_970_477), 1000);
    assert_eq!(update.newly_sacked, 0);
    assert!(s.is_empty());
    assert_eq!(s.pipe(Seq(3_314_970_477)), 0);
}

#[test]
fn nonsense_is_ignored() {
    let mut s = with(&[]);
    let bad = [block(2900, 3001), block(1000, 1100), block(1300, 1200), block(1, 2), block(1200, 1200)];
    assert_eq!(s.update(&bad, Seq(1000), Seq(3000), MSS).newly_sacked, 0);
    assert!(s.is_empty());
}

#[test]
fn ranges_are_bounded() {
    let mut s = Scoreboard::new(Seq(0));
    for i in 0..100_000 {
        s.update(&[block(2 * i + 1, 2 * i + 2)], Seq(0), Seq(1 << 20), MSS);
    }
    assert!(s.sacked.len() <= MAX_RANGES);
    // Merging goes on.
    s.update(&[block(1, 400)], Seq(0), Seq(1 << 20), MSS);
    assert!(s.octets >= 399);
}

/// RFC 6675 octet by octet.
struct Model {
    sacked: Vec<bool>,
    una: usize,
    nxt: usize,
    high_rxt: usize,
}

impl Model {
    fn is_lost(&self, s: usize) -> bool {
        let above = &self.sacked[s.min(self.nxt)..self.nxt];
        let octets = above.iter().filter(|x| **x).count();
        let ranges = (0..above.len()).filter(|&i| above[i] && (i == 0 || !above[i - 1])).count();
        ranges >= 3 || octets > 2 * MSS as usize
    }

    fn open(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        (self.una..self.nxt).filter(|&i| !self.sacked[i])
    }

    fn pipe(&self) -> usize {
        self.open().map(|s| usize::from(!self.is_lost(s)) + usize::from(s < self.high_rxt)).sum()
    }

    fn next(&self, new_data: bool) -> Option<(bool, usize)> {
        let top = (self.una..self.nxt).rev().find(|&i| self.sacked[i]);
        let hole = self.open().find(|&s| s >= self.high_rxt && top.is_some_and(|t| s < t));
        match hole {
            Some(s) if self.is_lost(s) => Some((true, s)),
            _ if new_data => Some((false, self.nxt)),
            Some(s) => Some((true, s)),
            None => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Sack(Vec<(u32, u32)>),
    Ack(u32),
    Next(bool),
    Timeout,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u32..300).prop_map(Step::Send),
        6 => prop::collection::vec((0u32..2000, 1u32..150), 1..4).prop_map(Step::Sack),
        2 => (0u32..400).prop_map(Step::Ack),
        3 => any::<bool>().prop_map(Step::Next),
        1 => Just(Step::Timeout),
    ]
}

proptest! {
    #[test]
    fn agrees_with_the_rfc_octet_by_octet(base in prop_oneof![any::<u32>(), Just(u32::MAX - 700)], steps in prop::collection::vec(step(), 1..60)) {
        let seq = |i: usize| Seq(base.wrapping_add(i as u32));
        let mut s = Scoreboard::new(seq(0));
        let mut m = Model { sacked: vec![false; 30_000], una: 0, nxt: 0, high_rxt: 0 };
        for step in steps {
            match step {
                Step::Send(n) => m.nxt += n as usize,
                Step::Sack(blocks) => {
                    let mut wire = Vec::new();
                    let mut newly = 0;
                    for (at, len) in blocks {
                        let (from, to) = (m.una + at as usize, m.una + (at + len) as usize);
                        wire.push(Block::new(seq(from), seq(to)));
                        if from > m.una && to <= m.nxt {
                            newly += m.sacked[from..to].iter().filter(|x| !**x).count();
                            m.sacked[from..to].fill(true);
                        }
                    }
                    let u = s.update(&wire, seq(m.una), seq(m.nxt), MSS);
                    prop_assert!(!u.reneged);
                    prop_assert_eq!(u.newly_sacked as usize, newly);
                }
                Step::Ack(n) => {
                    let mut una = (m.una + n as usize).min(m.nxt);
                    // An honest receiver never stops before what it holds.
                    while una < m.nxt && m.sacked[una] {
                        una += 1;
                    }
                    m.una = una;
                    m.high_rxt = m.high_rxt.max(una);
                    let u = s.update(&[], seq(una), seq(m.nxt), MSS);
                    prop_assert!(!u.reneged);
                }
                Step::Next(new_data) => {
                    let expected = m.next(new_data);
                    match s.next_seg(seq(m.nxt), seq(m.nxt), MSS, new_data) {
                        Some(NextSeg::Retransmit(r)) => {
                            let start = (r.start.0.wrapping_sub(base)) as usize;
                            let end = (r.end.0.wrapping_sub(base)) as usize;
                            prop_assert_eq!(expected, Some((true, start)));
                            prop_assert!(start < end && end - start <= MSS as usize);
                            prop_assert!((start..end).all(|i| !m.sacked[i]));
                            prop_assert!(end - start == MSS as usize || m.sacked[end]);
                            m.high_rxt = end;
                            s.retransmitted(r.end);
                        }
                        Some(NextSeg::New) => prop_assert_eq!(expected, Some((false, m.nxt))),
                        Some(NextSeg::Rescue(r)) => {
                            prop_assert_eq!(expected, None);
                            let end = (r.end.0.wrapping_sub(base)) as usize;
                            let start = (r.start.0.wrapping_sub(base)) as usize;
                            // (4): includes the highest outstanding unSACKed octet.
                            prop_assert_eq!(m.open().next_back(), Some(end - 1));
                            prop_assert!(start < end && end - start <= MSS as usize && start >= m.una);
                            prop_assert!((start..end).all(|i| !m.sacked[i]));
                        }
                        None => prop_assert_eq!(expected, None),
                    }
                }
                Step::Timeout => {
                    s.on_rto();
                    m.sacked.fill(false);
                    m.high_rxt = m.una;
                }
            }
            prop_assert_eq!(s.pipe(seq(m.nxt)) as usize, m.pipe());
            prop_assert_eq!(s.sacked_octets() as usize, (m.una..m.nxt).filter(|&i| m.sacked[i]).count());
            for i in m.open() {
                prop_assert_eq!(s.is_lost(seq(i)), m.is_lost(i), "octet {}", i);
            }
        }
    }
}
