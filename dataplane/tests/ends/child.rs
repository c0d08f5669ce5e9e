//! An end of a link: a child process.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::program::Program;
use super::{ROLE, SPEC, USER};

/// Time that an end has for a step. A bound, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    name: String,
    _copy: Option<Program>,
}

impl Child {
    pub fn start(role: &str, spec: &str, env: &[(&str, &str)]) -> Self {
        let ours = std::env::current_exe().expect("our own path");
        let user = env.iter().find(|(k, _)| *k == USER).map(|(_, user)| user);
        let copy = user.map(|_| Program::copy(&ours));
        let mut command = Command::new(copy.as_ref().map_or(&ours, |copy| &copy.path));
        command.args(["--exact", "end", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(SPEC, spec).envs(env.iter().copied());
        if let Some(user) = user {
            let id = user.parse().expect("a user id");
            command.uid(id).gid(id);
        }
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starting ourselves");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(at) = line.find("> ")
                    && sender.send(line[at + 2..].to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { process, lines, name: format!("{role} {spec}"), _copy: copy }
    }

    /// Returns the next line that the end prints.
    pub fn line(&mut self, patience: Duration) -> String {
        match self.lines.recv_timeout(patience) {
            Ok(line) => line,
            Err(e) => panic!("{}: no answer ({e}), {:?}", self.name, self.process.try_wait()),
        }
    }

    pub fn expect(&mut self, what: &str) {
        let line = self.line(PATIENCE);
        assert_eq!(line, what, "{}", self.name);
    }

    pub fn is_alive(&mut self) -> bool {
        self.process.try_wait().expect("a child of ours").is_none()
    }

    pub fn kill(&mut self) {
        self.process.kill().expect("a child of ours");
        self.process.wait().expect("a child of ours");
    }

    /// Tells the end to stop, and checks that it exits with success.
    pub fn finish(&mut self) {
        drop(self.process.stdin.take());
        let start = Instant::now();
        loop {
            match self.process.try_wait().expect("a child of ours") {
                Some(status) => {
                    assert!(status.success(), "{}: {status}", self.name);
                    return;
                }
                None if start.elapsed() > PATIENCE => panic!("{}: does not end", self.name),
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
