use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use urnic_config::Progress;

use super::{before_exit, linger_at_exit};
use crate::api::fake::{self, Knobs};
use crate::api::qp::tests::init;
use crate::{AsyncEvents, CmEvent, CompChannel, ConnParam, Cq, EventChannel, Qp, RecvWr, Wc};

const ALL: [Progress; 3] = [Progress::Inline, Progress::Adaptive, Progress::Dedicated];

/// Exit status of the child process if all is acknowledged.
const DRAINED: i32 = 42;
/// Exit status if not all is acknowledged.
const UNDRAINED: i32 = 1;
/// Exit status if the program received events that it must not receive, or did not receive those that it waited for.
const TOLD: i32 = 43;
const PROGRESS: &str = "URNIC_TEST_EXIT";
/// Name of the environment variable that selects how the child process ends: words that [`exit_child`] knows.
const HOW: &str = "URNIC_TEST_EXIT_HOW";

fn child(progress: Progress, how: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "drive::shard::linger::tests::exit_child", "--include-ignored"]);
    child.env(PROGRESS, progress.to_string()).env(HOW, how);
    child
}

/// Returns the exit status of a child process.
fn exit_of(progress: Progress, how: &str) -> Option<i32> {
    bounded(child(progress, how).spawn().unwrap(), &format!("{how}, {progress}"))
}

fn bounded(mut child: Child, what: &str) -> Option<i32> {
    // The child may wait 12 s for the goodbye, and the machine may be busy.
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what}: the process does not end");
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// A process that exits while its data is not acknowledged drives the engine until all data is acknowledged.
#[test]
fn exit_waits_until_all_is_acknowledged() {
    for progress in ALL {
        assert_eq!(exit_of(progress, "exit"), Some(DRAINED), "{progress}");
        assert_eq!(exit_of(progress, "quick_exit"), Some(DRAINED), "{progress}");
    }
}

/// A process that exits after its device has ended writes no message. For comparison, one that exits within a pass
/// writes a message.
#[test]
fn exit_after_the_device_is_silent() {
    for progress in ALL {
        let output = child(progress, "exit after all").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(DRAINED), "{progress}: {said}");
        assert!(!said.contains("urnic: "), "{progress}: {said}");
        let output = child(progress, "exit in a pass").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("urnic: the process ends while"), "{progress}: {said}");
    }
}

/// `_exit` runs no exit handlers. Before it, `before_exit` waits as they would, if the engine has a thread.
#[test]
fn before_exit_waits_until_all_is_acknowledged() {
    for progress in [Progress::Dedicated, Progress::Adaptive] {
        assert_eq!(exit_of(progress, "_exit"), Some(DRAINED), "{progress}");
    }
    assert_eq!(exit_of(Progress::Inline, "_exit"), Some(UNDRAINED));
}

/// A process ends even if its thread calls `exit` within a pass, as from a signal handler, and so keeps the engine's
/// lock.
#[test]
fn an_exit_in_the_middle_of_a_pass_ends() {
    for progress in ALL {
        for how in ["exit in a pass", "quick_exit in a pass", "_exit in a pass"] {
            assert_eq!(exit_of(progress, how), Some(UNDRAINED), "{progress}: {how}");
        }
    }
}

/// A thread calls `exit` while it waits for the end of a pass. The engine's thread does not step aside for that thread
/// for ever, and all data is acknowledged.
#[test]
fn an_exit_in_the_wait_for_a_pass_drains() {
    for progress in ALL {
        assert_eq!(exit_of(progress, "exit in a wait"), Some(DRAINED), "{progress}");
    }
    assert_eq!(exit_of(Progress::Adaptive, "_exit in a wait"), Some(DRAINED));
}

/// A process ends even if another of its threads has been stopped in the middle of a pass.
#[test]
fn an_exit_beside_a_stopped_pass_ends() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        assert_eq!(exit_of(progress, "exit beside a pass"), Some(UNDRAINED), "{progress}");
    }
}

/// The goodbye, which is the graceful end of all connections at an exit, ends connections, flushes requests and takes
/// the link down. The program's threads still run, but they receive no events or completions of this. If the process
/// still exists some time after the goodbye, they receive these events and completions.
#[test]
fn the_goodbye_tells_the_program_nothing() {
    for progress in ALL {
        assert_eq!(exit_of(progress, "exit with ears"), Some(DRAINED), "{progress}");
    }
    assert_eq!(exit_of(Progress::Adaptive, "_exit with ears"), Some(DRAINED));
}

/// The objects from which the child's program receives events and completions: its news.
struct Ears {
    events: EventChannel,
    asynchronous: AsyncEvents,
    channel: CompChannel,
    cq: Cq,
    _qps: [Qp; 2],
}

impl Ears {
    fn new(device: &crate::Device) -> Self {
        let channel = device.create_comp_channel().unwrap();
        let cq = device.create_cq(16, Some(&channel)).unwrap();
        let pd = device.alloc_pd();
        let qps = [(); 2].map(|()| pd.create_qp(&init(&cq)).unwrap());
        let events = device.create_event_channel().unwrap();
        let listener = events.listen(1, 1).unwrap();
        let to = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1);
        events.connect(&qps[0], to, &ConnParam::default()).unwrap();
        let request = events.wait(Duration::from_secs(60));
        let Some(CmEvent::ConnectRequest(request)) = request else { panic!("no request: {request:?}") };
        request.accept(&qps[1], &ConnParam::default()).unwrap();
        assert!(matches!(events.wait(Duration::from_secs(60)), Some(CmEvent::Established { .. })));
        drop(listener);
        qps[0].post_recv(&RecvWr { wr_id: 7, sges: &[] }).unwrap();
        cq.arm(false);
        Self { events, asynchronous: device.async_events(), channel, cq, _qps: qps }
    }

    /// Takes at most one piece of news from each source, and returns the number of pieces. `start_poll` takes none: it
    /// counts a completion that is left in the queue.
    fn hear(&self) -> usize {
        let mut wc = [Wc::default()];
        let event = self.events.poll();
        assert!(!matches!(event, Some(CmEvent::Established { .. })), "that was before");
        usize::from(event.is_some())
            + usize::from(self.asynchronous.poll().is_some())
            + usize::from(self.channel.get_event(Some(Duration::ZERO)).is_some())
            + self.cq.poll(&mut wc)
            + usize::from(self.cq.start_poll().is_some())
    }
}

/// Runs in the child processes of the tests above. Does nothing in any other process.
#[test]
#[ignore = "run by exit_waits_until_all_is_acknowledged"]
fn exit_child() {
    static KNOBS: OnceLock<Arc<Knobs>> = OnceLock::new();
    static EARS: OnceLock<Ears> = OnceLock::new();
    extern "C" fn judge() {
        let drained = KNOBS.get().is_some_and(|knobs| {
            knobs.shut_down.load(Ordering::SeqCst) && knobs.undrained.load(Ordering::SeqCst) == 0
        });
        let mut code = if drained { DRAINED } else { UNDRAINED };
        if let Some(ears) = EARS.get() {
            let early = (0..100).map(|_| ears.hear()).sum::<usize>();
            // At least four pieces of news must arrive in the end. The kinds are: the connection's end, the port's
            // event, the flushed receive, and its completion event.
            let limit = Instant::now() + Duration::from_secs(30);
            let mut late = 0;
            while late < 4 && Instant::now() < limit {
                late += ears.hear();
            }
            if early > 0 || late < 4 {
                code = TOLD;
            }
        }
        // SAFETY: ends the process.
        unsafe { libc::_exit(code) };
    }
    unsafe extern "C" {
        fn at_quick_exit(function: extern "C" fn()) -> libc::c_int;
        fn quick_exit(status: libc::c_int) -> !;
    }
    let (Ok(progress), Ok(how)) = (std::env::var(PROGRESS), std::env::var(HOW)) else { return };
    let progress = ALL.into_iter().find(|p| p.to_string() == progress).unwrap();
    // `judge` is registered first, so that it runs last.
    // SAFETY: the function exists as long as the program.
    unsafe {
        libc::atexit(judge);
        at_quick_exit(judge);
    }
    let (device, knobs) = fake::device(progress);
    linger_at_exit(device.shared.shards.first());
    knobs.undrained.store(50, Ordering::SeqCst);
    KNOBS.set(knobs).unwrap_or_else(|_| panic!("once"));
    if how == "exit after all" {
        drop(device);
        std::process::exit(0);
    }
    let shard = device.shared.shards.first().clone();
    let (how, state) = how.split_once(' ').unwrap_or((&how, ""));
    match state {
        "in a pass" => std::mem::forget(shard.lock().unwrap()),
        "in a wait" => _ = shard.want.fetch_add(1, Ordering::SeqCst),
        "beside a pass" => {
            let shard = shard.clone();
            thread::spawn(move || std::mem::forget(shard.lock().unwrap())).join().unwrap();
        }
        "with ears" => EARS.set(Ears::new(&device)).unwrap_or_else(|_| panic!("once")),
        _ => {}
    }
    match how {
        "_exit" => {
            before_exit();
            judge();
        }
        // SAFETY: ends the process.
        "quick_exit" => unsafe { quick_exit(0) },
        _ => std::process::exit(0),
    }
}
