use super::*;
use crate::perf::{Mode, Op};

fn shares(given: &[usize], wanted: usize, allowed: &[usize]) -> [Vec<usize>; 2] {
    [End::Server, End::Client].map(|end| share(end, given, wanted, || allowed.to_vec()))
}

#[test]
fn each_end_has_its_half_of_the_cores() {
    assert_eq!(shares(&[4, 5], 1, &[0]), [[4], [5]]);
    assert_eq!(shares(&[4, 5, 6, 7], 2, &[0]), [[4, 5], [6, 7]]);
    assert_eq!(shares(&[4, 5, 6], 1, &[0]), [[4], [5]]);
    assert_eq!(shares(&[4], 1, &[0, 1]), [[4], [4]], "one core for both");
    assert_eq!(shares(&[4, 5], 2, &[0]), [[4], [5]], "fewer than wanted are shared by an end's threads");
}

#[test]
fn without_a_choice_each_end_has_cores_of_its_own_or_none_is_pinned() {
    assert_eq!(shares(&[], 1, &[0, 1]), [[0], [1]]);
    assert_eq!(shares(&[], 1, &[3]), [[3], [3]]);
    assert_eq!(shares(&[], 1, &[0, 1, 2, 3]), [[0], [1]]);
    assert_eq!(shares(&[], 2, &[0, 1, 2, 3]), [[0, 1], [2, 3]]);
    assert_eq!(shares(&[], 2, &[0, 1, 2]), [const { Vec::<usize>::new() }; 2]);
}

#[test]
fn engines_are_of_each_end_and_follow_cores_that_are_given() {
    let crew = |engines: Option<usize>, cores: &[usize], threads: usize| {
        let mut config = Config::default();
        (config.engine.engines, config.engine.cores) = (engines, cores.to_vec());
        let options = PerfOptions { threads, ..PerfOptions::new(Op::Write, Mode::Lat, 8) };
        [End::Server, End::Client].map(|end| end.crew(&config, &options))
    };
    assert_eq!(crew(Some(2), &[0, 1, 2, 3], 2), [(2, vec![0, 1]), (2, vec![2, 3])]);
    assert_eq!(crew(None, &[0, 1, 2, 3], 1), [(2, vec![0, 1]), (2, vec![2, 3])]);
    assert_eq!(crew(None, &[0, 1], 1), [(1, vec![0]), (1, vec![1])]);
    assert_eq!(crew(Some(1), &[0, 1], 4), [(1, vec![0]), (1, vec![1])]);
    assert_eq!(crew(None, &[], 2).map(|(engines, _)| engines), [1, 1], "whatever the machine has");
}
