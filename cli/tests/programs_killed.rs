//! The rping at one end of a virtio/vhost link, or of a connection over the kernel's sockets, is killed by SIGKILL at a
//! random time. The program at the other end gets an event, its work is flushed, and it serves the next client or
//! connects to the next server. Its resources do not grow, and the next process starts in spite of the files that the
//! dead process left behind.

mod stock;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use stock::holdings::Holdings;
use stock::{Node, alone, text};

/// The longest time from a line that the client prints to the SIGKILL for the client or its server. The line shows that
/// the client is at work.
const LIFE: Duration = Duration::from_millis(50);
/// The longest time from the start of a process to its SIGKILL, for a process that may be killed before it is
/// at work.
const YOUTH: Duration = Duration::from_millis(800);

/// Returns the number of kills in each run of `clients_die` or `servers_die`: 2, or the value of `URNIC_KILLS`.
/// `a_client_stays` kills twice as many, and then one more.
fn kills() -> u32 {
    std::env::var("URNIC_KILLS").map_or(2, |n| n.parse().expect("URNIC_KILLS: a number"))
}

fn random() -> fastrand::Rng {
    let seed = std::env::var("URNIC_KILL_SEED").map_or(1, |n| n.parse().expect("URNIC_KILL_SEED: a number"));
    println!("URNIC_KILL_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Returns the server and the client, on a link or on the kernel's loopback. `kinds` has the server's kind of port,
/// then the client's.
fn link(folder: &Path, kinds: [&str; 2], engines: usize) -> (Node, Node) {
    let engines = Some(engines);
    let node = |ip: &str, kind| {
        let port = format!("{kind}:{}/link.sock", folder.display());
        Node { ip: ip.into(), port, hugepages: true, engines, ..Node::default() }
    };
    if kinds == KERNEL {
        let node =
            |kind: &str| Node { ip: "127.0.0.1".into(), port: kind.into(), engines, ..Node::default() };
        return (node(kinds[0]), node(kinds[1]));
    }
    (node("10.4.3.1", kinds[0]), node("10.4.3.2", kinds[1]))
}

const VIRTIO: [&str; 2] = ["virtio_user", "vhost"];
const VHOST: [&str; 2] = ["vhost", "virtio_user"];
const KERNEL: [&str; 2] = ["kernel", "kernel"];

/// Starts a client, and kills it at a random time: while it starts, or while it works.
fn kill_one(client: &Node, server: &str, random: &mut fastrand::Rng) {
    let program = format!("rping -c -v -a {server}");
    if random.u8(..3) == 0 {
        let victim = client.run(&program, false);
        sleep(YOUTH.mul_f64(random.f64()));
        victim.kill();
    } else {
        let victim = client.talk(&program);
        sleep(LIFE.mul_f64(random.f64()));
        victim.kill();
    }
}

fn clients_die(kinds: [&str; 2], engines: usize) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = random();
    let (left, right) = link(folder.path(), kinds, engines);
    let server = left.serve("rping -s -P");
    let pid = server.running().program().expect("it listens");
    let good = || {
        let printed = right.succeeds(&format!("rping -c -v -V -C 3 -a {}", left.ip));
        assert_eq!(printed.matches("rdma-ping-").count(), 3, "{printed}");
    };
    let idle = Holdings::of(pid);
    good();
    let first = Holdings::at_rest(pid, idle.with_a_peer(engines));
    let files = fs::read_dir(folder.path()).expect("a folder").count();
    let (mut last, mut served) = (first, Duration::ZERO);
    for n in 1..=kills() {
        kill_one(&right, &left.ip, &mut random);
        let start = Instant::now();
        good();
        served = served.max(start.elapsed());
        last = Holdings::at_rest(pid, first);
        assert_eq!(last.mappings.max(first.mappings + 8), first.mappings + 8, "kill {n}: {first:?} {last:?}");
        assert_eq!(last.hugepages_kb, first.hugepages_kb, "kill {n}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), files);
    server.stop();
    println!(
        "{kinds:?}, engines {engines}: {} clients killed; the next served within {served:?}\n    {first:?}\n    {last:?}",
        kills()
    );
    // The bound leaves space for the allocator and for rings that are touched for the first time. With many kills, a
    // leak would exceed it.
    assert!(last.resident_kb < first.resident_kb + 4096 + 16 * u64::from(kills()), "{first:?} {last:?}");
}

fn servers_die(kinds: [&str; 2], engines: usize) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = random();
    let (left, right) = link(folder.path(), kinds, engines);
    let mut endings = BTreeMap::<String, u32>::new();
    let mut told = Duration::ZERO;
    for _ in 0..kills() {
        let server = left.serve("rping -s");
        let client = right.talk(&format!("rping -c -v -a {}", left.ip));
        sleep(LIFE.mul_f64(random.f64()));
        let start = Instant::now();
        server.kill();
        let output = client.output();
        told = told.max(start.elapsed());
        let said = text(&output);
        assert!(said.contains("DISCONNECT EVENT"), "{said}");
        stock::rping_was_told(output.status, &said);
        *endings.entry(output.status.to_string()).or_default() += 1;
    }
    println!(
        "{kinds:?}, engines {engines}: {} servers killed; clients ended within {told:?}: {endings:?}",
        kills()
    );
    // Both ends must start although the dead processes left files behind.
    let (_, printed) =
        stock::pair(&left, &right, "rping -s -V -C 3", &format!("rping -c -v -V -C 3 -a {}", left.ip));
    assert_eq!(printed.matches("rdma-ping-").count(), 3, "{printed}");
}

/// Compiles `c/survivor.c`.
fn survivor(folder: &Path) -> String {
    let program = folder.join("survivor");
    let mut build = Command::new("cc");
    build.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/survivor.c"));
    assert!(build.args(["-lrdmacm", "-libverbs"]).status().expect("cc runs").success());
    program.to_str().expect("a path").to_owned()
}

/// Checks that a process stays the client of servers that are killed one after the other, while it serves clients of
/// its own.
fn a_client_stays(kinds: [&str; 2], engines: usize) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = random();
    let (mut left, mut right) = link(folder.path(), kinds, engines);
    // Programs start sooner without hugepages.
    (left.hugepages, right.hugepages) = (false, false);
    right.lasts = Duration::from_secs(20) * kills();
    let client = right.talk(&format!("{} {}", survivor(folder.path()), left.ip));
    let pid = client.running().program().expect("it talks");
    let (mut first, mut last, mut told) = (None, None, Duration::ZERO);
    for n in 1..=2 * kills() {
        let young = random.u8(..3) == 0;
        let server = left.run("rping -s", false);
        let life = if young { YOUTH } else { LIFE };
        let mut alive = true;
        if !young {
            alive = client.says("ping");
        }
        sleep(life.mul_f64(random.f64()));
        let start = Instant::now();
        server.kill();
        // A server that dies early may have had no connection.
        if alive && !young {
            alive = client.says("gone");
            told = told.max(start.elapsed());
        }
        if !alive {
            panic!("kill {n}: {}", text(&client.output()));
        }
        let output = left.run(&format!("rdma_client -s {}", right.ip), false).output();
        assert!(output.status.success(), "kill {n}: {}", text(&output));
        assert!(client.says("served"), "kill {n}");
        let first = *first.get_or_insert_with(|| Holdings::of(pid));
        // Up to four more descriptors may be open, because the client may be connecting to the absent server. Also, its
        // port learns of the peer's death only some time after the kill.
        let now = Holdings::at_rest(pid, Holdings { descriptors: first.descriptors + 4, ..first });
        assert!(
            now.mappings <= first.mappings + 8 && now.hugepages_kb == first.hugepages_kb,
            "{first:?} {now:?}"
        );
        last = Some(now);
    }
    let server = left.serve("rping -s");
    assert!(client.says("ping 20"), "{}", text(&client.output()));
    server.kill();
    assert!(client.says("gone"), "{}", text(&client.output()));
    client.stop();
    let (first, last) = (first.expect("a kill"), last.expect("a kill"));
    println!(
        "{kinds:?}, engines {engines}: {} servers of one client killed; told within {told:?}\n    {first:?}\n    {last:?}",
        2 * kills()
    );
    assert!(last.resident_kb < first.resident_kb + 1024 + 4 * u64::from(kills()), "{first:?} {last:?}");
}

#[test]
#[ignore = "needs the packages rdmacm-utils, libibverbs-dev and librdmacm-dev"]
fn needs_rdma_headers_a_client_survives_its_servers() {
    a_client_stays(VIRTIO, 1);
    a_client_stays(VHOST, 1);
    a_client_stays(KERNEL, 1);
}

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_a_server_survives_its_clients() {
    clients_die(VIRTIO, 1);
    clients_die(VHOST, 1);
    clients_die(KERNEL, 1);
}

/// `long_programs_of_four_engines_survive_the_others` also has the server at the `vhost` end.
#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_a_server_of_four_engines_survives_its_clients() {
    clients_die(VIRTIO, 4);
    clients_die(KERNEL, 4);
}

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_clients_survive_their_server() {
    servers_die(VIRTIO, 1);
    servers_die(VHOST, 1);
    servers_die(KERNEL, 1);
}

#[test]
#[ignore = "takes minutes, and needs the packages rdmacm-utils, libibverbs-dev and librdmacm-dev"]
fn long_programs_of_four_engines_survive_the_others() {
    for kinds in [VIRTIO, VHOST, KERNEL] {
        clients_die(kinds, 4);
        servers_die(kinds, 4);
        a_client_stays(kinds, 4);
    }
}
