//! Measures RDMA to a process that sleeps, and the CPU time that the process uses while idle. Prints one JSON object.

use std::process::ExitCode;

use urnic_bench::perf::sleeping::run_sleeping;
use urnic_config::Config;

fn main() -> ExitCode {
    match run_sleeping(&Config::default()) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).expect("plain data serialises"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("sleeping_target: {error}");
            ExitCode::FAILURE
        }
    }
}
