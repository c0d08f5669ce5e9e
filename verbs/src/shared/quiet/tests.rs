use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// What the program does when it is told something may lead to further deliveries, in this thread and in one that it
/// waits for. They are made too, after those that came before them. Runs in a process of its own, because all devices
/// of a process are quiet together.
#[test]
fn what_is_told_late_may_lead_to_more() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "shared::quiet::tests::child", "--ignored"]);
    let mut child = child.spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            break assert!(status.success(), "{status}");
        }
        if Instant::now() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the deliveries do not end");
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "run by what_is_told_late_may_lead_to_more"]
fn child() {
    let (tell, told) = mpsc::channel();
    let say = move |what: u32| {
        let tell = tell.clone();
        move || tell.send(what).unwrap()
    };
    hold_back();
    deliver({
        let say = say.clone();
        move || {
            say(1)();
            deliver(say(3));
            thread::spawn(move || deliver(say(4))).join().unwrap();
        }
    });
    deliver(say(2));
    assert_eq!(told.try_recv().ok(), None, "told while the process is quiet");
    deliver_held();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    deliver(say(5));
    assert_eq!(told.try_recv(), Ok(5), "no longer quiet");
}
