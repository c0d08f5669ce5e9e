//! C programs that end in many ways, some of them after they damaged themselves (`verbs/abi/tests/c/endings.c`), with
//! libraries of the release profile in each way of loading them. A process ends as `docs/run.md` promises, its peer
//! learns of the end as promised there, and the peer serves other clients meanwhile.
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

/// Exit statuses of the C program: `ENDED` if the case ends the process, `WENT_ON` if the program goes on after the
/// case.
const ENDED: End = End::Exit(7);
/// See [`ENDED`].
const WENT_ON: End = End::Exit(8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(Signal),
}

/// How the peer learns that the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hears {
    /// The connection is closed.
    Goodbye,
    /// The peer gets no message, and finds out by its own time-outs.
    Nothing,
    /// `Goodbye` or `Nothing`, depending on what the end interrupted.
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

/// Ways to end that may depend on the way of loading: they run exit handlers, call functions that our libraries
/// override, or start other programs.
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

/// Time limit of a process, in addition to the time for which it is stopped. The limit covers the start, the echoes,
/// and five seconds of goodbye; it is generous, because the machine may be busy.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// How long the process of the case `stopped` is stopped. Over the kernel's sockets it is stopped for `ANSWERED_FOR`,
/// which exceeds the peer's patience; the kernel answers the peer meanwhile.
const STOPPED: Duration = Duration::from_secs(30);
/// See [`STOPPED`].
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
        // By another process, because children that other tests start would inherit our file, and keep it busy.
        let copied = Command::new("cp").arg(own).arg(bin.join("urnic")).status();
        assert!(copied.expect("cp runs").success());
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
    /// answers for a process that is stopped.
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

/// Three network namespaces, each with an interface on one switch: for the peer, for a witness that checks that the
/// peer always serves, and for the programs that end.
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
            // The server and the witness run through all cases, so they need more time than other programs.
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
        // The time-outs are short, because the peer learns of an end without a goodbye only by a time-out.
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

    /// Runs a program that ends in one way; checks its end, and what the peer hears of it.
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
        // The sanitizer must not report leaks, which are the program's own, and must not handle signals, which must
        // kill the program.
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
        // The bound allows for a busy machine. If an end without a goodbye could block the peer, the peer would
        // stay blocked for good, not for a moment.
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

/// Runs the cases that the tests above leave out: those that are not in [`LOADED`], in the ways of loading other than
/// `Preload`.
#[test]
#[ignore = "long, and needs root and the headers of rdma-core"]
fn long_programs_end_in_every_way_of_loading() {
    for way in [Way::DropIn, Way::Direct, Way::Asan] {
        matrix(Transport::AfPacket, way, |name| !LOADED.contains(&name));
    }
}
