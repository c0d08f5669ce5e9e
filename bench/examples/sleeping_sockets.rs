//! Sleeping ends over the kernel's sockets, for `scripts/kernel-check`.
//!
//! ```text
//! sleeping_sockets listen                 prints "ready", accepts and sleeps until it is killed
//! sleeping_sockets read ADDRESS           times Reads and Writes of the listener's memory; prints one JSON object
//! sleeping_sockets connect ADDRESS N      makes N connections, prints "ready" and sleeps until it is killed
//! ```

use std::{env, io::Write, net::SocketAddr, process::ExitCode};

use urnic_bench::perf::{
    PerfError,
    sockets::{run_idlers, run_reader, run_sleeper},
};
use urnic_config::Config;

const PORT: u16 = 18518;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let config = Config::default();
    let ready = || {
        println!("ready");
        // If this fails, no process reads standard output any longer.
        let _ = std::io::stdout().flush();
    };
    let done = match words.as_slice() {
        ["listen"] => run_sleeper(&config, PORT, ready).map(|never| match never {}),
        ["read", address] => server(address).and_then(|server| {
            let answers = run_reader(&config, server)?;
            println!("{}", serde_json::to_string(&answers).expect("plain data serialises"));
            Ok(())
        }),
        ["connect", address, count] => server(address).and_then(|server| {
            let count = count.parse().map_err(|_| PerfError::Usage(format!("`{count}` is not a number")))?;
            run_idlers(&config, server, count, ready).map(|never| match never {})
        }),
        _ => {
            let usage = "usage: sleeping_sockets listen | read ADDRESS | connect ADDRESS N";
            Err(PerfError::Usage(usage.to_owned()))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sleeping_sockets: {error}");
            if error.is_usage() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn server(address: &str) -> Result<SocketAddr, PerfError> {
    let ip = address.parse().map_err(|_| PerfError::Usage(format!("`{address}` is not an address")))?;
    Ok(SocketAddr::new(ip, PORT))
}
