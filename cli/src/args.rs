//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use urnic::simulation::Impairment;
use urnic_bench::perf::{Beside, Link, Mode, Op, Wait};
use urnic_config::PortSpec;

/// A userspace RDMA NIC: iWARP over the kernel's TCP, or over DPDK
#[derive(Debug, Parser)]
#[command(
    name = "urnic",
    version,
    after_help = "Exit codes: 0 done, and verified if asked, 1 failed, 2 bad usage or configuration.\n\
                  Settings come from defaults, a TOML file (--config or URNIC_CONFIG), the environment (URNIC_*) and \
                  options; each overrides the ones before.\n\
                  URNIC_LOG=debug (or info, trace) writes a log to standard error."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the device, its port, and the capabilities of the machine
    Info(InfoArgs),
    /// Measure latency, bandwidth and message rate
    Perf(PerfArgs),
    /// Ping-pong with rping of librdmacm, or with another urnic
    Rping(RpingArgs),
    /// Run a program for libibverbs and librdmacm, unmodified, on a urnic device
    Run(RunArgs),
    /// Write the manual pages and the shell completions into a folder
    #[command(hide = true)]
    Papers(PapersArgs),
    /// Join two ports, and drop, duplicate, reorder, delay, corrupt, mark or slow down the frames that cross
    Relay(Box<RelayArgs>),
}

#[derive(Args, Debug)]
pub struct PapersArgs {
    /// The folder in which the command makes the folders man1, bash, zsh and fish
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Options of all commands that run an engine.
#[derive(Args, Debug)]
#[command(next_help_heading = "Settings")]
pub struct EngineArgs {
    /// Configuration file (TOML); docs/urnic.toml describes every key
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Largest IP packet in bytes, 576 to 9000
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<String>,
    /// Cores to run on, such as 0,1 or 2-3; each runs one engine, unless --engines sets the number of engines
    #[arg(long, value_name = "LIST")]
    pub cores: Option<String>,
    /// Number of engines of the device, 1 to 64, or auto: one for each core of --cores
    #[arg(long, value_name = "N")]
    pub engines: Option<String>,
    /// Threads that drive an engine. inline: only the program's threads. dedicated: a thread of its own that never
    /// sleeps. adaptive: the program's threads while they poll, otherwise a thread of its own that naps
    #[arg(long, value_name = "WHO")]
    pub progress: Option<String>,
    /// Faults to inject at the port, such as loss=0.01,seed=7
    #[arg(long, value_name = "FAULTS")]
    pub fault: Option<String>,
    /// Record the frames that the port sends and receives, for Wireshark; `urnic perf pair` records those of its client
    #[arg(long, value_name = "FILE")]
    pub capture: Option<String>,
}

/// Options of a single node.
#[derive(Args, Debug)]
#[command(next_help_heading = "Settings")]
pub struct NodeArgs {
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Address of the device with its prefix length, such as 10.0.0.1/24 or fd00::1/64; may be repeated
    #[arg(long, value_name = "ADDR/LEN")]
    pub ip: Vec<String>,
    /// Use the addresses and routers that IPv6 routers of the network advertise
    #[arg(long)]
    pub autoconf: bool,
    /// VLAN that all frames belong to, from 1 to 4094
    #[arg(long, value_name = "NUMBER")]
    pub vlan: Option<String>,
    /// Router to other networks; may be repeated, once for IPv4 and once for IPv6
    #[arg(long, value_name = "ADDR")]
    pub gateway: Vec<String>,
    /// Port to use: kernel (default), kernel:ADDRESS or kernel:INTERFACE; or a DPDK port: virtio_user:PATH,
    /// vhost:PATH, memif:PATH[,role=server], ring:NAME, af_packet:INTERFACE, af_xdp:INTERFACE, tap:NAME, pci:ADDRESS
    /// or vdev:DEVICE
    #[arg(long, value_name = "KIND:ARG")]
    pub port: Option<String>,
    /// Ethernet address, or `interface` for the address of the interface or NIC; by default derived from the IP address
    #[arg(long, value_name = "ADDR")]
    pub mac: Option<String>,
}

#[derive(Args, Debug)]
pub struct InfoArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// Show only the connections, engines and counters of the programs that run on urnic in this network
    /// namespace: your own programs; as root, those of all users
    #[arg(long)]
    pub connections: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The settings reach the program and its child processes by environment variables (URNIC_*, \
                        LD_PRELOAD, LD_LIBRARY_PATH), which `urnic info` shows. docs/run.md lists the programs and \
                        calls that work."
)]
pub struct RunArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    /// How urnic's libraries get into the program
    #[arg(long, value_name = "HOW", default_value = "both")]
    pub libraries: Way,
    /// Turn the program's TCP sockets into rsockets, by librspreload.so of librdmacm
    #[arg(long)]
    pub rsockets: bool,
    /// The program and its arguments, after --
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Args, Debug)]
pub struct PerfArgs {
    #[command(subcommand)]
    pub command: PerfCommand,
}

#[derive(Debug, Subcommand)]
pub enum PerfCommand {
    /// Start two nodes on this machine, and measure between them
    Pair(PairArgs),
    /// Serve one client, then exit
    Server(ServerArgs),
    /// Measure against a server
    Client(ClientArgs),
    /// Measure the raw link, without RDMA: the limit for everything above it
    Floor(FloorArgs),
    /// Read results from standard input, one JSON object on each line, and print one table
    Table,
}

/// Options of `urnic rping`. The letters of the short options are those of librdmacm's rping.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("role").args(["server", "client"]).required(true))]
pub struct RpingArgs {
    /// Be the server: echo what one client sends
    #[arg(short, long)]
    pub server: bool,
    /// Be the client: send pings
    #[arg(short, long, requires = "address", conflicts_with = "persistent")]
    pub client: bool,
    /// Client: address or name of the server. Server: listen on this address only; it must be an address of this
    /// host, or with a DPDK port an address of --ip [default of a server: all addresses]
    #[arg(short, long, value_name = "HOST")]
    pub address: Option<String>,
    /// TCP port [default: 7174]
    #[arg(short = 'p', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub tcp_port: Option<u16>,
    /// Pings that a client sends; 0: without end
    #[arg(short = 'C', long, value_name = "N", default_value_t = 0)]
    pub count: u64,
    /// Bytes of a client's ping: 26 to 65535; a server accepts any of these sizes
    #[arg(short = 'S', long, value_name = "N", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(i64::from(PING_SIZES.0)..=i64::from(PING_SIZES.1)))]
    pub size: u32,
    /// Check every byte of every ping
    #[arg(short = 'V', long)]
    pub validate: bool,
    /// Print the pings
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// Print every step on standard error
    #[arg(short, long)]
    pub debug: bool,
    /// Server: serve any number of clients, several at a time, until killed
    #[arg(short = 'P', long)]
    pub persistent: bool,
    /// Do not ask for CRCs; connections use them if either end asks
    #[arg(long)]
    pub no_crc: bool,
    /// Print one JSON object for each connection
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// The parameters of a measurement.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
pub struct MeasureArgs {
    /// Operation
    #[arg(long, default_value = "write", value_parser = words::<Op>(&["write", "read", "send", "atomic"]))]
    pub op: Op,
    /// lat: one message at a time; bw: as many bytes as possible; rate: as many messages as possible
    #[arg(long, default_value = "lat", value_parser = words::<Mode>(&["lat", "bw", "rate"]))]
    pub mode: Mode,
    /// Bytes of a message, such as 4096 or 64KiB [default: 8, with --mode bw 64KiB]
    #[arg(long, value_name = "N", value_parser = size)]
    pub size: Option<usize>,
    #[command(flatten)]
    pub amount: AmountArgs,
    /// Queue pairs of each thread, which spreads its messages over them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub qps: usize,
    /// Requests outstanding on each queue pair in the modes bw and rate, at most 4096 [default: 4 to 256, by size and
    /// --qps]
    #[arg(long, value_name = "N")]
    pub window: Option<usize>,
    /// Load beside the measurement, such as write:8: 8 queue pairs of each thread, each with two Writes (or
    /// Reads) of 8 MiB outstanding
    #[arg(long, value_name = "OP:N")]
    pub beside: Option<Beside>,
    /// Threads of each end, 1 to 64, each with its own queue pairs and messages; a server uses its client's number
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// How both ends wait for completions: poll, or event (asleep on a completion channel) [default: event with a
    /// dedicated engine, else poll]
    #[arg(long, value_name = "HOW", value_parser = words::<Wait>(&["poll", "event"]), hide_possible_values = true)]
    pub wait: Option<Wait>,
    /// Fill every message with a changing pattern and check every byte where it arrives
    #[arg(long)]
    pub verify: bool,
}

/// The length of a measurement.
#[derive(Args, Debug)]
pub struct AmountArgs {
    /// Messages (of a floor: frames) to measure [default: about a second's worth]
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub iters: Option<u64>,
    /// Seconds to measure
    #[arg(long, value_name = "S")]
    pub seconds: Option<f64>,
}

#[derive(Args, Debug)]
pub struct PairArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Kind of link: the kernel's sockets over the loopback; virtio_user (with vhost) or memif between two processes,
    /// ring within one
    #[arg(long, value_name = "KIND", default_value = "kernel", help_heading = "Measurement",
        value_parser = words::<Link>(&["kernel", "virtio_user", "memif", "ring"]))]
    pub port: Link,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
pub struct OutputArgs {
    /// Do not ask for CRCs; connections use them if either end asks
    #[arg(long)]
    pub no_crc: bool,
    #[command(flatten)]
    pub form: FormArgs,
}

/// The form of a result.
#[derive(Args, Debug)]
#[command(next_help_heading = "Measurement")]
pub struct FormArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// With --json: add rtt_cdf, the distribution of round trips
    #[arg(long, requires = "json")]
    pub cdf: bool,
}

#[derive(Args, Debug)]
pub struct ServerArgs {
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct ClientArgs {
    /// Address or name of the server, optionally with :PORT
    pub host: String,
    #[command(flatten)]
    pub measure: MeasureArgs,
    #[command(flatten)]
    pub node: NodeArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Args, Debug)]
pub struct FloorArgs {
    /// lat: ping-pong of one frame; bw: frames one way
    #[arg(long, default_value = "lat", value_parser = words::<Mode>(&["lat", "bw"]))]
    pub mode: Mode,
    /// Bytes of a frame without FCS, 60 to 9014 [default: 64, with --mode bw 1514]
    #[arg(long, value_name = "N", value_parser = size)]
    pub size: Option<usize>,
    /// Copy the payload of each frame from memory, and into memory, as programs that move data do
    #[arg(long)]
    pub copies: bool,
    #[command(flatten)]
    pub amount: AmountArgs,
    /// Kind of link: virtio_user (with vhost) or memif between two processes, ring within one
    #[arg(long, value_name = "KIND", default_value = "virtio_user", help_heading = "Measurement",
        value_parser = words::<Link>(&["virtio_user", "memif", "ring"]))]
    pub port: Link,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub config: Option<PathBuf>,
    /// Cores to run on, such as 0,1
    #[arg(long, value_name = "LIST", help_heading = "Settings")]
    pub cores: Option<String>,
    #[command(flatten)]
    pub form: FormArgs,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Faults are a list of: loss, burst, dup, reorder, corrupt, swap, mark (probabilities, such as 0.01 or 1%), \
                        delay, jitter (times, such as 50us), rate (such as 1gbit) with queue and ecn (frames), limit \
                        (frames), limit_bytes, burst_len, seed. docs/relay.md describes them.\n\
                        SIGINT (Ctrl-C) or SIGTERM ends the relay; then it prints what it did."
)]
pub struct RelayArgs {
    /// The first port, A: any DPDK port but ring, such as af_packet:eth0 or vhost:/tmp/a
    #[arg(value_name = "PORT_A")]
    pub a: PortSpec,
    /// The second port, B
    #[arg(value_name = "PORT_B")]
    pub b: PortSpec,
    /// Faults in both directions, such as loss=1%,dup=1%,seed=7; B to A uses the next seed
    #[arg(long, value_name = "FAULTS")]
    pub fault: Option<Impairment>,
    /// Faults from A to B, instead of --fault
    #[arg(long, value_name = "FAULTS")]
    pub fault_ab: Option<Impairment>,
    /// Faults from B to A, instead of --fault
    #[arg(long, value_name = "FAULTS")]
    pub fault_ba: Option<Impairment>,
    /// End after this many seconds
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE", help_heading = "Settings")]
    pub config: Option<PathBuf>,
    /// Largest IP packet in bytes that may cross, 576 to 9000
    #[arg(long, value_name = "BYTES", help_heading = "Settings")]
    pub mtu: Option<String>,
    /// Core to run on; of several, the first
    #[arg(long, value_name = "LIST", help_heading = "Settings")]
    pub cores: Option<String>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| *s > 0.0);
    seconds
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "write a number of seconds, more than 0".to_owned())
}

/// Returns a parser that accepts only the `known` words. The command's help and its error messages list them.
fn words<T>(known: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(known).try_map(|word| word.parse::<T>())
}

fn size(text: &str) -> Result<usize, String> {
    urnic_config::bytes(text)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| "write a number of bytes such as 4096 or 64KiB".to_owned())
}

/// The smallest and the largest ping, in octets. The smallest has space for the text of a ping number of up to
/// 13 digits; the largest is rping's limit.
pub const PING_SIZES: (u32, u32) = (26, 65_535);

/// How our libraries get into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Preloaded, and in place of the system's libraries: works however the program loads verbs
    Both,
    /// Only preloaded
    Preload,
    /// Only in place of the system's libraries: for programs that allow no preloading, such as programs built with
    /// sanitizers
    DropIn,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
