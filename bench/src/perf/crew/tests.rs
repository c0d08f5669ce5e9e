use super::*;

#[test]
fn each_thread_has_its_number_and_its_result_its_place() {
    let made = Crew::run(4, &[], |_| Ok(0), |_, number| Ok(number * 10)).unwrap();
    assert_eq!(made, [0, 10, 20, 30]);
    assert_eq!(Crew::run(1, &[], |_| Ok(7), |_, _| Ok(0)).unwrap(), [7]);
}

#[test]
fn of_several_errors_the_one_that_came_by_itself_is_told() {
    let waits = |crew: &Crew| {
        let limit = Instant::now() + PATIENCE;
        loop {
            crew.check()?;
            assert!(Instant::now() < limit, "nobody failed");
            thread::yield_now();
        }
    };
    let fails = |number: u32| Err(PerfError::Usage(format!("thread {number}")));
    let made: Result<Vec<()>, _> =
        Crew::run(3, &[], waits, |crew, number| if number == 1 { waits(crew) } else { fails(number) });
    assert_eq!(made.unwrap_err().to_string(), "thread 2");
    let made: Result<Vec<()>, _> = Crew::run(2, &[], |_| fails(0), |crew, _| waits(crew));
    assert_eq!(made.unwrap_err().to_string(), "thread 0");
}

#[test]
fn threads_are_pinned_in_turn() {
    let Some(&core) = urnic_dataplane::allowed_cores().first() else { return };
    let own = || Ok(urnic_dataplane::allowed_cores());
    // A thread of its own runs the crew, so that no other thread inherits the affinity.
    let pinned = thread::spawn(move || Crew::run(3, &[core], |_| own(), |_, _| own())).join().unwrap();
    assert_eq!(pinned.unwrap(), vec![vec![core]; 3]);
}
