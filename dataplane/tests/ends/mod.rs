//! The roles that the ends of a link play.

pub mod child;
mod exchange;
mod program;
mod several;

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use urnic_config::PortSpec;
use urnic_dataplane::{
    Eal, EalConfig, EalError, Hugepages, Mbuf, Port, PortError, PortOptions, RxEvent, TxFrame, TxQueue,
    retired_pools,
};

pub const ROLE: &str = "URNIC_TEST_ROLE";
pub const SPEC: &str = "URNIC_TEST_SPEC";
pub const MTU: &str = "URNIC_TEST_MTU";
pub const HUGEPAGES: &str = "URNIC_TEST_HUGEPAGES";
pub const QUEUES: &str = "URNIC_TEST_QUEUES";
pub const USER: &str = "URNIC_TEST_USER";
pub const IN_PLACE: &str = "URNIC_TEST_IN_PLACE";

/// Returns whether this end receives in place.
fn receives_in_place() -> bool {
    std::env::var_os(IN_PLACE).is_some()
}

/// A bound on waiting for the other end.
const PATIENCE: Duration = Duration::from_secs(20);

fn say(line: &str) {
    println!("> {line}");
}

/// Returns a flag that is set when the test closes our standard input.
fn stop_flag() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let setter = Arc::clone(&flag);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        setter.store(true, Ordering::Relaxed);
    });
    flag
}

/// Waits until the test stops this end.
fn await_flag(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn run(role: &str) {
    let spec: PortSpec = std::env::var(SPEC).expect("a port").parse().expect("a valid port");
    let mtu = std::env::var(MTU).map_or(1500, |m| m.parse().expect("a number"));
    let hugepages = match std::env::var(HUGEPAGES).as_deref() {
        Ok("off") => Hugepages::Off,
        _ => Hugepages::Auto,
    };
    let queues: u16 = std::env::var(QUEUES).map_or(1, |n| n.parse().expect("a number"));
    let stop = stop_flag();
    let inherited = descriptors();
    if role == "starved" {
        refused_without_descriptors(hugepages);
    }
    let cores = urnic_dataplane::allowed_cores();
    let memory_mb = EalConfig::default().memory_mb * u32::from(queues);
    let eal = Eal::start(&EalConfig { hugepages, memory_mb, ..EalConfig::default() }).expect("EAL");
    assert_eq!(urnic_dataplane::allowed_cores(), cores, "EAL has pinned the caller");
    let options = PortOptions { mtu, queues, ..PortOptions::default() };
    if queues > 1 {
        several::run(role, &eal, &spec, &options, &stop);
        if role == "ping" {
            has_received_in_place(&spec);
        }
        assert_eq!(retired_pools(), 0, "frames have leaked");
        return;
    }
    let open = |spec: &PortSpec| Port::open(&eal, spec, &options);
    if role == "reopen" {
        reopen(&spec, &stop, &open);
        return all_close_on_exec(&inherited);
    }
    let mut port = match open(&spec) {
        Ok(port) => port,
        Err(e) => return say(&e.to_string()),
    };
    if receives_in_place() {
        port.work_in_place();
    }
    match role {
        "echo" => {
            say("open");
            echo(&mut port, &stop);
            if ECHOES_PING.load(Ordering::Relaxed) {
                has_received_in_place(&spec);
            }
        }
        "sleeping echo" => {
            say("open");
            await_link(&mut port, true);
            sleeping_echo(&mut port, &stop);
        }
        "busy echo" => {
            say("open");
            look_while_eal_is_busy(&eal, &mut port, spec.path().expect("a path"));
            echo(&mut port, &stop);
        }
        "ping" => {
            say("open");
            exchange::all(&eal, &mut port);
            has_received_in_place(&spec);
            say("verified");
            // Keeps the port, unpolled, until the peer has ended.
            await_flag(&stop);
        }
        "ring" => {
            let flag = Arc::new(AtomicBool::new(false));
            std::thread::scope(|scope| {
                let (eal, spec, options, done) = (&eal, &spec, &options, &flag);
                scope.spawn(move || {
                    let mut port = Port::open(eal, spec, options).expect("the second end");
                    let third = Port::open(eal, spec, options).expect_err("a ring has two ends");
                    assert!(third.to_string().contains("both ends"), "{third}");
                    echo(&mut port, done);
                });
                say("open");
                exchange::all(eal, &mut port);
                flag.store(true, Ordering::Relaxed);
            });
            say("verified");
        }
        "starved" => say("open"),
        "survive" => {
            say("open");
            survive(&mut port, &stop);
        }
        other => panic!("no role {other}"),
    }
    // Checked after traffic, because some descriptors are opened for the peer, and some when EAL takes more memory.
    all_close_on_exec(&inherited);
    drop(port);
    assert_eq!(retired_pools(), 0, "frames have leaked");
}

/// Checks that EAL refuses to start with 0 to 7 free descriptors, and that the start may be tried again.
fn refused_without_descriptors(hugepages: Hugepages) {
    let open = descriptors().len() as libc::rlim_t;
    // SAFETY: structures of our own.
    unsafe {
        let mut before: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
        for free in 0..8 {
            let few = libc::rlimit { rlim_cur: open + free, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &few), 0);
            let refused = Eal::start(&EalConfig { hugepages, ..EalConfig::default() });
            assert!(matches!(refused, Err(EalError::Descriptors)), "{free} free: {refused:?}");
        }
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &before), 0);
    }
}

/// Returns the numbers of the open descriptors.
fn descriptors() -> Vec<String> {
    let names = std::fs::read_dir("/proc/self/fd").expect("descriptors").map_while(Result::ok);
    names.filter_map(|name| name.file_name().into_string().ok()).collect()
}

/// Checks that all descriptors except `inherited` are closed by exec, and that files of memory are accessible only to
/// their owner.
fn all_close_on_exec(inherited: &[String]) {
    let mut judged = 0;
    for fd in descriptors().iter().filter(|fd| !inherited.contains(fd)) {
        // The descriptor through which the folder was read is closed by now.
        let Ok(file) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else { continue };
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).expect("a descriptor");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("flags").trim();
        let flags = i32::from_str_radix(flags, 8).expect("an octal number");
        assert!(flags & libc::O_CLOEXEC != 0, "an executed program would inherit {}", file.display());
        if file.to_string_lossy().starts_with("/memfd:") {
            let mode = std::fs::metadata(format!("/proc/self/fd/{fd}")).expect("a file").mode();
            assert_eq!(mode & 0o077, 0, "{} is accessible to others", file.display());
        }
        judged += 1;
    }
    assert!(judged > 0, "no descriptor was checked, although EAL opens some");
}

/// Waits until the link is up, or down.
fn await_link(port: &mut Port, up: bool) {
    let start = Instant::now();
    while port.link_up() != up {
        assert!(start.elapsed() < PATIENCE, "the link does not go {}", if up { "up" } else { "down" });
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls `link_up` while there is a peer but EAL's thread is too busy to make the device. The calls must not wait for
/// that thread. If a call waited, it would never end, because the thread is set free only after the calls.
fn look_while_eal_is_busy(eal: &Eal, port: &mut Port, path: &Path) {
    const LOOKS: usize = 100;
    let (busy, free) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eal.control(|| {
                let start = Instant::now();
                busy.store(true, Ordering::Relaxed);
                while !free.load(Ordering::Relaxed) {
                    assert!(start.elapsed() < PATIENCE, "a look at the link waits for EAL's thread");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        });
        let start = Instant::now();
        while !busy.load(Ordering::Relaxed) || !path.exists() {
            assert!(start.elapsed() < PATIENCE, "no peer comes");
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..LOOKS {
            assert!(!port.link_up(), "there is no device yet");
            std::thread::sleep(Duration::from_millis(1));
        }
        free.store(true, Ordering::Relaxed);
    });
    await_link(port, true);
}

/// Sends every frame back. In the reply to a checksum probe, the last byte states whether the checksum of the probe was
/// trusted, and the checksum of the reply is left to the port.
fn echo(port: &mut Port, stop: &AtomicBool) {
    let mut frames = ArrayVec::new();
    let mut queue = TxQueue::new();
    let mut looked = Instant::now();
    port.link_up();
    while !stop.load(Ordering::Relaxed) {
        if looked.elapsed() > Duration::from_millis(5) {
            port.link_up();
            looked = Instant::now();
        }
        if queue.room() >= urnic_dataplane::BURST && port.rx_burst(&mut frames) == 0 {
            std::thread::yield_now();
        }
        for frame in frames.drain(..) {
            if let Some(frame) = reply(port, frame) {
                queue.push(frame).expect("room was asked for");
            }
        }
        port.tx_burst(&mut queue);
    }
}

/// Does the work of [`echo`], but sleeps until the port signals frames. If a signal is missing, the other end
/// waits in vain.
fn sleeping_echo(port: &mut Port, stop: &AtomicBool) {
    let mut frames = ArrayVec::new();
    let mut queue = TxQueue::new();
    let mut event = None;
    while !stop.load(Ordering::Relaxed) {
        if port.rx_burst(&mut frames) > 0 {
            event = None;
        } else if queue.is_empty() {
            // Polls once more for frames that came before the port was armed.
            match event.take() {
                None => event = Some(port.arm().expect("a port that tells of frames")),
                Some(armed) => sleep_on(&armed, stop),
            }
        }
        for frame in frames.drain(..) {
            if let Some(frame) = reply(port, frame) {
                queue.push(frame).expect("no more than were received");
            }
        }
        while !queue.is_empty() && !stop.load(Ordering::Relaxed) {
            port.tx_burst(&mut queue);
        }
    }
}

fn sleep_on(event: &RxEvent, stop: &AtomicBool) {
    let mut end = libc::pollfd { fd: event.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    while !stop.load(Ordering::Relaxed) {
        // SAFETY: one descriptor, which is open.
        if unsafe { libc::poll(&raw mut end, 1, 100) } != 0 {
            event.clear();
            return;
        }
    }
}

/// Frames that this end has received in place.
static BORROWED: AtomicUsize = AtomicUsize::new(0);

/// Whether the other end plays the role "ping", and not one that sends short frames only.
static ECHOES_PING: AtomicBool = AtomicBool::new(false);

/// Checks that a `vhost` end that may receive in place has done so, and that no other has.
fn has_received_in_place(spec: &PortSpec) {
    let expected = receives_in_place() && matches!(spec, PortSpec::Vhost { .. });
    let borrowed = BORROWED.load(Ordering::Relaxed);
    assert_eq!(borrowed > 0, expected, "{borrowed} frames were received in place");
}

fn reply(port: &mut Port, mut frame: Mbuf) -> Option<TxFrame> {
    BORROWED.fetch_add(frame.is_borrowed().into(), Ordering::Relaxed);
    frame.keep();
    let trusted = frame.checksum_trusted();
    if exchange::is_checksum_probe(&frame) {
        ECHOES_PING.store(true, Ordering::Relaxed);
        *frame.data_mut().last_mut()? = u8::from(trusted);
        return port.frame(&frame, &[], true);
    }
    Some(TxFrame::from(frame))
}

/// Closes the port whenever the peer disconnects, and opens it again, all in one process.
fn reopen(spec: &PortSpec, stop: &AtomicBool, open: &dyn Fn(&PortSpec) -> Result<Port, PortError>) {
    while !stop.load(Ordering::Relaxed) {
        let mut port = open(spec).expect("the path is free again");
        say("open");
        await_link(&mut port, true);
        exchange::until_echoed(&mut port);
        say("echoed");
        exchange::until_down(&mut port, stop);
    }
}

/// Exchanges frames with one peer after the other.
fn survive(port: &mut Port, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        while !port.link_up() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        say("up");
        exchange::until_echoed(port);
        say("echoed");
        // The test kills the peer meanwhile.
        exchange::until_down(port, stop);
        if !stop.load(Ordering::Relaxed) {
            say("down");
        }
    }
}
