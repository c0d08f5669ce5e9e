//! Programs of others: perftest on urnic, and what stands beside it over the kernel's TCP, which are libfabric's
//! `fi_pingpong` and sockperf. Their command lines, and what they print.

use super::{
    lab::Words,
    results::{Quantity, Sample},
};
use crate::perf::Latency;

/// A message of sockperf holds its own header.
pub const SOCKPERF_LEAST: u64 = 14;
/// Round trips of a latency.
const ROUNDS: u32 = 20_000;

/// A program of perftest with its arguments, the same at both ends.
pub fn perftest(program: &str, quantity: Quantity, size: u64) -> String {
    let rounds = match quantity {
        Quantity::Latency => ROUNDS,
        // Half a gigabyte, but not too few nor too many.
        _ => ((512 << 20) / size).clamp(1_000, 500_000) as u32,
    };
    format!("{program} -R -F --report_gbits -s {size} -n {rounds}")
}

/// `fi_pingpong`, the same at both ends: libfabric's provider for TCP, connected endpoints.
pub fn fi_pingpong(size: u64) -> String {
    format!("fi_pingpong -p tcp -e msg -I {ROUNDS} -S {size}")
}

/// sockperf with both ends spinning; the server's address follows.
pub fn sockperf(end: &str, address: &str) -> String {
    format!("sockperf {end} --tcp --nonblocked -i {address} -p 11111")
}

/// The numbers of the first line that begins with the size and holds `count` numbers or more.
fn row(said: &str, size: u64, count: usize) -> Words<Vec<f64>> {
    let numbers = |line: &str| line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    said.lines()
        .filter_map(|line| numbers(line).ok())
        .find(|row| row.len() >= count && row[0] == size as f64)
        .ok_or_else(|| format!("no result in: {}", said.trim()))
}

/// What a program of perftest found. Those for latency tell half a round trip of Sends and Writes, and all of it for
/// Reads and Atomics.
pub fn of_perftest(said: &str, program: &str, quantity: Quantity, size: u64) -> Words<Sample> {
    let one_way = program.starts_with("ib_send") || program.starts_with("ib_write");
    match quantity {
        // Size, rounds, least, most, median, mean, deviation, percentiles.
        Quantity::Latency => {
            let row = row(said, size, 9)?;
            let us = |i: usize| row[i] * if one_way { 2.0 } else { 1.0 };
            let rtt = Latency { min: us(2), max: us(3), p50: us(4), p99: us(7), p999: us(8) };
            Ok(Sample { run: 0, value: rtt.p50, rtt_us: Some(rtt), rtt_cdf: None })
        }
        // Size, messages, peak and mean Gbit/s, million messages a second.
        Quantity::Bandwidth => Ok(plain(row(said, size, 5)?[3])),
        Quantity::Rate => Ok(plain(row(said, size, 5)?[4])),
        Quantity::Instructions => Err("perftest counts no instructions".to_owned()),
    }
}

/// What `fi_pingpong` found: the mean of half a round trip.
pub fn of_fi_pingpong(said: &str) -> Words<Sample> {
    let mut lines = said.lines().skip_while(|line| !line.contains("usec/xfer"));
    let mut next = || lines.next().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let (head, row) = next().zip(next()).ok_or_else(|| format!("no result in: {}", said.trim()))?;
    let column = head.iter().position(|name| *name == "usec/xfer").and_then(|i| row.get(i));
    let half = column.and_then(|us| us.parse::<f64>().ok());
    half.map(|us| plain(us * 2.0)).ok_or_else(|| format!("no result in: {}", said.trim()))
}

/// What sockperf found with `--full-rtt`.
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
