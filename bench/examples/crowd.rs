//! Does one of three things. `many` measures QPS queue pairs on devices with ENGINES engines each. `storm`
//! measures Writes during a storm of registrations. Both print a JSON object. `turns` makes Writes on many
//! queue pairs in turn while `scripts/stages` measures the process from outside, and prints `null`.
//!
//! ```text
//! crowd many QPS ENGINES
//! crowd storm ROUNDS
//! crowd turns QPS SIZE ROUNDS
//! ```

use std::process::ExitCode;

use urnic_bench::{crowd, perf::PerfError};

fn run(arguments: &[String]) -> Result<String, PerfError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let usage = || {
        PerfError::Usage(
            "usage: crowd many QPS ENGINES | crowd storm ROUNDS | crowd turns QPS SIZE ROUNDS".to_owned(),
        )
    };
    let number = |word: &str| word.parse::<usize>().map_err(|_| usage());
    let json = match words.as_slice() {
        ["many", qps, engines] => serde_json::to_string(&crowd::many(number(qps)?, number(engines)?)?),
        ["turns", qps, size, rounds] => {
            let size = size.parse().map_err(|_| usage())?;
            serde_json::to_string(&crowd::turns(number(qps)?, size, number(rounds)?)?)
        }
        ["storm", rounds] => serde_json::to_string(&crowd::storm([0, 1], number(rounds)?)?),
        _ => return Err(usage()),
    };
    Ok(json.expect("plain data serialises"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("crowd: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}
