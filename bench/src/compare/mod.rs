//! Measures urnic, and other projects' programs that run on urnic. For comparison, measures the raw link below urnic,
//! and similar programs on the kernel's sockets. At the end, counts the instructions of urnic's TCP and of smoltcp's.
//! `scripts/bench` uses this module.
//!
//! There are several runs. Each run makes every measurement once, so that other load on the machine affects all
//! measurements alike. At most two ends poll at a time, each pinned to its own core if there are two cores.

pub mod count;
pub mod html;
pub mod kernel;
pub mod lab;
pub mod machine;
mod plot;
pub mod results;
mod stock;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::perf::PerfReport;
use kernel::{Protocol, Rounds, Wait};
use lab::{Lab, Running, Side, Words, words};
use results::{LeftOut, Measurement, Quantity, Results, Sample, who};

/// The measurements to make, and the programs for them.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fewer sizes and runs.
    pub quick: bool,
    /// The `urnic` command.
    pub urnic: PathBuf,
    /// This program, which also runs as the ends of a ping-pong over the kernel's sockets.
    pub own: PathBuf,
    /// The program whose instructions [`count`] counts.
    pub bulk: PathBuf,
}

/// MTU of all links: the largest that both iperf3 over veth and urnic over every port support.
const MTU: u16 = 1500;
/// Frame length of an 8-byte Write: Ethernet 14, IP 20, TCP with timestamps 32, FPDU 28.
const FRAME_OF_8: u64 = 94;
/// Message sizes of perftest's bandwidth measurements.
const PERFTEST_SIZES: [u64; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// The port of the kernel's ping-pong.
const KERNEL_PORT: u16 = 7;

/// The program that carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    /// `urnic perf floor`.
    Floor,
    /// `urnic perf pair` with this operation.
    Pair(&'static str),
    /// `urnic perf server` and `client` over veth, with this operation.
    Nodes(&'static str),
    /// The ping-pong of the module [`kernel`].
    Kernel(Protocol, Wait),
    /// iperf3, with or without segmentation offload.
    Iperf { offload: bool },
    /// A program of perftest under `urnic run`, over veth (the cable) or over virtio/vhost.
    Perftest { program: &'static str, cable: bool },
    /// `fi_pingpong` over libfabric's provider for TCP.
    FiPingpong,
    /// sockperf over kernel TCP.
    Sockperf,
}

impl Tool {
    fn needs_lab(self) -> bool {
        !matches!(self, Self::Floor | Self::Pair(_) | Self::Perftest { cable: false, .. })
    }

    /// Returns the external program that is needed, and the package that contains it; `None` if none is needed.
    fn program(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Iperf { .. } => Some(("iperf3", "iperf3")),
            Self::Perftest { program, .. } => Some((program, "perftest")),
            Self::FiPingpong => Some(("fi_pingpong", "libfabric-bin")),
            Self::Sockperf => Some(("sockperf", "sockperf")),
            Self::Floor | Self::Pair(_) | Self::Nodes(_) | Self::Kernel(..) => None,
        }
    }
}

/// One measurement of a run.
#[derive(Clone, Copy, Debug)]
struct Step {
    tool: Tool,
    who: &'static str,
    quantity: Quantity,
    size: u64,
}

/// Returns all measurements of a run, in their order.
fn plan(quick: bool) -> Vec<Step> {
    use Quantity::{Bandwidth, Latency, Rate};
    let step = |tool, who, quantity, size| Step { tool, who, quantity, size };
    let kernel = |protocol, wait, who| step(Tool::Kernel(protocol, wait), who, Latency, 8);
    let perftest =
        |program, cable, who, quantity, size| step(Tool::Perftest { program, cable }, who, quantity, size);
    let mut steps = vec![
        step(Tool::Floor, who::FLOOR, Latency, FRAME_OF_8),
        step(Tool::Pair("write"), who::VIRTIO_WRITE, Latency, 8),
        kernel(Protocol::Tcp, Wait::Spin, who::TCP_SPIN),
        step(Tool::Nodes("write"), who::VETH_WRITE, Latency, 8),
        kernel(Protocol::Udp, Wait::Spin, who::UDP_SPIN),
        step(Tool::Pair("read"), who::VIRTIO_READ, Latency, 8),
        kernel(Protocol::Tcp, Wait::Block, who::TCP_BLOCK),
        step(Tool::Pair("send"), who::VIRTIO_SEND, Latency, 8),
        kernel(Protocol::Udp, Wait::Block, who::UDP_BLOCK),
        perftest("ib_send_lat", false, who::SEND_LAT, Latency, 8),
        step(Tool::Sockperf, who::SOCKPERF, Latency, stock::SOCKPERF_LEAST),
        perftest("ib_send_lat", true, who::SEND_LAT_VETH, Latency, 8),
        step(Tool::FiPingpong, who::FI_PINGPONG, Latency, 8),
        perftest("ib_read_lat", false, who::READ_LAT, Latency, 8),
        step(Tool::Floor, who::FLOOR, Bandwidth, 14 + u64::from(MTU)),
        step(Tool::Pair("write"), who::VIRTIO_WRITE, Rate, 64),
        step(Tool::Nodes("write"), who::VETH_WRITE, Rate, 64),
    ];
    let sizes: &[u64] = match quick {
        true => &[64, 4 << 10, 64 << 10, 1 << 20],
        false => &[64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
    };
    for &size in sizes {
        steps.push(step(Tool::Pair("write"), who::VIRTIO_WRITE, Bandwidth, size));
        steps.push(step(Tool::Iperf { offload: false }, who::IPERF, Bandwidth, size));
        steps.push(step(Tool::Iperf { offload: true }, who::IPERF_TSO, Bandwidth, size));
        steps.push(step(Tool::Nodes("write"), who::VETH_WRITE, Bandwidth, size));
        if PERFTEST_SIZES.contains(&size) {
            steps.push(perftest("ib_write_bw", false, who::WRITE_BW, Bandwidth, size));
            steps.push(perftest("ib_write_bw", true, who::WRITE_BW_VETH, Bandwidth, size));
        }
    }
    steps
}

/// The state of a measurement.
struct Bench<'a> {
    options: &'a Options,
    lab: Option<Lab>,
    /// The core of each end.
    cores: [usize; 2],
    seconds: f64,
    left_out: Vec<LeftOut>,
}

/// Measures everything that this machine allows.
pub fn run(options: &Options) -> Results {
    let (start, started) = (Instant::now(), machine::utc());
    let runs = if options.quick { 3 } else { 5 };
    let mut left_out = Vec::new();
    let mut leave_out = |what: &str, why: String| left_out.push(LeftOut { what: what.to_owned(), why });
    let lab = Lab::new(MTU)
        .map_err(|why| {
            leave_out("everything over veth: programs on the kernel's sockets, urnic over af_packet", why)
        })
        .ok();
    let mut steps = plan(options.quick);
    steps.retain(|step| lab.is_some() || !step.tool.needs_lab());
    let mut there: BTreeMap<&str, bool> = BTreeMap::new();
    for (program, package) in steps.iter().filter_map(|step| step.tool.program()) {
        there.entry(program).or_insert_with(|| {
            let found = machine::has(program);
            if !found {
                leave_out(program, format!("it is not installed (Debian: apt install {package})"));
            }
            found
        });
    }
    let ethtool = machine::has("ethtool");
    if there.get("iperf3") == Some(&true) && !ethtool {
        let why = "ethtool is not installed (Debian: apt install ethtool)";
        leave_out("iperf3 with TSO/GSO off", why.to_owned());
    }
    steps.retain(|step| step.tool.program().is_none_or(|(program, _)| there[program]));
    steps.retain(|step| ethtool || step.tool != Tool::Iperf { offload: false });
    let cores = urnic_dataplane::allowed_cores();
    let (first, second) =
        (cores.first().copied().unwrap_or(0), cores.get(1).or(cores.first()).copied().unwrap_or(0));
    if first == second {
        leave_out("a core for each end", "this machine offers one core, which both ends share".to_owned());
    }
    let seconds = if options.quick { 0.3 } else { 0.5 };
    let mut bench = Bench { options, lab, cores: [first, second], seconds, left_out };

    let mut measurements: Vec<Measurement> =
        steps.iter().map(|step| Measurement::new(step.who, step.quantity, step.size)).collect();
    let bar = ProgressBar::new((runs * steps.len()) as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed}  {msg}") {
        bar.set_style(style);
    }
    let mut others_percent = Vec::new();
    for run in 1..=runs {
        others_percent.push(machine::busy_percent(Duration::from_millis(500)));
        for (step, measurement) in steps.iter().zip(&mut measurements) {
            bar.set_message(format!("run {run} of {runs}: {}, {} B", step.who, step.size));
            // A measurement that fails is repeated once, because other load may have caused the failure.
            match bench.measure(step).or_else(|_| bench.measure(step)) {
                Ok(sample) => measurement.add(Sample { run, ..sample }),
                Err(why) => bench
                    .left_out
                    .push(LeftOut { what: format!("{}, {} B, run {run}", step.who, step.size), why }),
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    match count::measure(&options.bulk) {
        Ok(counted) => measurements.extend(counted),
        Err(why) => bench.left_out.push(LeftOut { what: "instructions per segment".to_owned(), why }),
    }
    measurements.retain(|m| !m.samples.is_empty());
    let mut results = Results {
        started,
        seconds: start.elapsed().as_secs_f64(),
        quick: options.quick,
        runs,
        mtu: MTU,
        machine: machine::describe(),
        versions: machine::versions(&options.urnic),
        others_percent,
        verdicts: vec![],
        left_out: bench.left_out,
        measurements,
    };
    results.judge();
    results
}

impl Bench<'_> {
    fn measure(&mut self, step: &Step) -> Words<Sample> {
        match step.tool {
            Tool::Floor | Tool::Pair(_) => self.pair(step),
            Tool::Nodes(op) => self.nodes(op, step),
            Tool::Kernel(protocol, wait) => self.kernel(protocol, wait, step.size),
            Tool::Iperf { offload } => self.iperf(offload, step.size),
            Tool::Perftest { program, cable } => self.perftest(program, cable, step),
            Tool::FiPingpong => self.fi_pingpong(step.size),
            Tool::Sockperf => self.sockperf(step.size),
        }
    }

    fn lab(&self) -> Words<&Lab> {
        self.lab.as_ref().ok_or_else(|| "no network namespaces".to_owned())
    }

    fn urnic(&self, line: &str) -> Command {
        let mut command = Command::new(&self.options.urnic);
        command.args(line.split_whitespace());
        command
    }

    /// Returns the options of `urnic perf` for a step.
    fn perf_options(&self, op: Option<&str>, step: &Step) -> String {
        let mode = match step.quantity {
            Quantity::Latency => "lat",
            Quantity::Bandwidth => "bw",
            Quantity::Rate | Quantity::Instructions => "rate",
        };
        let op = op.map(|op| format!("--op {op}")).unwrap_or_default();
        format!("{op} --mode {mode} --size {} --seconds {} --json --cdf", step.size, self.seconds)
    }

    fn pair(&self, step: &Step) -> Words<Sample> {
        let line = match step.tool {
            Tool::Pair(op) => format!("perf pair --port virtio_user {}", self.perf_options(Some(op), step)),
            _ => format!("perf floor {}", self.perf_options(None, step)),
        };
        let cores = format!("--cores {},{}", self.cores[0], self.cores[1]);
        of_urnic(step.quantity, &Running::start(self.urnic(&format!("{line} {cores}")))?.output()?)
    }

    fn nodes(&self, op: &str, step: &Step) -> Words<Sample> {
        let lab = self.lab()?;
        let node = |side: Side, core: usize| {
            format!(
                "--port af_packet:{} --ip {}/24 --mtu {MTU} --cores {core}",
                side.interface(),
                side.urnic_ip()
            )
        };
        let server = format!("perf server {} --json", node(Side::A, self.cores[0]));
        let server = lab.start(Side::A, self.urnic(&server))?;
        let client = format!(
            "perf client {} {} {}",
            Side::A.urnic_ip(),
            self.perf_options(Some(op), step),
            node(Side::B, self.cores[1])
        );
        let said = lab.start(Side::B, self.urnic(&client))?.output()?;
        server.output()?;
        of_urnic(step.quantity, &said)
    }

    fn kernel(&self, protocol: Protocol, wait: Wait, size: u64) -> Words<Sample> {
        let lab = self.lab()?;
        let (server, client) = match self.cores {
            [a, b] => (format!("--core {a}"), format!("--core {b} --seconds {}", self.seconds)),
        };
        let start = |side, end: &str, more: &str| {
            let mut command = Command::new(&self.options.own);
            let game = format!("{protocol:?} {wait:?}").to_lowercase();
            let address = Side::A.kernel_ip();
            let line = format!("{end} {game} {address}:{KERNEL_PORT} --size {size} {more}");
            command.args(line.split_whitespace());
            lab.start(side, command)
        };
        let server = start(Side::A, "kernel-server", &server)?;
        let said = start(Side::B, "kernel-client", &client)?.output()?;
        server.output()?;
        let rounds: Rounds = serde_json::from_str(&said).map_err(|e| format!("no result: {e}"))?;
        Ok(Sample {
            run: 0,
            value: rounds.rtt_us.p50,
            rtt_us: Some(rounds.rtt_us),
            rtt_cdf: Some(rounds.rtt_cdf),
        })
    }

    /// Runs both ends of perftest on urnic, each on its own core.
    fn perftest(&self, program: &str, cable: bool, step: &Step) -> Words<Sample> {
        let folder = tempfile::tempdir().map_err(|e| format!("cannot make a temporary folder: {e}"))?;
        let line = stock::perftest(program, step.quantity, step.size);
        let start = |side: Side, server: &str| {
            let port = match (cable, side) {
                (true, _) => format!("af_packet:{}", side.interface()),
                (false, Side::A) => format!("vhost:{}/link", folder.path().display()),
                (false, Side::B) => format!("virtio_user:{}/link", folder.path().display()),
            };
            let core = self.cores[usize::from(side == Side::B)];
            let ip = side.urnic_ip();
            let mut command = self.on_core(core, &self.options.urnic);
            let run = format!("run --port {port} --ip {ip}/24 --mtu {MTU} -- {line} {server}");
            command.args(run.split_whitespace());
            if server.is_empty() {
                command.env("URNIC_LOG", "urnic_verbs=debug");
            }
            if cable { self.lab()?.start(side, command) } else { Running::start(command) }
        };
        let mut server = start(Side::A, "")?;
        // Clients of perftest give up, or crash, if the server does not listen yet.
        server.wait_for("listening")?;
        let said = start(Side::B, Side::A.urnic_ip())?.output()?;
        server.output()?;
        stock::of_perftest(&said, program, step.quantity, step.size)
    }

    fn fi_pingpong(&self, size: u64) -> Words<Sample> {
        let lab = self.lab()?;
        let [a, b] = self.cores;
        let line = stock::fi_pingpong(size);
        let server = lab.start(Side::A, words(&format!("taskset -c {a} {line}")))?;
        let client = format!("taskset -c {b} {line} {}", Side::A.kernel_ip());
        let said = once_it_listens(|| lab.start(Side::B, words(&client))?.output())?;
        server.output()?;
        stock::of_fi_pingpong(&said)
    }

    fn sockperf(&self, size: u64) -> Words<Sample> {
        let lab = self.lab()?;
        let [a, b] = self.cores;
        let address = Side::A.kernel_ip();
        let server = format!("taskset -c {a} {}", stock::sockperf("server", address));
        // The server runs until it is killed on drop.
        let _server = lab.start(Side::A, words(&server))?;
        let client = stock::sockperf("ping-pong", address);
        let client = format!("taskset -c {b} {client} -m {size} -t 1 --full-rtt");
        let said = once_it_listens(|| lab.start(Side::B, words(&client))?.output())?;
        stock::of_sockperf(&said)
    }

    /// Returns a command that runs `program` on one core.
    fn on_core(&self, core: usize, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.arg("-c").arg(core.to_string()).arg(program);
        command
    }

    fn iperf(&self, offload: bool, size: u64) -> Words<Sample> {
        let lab = self.lab()?;
        // Without ethtool, the offload keeps its default, which is on.
        lab.set_segmentation_offload(offload).or_else(|why| if offload { Ok(()) } else { Err(why) })?;
        let measured = self.iperf_once(lab, size);
        // The ping-pongs use the kernel's default.
        let _ = lab.set_segmentation_offload(true);
        measured
    }

    fn iperf_once(&self, lab: &Lab, size: u64) -> Words<Sample> {
        let address = Side::A.kernel_ip();
        let [a, b] = self.cores;
        let server = lab.start(Side::A, words(&format!("iperf3 -s -1 -B {address}")))?;
        let client = format!("iperf3 -c {address} -t 1 -l {size} -A {b},{a} -J");
        let said = once_it_listens(|| lab.start(Side::B, words(&client))?.output())?;
        // The client's report contains the receiver's numbers, so there is no need to wait for the server, which may
        // never end after small messages (iperf3 3.12).
        drop(server);
        let json: serde_json::Value = serde_json::from_str(&said).map_err(|e| format!("iperf3: {e}"))?;
        let bits = json["end"]["sum_received"]["bits_per_second"].as_f64();
        let value = bits.ok_or("iperf3 does not say how fast it was")? / 1e9;
        Ok(Sample { run: 0, value, rtt_us: None, rtt_cdf: None })
    }
}

/// Returns the client's output. Runs the client again if its connection is refused, because the server may not listen
/// yet.
fn once_it_listens(client: impl Fn() -> Words<String>) -> Words<String> {
    let start = Instant::now();
    loop {
        match client() {
            Err(why) if why.contains("refused") && start.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            said => return said,
        }
    }
}

/// Parses the output of `urnic perf`.
fn of_urnic(quantity: Quantity, said: &str) -> Words<Sample> {
    let report: PerfReport = serde_json::from_str(said).map_err(|e| format!("no result: {e}"))?;
    let value = match quantity {
        Quantity::Latency => report.rtt_us.map(|rtt| rtt.p50),
        Quantity::Bandwidth => report.gbit_s,
        Quantity::Rate => report.mmsg_s,
        Quantity::Instructions => None,
    };
    let value = value.ok_or("urnic perf reports nothing")?;
    Ok(Sample { run: 0, value, rtt_us: report.rtt_us, rtt_cdf: report.rtt_cdf })
}

/// Facts by name.
type Facts = BTreeMap<&'static str, String>;
