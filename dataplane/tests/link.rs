//! Two processes, or two threads for a ring, exchange frames over each kind of memory link.
//!
//! EAL can be started once per process, so every end is a child process: this test binary again, which learns
//! its role from the environment. An end reports to the test by lines on stdout, and stops when the test closes
//! its stdin.

mod ends;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ends::child::Child;

/// Allows one pair of polling processes at a time, because the machine may have only two cores.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not a test: the entry of the child processes.
#[test]
fn end() {
    if let Ok(role) = std::env::var(ends::ROLE) {
        ends::run(&role);
    }
}

struct Link {
    dir: tempfile::TempDir,
}

impl Link {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    fn spec(&self, kind: &str, options: &str) -> String {
        format!("{kind}:{}/s.sock{options}", self.dir.path().display())
    }
}

fn exchange(first: &str, second: &str, env: &[(&str, &str)]) {
    exchange_with("echo", first, second, env);
}

/// If one end is a `vhost` port, the ends exchange frames a second time. Then that end receives in place.
fn exchange_with(echo: &str, first: &str, second: &str, env: &[(&str, &str)]) {
    exchange_once(echo, first, second, env);
    if [first, second].iter().any(|spec| spec.starts_with("vhost")) {
        exchange_once(echo, first, second, &[env, &[(ends::IN_PLACE, "yes")]].concat());
    }
}

fn exchange_once(echo: &str, first: &str, second: &str, env: &[(&str, &str)]) {
    let mut echo = Child::start(echo, first, env);
    echo.expect("open");
    let mut ping = Child::start("ping", second, env);
    ping.expect("open");
    ping.expect("verified");
    // The driver of `memif` may crash an end that still polls when the other leaves, so the polling end leaves first.
    echo.finish();
    ping.finish();
}

/// DPDK would abort a process that lacks descriptors, so urnic refuses to start DPDK in such a process.
#[test]
fn a_process_without_descriptors_is_told() {
    let link = Link::new();
    let mut end = Child::start("starved", &link.spec("vhost", ""), &[(ends::HUGEPAGES, "off")]);
    end.expect("open");
    end.finish();
}

#[test]
fn virtio_user_serves_vhost() {
    let _alone = alone();
    let link = Link::new();
    exchange(&link.spec("virtio_user", ""), &link.spec("vhost", ""), &[]);
}

#[test]
fn vhost_first_then_virtio_user() {
    let _alone = alone();
    let link = Link::new();
    exchange(&link.spec("vhost", ""), &link.spec("virtio_user", ""), &[]);
}

#[test]
fn vhost_serves_virtio_user() {
    let _alone = alone();
    let link = Link::new();
    exchange(&link.spec("vhost", ",server=yes"), &link.spec("virtio_user", ",server=no"), &[]);
}

#[test]
fn memif() {
    let _alone = alone();
    let link = Link::new();
    exchange(&link.spec("memif", ",role=server"), &link.spec("memif", ""), &[]);
}

/// An end that sleeps until its port signals frames misses none.
#[test]
fn frames_wake_a_sleeping_end() {
    let _alone = alone();
    for (sleeps, polls) in [("virtio_user", "vhost"), ("vhost", "virtio_user")] {
        for queues in ["1", "2"] {
            let link = Link::new();
            let env = [(ends::QUEUES, queues)];
            exchange_with("sleeping echo", &link.spec(sleeps, ""), &link.spec(polls, ""), &env);
        }
    }
}

/// A thread that polls a port must not wait for EAL's thread. The polling thread may hold a lock that a second thread
/// within EAL needs, and EAL's thread may have to wait for that second thread.
#[test]
fn looks_at_the_link_do_not_wait_for_eal() {
    let _alone = alone();
    for (first, second) in [(("vhost", ""), ("virtio_user", "")), (("memif", ""), ("memif", ",role=server"))]
    {
        let link = Link::new();
        exchange_with("busy echo", &link.spec(first.0, first.1), &link.spec(second.0, second.1), &[]);
    }
}

#[test]
fn jumbo_frames() {
    let _alone = alone();
    for (first, second) in [(("virtio_user", ""), ("vhost", "")), (("memif", ",role=server"), ("memif", ""))]
    {
        let link = Link::new();
        exchange(&link.spec(first.0, first.1), &link.spec(second.0, second.1), &[(ends::MTU, "9000")]);
    }
}

#[test]
fn without_hugepages() {
    let _alone = alone();
    for (first, second) in [(("virtio_user", ""), ("vhost", "")), (("memif", ",role=server"), ("memif", ""))]
    {
        let link = Link::new();
        exchange(&link.spec(first.0, first.1), &link.spec(second.0, second.1), &[(ends::HUGEPAGES, "off")]);
    }
}

#[test]
#[ignore = "becomes another user"]
fn needs_root_to_run_as_an_ordinary_user() {
    const NOBODY: &str = "65534";
    let _alone = alone();
    let link = Link::new();
    let owned = Command::new("chown").args([NOBODY, &link.dir.path().display().to_string()]).status();
    assert!(owned.expect("chown runs").success());
    for hugepages in ["auto", "off"] {
        exchange(
            &link.spec("virtio_user", ""),
            &link.spec("vhost", ""),
            &[(ends::HUGEPAGES, hugepages), (ends::USER, NOBODY)],
        );
    }
}

#[test]
fn ring_in_one_process() {
    let _alone = alone();
    let mut both = Child::start("ring", "ring:a", &[]);
    both.expect("open");
    both.expect("verified");
    both.finish();
}

/// The peer is killed while frames are in flight, and started again over the same path. The survivor sees the link go
/// down and come up, and exchanges frames again. Each end is the survivor once.
#[test]
fn survives_the_peers_sigkill() {
    let _alone = alone();
    for (survivor, victim) in [("virtio_user", "vhost"), ("vhost", "virtio_user")] {
        let link = Link::new();
        let mut survivor = Child::start("survive", &link.spec(survivor, ""), &[]);
        survivor.expect("open");
        for _ in 0..3 {
            let mut victim = Child::start("echo", &link.spec(victim, ""), &[]);
            victim.expect("open");
            survivor.expect("up");
            survivor.expect("echoed");
            victim.kill();
            survivor.expect("down");
        }
        survivor.finish();
    }
}

/// A port that has lost its peer is closed, and opened again in the same process.
#[test]
fn opens_again_after_the_peers_sigkill() {
    let _alone = alone();
    for hugepages in ["auto", "off"] {
        let link = Link::new();
        let env = [(ends::HUGEPAGES, hugepages)];
        let mut survivor = Child::start("reopen", &link.spec("virtio_user", ""), &env);
        for _ in 0..5 {
            survivor.expect("open");
            let mut victim = Child::start("echo", &link.spec("vhost", ""), &env);
            victim.expect("open");
            survivor.expect("echoed");
            victim.kill();
        }
        survivor.expect("open");
        survivor.kill();
    }
}

/// Frames sent on a queue arrive at the same queue of the other end, in either direction.
#[test]
fn two_queues_are_two_links() {
    let _alone = alone();
    let memif = [(("memif", ",role=server"), ("memif", "")), (("memif", ""), ("memif", ",role=server"))];
    let virtio = [(("virtio_user", ""), ("vhost", "")), (("vhost", ""), ("virtio_user", ""))];
    for (first, second) in virtio.into_iter().chain(memif) {
        let link = Link::new();
        let spec = |(kind, options)| link.spec(kind, options);
        exchange(&spec(first), &spec(second), &[(ends::QUEUES, "2")]);
    }
}

/// A `memif` server that has fewer interfaces than its client serves only the client's first queues.
#[test]
fn a_memif_peer_may_have_fewer_interfaces() {
    let _alone = alone();
    let link = Link::new();
    let mut client = Child::start("count served", &link.spec("memif", ""), &[(ends::QUEUES, "3")]);
    client.expect("open");
    let server = link.spec("memif", ",role=server");
    for (queues, served) in [("1", "served 1"), ("3", "served 3"), ("2", "served 2")] {
        let mut server = Child::start("echo", &server, &[(ends::QUEUES, queues)]);
        server.expect("open");
        client.expect(served);
        server.finish();
        client.expect("served 0");
    }
    client.finish();
}

#[test]
fn a_ring_has_as_many_queues_as_its_devices_have_engines() {
    let _alone = alone();
    let mut both = Child::start("ring", "ring:a", &[(ends::QUEUES, "2")]);
    both.expect("open");
    both.expect("open");
    both.expect("verified");
    both.finish();
}

/// As [`survives_the_peers_sigkill`], with traffic on two queues, which two threads drive.
#[test]
fn two_queues_survive_the_peers_sigkill() {
    let _alone = alone();
    let env = [(ends::QUEUES, "2")];
    for (survivor, victim) in [("virtio_user", "vhost"), ("vhost", "virtio_user")] {
        let link = Link::new();
        let mut survivor = Child::start("survive", &link.spec(survivor, ""), &env);
        survivor.expect("open");
        for _ in 0..3 {
            let mut victim = Child::start("echo", &link.spec(victim, ""), &env);
            victim.expect("open");
            survivor.expect("up");
            survivor.expect("echoed");
            victim.kill();
            survivor.expect("down");
        }
        survivor.finish();
    }
}

/// The first peer gives up while the driver waits for its answers. In the second round, the folder of the socket is
/// away just then. The port waits for the next peer, as soon as the folder is back.
#[test]
fn waits_for_the_next_peer_if_the_first_gives_up() {
    let _alone = alone();
    for moves in [false, true] {
        let link = Link::new();
        let (folder, away) = (link.dir.path().join("at"), link.dir.path().join("away"));
        let socket = folder.join("s.sock");
        std::fs::create_dir(&folder).expect("a folder");
        let spec = |kind| format!("{kind}:{}", socket.display());
        let mut survivor = Child::start("echo", &spec("virtio_user"), &[]);
        survivor.expect("open");
        // This connection ends when the driver listens on a socket of its own.
        let mut first = connect(&socket);
        first.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let ended = first.read(&mut [0]);
        assert_eq!(ended.ok(), Some(0));
        let to_the_driver = connect(&socket);
        if moves {
            std::fs::rename(&folder, &away).expect("the folder moves");
        }
        drop(to_the_driver);
        std::thread::sleep(Duration::from_secs(1));
        if moves {
            std::fs::rename(&away, &folder).expect("the folder moves back");
        }
        let mut ping = Child::start("ping", &spec("vhost"), &[]);
        ping.expect("open");
        ping.expect("verified");
        survivor.finish();
        ping.finish();
    }
}

/// Connects to a socket on which an end listens, or will listen soon.
fn connect(socket: &Path) -> UnixStream {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(connection) => return connection,
            Err(e) => assert!(start.elapsed() < Duration::from_secs(20), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_is_not() {
    let _alone = alone();
    for spec in ["virtio_user", "memif"] {
        let link = Link::new();
        let spec = link.spec(spec, if spec == "memif" { ",role=server" } else { "" });
        let mut first = Child::start("echo", &spec, &[]);
        first.expect("open");
        let mut second = Child::start("echo", &spec, &[]);
        let refusal = second.line(Duration::from_secs(20));
        assert!(refusal.contains("is in use already"), "{refusal}");
        second.finish();
        assert!(first.is_alive(), "the owner of the socket must not notice");
        first.kill();
        assert!(link.dir.path().join("s.sock").exists(), "SIGKILL leaves the socket behind");
        let mut third = Child::start("echo", &spec, &[]);
        third.expect("open");
        third.finish();
        assert!(!link.dir.path().join("s.sock").exists(), "closing the port removes its socket");
    }
}
