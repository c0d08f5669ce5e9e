//! How C programs end, and what careless ones do to themselves (`verbs/abi/tests/c/endings.c`), with libraries of the
//! release profile in each way of loading them: a process ends as `docs/run.md` promises, its peer learns of it as
//! promised there, and other clients are served meanwhile.
//!
//! `URNIC_ENDINGS=dev` uses the libraries of the tests' own profile, which are built sooner.

#[allow(dead_code)] // every test binary uses a part
#[path = "../../verbs/tests/network/netns.rs"]
mod netns;
mod stock;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use netns::Namespace;
use nix::sys::signal::Signal;
use stock::{Node, PATIENCE, Talking, alone, text, urnic, was_ended_by};
use tempfile::TempDir;

/// Exit statuses of a program that should have ended by itself, and of one that should have gone on.
const ENDED: End = End::Exit(7);
const WENT_ON: End = End::Exit(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(Signal),
}

/// How the peer learns of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hears {
    /// The connection is closed.
    Goodbye,
    /// The peer gets no message, and finds out by itself.
    Nothing,
    /// One or the other, depending on what was interrupted.
    Either,
}

/// Ways to end, in the order of the program's own table.
const CASES: [(&str, End, Hears); 27] = [
    ("exit", ENDED, Hears::Goodbye),
    ("return", ENDED, Hears::Goodbye),
    ("_exit", ENDED, Hears::Goodbye),
    ("quick_exit", ENDED, Hears::Goodbye),
    ("exit-with-listeners", ENDED, Hears::Goodbye),
    ("exit-in-handler", ENDED, Hears::Either),
    ("verbs-in-handler", ENDED, Hears::Either),
    ("last-thread", End::Exit(0), Hears::Goodbye),
    ("last-thread-later", End::Exit(0), Hears::Goodbye),
    ("daemon", End::Exit(0), Hears::Goodbye),
    ("exec", ENDED, Hears::Nothing),
    ("abort", End::Signal(Signal::SIGABRT), Hears::Nothing),
    ("kill", End::Signal(Signal::SIGKILL), Hears::Nothing),
    ("closefrom", ENDED, Hears::Nothing),
    ("fork", WENT_ON, Hears::Goodbye),
    ("vfork", WENT_ON, Hears::Goodbye),
    ("posix_spawn", WENT_ON, Hears::Goodbye),
    ("inherits-nothing", WENT_ON, Hears::Goodbye),
    ("setuid", WENT_ON, Hears::Goodbye),
    ("no-descriptors", WENT_ON, Hears::Goodbye),
    ("no-locked-memory", WENT_ON, Hears::Goodbye),
    ("thread-ends-with-lock", WENT_ON, Hears::Goodbye),
    ("stopped", ENDED, Hears::Nothing),
    ("munmap", End::Signal(Signal::SIGSEGV), Hears::Nothing),
    ("mprotect", End::Signal(Signal::SIGSEGV), Hears::Nothing),
    ("truncate", End::Signal(Signal::SIGBUS), Hears::Nothing),
    ("deregistered", WENT_ON, Hears::Goodbye),
];

/// Ways that depend on the way of loading, because they call functions that our libraries override.
const LOADED: [&str; 9] = [
    "exit",
    "return",
    "_exit",
    "quick_exit",
    "exit-in-handler",
    "last-thread",
    "daemon",
    "posix_spawn",
    "inherits-nothing",
];

/// Time limit of a process's end, in addition to the times that it waits: it covers its start, the echoes, and five
/// seconds of goodbye. A bound for a busy machine.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// How long `stopped` is stopped; and how long on the kernel's sockets, where the kernel answers meanwhile: longer
/// than the peer's patience.
const STOPPED: Duration = Duration::from_secs(30);
const ANSWERED_FOR: Duration = Duration::from_secs(6);

/// How our libraries get into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Preload,
    DropIn,
    /// Linked to liburnic.so itself.
    Direct,
    /// The drop-in libraries, watched by AddressSanitizer.
    Asan,
}

/// Returns a folder laid out as in packages: `bin/urnic`, and the libraries in `lib/urnic`.
fn package() -> &'static Path {
    static MADE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MADE.get_or_init(|| {
        let own = urnic();
        let debug = own.parent().expect("target/PROFILE/urnic");
        let target = debug.parent().expect("the target folder");
        let release = if std::env::var_os("URNIC_ENDINGS").is_some_and(|how| how == "dev") {
            debug.to_path_buf()
        } else {
            let mut build = Command::new(env!("CARGO"));
            build.args([
                "build",
                "--release",
                "--quiet",
                "--package",
                "urnic-abi",
                "--package",
                "urnic-shim",
            ]);
            build.arg("--target-dir").arg(target);
            assert!(build.status().expect("cargo runs").success(), "the release libraries are built");
            target.join("release")
        };
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_path_buf();
        let (bin, lib) = (path.join("bin"), path.join("lib/urnic"));
        std::fs::create_dir(&bin).expect("a folder");
        std::fs::create_dir_all(&lib).expect("a folder");
        std::fs::copy(own, bin.join("urnic")).expect("a copy");
        for file in ["liburnic.so", "liburnic_verbs.so", "drop-in"] {
            symlink(release.join(file), lib.join(file)).expect("a link");
        }
        (folder, path)
    });
    path
}

/// Compiles the program for a way of loading.
fn program(way: Way) -> PathBuf {
    let path = package().join(format!("{way:?}"));
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&path);
    if way == Way::Asan {
        compile.args(["-fsanitize=address", "-fno-omit-frame-pointer"]);
    }
    compile.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../verbs/abi/tests/c/endings.c"));
    if way == Way::Direct {
        let lib = package().join("lib/urnic");
        compile.arg("-L").arg(&lib).arg("-l:liburnic.so").arg(format!("-Wl,-rpath,{}", lib.display()));
    } else {
        compile.args(["-lrdmacm", "-libverbs"]);
    }
    compile.arg("-lpthread");
    assert!(compile.status().expect("cc runs").success(), "endings.c is compiled");
    path
}

/// The port or sockets of all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    AfPacket,
    Kernel,
}

impl Transport {
    fn port(self) -> &'static str {
        match self {
            Self::AfPacket => "af_packet:v",
            Self::Kernel => "kernel:v",
        }
    }

    /// Returns a case as it happens on this transport. The kernel closes the sockets of a process that has ended, and
    /// answers for one that is stopped.
    fn case(self, case: (&'static str, End, Hears)) -> (&'static str, End, Hears) {
        match (self, case) {
            (Self::AfPacket, case) => case,
            (Self::Kernel, ("stopped", ..)) => ("stopped-but-answered-for", WENT_ON, Hears::Goodbye),
            // Unread data makes the kernel reset the connection instead.
            (Self::Kernel, (name, end @ End::Signal(Signal::SIGSEGV | Signal::SIGBUS), _)) => {
                (name, end, Hears::Either)
            }
            (Self::Kernel, (name, end, Hears::Nothing)) => (name, end, Hears::Goodbye),
            (Self::Kernel, case) => case,
        }
    }
}

/// A peer, a witness that checks that the peer serves all the time, and a place for programs that end. Each has a
/// network interface on one switch.
struct Lab {
    transport: Transport,
    server: Talking,
    witness: Talking,
    end: Namespace,
    server_ip: String,
    _others: Vec<Namespace>,
}

impl Lab {
    fn new(transport: Transport) -> Self {
        let switch = Namespace::new("switch");
        switch.ip(&["link", "add", "br0", "type", "bridge"]);
        switch.ip(&["link", "set", "br0", "up"]);
        let plugged = |i: usize| {
            let (end, plug) = (Namespace::new("end"), format!("p{i}"));
            switch.ip(&["link", "add", &plug, "type", "veth", "peer", "name", "v", "netns", end.name()]);
            switch.ip(&["link", "set", &plug, "master", "br0", "up"]);
            end.ip(&["link", "set", "v", "up"]);
            end.ip(&["link", "set", "lo", "up"]);
            for (namespace, link) in [(&switch, plug.as_str()), (&end, "v")] {
                let done = namespace.program("ethtool").args(["-K", link, "tx", "off"]).output();
                assert!(done.expect("ethtool runs").status.success());
            }
            end
        };
        let (server, witness, end) = (plugged(1), plugged(2), plugged(3));
        if transport == Transport::Kernel {
            for (i, namespace) in [&server, &witness, &end].into_iter().enumerate() {
                namespace.ip(&["address", "add", &format!("10.4.5.{}/24", i + 1), "dev", "v"]);
            }
        }
        let node = |namespace: &Namespace, ip: &str| {
            let namespace = Some(namespace.name().to_owned());
            // These programs run through all cases, and so for longer than others.
            Node {
                ip: ip.into(),
                port: transport.port().into(),
                namespace,
                lasts: 10 * PATIENCE,
                ..Node::default()
            }
        };
        let honest = program(Way::Preload);
        let run = |node: &Node, arguments: &str| {
            node.talk(&format!("--libraries preload -- {} {arguments}", honest.display()))
        };
        // Short time-outs, because the peer must find out by itself about ends without a goodbye.
        let settings = package().join("quick.toml");
        std::fs::write(
            &settings,
            "[tcp]\nkeepalive_idle = \"2s\"\nkeepalive_interval = \"250ms\"\nkeepalive_count = 4\nuser_timeout = \"3s\"\n",
        )
        .expect("a file");
        let serving = node(&server, "10.4.5.1");
        let server_ip = serving.ip.clone();
        let talks = serving.talk(&format!(
            "--config {} --libraries preload -- {} serve",
            settings.display(),
            honest.display()
        ));
        let witnessing = run(&node(&witness, "10.4.5.2"), &format!("witness {server_ip}"));
        Self {
            transport,
            server: talks,
            witness: witnessing,
            end,
            server_ip,
            _others: vec![switch, server, witness],
        }
    }

    /// Lets a program end in one way, and checks it, the peer and the witness.
    fn ends(&self, program: &Path, way: Way, (name, end, hears): (&str, End, Hears)) {
        let mut command = self.end.program("timeout");
        let stopped = match name {
            "stopped" => STOPPED,
            "stopped-but-answered-for" => ANSWERED_FOR,
            _ => Duration::ZERO,
        };
        let bound = ENDS_WITHIN + stopped;
        command.args(["--signal=KILL", &bound.as_secs().to_string()]).arg(package().join("bin/urnic"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            command.env_remove(name);
        }
        command.env("URNIC_MEMORY_HUGEPAGES", "off").env("SECONDS_STOPPED", stopped.as_secs().to_string());
        // Leaks are the program's own, and signals must kill it as they would without the sanitizer.
        command.env("ASAN_OPTIONS", "detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_abort=0");
        command.args(["run", "--port", self.transport.port()]);
        if self.transport == Transport::AfPacket {
            command.args(["--ip", "10.4.5.3/24"]);
        }
        command.arg("--libraries");
        command.arg(if way == Way::Preload { "preload" } else { "drop-in" });
        command.arg("--").arg(program).args([name, &self.server_ip]);
        let start = Instant::now();
        let output = command.stdin(Stdio::null()).output().expect("timeout runs");
        let took = start.elapsed();
        let said = format!("{name} {way:?}, after {took:?}: {}: {}", output.status, text(&output));
        assert!(is(output.status, end), "not {end:?}: {said}");
        assert!(text(&output).contains("ready"), "{said}");
        let heard = self.server.line(&format!("gone {name} "));
        let heard = heard.unwrap_or_else(|| panic!("the peer never hears of the end of {said}"));
        let closed = heard.ends_with(" 0");
        match hears {
            Hears::Goodbye => assert!(closed, "the peer finds out by itself ({heard}): {said}"),
            Hears::Nothing => assert!(!closed, "the peer hears a goodbye ({heard}): {said}"),
            Hears::Either => {}
        }
        println!("{way:?} {name}: {:?}, {heard}, {took:?}", output.status);
    }

    /// Checks that the witness was echoed all the time.
    fn finish(self) {
        self.witness.running().signal(Signal::SIGTERM);
        let last = self.witness.line("echoed ").unwrap_or_default();
        let output = self.witness.output();
        assert!(output.status.success(), "the witness: {}: {last} {}", output.status, text(&output));
        println!("the witness: {last}");
        self.server.stop();
        let worst = last.split_whitespace().nth(3).and_then(|ms| ms.parse::<u64>().ok());
        // A bound for a busy machine: an end without a goodbye that blocked the peer would block it for good, not for
        // a moment.
        assert!(worst.is_some_and(|ms| ms < 10_000), "the witness stood still: {last}");
    }
}

fn is(status: ExitStatus, end: End) -> bool {
    match end {
        End::Exit(code) => status.code() == Some(code),
        End::Signal(signal) => was_ended_by(status, signal),
    }
}

fn matrix(transport: Transport, way: Way, wanted: impl Fn(&str) -> bool) {
    let _alone = alone();
    let program = program(way);
    let lab = Lab::new(transport);
    for case in CASES.into_iter().filter(|case| wanted(case.0)) {
        lab.ends(&program, way, transport.case(case));
    }
    lab.finish();
}

#[test]
#[ignore = "needs root, for network namespaces, and the headers of rdma-core"]
fn needs_root_programs_end_in_every_way() {
    matrix(Transport::AfPacket, Way::Preload, |_| true);
}

#[test]
#[ignore = "needs root, for network namespaces, and the headers of rdma-core"]
fn needs_root_programs_on_kernel_sockets_end_in_every_way() {
    matrix(Transport::Kernel, Way::Preload, |_| true);
}

#[test]
#[ignore = "needs root, for network namespaces, and the headers of rdma-core"]
fn needs_root_programs_with_the_drop_in_libraries_end() {
    matrix(Transport::AfPacket, Way::DropIn, |name| LOADED.contains(&name));
}

#[test]
#[ignore = "needs root, for network namespaces, and the headers of rdma-core"]
fn needs_root_programs_that_are_linked_to_us_end() {
    matrix(Transport::AfPacket, Way::Direct, |name| LOADED.contains(&name));
}

#[test]
#[ignore = "needs root, for network namespaces, and the headers of rdma-core"]
fn needs_root_programs_with_address_sanitizer_end() {
    matrix(Transport::AfPacket, Way::Asan, |name| LOADED.contains(&name));
}

/// All cases, in the other ways of loading.
#[test]
#[ignore = "long, and needs root and the headers of rdma-core"]
fn long_programs_end_in_every_way_of_loading() {
    for way in [Way::DropIn, Way::Direct, Way::Asan] {
        matrix(Transport::AfPacket, way, |name| !LOADED.contains(&name));
    }
}
