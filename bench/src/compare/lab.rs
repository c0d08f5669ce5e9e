//! Two network namespaces joined by a virtual cable, and programs in them.
//!
//! The namespaces have no names, so the kernel removes them when the process that made them and its children have
//! ended.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::fd::AsRawFd,
    process::{Child, ChildStderr, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::sched::{CloneFlags, setns, unshare};

use crate::perf::process::die_with_us;

/// Time limit of a program, generous because each ends after about two seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A result whose error is a description.
pub type Words<T> = Result<T, String>;

/// A running program; killed on drop if it still runs.
pub struct Running {
    name: String,
    child: Child,
    /// The program's standard error.
    errors: Option<BufReader<ChildStderr>>,
}

impl Running {
    /// Starts the program without urnic's settings from the environment, because the defaults are measured.
    pub fn start(mut command: Command) -> Words<Self> {
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            if command.get_envs().all(|(own, _)| own != name) {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_us(&mut command);
        let name = command.get_program().to_string_lossy().into_owned();
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let mut child = command.spawn().map_err(|e| format!("{name}: {e}"))?;
        let errors = child.stderr.take().map(BufReader::new);
        Ok(Self { name, child, errors })
    }

    /// Waits for a line on standard error that contains `words`.
    pub fn wait_for(&mut self, words: &str) -> Words<()> {
        let mut said = String::new();
        while let Some(errors) = &mut self.errors {
            let before = said.len();
            if errors.read_line(&mut said).map_err(|e| format!("{}: {e}", self.name))? == 0 {
                break;
            }
            if said[before..].contains(words) {
                return Ok(());
            }
        }
        Err(format!("{} ended: {}", self.name, said.trim()))
    }

    /// Waits until the program ends with success, and returns its output.
    pub fn output(mut self) -> Words<String> {
        let drain = |pipe: Option<Box<dyn Read + Send>>| {
            thread::spawn(move || {
                let mut text = String::new();
                pipe.map(|mut pipe| pipe.read_to_string(&mut text)).transpose().map(|_| text)
            })
        };
        let stdout = drain(self.child.stdout.take().map(|p| Box::new(p) as _));
        let stderr = drain(self.errors.take().map(|p| Box::new(p) as _));
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
                Ok(None) => return Err(format!("{} does not end", self.name)),
                Err(e) => return Err(format!("{}: {e}", self.name)),
            }
        };
        let text = |reader: thread::JoinHandle<io::Result<String>>| {
            reader.join().ok().and_then(Result::ok).unwrap_or_default()
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        match status.success() {
            true => Ok(stdout),
            false => {
                Err(format!("{} ended with {status}: {}{}", self.name, stderr.trim(), error_of(&stdout)))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls are harmless if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the error from the JSON that iperf3 prints on stdout; empty if there is none.
fn error_of(stdout: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(stdout).unwrap_or_default();
    json["error"].as_str().unwrap_or_default().to_owned()
}

/// A network namespace, and the namespace to return to.
struct Namespace {
    file: File,
    home: File,
}

fn current() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

impl Namespace {
    fn new() -> io::Result<Self> {
        let home = current()?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        let file = current();
        setns(&home, CloneFlags::CLONE_NEWNET)?;
        Ok(Self { file: file?, home })
    }

    /// Starts a program in the namespace.
    fn start(&self, command: Command) -> Words<Running> {
        let enter = |file| {
            setns(file, CloneFlags::CLONE_NEWNET)
                .map_err(|e| format!("cannot enter a network namespace: {e}"))
        };
        enter(&self.file)?;
        let running = Running::start(command);
        enter(&self.home)?;
        running
    }
}

/// Two namespaces; the ends of the cable are `va` in one and `vb` in the other.
pub struct Lab {
    a: Namespace,
    b: Namespace,
}

/// An end of the cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Side {
    A,
    B,
}

impl Side {
    /// Returns the interface of this end.
    pub fn interface(self) -> &'static str {
        if self == Self::A { "va" } else { "vb" }
    }

    /// Returns the kernel's address.
    pub fn kernel_ip(self) -> &'static str {
        if self == Self::A { "10.9.0.1" } else { "10.9.0.2" }
    }

    /// Returns urnic's address.
    pub fn urnic_ip(self) -> &'static str {
        if self == Self::A { "10.9.0.11" } else { "10.9.0.12" }
    }
}

impl Lab {
    /// Makes the namespaces and the cable, with addresses for the kernel.
    pub fn new(mtu: u16) -> Words<Self> {
        let namespace = || Namespace::new().map_err(|e| format!("a network namespace needs root: {e}"));
        let lab = Self { a: namespace()?, b: namespace()? };
        let other = format!("/proc/{}/fd/{}", std::process::id(), lab.b.file.as_raw_fd());
        lab.run(Side::A, &format!("ip link add va type veth peer name vb netns {other}"))?;
        for side in [Side::A, Side::B] {
            let (dev, ip) = (side.interface(), side.kernel_ip());
            lab.run(side, "ip link set lo up")?;
            lab.run(side, &format!("ip address add {ip}/24 dev {dev}"))?;
            lab.run(side, &format!("ip link set {dev} mtu {mtu} up"))?;
        }
        Ok(lab)
    }

    /// Starts a program on a side.
    pub fn start(&self, side: Side, command: Command) -> Words<Running> {
        if side == Side::A { self.a.start(command) } else { self.b.start(command) }
    }

    /// Runs a command line on a side, and returns its output.
    pub fn run(&self, side: Side, line: &str) -> Words<String> {
        self.start(side, words(line))?.output().map_err(|why| format!("`{line}`: {why}"))
    }

    /// Sets whether the kernel may pass segments of 64 KiB over the cable without cutting them into frames.
    pub fn set_segmentation_offload(&self, on: bool) -> Words<()> {
        let on = if on { "on" } else { "off" };
        for side in [Side::A, Side::B] {
            self.run(side, &format!("ethtool -K {} tso {on} gso {on}", side.interface()))?;
        }
        Ok(())
    }
}

/// Splits a command line at spaces into a program and its arguments.
pub fn words(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}
