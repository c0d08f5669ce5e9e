//! Stock programs under `urnic run`: code shared by the tests on different links.

#![allow(dead_code)] // every test binary uses a part

pub mod holdings;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time limit of a program, generous because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Allows one pair of programs at a time, because both programs of a pair poll, and the machine may have only
/// two cores.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the path of `urnic`; the libraries to preload are beside it. This function builds the libraries, because
/// they are not dependencies of the tests.
pub fn urnic() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let urnic = PathBuf::from(env!("CARGO_BIN_EXE_urnic"));
        let profile = urnic.parent().expect("a folder");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "urnic-abi", "--package", "urnic-shim", "--target-dir"]);
        build.arg(profile.parent().expect("the target folder"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the libraries are built");
        urnic
    })
}

/// A program under the command `timeout`. Dropping this ends the program by SIGTERM, if it still runs.
pub struct Running(Option<Child>);

impl Running {
    pub fn output(mut self) -> Output {
        self.0.take().expect("runs").wait_with_output().expect("its output")
    }

    /// Sends a signal to `timeout`, which forwards it to the program. SIGKILL would not be forwarded.
    pub fn signal(&self, signal: Signal) {
        if let Some(child) = &self.0 {
            let _ = kill(Pid::from_raw(child.id() as i32), signal);
        }
    }
}

impl Running {
    /// Returns the process id of the program itself, once it has started; `None` if it has ended.
    pub fn program(&self) -> Option<Pid> {
        let pid = self.0.as_ref().expect("runs").id();
        let start = Instant::now();
        // `timeout` has a child, or has itself ended.
        while start.elapsed() < PATIENCE {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            if let Some(child) = children.expect("a child of ours").split_whitespace().next() {
                return Some(Pid::from_raw(child.parse().expect("a number")));
            }
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a child of ours");
            if stat.contains(") Z ") {
                break;
            }
            thread::yield_now();
        }
        None
    }

    /// Kills the program by SIGKILL. Fails if the program has ended before, by an exit or a crash.
    #[track_caller]
    pub fn kill(self) {
        let _ = self.program().map(|program| kill(program, Signal::SIGKILL));
        let output = self.output();
        let by_us = was_ended_by(output.status, Signal::SIGKILL);
        assert!(by_us, "it ended by itself, {}: {}", output.status, text(&output));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        if let Some(mut child) = self.0.take() {
            let _ = child.wait();
        }
    }
}

/// A program that listens.
pub struct Server {
    running: Running,
    /// Thread that reads the program's standard error, because the program would block on a full pipe.
    errors: JoinHandle<String>,
}

/// Returns whether a signal ended a program. The process may be `timeout`. If a signal ends its program,
/// `timeout` ends by the same signal, or exits with 128 plus the signal's number.
pub fn was_ended_by(status: ExitStatus, signal: Signal) -> bool {
    status.signal() == Some(signal as i32) || status.code() == Some(128 + signal as i32)
}

/// Checks that an rping whose peer is gone has ended by itself: with status 0, or with status -1 (255) if its main
/// thread overwrote the state in which its other thread had noted the disconnection (rping 44, `rping_test_client`).
#[track_caller]
pub fn rping_was_told(status: ExitStatus, said: &str) {
    assert!(matches!(status.code(), Some(0 | 255)), "{status}: {said}");
}

impl Server {
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// As [`Running::kill`].
    #[track_caller]
    pub fn kill(self) {
        self.running.kill();
    }

    /// Ends the server by SIGTERM, and returns its output. Fails if the server has ended before, by an exit or a crash.
    #[track_caller]
    pub fn stop(self) -> String {
        self.running.signal(Signal::SIGTERM);
        let (status, printed) = self.output();
        assert!(was_ended_by(status, Signal::SIGTERM), "the server had ended, {status}: {printed}");
        printed
    }

    /// Waits for the server's end, and returns its status and output.
    pub fn output(self) -> (ExitStatus, String) {
        let output = self.running.output();
        let printed = text(&output) + &self.errors.join().expect("its errors");
        (output.status, printed)
    }
}

/// A program that prints lines for as long as it runs.
pub struct Talking {
    running: Running,
    lines: Receiver<String>,
}

impl Talking {
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// As [`Running::kill`].
    #[track_caller]
    pub fn kill(self) {
        self.running.kill();
    }

    /// Waits until the program has printed `lines` further lines. Returns `false` if the program ends before,
    /// or prints nothing for [`PATIENCE`].
    pub fn goes_on(&self, lines: usize) -> bool {
        while self.lines.try_recv().is_ok() {}
        (0..lines).all(|_| self.lines.recv_timeout(PATIENCE).is_ok())
    }

    /// Waits until the program has printed a line that begins with `what`. Returns `false` if the program ends
    /// before, or prints nothing for [`PATIENCE`].
    pub fn says(&self, what: &str) -> bool {
        std::iter::from_fn(|| self.lines.recv_timeout(PATIENCE).ok()).any(|line| line.starts_with(what))
    }

    /// Waits for the next line that begins with `begins`. Returns `None` if the program ends before, or prints
    /// nothing for long.
    pub fn line(&self, begins: &str) -> Option<String> {
        std::iter::from_fn(|| self.lines.recv_timeout(PATIENCE).ok()).find(|line| line.starts_with(begins))
    }

    /// Waits for the program's end, and returns its output on standard error.
    pub fn output(self) -> Output {
        self.running.output()
    }

    /// Ends the program by SIGTERM, and returns its output on standard error. Fails if the program has ended before.
    #[track_caller]
    pub fn stop(self) -> String {
        self.running.signal(Signal::SIGTERM);
        let output = self.output();
        let said = text(&output);
        assert!(was_ended_by(output.status, Signal::SIGTERM), "it had ended, {}: {said}", output.status);
        said
    }
}

/// One end of a link: the settings of a program.
#[derive(Default)]
pub struct Node {
    pub ip: String,
    pub port: String,
    /// The network namespace to run in.
    pub namespace: Option<String>,
    /// Whether to use hugepages, if there are any. Without them a program starts sooner.
    pub hugepages: bool,
    /// The value of `URNIC_LOG`.
    pub log: Option<&'static str>,
    /// Time that programs may take in addition to [`PATIENCE`].
    pub lasts: Duration,
    /// Number of engines of the program's device; `None`: the number that [`engines_asked`] returns.
    pub engines: Option<usize>,
    /// Folder with copies of `urnic` and its libraries, to run them as `nobody`: without capabilities, and with only a
    /// path, the log setting, and the number of engines (if there are several) in the environment. `None`: run as the
    /// test's user.
    pub nobodys: Option<PathBuf>,
}

/// Returns the number of engines of the next program for which the test sets none: one, or the number in
/// `URNIC_TEST_ENGINES`. If the variable has several numbers, such as `4,2`, each program that starts takes the next
/// number: servers 4, clients 2.
fn engines_asked() -> usize {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let Ok(asked) = std::env::var("URNIC_TEST_ENGINES") else { return 1 };
    let asked: Vec<usize> =
        asked.split(',').map(|n| n.parse().expect("URNIC_TEST_ENGINES: numbers")).collect();
    asked[STARTED.fetch_add(1, Ordering::Relaxed) % asked.len()]
}

impl Node {
    /// Starts a program; options for `urnic run` may precede it: `--rsockets -- iperf -s`. `logs`: the program
    /// logs the debug messages of `urnic_verbs`, unless the node sets `log`.
    pub fn run(&self, program: &str, logs: bool) -> Running {
        self.run_for(PATIENCE + self.lasts, program, logs)
    }

    fn run_for(&self, patience: Duration, program: &str, logs: bool) -> Running {
        let mut command = match &self.namespace {
            None => Command::new("timeout"),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name, "timeout"]);
                command
            }
        };
        if let Some(folder) = &self.nobodys {
            return self.run_as_nobody(folder, patience, program, logs);
        }
        command.args(["--signal=KILL", &patience.as_secs().to_string()]).arg(urnic());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            command.env_remove(name);
        }
        if let Some(log) = self.log.or(logs.then_some("urnic_verbs=debug")) {
            command.env("URNIC_LOG", log);
        }
        command.env("URNIC_ENGINES", self.engines.unwrap_or_else(engines_asked).to_string());
        command.env("URNIC_MEMORY_HUGEPAGES", if self.hugepages { "auto" } else { "off" });
        let address = format!("{}/{}", self.ip, if self.ip.contains(':') { 64 } else { 24 });
        let (options, program) = program.split_once(" -- ").unwrap_or(("", program));
        command.args(["run", "--port", &self.port]);
        // The kernel's sockets have the host's addresses.
        if !self.port.starts_with("kernel") {
            command.args(["--ip", &address]);
        }
        command.args(options.split_whitespace());
        command.arg("--").args(program.split_whitespace());
        spawn(command)
    }

    /// Starts a program as the user `nobody`, in the environment that [`Node::nobodys`] describes.
    fn run_as_nobody(&self, folder: &Path, patience: Duration, program: &str, logs: bool) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespace.as_deref().expect("a namespace")]);
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]);
        command.args(["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin"]);
        if let Some(log) = self.log.or(logs.then_some("urnic_verbs=debug")) {
            command.arg(format!("URNIC_LOG={log}"));
        }
        let engines = self.engines.unwrap_or_else(engines_asked);
        if engines > 1 {
            command.arg(format!("URNIC_ENGINES={engines}"));
        }
        command.args(["timeout", "--signal=KILL", &patience.as_secs().to_string()]);
        command.arg(folder.join("urnic")).args(["run", "--"]).args(program.split_whitespace());
        spawn(command)
    }

    /// Starts a program that listens on `port` of the kernel's TCP before it listens for RDMA. Returns when it listens
    /// on `port`.
    pub fn serve_tcp(&self, program: &str, port: u16) -> Server {
        let mut running = self.run_for(2 * (PATIENCE + self.lasts), program, true);
        let mut errors = running.0.as_mut().and_then(|child| child.stderr.take()).expect("piped");
        let errors = thread::spawn(move || {
            let mut said = Vec::new();
            let _ = errors.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        // A line of /proc/net/tcp: the local address, any peer, state 10 (listening).
        let listening = format!(":{port:04X} ");
        let start = Instant::now();
        let listens = || {
            let Some(program) = running.program() else { return false };
            ["tcp", "tcp6"].iter().any(|table| {
                let table =
                    std::fs::read_to_string(format!("/proc/{program}/net/{table}")).unwrap_or_default();
                table.lines().any(|line| line.contains(&listening) && line.contains(":0000 0A "))
            })
        };
        while !listens() {
            if start.elapsed() > PATIENCE || running.program().is_none() {
                panic!("{program} does not listen at {port}: {}", Server { running, errors }.stop());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Server { running, errors }
    }

    /// Starts a server; returns when it listens. Its time limit is twice a client's, so that if a client hangs, the
    /// client is ended first.
    pub fn serve(&self, program: &str) -> Server {
        let mut running = self.run_for(2 * (PATIENCE + self.lasts), program, true);
        // The debug log shows when the program listens.
        let errors = running.0.as_mut().and_then(|child| child.stderr.take()).expect("piped");
        let mut lines = BufReader::new(errors).lines().map_while(Result::ok);
        let mut log: Vec<String> = Vec::new();
        let listens =
            lines.by_ref().inspect(|line| log.push(line.clone())).any(|line| line.contains("listening"));
        assert!(listens, "{program} does not listen: {log:?}");
        let errors = thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
        Server { running, errors }
    }

    /// Starts a program that prints lines continuously; returns when it has printed the first.
    pub fn talk(&self, program: &str) -> Talking {
        let mut running = self.run(program, false);
        let lines = running.0.as_mut().and_then(|child| child.stdout.take()).expect("piped");
        let (told, lines_seen) = mpsc::channel();
        thread::spawn(move || {
            // The thread reads to the end, because the program would block on a full pipe.
            for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
                let _ = told.send(String::from_utf8_lossy(&line).into_owned());
            }
        });
        let talking = Talking { running, lines: lines_seen };
        if talking.lines.recv_timeout(PATIENCE).is_err() {
            panic!("{program} prints nothing: {}", text(&talking.output()));
        }
        talking
    }

    /// Runs a program, which must succeed. Returns its output.
    pub fn succeeds(&self, program: &str) -> String {
        let output = self.run(program, false).output();
        let printed = text(&output);
        assert!(output.status.success(), "{program}: {printed}");
        printed
    }
}

fn spawn(mut command: Command) -> Running {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    Running(Some(child.expect("urnic runs")))
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Starts a server on the left, and runs the client on the right when the server listens. Both must succeed. Returns
/// the output of both.
pub fn pair(left: &Node, right: &Node, server: &str, client: &str) -> (String, String) {
    let serving = left.serve(server);
    let client = right.succeeds(client);
    let (status, printed) = serving.output();
    assert!(status.success(), "{server}: {printed}");
    (printed, client)
}

/// Runs a program of perftest at both ends, with the same arguments.
///
/// The ends connect, negotiate what they will do, and connect again. The server answers the client before it listens
/// for the second time (perftest 4.5, `create_rdma_cm_connection`: the handshake comes before
/// `rdma_cm_server_connection`). A client that is faster is refused, and tries again with memory that
/// `rdma_cm_destroy_cma` has freed. The failure that follows is perftest's own; the programs get another chance only
/// after this failure.
pub fn perftest(left: &Node, right: &Node, arguments: &str) {
    const CHANCES: usize = 10;
    let client = format!("{arguments} {}", left.ip);
    let attempt = |chances_left: usize| {
        let serving = left.serve(arguments);
        let output = right.run(&client, true).output();
        let printed = text(&output);
        if !output.status.success() {
            let served = serving.stop();
            let excused = came_too_early(&printed, &served);
            assert!(
                excused && chances_left > 0,
                "{client}: {}, the second listener came late: {excused}: {printed}\nthe server: {served}",
                output.status
            );
            println!("{client}: {}, refused before the second listener was there; once more", output.status);
            return None;
        }
        let (status, served) = serving.output();
        assert!(status.success(), "{arguments}: {status}: {served}");
        Some(printed)
    };
    let printed = (0..CHANCES).rev().find_map(attempt).expect("the last one answers");
    // With `-C` (results in cycles), the deviation is NaN.
    let is_number = |word: &str| word.parse::<f64>().is_ok_and(|n| n >= 0.0 || n.is_nan());
    let is_result =
        |line: &str| line.split_whitespace().count() >= 4 && line.split_whitespace().all(is_number);
    assert!(printed.lines().any(is_result), "{arguments}: no result in {printed}");
}

/// Returns whether a client of perftest reports a refusal, and asked for its second connection before the server
/// listened for the second time. The logs of both ends contain times of the same clock.
pub fn came_too_early(client: &str, server: &str) -> bool {
    let second = |log: &str, what: &str| {
        let mut lines = log.lines().filter(|line| line.contains(what));
        lines.nth(1).and_then(|line| line.split_whitespace().next()).map(str::to_owned)
    };
    let Some(asked) = second(client, "connecting to ") else { return false };
    // `serve` has consumed the server's first such line.
    let mut listens = server.lines().filter(|line| line.contains("listening at "));
    let listened = listens.next().and_then(|line| line.split_whitespace().next());
    client.contains("Event: RDMA_CM_EVENT_REJECTED") && listened.is_none_or(|listened| *asked < *listened)
}

/// Runs each verb of fio. The receiver verifies the data if it learns of the data's arrival. `pair` runs a server and a
/// client; the client connects to `address`.
pub fn fio_jobs(address: &str, size: &str, mut pair: impl FnMut(&str, &str) -> (String, String)) {
    // fio's sender does not wait for the receiver, so with Sends the receiving side posts a receive for each of the 64
    // messages. The receiver learns only of Sends that their data has arrived, so it can verify only these.
    let verified =
        ("--verify=crc32c --do_verify=0 --verify_state_save=0", "--verify=crc32c --verify_state_save=0");
    for (verb, receives, (written, read)) in
        [("write", 16, ("", "")), ("read", 16, ("", "")), ("send", 64, verified)]
    {
        let common = format!("--ioengine=rdma --port=7777 {size}");
        let (server, client) = pair(
            &format!("fio --name=r {common} --rw=read --iodepth={receives} {read}"),
            &format!(
                "fio --name=s {common} --hostname={address} --verb={verb} --rw=write --iodepth=4 --iodepth_batch_complete=1 {written}"
            ),
        );
        assert!(server.contains("err= 0") && client.contains("err= 0"), "{verb}: {server} {client}");
    }
}
