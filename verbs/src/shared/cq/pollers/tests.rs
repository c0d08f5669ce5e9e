//! Which engine a thread drives first.

use std::thread;

use super::*;

fn engine(index: usize) -> EngineNumber {
    EngineNumber::new(index).expect("an engine")
}

fn lanes(engines: &[usize]) -> u64 {
    engines.iter().map(|index| engine(*index).bit()).sum()
}

/// Runs `f` in a new thread, which has no engine yet.
fn in_a_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(f).join().expect("the thread ends well"))
}

#[test]
fn a_queue_that_one_thread_polls_makes_it_drive_the_home_engine() {
    let pollers = Pollers::default();
    for _ in 0..3 {
        assert_eq!(pollers.first_to_drive(engine(2), lanes(&[0, 1, 2])), engine(2));
    }
}

#[test]
fn a_thread_takes_the_home_engine_of_its_own_queue_to_a_shared_one() {
    let (all, shared) = (lanes(&[0, 1]), Pollers::default());
    shared.first_to_drive(engine(0), all);
    in_a_thread(|| {
        let own = Pollers::default();
        for _ in 0..3 {
            assert_eq!(own.first_to_drive(engine(1), all), engine(1));
            assert_eq!(shared.first_to_drive(engine(0), all), engine(1));
        }
        let elsewhere = Pollers::default();
        elsewhere.first_to_drive(engine(3), lanes(&[3]));
        assert_eq!(shared.first_to_drive(engine(0), all), engine(0), "engine 3 has no lane here");
    });
    assert_eq!(shared.first_to_drive(engine(0), all), engine(0));
}

#[test]
fn threads_that_poll_only_a_shared_queue_divide_its_engines() {
    let (home, other, third) = (engine(4), engine(7), engine(1));
    let all = lanes(&[1, 4, 7]);
    let shared = Pollers::default();
    // The thread that polls first cannot know that others will.
    assert_eq!(shared.first_to_drive(home, all), home);
    for expected in [other, third, home, other] {
        in_a_thread(|| {
            for _ in 0..3 {
                assert_eq!(shared.first_to_drive(home, all), expected);
            }
        });
    }
    assert_eq!(shared.first_to_drive(home, all), home);
}

#[test]
fn a_thread_keeps_its_engine_while_the_others_pause() {
    let (all, shared) = (lanes(&[0, 1]), Pollers::default());
    shared.first_to_drive(engine(0), all);
    in_a_thread(|| {
        for _ in 0..=POLLS_ALONE {
            assert_eq!(shared.first_to_drive(engine(0), all), engine(1));
        }
        assert_eq!(shared.first_to_drive(engine(0), all), engine(0), "alone: nobody else drives it");
        in_a_thread(|| shared.first_to_drive(engine(0), all));
        assert_eq!(shared.first_to_drive(engine(0), all), engine(1));
    });
}

#[test]
fn a_thread_that_remains_alone_drives_the_home_engine_again() {
    let (all, shared) = (lanes(&[0, 1]), Pollers::default());
    shared.first_to_drive(engine(0), all);
    in_a_thread(|| {
        Pollers::default().first_to_drive(engine(1), all);
        for _ in 0..=POLLS_ALONE {
            assert_eq!(shared.first_to_drive(engine(0), all), engine(1));
        }
        assert_eq!(shared.first_to_drive(engine(0), all), engine(0));
    });
}
