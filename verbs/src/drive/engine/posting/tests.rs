use super::*;

fn at(micros: u64) -> Time {
    Time::from_micros(micros)
}

/// Posts one request to each of `posts` queue pairs, and runs a pass when `wait` has passed. Each request is begun at
/// once or in that pass.
fn batch(p: &mut Posting, now: &mut Time, posts: u32, wait: Duration) -> Vec<Verdict> {
    let verdicts = (0..posts).map(|_| p.posted(|| *now)).collect();
    p.began(posts);
    *now += wait;
    p.judge(*now);
    verdicts
}

const PROMPT: Duration = Duration::from_nanos(300);

/// Makes a `Posting` that has seen enough batches in a row, so that further posts wait.
fn accustomed(now: &mut Time) -> Posting {
    let mut p = Posting::default();
    for _ in 0..BATCHES {
        assert_eq!(batch(&mut p, now, 3, PROMPT), [Verdict::First, Verdict::Further, Verdict::Further]);
    }
    p
}

#[test]
fn lone_posts_leave_at_once_however_many() {
    let (mut p, mut now) = (Posting::default(), at(5));
    for _ in 0..100 {
        assert_eq!(batch(&mut p, &mut now, 1, PROMPT), [Verdict::First]);
    }
}

#[test]
fn after_some_batches_posts_wait_for_company() {
    let mut now = at(5);
    let mut p = accustomed(&mut now);
    for _ in 0..100 {
        assert_eq!(batch(&mut p, &mut now, 2, PROMPT), [Verdict::Wait; 2]);
    }
}

#[test]
fn a_post_that_waited_in_vain_is_the_last() {
    let mut now = at(5);
    let mut p = accustomed(&mut now);
    assert_eq!(batch(&mut p, &mut now, 1, PROMPT), [Verdict::Wait]);
    assert_eq!(batch(&mut p, &mut now, 1, PROMPT), [Verdict::First]);
    // Posts wait again only after as many batches as the first time.
    for _ in 0..BATCHES {
        assert_eq!(batch(&mut p, &mut now, 2, PROMPT)[0], Verdict::First);
    }
    assert_eq!(batch(&mut p, &mut now, 2, PROMPT)[0], Verdict::Wait);
}

#[test]
fn a_poster_that_polls_late_is_not_waited_for() {
    let mut now = at(5);
    let mut p = accustomed(&mut now);
    assert_eq!(batch(&mut p, &mut now, 2, LONGEST + PROMPT), [Verdict::Wait; 2]);
    for _ in 0..100 {
        assert_eq!(batch(&mut p, &mut now, 2, LONGEST + PROMPT), [Verdict::First, Verdict::Further]);
    }
}

#[test]
fn a_full_burst_leaves() {
    let mut now = at(5);
    let mut p = accustomed(&mut now);
    let verdicts = batch(&mut p, &mut now, 2 * MOST, PROMPT);
    let left: Vec<usize> = (0..verdicts.len()).filter(|&i| verdicts[i] == Verdict::All).collect();
    assert_eq!(left, [MOST as usize - 1, 2 * MOST as usize - 2]);
    assert!(verdicts.iter().all(|v| matches!(v, Verdict::All | Verdict::Wait)));
}
