//! `urnic perf`: measurements.

use std::io::BufRead;

#[cfg(feature = "dpdk")]
use urnic_bench::perf::floor::{FloorOptions, run_floor};
use urnic_bench::perf::{
    Amount, DEFAULT_PORT, Mode, Op, PerfError, PerfOptions, PerfReport, run_client, run_pair, run_server,
    table,
};
use urnic_config::{Config, Progress};

use crate::args::{
    AmountArgs, ClientArgs, FloorArgs, FormArgs, MeasureArgs, PairArgs, PerfArgs, PerfCommand, ServerArgs,
};
use crate::failure::{Failure, print};
use crate::host::resolve;
use crate::settings::Settings;

pub fn run(args: &PerfArgs) -> Result<(), Failure> {
    match &args.command {
        PerfCommand::Pair(args) => pair(args),
        PerfCommand::Server(args) => server(args),
        PerfCommand::Client(args) => client(args),
        PerfCommand::Floor(args) => floor(args),
        PerfCommand::Table => print_table(),
    }
}

fn pair(args: &PairArgs) -> Result<(), Failure> {
    let config = Settings::of_engine(&args.engine).and_no_crc(args.output.no_crc).load()?;
    let options = options(&args.measure);
    show(run_pair(&config, args.port, &options, !args.output.form.json), &args.output.form)
}

fn server(args: &ServerArgs) -> Result<(), Failure> {
    let config = Settings::of_node(&args.node).and_no_crc(args.output.no_crc).load_node()?;
    show(run_server(&config, DEFAULT_PORT, &own_cores(&config)), &args.output.form)
}

fn client(args: &ClientArgs) -> Result<(), Failure> {
    let config = Settings::of_node(&args.node).and_no_crc(args.output.no_crc).load_node()?;
    let options = PerfOptions { cores: own_cores(&config), ..options(&args.measure) };
    let server = resolve(&args.host, DEFAULT_PORT)?;
    show(run_client(&config, server, &options, !args.output.form.json), &args.output.form)
}

#[cfg(feature = "dpdk")]
fn floor(args: &FloorArgs) -> Result<(), Failure> {
    let settings = Settings::new(args.config.as_deref());
    let config = settings.set("--cores", "engine.cores", args.cores.as_deref()).load()?;
    let size = args.size.unwrap_or(if args.mode == Mode::Bw { 1514 } else { 64 });
    let mut options = FloorOptions::new(args.mode, size);
    options.amount = amount(&args.amount, options.amount);
    options.copies = args.copies;
    show(run_floor(&config, args.port, &options, !args.form.json), &args.form)
}

#[cfg(not(feature = "dpdk"))]
fn floor(_: &FloorArgs) -> Result<(), Failure> {
    Err(Failure::without_dpdk())
}

/// Returns the cores to pin the measuring threads to: the engines' cores; none if dedicated engines need their cores
/// for themselves.
fn own_cores(config: &Config) -> Vec<usize> {
    match config.engine.progress {
        Progress::Dedicated => Vec::new(),
        Progress::Inline | Progress::Adaptive => config.engine.cores.clone(),
    }
}

fn options(args: &MeasureArgs) -> PerfOptions {
    let large = args.mode == Mode::Bw && args.op != Op::Atomic;
    let size = args.size.unwrap_or(if large { 64 << 10 } else { 8 });
    let usual = PerfOptions::new(args.op, args.mode, size);
    PerfOptions {
        amount: amount(&args.amount, usual.amount),
        qps: args.qps,
        window: args.window,
        threads: args.threads,
        wait: args.wait,
        verify: args.verify,
        beside: args.beside,
        ..usual
    }
}

fn amount(args: &AmountArgs, usual: Amount) -> Amount {
    match (args.iters, args.seconds) {
        (Some(iters), _) => Amount::Iters(iters),
        (None, Some(seconds)) => Amount::Seconds(seconds),
        (None, None) => usual,
    }
}

fn show(report: Result<PerfReport, PerfError>, form: &FormArgs) -> Result<(), Failure> {
    let mut report = report?;
    if !form.cdf {
        report.rtt_cdf = None;
    }
    print(&if form.json { report.to_json() } else { table(&[report]) })
}

fn print_table() -> Result<(), Failure> {
    let mut reports = Vec::new();
    for (i, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| Failure::Failed(format!("cannot read standard input: {error}")))?;
        if line.trim().is_empty() {
            continue;
        }
        reports.push(serde_json::from_str::<PerfReport>(&line).map_err(|error| {
            Failure::Usage(format!(
                "line {} of standard input is no result: {error}; pass on what urnic perf --json prints",
                i + 1
            ))
        })?);
    }
    print(&table(&reports))
}
