//! Measures urnic, the raw link, and programs on the kernel's sockets; `scripts/bench` runs it.

use std::{fs, io, net::SocketAddrV4, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use urnic_bench::compare::{self, html, kernel, kernel::PingPong};

/// Measures urnic, the raw link, and programs on the kernel's sockets.
#[derive(Parser)]
#[command(name = "urnic-bench")]
struct Cli {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand)]
enum What {
    /// Measure everything and write results.json and report.html
    Run {
        /// Measure fewer sizes and runs
        #[arg(long)]
        quick: bool,
        /// Folder for the results
        #[arg(long, value_name = "DIR", default_value = "target/bench")]
        out: PathBuf,
    },
    /// Run the answering end of a ping-pong
    KernelServer(GameArgs),
    /// Run the measuring end of a ping-pong; print one JSON object
    KernelClient {
        #[command(flatten)]
        game: GameArgs,
        /// Duration of the measurement in seconds
        #[arg(long, value_name = "S")]
        seconds: f64,
    },
}

#[derive(Args)]
struct GameArgs {
    /// Protocol of the sockets
    protocol: kernel::Protocol,
    /// How both ends wait for a message
    wait: kernel::Wait,
    /// Address and port of the server, such as 10.0.0.1:7000; the server listens there
    server: SocketAddrV4,
    /// Bytes of a message
    #[arg(long, value_name = "N", default_value_t = 8,
        value_parser = clap::value_parser!(u64).range(8..=kernel::MAX_SIZE as u64))]
    size: u64,
    /// Core to run on
    #[arg(long, value_name = "N")]
    core: Option<usize>,
}

impl GameArgs {
    fn start(&self) -> Result<PingPong, String> {
        if let Some(core) = self.core {
            urnic_dataplane::pin_current_thread(core).map_err(|e| e.to_string())?;
        }
        let size = self.size as usize;
        Ok(PingPong { protocol: self.protocol, wait: self.wait, server: self.server, size })
    }
}

fn run(what: What) -> Result<(), String> {
    let words = |e: io::Error| e.to_string();
    match what {
        What::KernelServer(args) => kernel::serve(&args.start()?).map_err(words),
        What::KernelClient { game, seconds } => {
            let time = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
            let rounds = kernel::play(&game.start()?, time).map_err(words)?;
            println!("{}", serde_json::to_string(&rounds).map_err(|e| e.to_string())?);
            Ok(())
        }
        What::Run { quick, out } => {
            let own = std::env::current_exe().map_err(words)?;
            let urnic = own.with_file_name("urnic");
            if !urnic.is_file() {
                return Err(format!("{} is missing; scripts/bench builds it", urnic.display()));
            }
            fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
            let bulk = own.with_file_name("examples").join("bulk");
            let results = compare::run(&compare::Options { quick, urnic, own, bulk });
            let write = |name: &str, text: String| {
                let path = out.join(name);
                fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
                Ok::<_, String>(path)
            };
            let json = serde_json::to_string_pretty(&results).map_err(|e| e.to_string())?;
            let json = write("results.json", json)?;
            let report = write("report.html", html::page(&results))?;
            println!("{}", html::terminal(&results));
            println!("\n{}\n{}", report.display(), json.display());
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("urnic-bench: {why}");
            ExitCode::FAILURE
        }
    }
}
