//! A measurement between two ends on this machine: two processes, or two devices in one process.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use urnic_config::{Cidr, Config, PortSpec, Progress};

use super::{
    client::{plan, run_client},
    error::{Doing, PerfError},
    options::{PerfOptions, UnknownWord},
    process::{self, End, Process},
    report::PerfReport,
    server::{DEFAULT_PORT, run_server},
};

/// The link between the ends of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// virtio_user and vhost, between two processes.
    #[default]
    Virtio,
    /// memif, between two processes.
    Memif,
    /// A pair of rings, between two devices in one process.
    Ring,
    /// The kernel's sockets over the loopback, between two processes.
    Kernel,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Virtio => "virtio_user",
            Self::Memif => "memif",
            Self::Ring => "ring",
            Self::Kernel => "kernel",
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
            "kernel" => Ok(Self::Kernel),
            _ => Err(UnknownWord::new(word, "virtio_user, vhost, memif, ring, kernel")),
        }
    }
}

impl Link {
    /// Returns the server's port of a link named by `path`; `None` for the kernel's sockets. The client's port is the
    /// peer of this port. Over virtio, the client's port is `virtio_user`, so that the server's `vhost` copies the
    /// frames. With the kinds exchanged, the link is slower.
    pub(super) fn server_port(self, path: &Path) -> Result<Option<PortSpec>, PerfError> {
        let name = path.display();
        let spec = match self {
            Self::Virtio => format!("vhost:{name}"),
            Self::Memif => format!("memif:{name},role=server"),
            Self::Ring => format!("ring:{name}"),
            Self::Kernel => return Ok(None),
        };
        spec.parse().map(Some).map_err(PerfError::Usage)
    }
}

/// Maximum time from the end of the client to the end of the server.
const LAST_END: Duration = Duration::from_secs(10);

const SERVER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

impl End {
    fn ip(self) -> Ipv4Addr {
        match self {
            Self::Server => SERVER_IP,
            Self::Client => CLIENT_IP,
        }
    }

    /// Returns the cores of this end, which wants `wanted` cores. If cores are configured, each end gets half of them,
    /// or both ends get the only core. If no cores are configured, the end gets as many as it wants, or none if it
    /// wants several and the process has too few cores for both ends.
    pub(super) fn cores(self, config: &Config, wanted: usize) -> Vec<usize> {
        let given = config.engine.cores.as_slice();
        share(self, given, wanted, urnic_dataplane::allowed_cores)
    }

    /// Returns the number of engines of this end, and its cores.
    fn crew(self, whole: &Config, options: &PerfOptions) -> (usize, Vec<usize>) {
        let engines = whole.engine.engines;
        let cores = self.cores(whole, engines.unwrap_or(1).max(options.threads));
        let of_cores = if whole.engine.cores.is_empty() { 1 } else { cores.len() };
        (engines.unwrap_or(of_cores), cores)
    }

    /// Returns the configuration of this end.
    fn config(
        self,
        whole: &Config,
        port: Option<PortSpec>,
        options: &PerfOptions,
    ) -> Result<Config, PerfError> {
        let mut config = whole.clone();
        config.port.spec = port.map(|port| if self == Self::Server { port } else { port.peer() });
        if self == Self::Server {
            // Only the client captures, because both ends see the same frames.
            config.port.capture = None;
        }
        config.ip.addresses.clear();
        if config.port.spec.is_some() {
            config.ip.addresses.push(Cidr { address: self.ip().into(), prefix: 24 });
        }
        let (engines, cores) = self.crew(whole, options);
        (config.engine.engines, config.engine.cores) = (Some(engines), cores);
        if config.memory.mb.is_none() {
            let session = plan(options, config.engine.progress)?;
            let messages = (session.region_len() * u64::from(session.threads)) >> 20;
            // With a ring, one process holds the messages of both ends.
            config.memory.mb = Some(config.memory_mb() + 2 * messages as u32);
        }
        Ok(config)
    }

    fn run(
        self,
        whole: &Config,
        port: Option<PortSpec>,
        options: &PerfOptions,
        bar: bool,
    ) -> Result<PerfReport, PerfError> {
        let config = self.config(whole, port, options)?;
        // Dedicated engines occupy these cores, so the application's threads are not pinned to them.
        let dedicated = config.engine.progress == Progress::Dedicated;
        let cores = if dedicated { Vec::new() } else { config.engine.cores.clone() };
        match self {
            Self::Server => run_server(&config, DEFAULT_PORT, &cores),
            Self::Client => {
                let options = PerfOptions { cores, ..options.clone() };
                let server = if config.port.spec.is_some() { SERVER_IP } else { Ipv4Addr::LOCALHOST };
                run_client(&config, SocketAddr::new(server.into(), DEFAULT_PORT), &options, bar)
            }
        }
    }
}

/// Does the work of [`End::cores`]. `given` are the configured cores; `allowed` returns the cores that this process may
/// use.
fn share(end: End, given: &[usize], wanted: usize, allowed: impl Fn() -> Vec<usize>) -> Vec<usize> {
    let allowed = if given.is_empty() { allowed() } else { given.to_vec() };
    let half = match given.len() {
        0 if wanted > 1 && allowed.len() < 2 * wanted => return Vec::new(),
        0 => wanted.min(allowed.len() / 2).max(1),
        given => (given / 2).max(1),
    };
    let first = if end == End::Server || allowed.len() == 1 { 0 } else { half };
    allowed.into_iter().skip(first).take(half).collect()
}

/// Measures between two ends on this machine, each pinned to its own cores if there are enough cores. If `bar` is set
/// and stderr is a terminal, shows the progress.
///
/// For all links except `ring`, this function starts the program twice more, with the same arguments. In each of these
/// processes, this function measures as one end and does not return.
///
/// # Errors
/// [`PerfError`] of either end.
pub fn run_pair(
    config: &Config,
    link: Link,
    options: &PerfOptions,
    bar: bool,
) -> Result<PerfReport, PerfError> {
    if let Some((end, dir)) = process::own_end() {
        let port = link.server_port(&dir.join("link.sock"));
        process::leave(end, &dir, port.and_then(|port| end.run(config, port, options, bar)));
    }
    plan(options, config.engine.progress)?;
    let report = match link {
        Link::Ring => in_one_process(config, options, bar)?,
        Link::Virtio | Link::Memif | Link::Kernel => in_two_processes()?,
    };
    // The report names the link instead of one end's port.
    Ok(PerfReport { port: link.to_string(), ..report })
}

fn in_one_process(config: &Config, options: &PerfOptions, bar: bool) -> Result<PerfReport, PerfError> {
    let port = Link::Ring.server_port(Path::new(&format!("perf-{}", std::process::id())))?;
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
    // If the client has failed, the server's thread may still wait; it ends with the process.
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

pub(super) fn in_two_processes() -> Result<PerfReport, PerfError> {
    let dir =
        tempfile::Builder::new().prefix("urnic-perf-").tempdir().doing("making a folder for the sockets")?;
    let mut server = Process::start(End::Server, dir.path())?;
    let mut client = Process::start(End::Client, dir.path())?;
    let report = loop {
        let measured = client.result::<PerfReport>(dir.path());
        // The client may have failed only because it lost the server. Gives the server time to report the reason.
        if measured.is_err() && server.result::<PerfReport>(dir.path()).is_ok() {
            thread::sleep(Duration::from_millis(100));
        }
        let served = server.result::<PerfReport>(dir.path());
        match (measured, served) {
            (Ok(Some(report)), _) => break report,
            (Ok(None), Ok(_)) => thread::sleep(Duration::from_millis(5)),
            (Err(PerfError::End { message, .. }), Err(why)) if missed_the_other(&message) => {
                return Err(why);
            }
            (Err(why), _) | (Ok(None), Err(why)) => return Err(why),
        }
    };
    let deadline = Instant::now() + LAST_END;
    while server.result::<PerfReport>(dir.path())?.is_none() {
        if Instant::now() > deadline {
            return Err(PerfError::Stalled { what: "the server to finish", seconds: LAST_END.as_secs() });
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(report)
}

/// Returns whether an end failed only because the other end was missing.
fn missed_the_other(message: &str) -> bool {
    ["went away", "cannot connect"].iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests;
