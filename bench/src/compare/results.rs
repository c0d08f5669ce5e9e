//! Results: samples, medians, and whether the goals were met.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::perf::Latency;

/// The quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// Median round trip, us; for fi_pingpong, which reports no median, the mean.
    Latency,
    /// Gbit/s of message payload; for the raw link, of frames.
    Bandwidth,
    /// Million messages per second.
    Rate,
    /// Instructions per full segment, ACKs included.
    Instructions,
}

impl Quantity {
    /// Returns the unit of the quantity.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Latency => "us",
            Self::Bandwidth => "Gbit/s",
            Self::Rate => "M/s",
            Self::Instructions => "instructions",
        }
    }
}

/// The result of one run of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The number of the run, from 1.
    pub run: usize,
    /// The value; for a latency, the median of the run, or fi_pingpong's mean.
    pub value: f64,
    /// Percentiles of a latency, in microseconds; `None` for other quantities, and for fi_pingpong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<Latency>,
    /// Distribution of a latency: pairs of microseconds and the share of round trips that took no longer.
    /// `None` for other quantities, and for programs that print no distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_cdf: Option<Vec<[f64; 2]>>,
}

/// All runs of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measurement {
    /// Name of the measured program.
    pub who: String,
    /// The measured quantity.
    pub quantity: Quantity,
    /// Unit of the values.
    pub unit: &'static str,
    /// Bytes of a message; for the raw link, of a frame; for instructions, of the data in a segment.
    pub size: u64,
    /// The median of the samples; `None` if there are none.
    pub median: Option<f64>,
    /// Each percentile of a latency, as the median of the runs; `None` for other quantities, and for
    /// fi_pingpong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<Latency>,
    /// The samples: one for each run that succeeded; for instructions, one in all.
    pub samples: Vec<Sample>,
}

impl Measurement {
    /// Makes a measurement without samples.
    pub fn new(who: &str, quantity: Quantity, size: u64) -> Self {
        let unit = quantity.unit();
        Self { who: who.into(), quantity, unit, size, median: None, rtt_us: None, samples: vec![] }
    }

    /// Adds a run's result.
    pub fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
        self.median = median(self.samples.iter().map(|s| s.value));
        let middle = |of: fn(&Latency) -> f64| median(self.samples.iter().flat_map(|s| &s.rtt_us).map(of));
        let all =
            (middle(|l| l.min), middle(|l| l.p50), middle(|l| l.p99), middle(|l| l.p999), middle(|l| l.max));
        if let (Some(min), Some(p50), Some(p99), Some(p999), Some(max)) = all {
            self.rtt_us = Some(Latency { min, p50, p99, p999, max });
        }
    }

    /// Returns the distribution of a latency: for each share of round trips, the median of the runs.
    pub fn cdf(&self) -> Vec<[f64; 2]> {
        let mut by_share: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for [us, share] in self.samples.iter().flat_map(|s| &s.rtt_cdf).flatten() {
            by_share.entry((share * 1e6) as u64).or_default().push(*us);
        }
        let points = by_share.into_iter().filter_map(|(share, us)| Some([median(us)?, share as f64 / 1e6]));
        points.collect()
    }

    /// Returns the smallest and the largest sample.
    pub fn range(&self) -> Option<(f64, f64)> {
        let values = || self.samples.iter().map(|s| s.value);
        Some((values().reduce(f64::min)?, values().reduce(f64::max)?))
    }
}

/// Returns the median. For an even number of values, returns the lower of the middle two, because their mean was not
/// measured.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().checked_sub(1)? / 2).copied()
}

/// Whether a goal was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The goal is met.
    Pass,
    /// The goal is not met.
    Fail,
    /// A measurement is missing.
    Unknown,
    /// There is no goal: the ratio is for information.
    Told,
}

impl Outcome {
    /// Returns the outcome in a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "FAIL",
            Self::Unknown => "not measured",
            Self::Told => "no goal",
        }
    }
}

/// A goal, and whether it was met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The goal.
    pub goal: String,
    /// The ratio that the goal limits; `None` if one of its measurements is missing.
    pub ratio: Option<f64>,
    /// The ratio and its two medians, in words.
    pub measured: String,
    /// Whether the goal was met.
    pub outcome: Outcome,
}

/// A measurement that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Name of the measurement.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Start of the run, UTC.
    pub started: String,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Whether fewer sizes and runs than usual were measured.
    pub quick: bool,
    /// Runs of each measurement, except the instructions, which are counted once.
    pub runs: usize,
    /// MTU of every link, bytes.
    pub mtu: u16,
    /// The machine.
    pub machine: BTreeMap<&'static str, String>,
    /// Programs and libraries.
    pub versions: BTreeMap<&'static str, String>,
    /// Before each run: the share of all cores that other programs used, percent.
    pub others_percent: Vec<f64>,
    /// The goals.
    pub verdicts: Vec<Verdict>,
    /// The measurements that are missing.
    pub left_out: Vec<LeftOut>,
    /// The measurements.
    pub measurements: Vec<Measurement>,
}

/// Names of the measured programs, as tables and plots show them.
pub mod who {
    /// Raw frames over virtio/vhost, without urnic's protocols.
    pub const FLOOR: &str = "raw link, virtio/vhost";
    /// RDMA Write.
    pub const VIRTIO_WRITE: &str = "urnic Write, virtio/vhost";
    /// RDMA Read.
    pub const VIRTIO_READ: &str = "urnic Read, virtio/vhost";
    /// Send.
    pub const VIRTIO_SEND: &str = "urnic Send, virtio/vhost";
    /// RDMA Write over the virtual cable, which the programs on the kernel's sockets also use.
    pub const VETH_WRITE: &str = "urnic Write, af_packet/veth";
    /// Kernel TCP, both ends spinning.
    pub const TCP_SPIN: &str = "kernel TCP, spinning, veth";
    /// Kernel TCP, both ends sleeping.
    pub const TCP_BLOCK: &str = "kernel TCP, blocking, veth";
    /// Kernel UDP, both ends spinning.
    pub const UDP_SPIN: &str = "kernel UDP, spinning, veth";
    /// Kernel UDP, both ends sleeping.
    pub const UDP_BLOCK: &str = "kernel UDP, blocking, veth";
    /// perftest's Sends under `urnic run`.
    pub const SEND_LAT: &str = "ib_send_lat on urnic, virtio/vhost";
    /// The same over the cable.
    pub const SEND_LAT_VETH: &str = "ib_send_lat on urnic, af_packet/veth";
    /// perftest's Reads under `urnic run`.
    pub const READ_LAT: &str = "ib_read_lat on urnic, virtio/vhost";
    /// perftest's Writes under `urnic run`.
    pub const WRITE_BW: &str = "ib_write_bw on urnic, virtio/vhost";
    /// The same over the cable.
    pub const WRITE_BW_VETH: &str = "ib_write_bw on urnic, af_packet/veth";
    /// libfabric's provider for TCP, which reports a mean.
    pub const FI_PINGPONG: &str = "fi_pingpong -p tcp, veth";
    /// sockperf over TCP, both ends spinning.
    pub const SOCKPERF: &str = "sockperf, kernel TCP, veth";
    /// iperf3 with offloads.
    pub const IPERF_TSO: &str = "iperf3, TSO/GSO on, veth";
    /// urnic's TCP receives.
    pub const COUNT_RECEIVE: &str = "urnic TCP receives";
    /// The same with one copy of the payload.
    pub const COUNT_RECEIVE_COPYING: &str = "urnic TCP receives, and copies";
    /// smoltcp receives.
    pub const COUNT_RECEIVE_SMOLTCP: &str = "smoltcp receives";
    /// urnic's TCP sends.
    pub const COUNT_SEND: &str = "urnic TCP sends";
    /// The same with one copy of the payload.
    pub const COUNT_SEND_COPYING: &str = "urnic TCP sends, and copies";
    /// smoltcp sends.
    pub const COUNT_SEND_SMOLTCP: &str = "smoltcp sends";
    /// iperf3 without offloads.
    pub const IPERF: &str = "iperf3, TSO/GSO off, veth";
}

impl Results {
    /// Returns a program's measurement, if there is one.
    pub fn find(&self, who: &str, quantity: Quantity, size: u64) -> Option<&Measurement> {
        self.measurements.iter().find(|m| m.who == who && m.quantity == quantity && m.size == size)
    }

    /// Judges the goals by the medians.
    pub fn judge(&mut self) {
        use Quantity::{Bandwidth, Instructions, Latency};
        use who::*;
        const KIB64: u64 = 64 << 10;
        type Holds = fn(f64) -> bool;
        let at_least_3: Holds = |ratio| ratio >= 3.0;
        let at_most_1_5: Holds = |ratio| ratio <= 1.5;
        let above: Holds = |ratio| ratio > 1.0;
        let a_third: Holds = |ratio| ratio <= 1.0 / 3.0;
        const SEGMENT: u64 = super::count::SEGMENT;
        let rtt = "8-byte Write round trip";
        let bw = "64 KiB Write bandwidth over virtio/vhost";
        let send = "ib_send_lat's round trip of 8 bytes";
        let goals = [
            (
                format!("{rtt} over virtio/vhost: at least 3x shorter than spinning kernel TCP"),
                (TCP_SPIN, VIRTIO_WRITE, Latency, 8),
                Some(at_least_3),
            ),
            (
                format!("{rtt} over af_packet/veth: at most 1.5x that of spinning kernel UDP"),
                (VETH_WRITE, UDP_SPIN, Latency, 8),
                Some(at_most_1_5),
            ),
            (
                format!("{bw}: above iperf3 with TSO/GSO off"),
                (VIRTIO_WRITE, IPERF, Bandwidth, KIB64),
                Some(above),
            ),
            (
                format!("{bw} beside iperf3 with TSO/GSO on"),
                (VIRTIO_WRITE, IPERF_TSO, Bandwidth, KIB64),
                None,
            ),
            (
                format!("{rtt} over af_packet/veth beside spinning kernel TCP"),
                (VETH_WRITE, TCP_SPIN, Latency, 8),
                None,
            ),
            (
                format!("{send} over virtio/vhost beside libfabric's"),
                (SEND_LAT, FI_PINGPONG, Latency, 8),
                None,
            ),
            (
                format!("{send} over af_packet/veth beside libfabric's"),
                (SEND_LAT_VETH, FI_PINGPONG, Latency, 8),
                None,
            ),
            (
                format!("{send} over af_packet/veth beside sockperf's, whose messages have 14 bytes"),
                (SEND_LAT_VETH, SOCKPERF, Latency, 8),
                None,
            ),
            (
                "instructions per segment received: at most a third of smoltcp's".to_owned(),
                (COUNT_RECEIVE, COUNT_RECEIVE_SMOLTCP, Instructions, SEGMENT),
                Some(a_third),
            ),
            (
                "instructions per segment sent: at most a third of smoltcp's".to_owned(),
                (COUNT_SEND, COUNT_SEND_SMOLTCP, Instructions, SEGMENT),
                Some(a_third),
            ),
        ];
        let judged = goals.map(|(goal, (over, under, quantity, size), holds)| {
            let of = |who| {
                let size = if who == SOCKPERF { super::stock::SOCKPERF_LEAST } else { size };
                self.find(who, quantity, size).and_then(|m| m.median)
            };
            let (a, b) = (of(over), of(under));
            let ratio = a.zip(b).map(|(a, b)| a / b);
            let unit = quantity.unit();
            let words = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.2}"));
            let outcome = match (ratio, holds) {
                (None, _) => Outcome::Unknown,
                (Some(_), None) => Outcome::Told,
                (Some(ratio), Some(holds)) if holds(ratio) => Outcome::Pass,
                _ => Outcome::Fail,
            };
            let measured =
                format!("{}x ({over}: {} {unit}; {under}: {} {unit})", words(ratio), words(a), words(b));
            Verdict { goal, ratio, measured, outcome }
        });
        self.verdicts = judged.into();
    }
}

#[cfg(test)]
mod tests;
