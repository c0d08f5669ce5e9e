//! Measures the memory of an idle queue pair, as the average of 1,000. Prints one JSON object.

use std::process::ExitCode;

use urnic_bench::memory::queue_pair_memory;
use urnic_config::Config;

fn main() -> ExitCode {
    match queue_pair_memory(&Config::default(), 1000) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).expect("plain data serialises"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("qp_memory: {error}");
            ExitCode::FAILURE
        }
    }
}
