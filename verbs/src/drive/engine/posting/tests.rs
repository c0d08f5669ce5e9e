use super::*;

mod passes;

fn at(micros: u64) -> Time {
    Time::from_micros(micros)
}

/// Posts one request to each of `posts` queue pairs, and runs a pass when `wait` has passed. Each request is begun at
/// once or in that pass.
fn batch(p: &mut Posting, now: &mut Time, posts: u32, wait: Duration) -> Vec<Verdict> {
    let verdicts = (0..posts).map(|_| p.posted(|| *now)).collect();
    p.began(posts);
    *now += wait;
    p.judge(*now, false);
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
    let (mut p, mut now) = (Posting::default(), at(50));
    for _ in 0..100 {
        assert_eq!(batch(&mut p, &mut now, 1, PROMPT), [Verdict::First]);
    }
}

#[test]
fn after_some_batches_posts_wait_for_company() {
    let mut now = at(50);
    let mut p = accustomed(&mut now);
    for _ in 0..100 {
        assert_eq!(batch(&mut p, &mut now, 2, PROMPT), [Verdict::Wait; 2]);
    }
}

#[test]
fn a_post_that_waited_in_vain_is_the_last() {
    let mut now = at(50);
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
    let mut now = at(50);
    let mut p = accustomed(&mut now);
    assert_eq!(batch(&mut p, &mut now, 2, LONGEST + PROMPT), [Verdict::Wait; 2]);
    for _ in 0..100 {
        assert_eq!(batch(&mut p, &mut now, 2, LONGEST + PROMPT), [Verdict::First, Verdict::Further]);
    }
}

#[test]
fn a_full_burst_leaves() {
    let mut now = at(50);
    let mut p = accustomed(&mut now);
    let verdicts = batch(&mut p, &mut now, 2 * MOST, PROMPT);
    let left: Vec<usize> = (0..verdicts.len()).filter(|&i| verdicts[i] == Verdict::All).collect();
    assert_eq!(left, [MOST as usize - 1, 2 * MOST as usize - 2]);
    assert!(verdicts.iter().all(|v| matches!(v, Verdict::All | Verdict::Wait)));
}

/// Polls after `gap`, and returns whether the pass holds the posts back.
fn poll(p: &mut Posting, now: &mut Time, gap: Duration) -> bool {
    poll_joined(p, now, gap, false)
}

/// The same; `joined`: requests were posted to queue pairs that already waited.
fn poll_joined(p: &mut Posting, now: &mut Time, gap: Duration, joined: bool) -> bool {
    *now += gap;
    p.note_poll(*now, || joined);
    let holds = p.holds(*now);
    if !holds {
        p.judge(*now, true);
    }
    p.note_end(*now, false, || *now);
    holds
}

/// Posts to one queue pair and polls, time and again, until requests begin to wait for further polls. Returns how many
/// polls this took; at most `most`.
fn polls_until_busy(p: &mut Posting, now: &mut Time, most: u32) -> u32 {
    let mut polls = 0;
    while polls < most && p.posted(|| *now) == Verdict::First {
        assert!(!poll(p, now, PROMPT));
        polls += 1;
    }
    polls
}

/// Makes a `Posting` whose poster is busy and has just posted.
fn busy(now: &mut Time) -> Posting {
    let mut p = Posting::default();
    assert_eq!(polls_until_busy(&mut p, now, 1000), RUN);
    p
}

/// Polls and posts until the burst is full and leaves. Each of the requests has waited.
fn fill_burst(p: &mut Posting, now: &mut Time) {
    for _ in 1..FULL {
        assert!(poll(p, now, PROMPT));
        assert_eq!(p.posted(|| *now), Verdict::Wait);
    }
    assert!(!poll(p, now, PROMPT), "the burst is full");
}

#[test]
fn posts_of_a_busy_poster_wait_until_the_burst_is_full() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    for _ in 0..10 {
        fill_burst(&mut p, &mut now);
        assert_eq!(p.posted(|| now), Verdict::Wait);
    }
}

#[test]
fn posts_of_a_busy_poster_leave_when_it_is_idle() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    assert!(poll(&mut p, &mut now, PROMPT));
    assert_eq!(p.posted(|| now), Verdict::Wait);
    assert!(poll(&mut p, &mut now, PROMPT));
    assert!(!poll(&mut p, &mut now, PROMPT), "nothing was posted since the last poll");
    assert_eq!(p.posted(|| now), Verdict::First);
}

#[test]
fn a_full_burst_that_makes_the_poster_idle_counts_against_waiting() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    fill_burst(&mut p, &mut now);
    assert!(!poll(&mut p, &mut now, PROMPT), "nothing waits");
    assert_eq!(polls_until_busy(&mut p, &mut now, 1000), 2 * RUN);
}

/// A poster whose window is smaller than a burst is held up ever more rarely. One that becomes idle rarely, and fills
/// bursts in between, is soon trusted again.
#[test]
fn what_is_required_of_a_run_follows_its_success() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    let mut required = RUN;
    for _ in 0..10 {
        assert!(poll(&mut p, &mut now, PROMPT));
        assert!(!poll(&mut p, &mut now, PROMPT));
        required = (2 * required).min(LONGEST_RUN);
        assert_eq!(polls_until_busy(&mut p, &mut now, 10_000), required);
    }
    assert_eq!(required, LONGEST_RUN);
    for _ in 0..50 * FULL {
        poll(&mut p, &mut now, PROMPT);
        assert_eq!(p.posted(|| now), Verdict::Wait);
    }
    assert!(!poll(&mut p, &mut now, PROMPT) || !poll(&mut p, &mut now, PROMPT));
    assert_eq!(polls_until_busy(&mut p, &mut now, 1000), 2 * RUN);
}

#[test]
fn posts_wait_for_a_limited_time() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    let gap = PATIENCE / 10;
    for _ in 0..10 {
        for _ in 0..9 {
            assert!(poll(&mut p, &mut now, gap));
            assert_eq!(p.posted(|| now), Verdict::Wait);
        }
        assert!(!poll(&mut p, &mut now, gap));
        assert_eq!(p.posted(|| now), Verdict::Wait);
    }
}

/// Passes that take long, because many frames have arrived, do not make the poster slow.
#[test]
fn long_passes_do_not_end_a_run() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    for _ in 0..10 {
        assert!(poll(&mut p, &mut now, PROMPT));
        assert_eq!(p.posted(|| now), Verdict::Wait);
        now += 3 * PATIENCE;
        p.note_end(now, true, || now);
        assert!(!poll(&mut p, &mut now, PROMPT), "they have waited long enough");
        assert_eq!(p.posted(|| now), Verdict::Wait);
    }
    assert_eq!(p.required, RUN);
}

/// A poster is busy in whatever order it posts to its queue pairs, also if some of them already wait.
#[test]
fn posts_in_any_order_make_full_bursts() {
    let mut random = fastrand::Rng::with_seed(7);
    for qps in [FULL as usize + 4, 64, 1000] {
        let mut now = at(50);
        let mut p = Posting::default();
        let (mut waits, mut bursts) = (vec![false; qps], 0);
        let polls = 100_000;
        for _ in 0..polls {
            let qp = random.usize(..qps);
            let joins = waits[qp];
            waits[qp] = joins || p.posted(|| now) == Verdict::Wait;
            if !poll_joined(&mut p, &mut now, PROMPT / 3, joins) {
                waits.fill(false);
                bursts += 1;
            }
        }
        assert!(
            polls / bursts >= FULL as usize - 2,
            "{bursts} bursts of {polls} requests to {qps} queue pairs"
        );
    }
}

/// A poster that was busy some time ago may do something else by now, whether or not it polls.
#[test]
fn after_a_pause_posts_leave_at_once() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    fill_burst(&mut p, &mut now);
    for _ in 0..100 {
        now += SWIFT + PROMPT;
        assert_eq!(p.posted(|| now), Verdict::First);
        p.judge(now, false);
    }
}

#[test]
fn a_poster_that_works_before_it_posts_is_not_busy() {
    let mut now = at(50);
    let mut p = Posting::default();
    for _ in 0..4 * RUN {
        now += SWIFT + PROMPT;
        assert_eq!(p.posted(|| now), Verdict::First);
        assert!(!poll(&mut p, &mut now, PROMPT));
    }
}

/// Only a post that waits shows that such a poster works, and not that its posts take long.
#[test]
fn a_poster_that_works_before_it_polls_is_hardly_ever_busy() {
    let mut now = at(50);
    let mut p = Posting::default();
    let mut waits = 0;
    for _ in 0..100 * RUN {
        waits += u32::from(p.posted(|| now) == Verdict::Wait);
        assert!(!poll(&mut p, &mut now, SWIFT + PROMPT));
    }
    assert!(waits <= 100, "{waits} posts");
}

#[test]
fn a_poster_that_waits_for_answers_is_not_busy() {
    let mut now = at(50);
    let mut p = Posting::default();
    for _ in 0..4 * RUN {
        assert_eq!(p.posted(|| now), Verdict::First);
        assert!(!poll(&mut p, &mut now, PROMPT));
        assert!(!poll(&mut p, &mut now, PROMPT));
    }
}

/// Passes of the engine's own thread say nothing about the poster, but let everything leave.
#[test]
fn passes_without_a_poll_do_not_end_a_run() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    assert!(poll(&mut p, &mut now, PROMPT));
    p.judge(now, false);
    p.judge(now, false);
    assert_eq!(p.posted(|| now), Verdict::Wait);
    assert!(poll(&mut p, &mut now, PROMPT));
}

#[test]
fn a_burst_that_leaves_without_a_poll_starts_another() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    assert!(poll(&mut p, &mut now, PROMPT));
    assert!((0..MOST - 2).all(|_| p.posted(|| now) == Verdict::Wait));
    assert_eq!(p.posted(|| now), Verdict::All);
    assert!(poll(&mut p, &mut now, PROMPT), "one post since the burst");
}

/// Returns how many of 100 phases leave requests behind. In a phase the program posts `posts` times, and polls after
/// each post. Then it pauses. `takes_over`: the engine's thread runs a pass at the end of the pause.
fn left_behind(posts: u32, pause: Duration, takes_over: bool) -> u32 {
    let mut now = at(50);
    let mut p = Posting::default();
    let mut behind = 0;
    for _ in 0..100 {
        for _ in 0..posts {
            p.posted(|| now);
            poll(&mut p, &mut now, PROMPT);
        }
        behind += u32::from(p.held > 0);
        now += pause;
        if takes_over {
            p.judge(now, false);
        }
    }
    behind
}

/// A program that posts and polls for a while and then does something else is not trusted, whether it polls again
/// itself, or the engine's thread has taken over meanwhile.
#[test]
fn a_poster_that_leaves_requests_behind_time_and_again_is_not_trusted() {
    for takes_over in [false, true] {
        let behind = left_behind(1000, 2 * LATE, takes_over);
        // Twice before it is distrusted, then at most once in 16 times.
        assert!((2..=2 + 100 / 16).contains(&behind), "{behind} of 100 times, {takes_over}");
    }
}

/// The same for pauses that are as short as those in which the kernel uses the processor.
#[test]
fn a_poster_that_pauses_briefly_time_and_again_is_not_trusted() {
    for posts in [70, 100, 200, 500, 1000] {
        for pause in [BRIEFLY_LATE + PROMPT, LATE - PROMPT, LATE + PROMPT] {
            let behind = left_behind(posts, pause, false);
            assert!(behind <= 33, "{behind} of 100 times, {posts} posts, {pause:?}");
        }
    }
}

/// A thread that loses its processor for long, but rarely, is trusted again soon.
#[test]
fn a_poster_that_rarely_leaves_requests_behind_is_trusted_again() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    for _ in 0..10 {
        while p.faults > 0 {
            poll(&mut p, &mut now, PROMPT);
            p.posted(|| now);
        }
        p.required = RUN;
        while !p.is_busy() || !poll(&mut p, &mut now, PROMPT) {
            p.posted(|| now);
            poll(&mut p, &mut now, PROMPT);
            p.posted(|| now);
        }
        assert!(!poll(&mut p, &mut now, 2 * LATE));
        assert_eq!(polls_until_busy(&mut p, &mut now, 1000), 2 * RUN);
    }
}

/// A pause of the poster's thread, in which the kernel uses its processor, costs little trust, even if it happens every
/// few milliseconds.
#[test]
fn a_poster_that_loses_its_processor_for_a_moment_is_trusted_again() {
    let mut now = at(50);
    let mut p = busy(&mut now);
    let (mut polls, mut held) = (0, 0);
    for _ in 0..100 {
        for _ in 0..10_000 {
            held += u32::from(poll(&mut p, &mut now, PROMPT));
            polls += 1;
            p.posted(|| now);
        }
        now += LATE / 2;
    }
    // All but one poll of a burst hold requests back.
    assert!(held > polls / FULL * (FULL - 1) / 100 * 97, "{held} of {polls} polls");
}
