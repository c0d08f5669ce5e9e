//! Both ends on this machine: two processes over a socket, or two devices in one process.
//!
//! Each end of a pair is this very program again, with the same arguments, told by two environment variables which end
//! it is and where the socket directory of the pair is. So both ends have exactly the settings of the whole.

use std::{
    env, fmt, fs,
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::process::CommandExt,
    path::Path,
    process::{self, Child, Command, Stdio},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use nix::sys::{prctl, signal::Signal};
use urnic_config::{Cidr, Config, PortSpec, Progress};

use super::{
    client::{plan, run_client},
    error::{Doing, PerfError},
    options::{PerfOptions, UnknownWord},
    report::PerfReport,
    server::{DEFAULT_PORT, run_server},
};

/// The link between the ends of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// virtio_user and vhost, two processes.
    #[default]
    Virtio,
    /// memif, two processes.
    Memif,
    /// A pair of rings, two devices in one process.
    Ring,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Virtio => "virtio_user",
            Self::Memif => "memif",
            Self::Ring => "ring",
        })
    }
}

impl FromStr for Link {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        match word {
            "virtio_user" | "vhost" => Ok(Self::Virtio),
            "memif" => Ok(Self::Memif),
            "ring" => Ok(Self::Ring),
            _ => Err(UnknownWord::new(word, "virtio_user, vhost, memif, ring")),
        }
    }
}

impl Link {
    /// The server's port of a link named by `path`; the client's is its peer.
    fn server_port(self, path: &Path) -> Result<PortSpec, PerfError> {
        let name = path.display();
        let spec = match self {
            Self::Virtio => format!("virtio_user:{name}"),
            Self::Memif => format!("memif:{name},role=server"),
            Self::Ring => format!("ring:{name}"),
        };
        spec.parse().map_err(PerfError::Usage)
    }
}

/// Which end a process is, and where the pair's directory is. Not `URNIC_*`: those are settings.
const END: &str = "_URNIC_PERF_END";
const DIR: &str = "_URNIC_PERF_DIR";

/// How long the second end may take once the first is done.
const LAST_END: Duration = Duration::from_secs(10);

const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// One end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Server,
    Client,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    fn ip(self) -> Ipv4Addr {
        match self {
            Self::Server => SERVER_IP,
            Self::Client => CLIENT_IP,
        }
    }

    /// The core of this end: each its own, where there are two.
    fn core(self, config: &Config) -> Option<usize> {
        let cores = match config.engine.cores.as_slice() {
            [] => urnic_dataplane::allowed_cores(),
            cores => cores.to_vec(),
        };
        let second = cores.get(1).or(cores.first());
        if self == Self::Server { cores.first().copied() } else { second.copied() }
    }

    /// The settings of this end.
    fn config(self, whole: &Config, port: PortSpec, options: &PerfOptions) -> Result<Config, PerfError> {
        let mut config = whole.clone();
        config.port.spec = Some(if self == Self::Server { port } else { port.peer() });
        config.ip.address = Some(Cidr { address: self.ip(), prefix: 24 });
        config.engine.cores = self.core(whole).into_iter().collect();
        if config.memory.mb.is_none() {
            let messages = plan(options, config.engine.progress)?.region_len() >> 20;
            // A shared ring process has both ends' messages.
            config.memory.mb = Some(config.memory_mb() + 2 * messages as u32);
        }
        Ok(config)
    }

    fn run(
        self,
        whole: &Config,
        port: PortSpec,
        options: &PerfOptions,
        bar: bool,
    ) -> Result<PerfReport, PerfError> {
        let config = self.config(whole, port, options)?;
        // A dedicated engine has the core; the application sleeps wherever there is room.
        let core = if config.engine.progress == Progress::Dedicated { None } else { self.core(whole) };
        match self {
            Self::Server => run_server(&config, DEFAULT_PORT, core),
            Self::Client => {
                let options = PerfOptions { core, ..options.clone() };
                run_client(&config, SocketAddrV4::new(SERVER_IP, DEFAULT_PORT), &options, bar)
            }
        }
    }
}

/// Measures between two ends on this machine, each pinned to a core of its own if there are two. `bar`: show progress,
/// if stderr is a terminal.
///
/// Over `virtio` and `memif` this program is started twice more, with the arguments that it has itself. In those
/// processes the call that corresponds to this one measures and does not return.
///
/// # Errors
/// [`PerfError`] of either end.
pub fn run_pair(
    config: &Config,
    link: Link,
    options: &PerfOptions,
    bar: bool,
) -> Result<PerfReport, PerfError> {
    if let (Ok(end), Ok(dir)) = (env::var(END), env::var(DIR)) {
        let end = if end == End::Server.name() { End::Server } else { End::Client };
        become_end(end, Path::new(&dir), config, link, options, bar);
    }
    plan(options, config.engine.progress)?;
    match link {
        Link::Ring => in_one_process(config, options, bar),
        Link::Virtio | Link::Memif => in_two_processes(),
    }
}

fn in_one_process(config: &Config, options: &PerfOptions, bar: bool) -> Result<PerfReport, PerfError> {
    let port = Link::Ring.server_port(Path::new(&format!("perf-{}", process::id())))?;
    let server = {
        let (config, options, port) = (config.clone(), options.clone(), port.clone());
        thread::Builder::new()
            .name("perf-server".to_owned())
            .spawn(move || End::Server.run(&config, port, &options, false))
            .doing("starting a thread")?
    };
    let report = End::Client.run(config, port, options, bar);
    let deadline = Instant::now() + if report.is_ok() { LAST_END } else { Duration::from_secs(1) };
    while !server.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
    // A server that waits on after its client failed ends with the process.
    let served = if server.is_finished() { server.join().ok() } else { None };
    match (report, served) {
        (Err(PerfError::Gone(_) | PerfError::Stalled { .. }), Some(Err(why))) => Err(why),
        (Ok(_), Some(Err(why))) => Err(why),
        (Ok(_), None) => {
            Err(PerfError::Stalled { what: "the server to finish", seconds: LAST_END.as_secs() })
        }
        (report, _) => report,
    }
}

/// What an end leaves in the directory.
fn result_path(dir: &Path, end: End) -> std::path::PathBuf {
    dir.join(format!("{}.json", end.name()))
}

/// The life of a process that is one end of a pair.
fn become_end(end: End, dir: &Path, config: &Config, link: Link, options: &PerfOptions, bar: bool) -> ! {
    let result = link
        .server_port(&dir.join("link.sock"))
        .and_then(|port| end.run(config, port, options, bar))
        .map_err(|error| error.to_string());
    let text = serde_json::to_string(&result).unwrap_or_default();
    let written = fs::write(result_path(dir, end), text).is_ok();
    process::exit(i32::from(result.is_err() || !written));
}

/// A process of ours; killed if it still runs when this goes.
struct Process {
    end: End,
    child: Child,
}

impl Process {
    fn start(end: End, dir: &Path) -> Result<Self, PerfError> {
        let program = env::current_exe().doing("finding this program")?;
        let mut command = Command::new(program);
        command.args(env::args_os().skip(1)).env(END, end.name()).env(DIR, dir);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
        unsafe {
            // Nothing that polls may outlive us, however we end.
            command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
        }
        let child = command.spawn().doing("starting an end of the pair")?;
        Ok(Self { end, child })
    }

    /// What it left, if it has ended.
    fn result(&mut self, dir: &Path) -> Result<Option<PerfReport>, PerfError> {
        let Some(status) = self.child.try_wait().doing("waiting for an end of the pair")? else {
            return Ok(None);
        };
        let end = self.end.name();
        let text = fs::read_to_string(result_path(dir, self.end)).unwrap_or_default();
        match serde_json::from_str::<Result<PerfReport, String>>(&text) {
            Ok(Ok(report)) if status.success() => Ok(Some(report)),
            Ok(Err(message)) => Err(PerfError::End { end, message }),
            _ => Err(PerfError::Died { end, status }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; then there is nobody to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_two_processes() -> Result<PerfReport, PerfError> {
    let dir = tempfile::Builder::new()
        .prefix("urnic-perf-")
        .tempdir()
        .doing("making a directory for the sockets")?;
    let mut server = Process::start(End::Server, dir.path())?;
    let mut client = Process::start(End::Client, dir.path())?;
    let report = loop {
        let measured = client.result(dir.path());
        // Of two ends that fail, the one that does not just miss the other knows why; it is the first to end.
        if measured.is_err() && server.result(dir.path()).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
        let served = server.result(dir.path());
        match (measured, served) {
            (Ok(Some(report)), _) => break report,
            (Ok(None), Ok(_)) => thread::sleep(Duration::from_millis(5)),
            (Err(PerfError::End { message, .. }), Err(why)) if message.contains("went away") => {
                return Err(why);
            }
            (Err(why), _) | (Ok(None), Err(why)) => return Err(why),
        }
    };
    let deadline = Instant::now() + LAST_END;
    while server.result(dir.path())?.is_none() {
        if Instant::now() > deadline {
            return Err(PerfError::Stalled { what: "the server to finish", seconds: LAST_END.as_secs() });
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(report)
}
