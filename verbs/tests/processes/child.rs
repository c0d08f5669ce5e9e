//! An end of a link is a child process. This module has the test's functions and the child's.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use program::Program;
use urnic_config::Config;

#[path = "../../../dataplane/tests/ends/program.rs"]
mod program;

// These variables do not begin with `URNIC_`, because variables with this prefix are settings.
const ROLE: &str = "_URNIC_TEST_ROLE";
const ARGS: &str = "_URNIC_TEST_ARGS";
const CONFIG: &str = "_URNIC_TEST_CONFIG";

/// Time limit of an end's step, generous because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until no other test of this process has child processes. The returned guard makes other tests wait.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child process, as the test sees it. Dropping the `Child` kills the process, if the process still runs.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    stderr: Receiver<String>,
    name: String,
    _copy: Option<Program>,
}

impl Child {
    pub fn start(role: &str, args: &str, config: &str) -> Self {
        Self::launch(None, None, role, args, config)
    }

    /// Starts a child as `user`; `None`: as the test's user.
    #[allow(dead_code)] // every test binary uses a part
    pub fn start_as(user: Option<u32>, role: &str, args: &str, config: &str) -> Self {
        Self::launch(user, None, role, args, config)
    }

    /// Starts a child in a network namespace.
    #[allow(dead_code)] // every test binary uses a part
    pub fn start_in(netns: &File, role: &str, args: &str, config: &str) -> Self {
        Self::launch(None, Some(netns), role, args, config)
    }

    fn launch(user: Option<u32>, netns: Option<&File>, role: &str, args: &str, config: &str) -> Self {
        let ours = std::env::current_exe().expect("our own path");
        let copy = user.map(|_| Program::copy(&ours));
        let mut command = Command::new(copy.as_ref().map_or(&ours, |copy| &copy.path));
        command.args(["--exact", "child", "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(ARGS, args).env(CONFIG, config);
        if let Some(id) = user {
            command.uid(id).gid(id);
        }
        let parent = std::process::id();
        let netns = netns.map(AsRawFd::as_raw_fd);
        // SAFETY: only system calls are made between fork and exec.
        unsafe {
            // The kernel kills the child when the test's process ends in any way, so that no polling process is left
            // behind.
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::getppid() as u32 != parent
                {
                    return Err(std::io::Error::last_os_error());
                }
                match netns {
                    Some(fd) if libc::setns(fd, libc::CLONE_NEWNET) != 0 => {
                        Err(std::io::Error::last_os_error())
                    }
                    _ => Ok(()),
                }
            });
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("starting ourselves");
        let stdout = process.stdout.take().expect("piped");
        let stderr = process.stderr.take().expect("piped");
        let said = |line: String| line.find("> ").map(|at| line[at + 2..].to_owned());
        Self {
            lines: lines(stdout, said),
            stderr: lines(stderr, Some),
            process,
            name: format!("{role} {args} [{}]", config.replace('\n', " ")),
            _copy: copy,
        }
    }

    /// Returns the next line that the end writes.
    pub fn line(&mut self) -> String {
        self.line_within(PATIENCE)
    }

    /// Returns the next line of an end that may need `patience` for it.
    pub fn line_within(&mut self, patience: Duration) -> String {
        match self.lines.recv_timeout(patience) {
            Ok(line) => line,
            Err(e) => panic!("{}: says nothing ({e}), {:?}", self.name, self.process.try_wait()),
        }
    }

    pub fn expect(&mut self, what: &str) {
        let line = self.line();
        assert_eq!(line, what, "{}", self.name);
    }

    /// Returns the rest of the next line, which must start with `what`.
    pub fn expect_start(&mut self, what: &str) -> String {
        let line = self.line();
        match line.strip_prefix(what) {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("{}: {line:?} instead of {what:?}", self.name),
        }
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("a child of ours");
        self.process.wait().expect("a child of ours");
    }

    /// Waits until the child ends by itself. Returns its exit status.
    pub fn status(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            match self.process.try_wait().expect("a child of ours") {
                Some(status) => return status,
                None if start.elapsed() > PATIENCE => panic!("{}: does not end", self.name),
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Writes an order to the end.
    #[allow(dead_code)] // every test binary uses a part
    pub fn order(&mut self, what: &str) {
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{what}").expect("the end listens");
    }

    /// Closes the end's stdin. The end then stops.
    pub fn stop(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Stops the end, and checks that it exits successfully.
    pub fn finish(&mut self) {
        self.stop();
        let status = self.status();
        assert!(status.success(), "{}: {status}", self.name);
    }

    /// Returns the lines that the child has written to stderr. The child must have ended.
    pub fn complaints(&self) -> Vec<String> {
        self.stderr.iter().collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if thread::panicking() {
            println!("{}:\n{}", self.name, self.complaints().join("\n"));
        }
    }
}

/// Returns the lines of a pipe, after `pick`, which may change or drop each line.
fn lines(
    pipe: impl std::io::Read + Send + 'static,
    pick: impl Fn(String) -> Option<String> + Send + 'static,
) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if let Some(line) = pick(line)
                && sender.send(line).is_err()
            {
                return;
            }
        }
    });
    lines
}

/// Returns the role of this process; `None` if it is not a child of a test.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns argument `n` of this child, from 0.
pub fn arg<T: std::str::FromStr>(n: usize) -> T {
    let args = std::env::var(ARGS).expect("arguments");
    let word = args.split_whitespace().nth(n).expect("enough arguments");
    word.parse().ok().expect("an argument of the right type")
}

/// Returns the configuration of this child.
pub fn config() -> Config {
    Config::parse(Path::new("test"), &std::env::var(CONFIG).expect("a configuration")).expect("a valid one")
}

/// Logs warnings to stderr, for [`Child::complaints`].
pub fn log_warnings() {
    let warnings = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
    warnings.with_writer(std::io::stderr).with_ansi(false).init();
}

/// Writes a line to the test.
pub fn say(line: &str) {
    println!("> {line}");
}

/// Returns the lines from the test. The channel is disconnected when the test wants this child to end.
pub fn orders() -> Receiver<String> {
    lines(std::io::stdin(), Some)
}
