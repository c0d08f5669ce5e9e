//! Other projects' programs: perftest on urnic, and for comparison libfabric's `fi_pingpong` and sockperf over the
//! kernel's TCP. This module makes their command lines and parses their output.

use super::{
    lab::Words,
    results::{Quantity, Sample},
};
use crate::perf::Latency;

/// The smallest message of sockperf, in bytes: every message contains a header of this length.
pub const SOCKPERF_LEAST: u64 = 14;
/// Round trips of a latency measurement.
const ROUNDS: u32 = 20_000;

/// Returns the command line of a program of perftest, the same at both ends.
pub fn perftest(program: &str, quantity: Quantity, size: u64) -> String {
    let rounds = match quantity {
        Quantity::Latency => ROUNDS,
        // As many messages as half a gigabyte contains, within limits.
        _ => ((512 << 20) / size).clamp(1_000, 500_000) as u32,
    };
    format!("{program} -R -F --report_gbits -s {size} -n {rounds}")
}

/// Returns the command line of `fi_pingpong`, the same at both ends. It uses libfabric's provider for TCP and connected
/// endpoints.
pub fn fi_pingpong(size: u64) -> String {
    format!("fi_pingpong -p tcp -e msg -I {ROUNDS} -S {size}")
}

/// Returns the command line of one end of sockperf, which spins. `address` is the server's.
pub fn sockperf(end: &str, address: &str) -> String {
    format!("sockperf {end} --tcp --nonblocked -i {address} -p 11111")
}

/// Returns the numbers of the first line that begins with the size and has at least `count` numbers.
fn row(said: &str, size: u64, count: usize) -> Words<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    said.lines()
        .filter_map(|line| numbers(line).ok())
        .find(|row| row.len() >= count && row[0] == size as f64)
        .ok_or_else(|| format!("no result in: {}", said.trim()))
}

/// Parses the output of a program of perftest. Latency programs report half the round trip for Sends and Writes, and
/// the whole round trip for Reads and Atomics.
pub fn of_perftest(said: &str, program: &str, quantity: Quantity, size: u64) -> Words<Sample> {
    let one_way = program.starts_with("ib_send") || program.starts_with("ib_write");
    match quantity {
        // Columns: size, rounds, least, most, median, mean, deviation, percentiles.
        Quantity::Latency => {
            let row = row(said, size, 9)?;
            let us = |i: usize| row[i] * if one_way { 2.0 } else { 1.0 };
            let rtt = Latency { min: us(2), max: us(3), p50: us(4), p99: us(7), p999: us(8) };
            Ok(Sample { run: 0, value: rtt.p50, rtt_us: Some(rtt), rtt_cdf: None })
        }
        // Columns: size, messages, peak and mean Gbit/s, million messages per second.
        Quantity::Bandwidth => Ok(plain(row(said, size, 5)?[3])),
        Quantity::Rate => Ok(plain(row(said, size, 5)?[4])),
        Quantity::Instructions => Err("perftest counts no instructions".to_owned()),
    }
}

/// Parses the output of `fi_pingpong`: the mean of half a round trip.
pub fn of_fi_pingpong(said: &str) -> Words<Sample> {
    let mut lines = said.lines().skip_while(|line| !line.contains("usec/xfer"));
    let mut next = || lines.next().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let (head, row) = next().zip(next()).ok_or_else(|| format!("no result in: {}", said.trim()))?;
    let column = head.iter().position(|name| *name == "usec/xfer").and_then(|i| row.get(i));
    let half = column.and_then(|us| us.parse::<f64>().ok());
    half.map(|us| plain(us * 2.0)).ok_or_else(|| format!("no result in: {}", said.trim()))
}

/// Parses the output of sockperf with `--full-rtt`.
pub fn of_sockperf(said: &str) -> Words<Sample> {
    let behind = |what: &str| {
        let line = said.lines().find(|line| line.contains(what))?;
        line.rsplit('=').next()?.trim().parse::<f64>().ok()
    };
    let rtt = || {
        Some(Latency {
            min: behind("<MIN> observation")?,
            p50: behind("percentile 50.000")?,
            p99: behind("percentile 99.000")?,
            p999: behind("percentile 99.900")?,
            max: behind("<MAX> observation")?,
        })
    };
    let rtt = rtt().ok_or_else(|| format!("no result in: {}", said.trim()))?;
    Ok(Sample { run: 0, value: rtt.p50, rtt_us: Some(rtt), rtt_cdf: None })
}

fn plain(value: f64) -> Sample {
    Sample { run: 0, value, rtt_us: None, rtt_cdf: None }
}

#[cfg(test)]
mod tests;
