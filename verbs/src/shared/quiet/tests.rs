use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Environment variable that is set in the process of [`child`].
const CHILD: &str = "URNIC_TEST_QUIET";

/// What the program does when it is told something may lead to further deliveries, in this thread and in one that it
/// waits for. They are made too, after those that came before them. Runs in a process of its own, because all devices
/// of a process are quiet together.
#[test]
fn what_is_told_late_may_lead_to_more() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "shared::quiet::tests::child", "--ignored"]).env(CHILD, "");
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the deliveries do not end");
        }
        thread::sleep(Duration::from_millis(1));
    };
    let printed = std::io::read_to_string(child.stdout.unwrap()).unwrap();
    assert!(status.success() && printed.contains("1 passed"), "{status}: {printed}");
}

#[test]
#[ignore = "run by what_is_told_late_may_lead_to_more"]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return; // other tests run in this process
    }
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
