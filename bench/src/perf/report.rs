//! Reports of measurements, for people and for programs.

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use urnic_config::{Config, PortSpec};

use super::{measure::Outcome, options::Mode, wire::Session};

/// Percentiles of a latency, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Latency {
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Latency {
    /// Returns the percentiles of a histogram of nanoseconds; `None` if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            min: us(histogram.min()),
            p50: us(histogram.value_at_quantile(0.5)),
            p99: us(histogram.value_at_quantile(0.99)),
            p999: us(histogram.value_at_quantile(0.999)),
            max: us(histogram.max()),
        })
    }

    /// Returns half of each percentile: the time of one way, if a round trip consists of two equal ways.
    pub fn half(self) -> Self {
        Self {
            min: self.min / 2.0,
            p50: self.p50 / 2.0,
            p99: self.p99 / 2.0,
            p999: self.p999 / 2.0,
            max: self.max / 2.0,
        }
    }
}

/// Shares of the round trips, above 0.96, for which [`cdf`] returns points. They become denser towards the tail.
const SHARES: [f64; 10] = [0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999, 0.99999, 1.0];

/// Returns the distribution of a histogram of nanoseconds: microseconds, and the share of round trips that took no
/// longer. The shares are the same for every histogram.
pub(crate) fn cdf(histogram: &Histogram<u64>) -> Vec<[f64; 2]> {
    let shares = (0..49).map(|percent| f64::from(percent) / 50.0).chain(SHARES);
    shares.map(|share| [histogram.value_at_quantile(share) as f64 / 1e3, share]).collect()
}

/// The result of one measurement; its JSON form is a contract with scripts. Fields that were not measured are null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerfReport {
    /// `write`, `read`, `send` or `atomic`; `floor` for the raw link.
    pub op: String,
    /// `lat`, `bw` or `rate`.
    pub mode: String,
    /// Bytes of a message; for a floor, of a frame without FCS.
    pub size: u64,
    /// MTU of the IP layer, bytes; null for a floor, and over the kernel's sockets.
    pub mtu: Option<u64>,
    /// Whether the reporting end asks for CRCs (FPDUs also carry them if the other end asks); null for a floor.
    pub crc: Option<bool>,
    /// Queue pairs used, over all threads; null for a floor.
    pub qps: Option<u64>,
    /// Requests outstanding on each queue pair; null in `lat`, for a floor, and in the results of older versions.
    #[serde(default)]
    pub window: Option<u64>,
    /// Engines of the device of the reporting end; null for a floor.
    #[serde(default = "one")]
    pub engines: Option<u64>,
    /// Threads of each end; null for a floor.
    #[serde(default = "one")]
    pub threads: Option<u64>,
    /// How the engine is driven: `inline`, `dedicated`, `adaptive`; null for a floor.
    pub progress: Option<String>,
    /// Kind of port.
    pub port: String,
    /// Messages (ping-pongs in `lat`) measured.
    pub iters: u64,
    /// Whether every byte was checked where it arrived. A wrong byte causes an error, not a report.
    pub verified: bool,
    /// Round-trip time, us.
    pub rtt_us: Option<Latency>,
    /// Half a round trip, us; null if the two ways of a round trip differ (Reads, Atomics).
    pub half_rtt_us: Option<Latency>,
    /// Gbit/s of message payload; for a floor, of frames.
    pub gbit_s: Option<f64>,
    /// Million messages per second.
    pub mmsg_s: Option<f64>,
    /// CPU time of the measuring process per message, ns.
    pub cpu_ns_per_msg: Option<f64>,
    /// Distribution of round trips: pairs of microseconds and the share of round trips that took no longer. Absent
    /// without `--cdf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_cdf: Option<Vec<[f64; 2]>>,
    /// The load beside the measured messages: operation and number of queue pairs, such as `write:8`. Absent if there
    /// was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// Rate of the load beside the measured messages, Gbit/s of payload. Absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside_gbit_s: Option<f64>,
}

/// Returns the value of a field that is missing in the results of older versions.
fn one() -> Option<u64> {
    Some(1)
}

impl PerfReport {
    /// Returns a report with the parameters, before anything is measured.
    pub(super) fn unmeasured(config: &Config, session: &Session, engines: u32) -> Self {
        Self {
            op: session.op.to_string(),
            mode: session.mode.to_string(),
            size: session.size,
            // The kernel determines the MTU of each path.
            mtu: config.port.spec.as_ref().map(|_| config.port.mtu.into()),
            crc: Some(config.mpa.crc),
            qps: Some(u64::from(session.lanes) * u64::from(session.threads)),
            window: (session.mode != Mode::Lat).then_some(session.window.into()),
            engines: Some(engines.into()),
            threads: Some(session.threads.into()),
            progress: Some(config.engine.progress.to_string()),
            port: config.port.spec.as_ref().map_or("kernel", PortSpec::kind).to_owned(),
            iters: 0,
            verified: session.verify,
            rtt_us: None,
            half_rtt_us: None,
            gbit_s: None,
            mmsg_s: None,
            cpu_ns_per_msg: None,
            rtt_cdf: None,
            beside: session.beside.map(|beside| beside.to_string()),
            beside_gbit_s: None,
        }
    }

    /// Returns the report of a client, over all threads.
    pub(super) fn of(config: &Config, session: &Session, engines: u32, outcome: &Outcome) -> Self {
        let messages = outcome.messages as f64;
        let seconds = outcome.lap.wall.as_secs_f64().max(1e-9);
        let stream = session.mode != Mode::Lat;
        let rtt = outcome.histogram.as_ref().and_then(Latency::of);
        Self {
            iters: outcome.messages,
            rtt_us: rtt,
            rtt_cdf: outcome.histogram.as_ref().map(cdf),
            half_rtt_us: rtt.filter(|_| session.pingpong()).map(Latency::half),
            gbit_s: stream.then(|| messages * session.size as f64 * 8.0 / seconds / 1e9),
            mmsg_s: stream.then(|| messages / seconds / 1e6),
            beside_gbit_s: session.beside.map(|_| outcome.beside_gbit_s),
            cpu_ns_per_msg: (outcome.messages > 0).then(|| outcome.lap.cpu.as_secs_f64() * 1e9 / messages),
            ..Self::unmeasured(config, session, engines)
        }
    }

    /// Returns the report as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data with string keys serialises")
    }
}

/// Returns a table with one row per report, including engines and threads if any report has several.
pub fn table(reports: &[PerfReport]) -> String {
    let several = |count: Option<u64>| count.is_some_and(|n| n != 1);
    let several = reports.iter().any(|r| several(r.engines) || several(r.threads));
    let crew = |columns: [String; 2]| columns.into_iter().filter(move |_| several);
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let words = ["op", "mode", "size", "mtu", "crc", "qps"].map(str::to_owned);
    let rest = [
        "progress",
        "port",
        "RTT p50\nus",
        "p99\nus",
        "half RTT\nus",
        "Gbit/s",
        "Mmsg/s",
        "CPU\nns/msg",
        "verified",
    ];
    let streams = reports.iter().any(|r| r.beside.is_some());
    let beside = |columns: [String; 2]| columns.into_iter().filter(move |_| streams);
    let crew_words = ["engines", "threads"].map(str::to_owned);
    table.set_header(
        words
            .into_iter()
            .chain(crew(crew_words))
            .chain(rest.map(str::to_owned))
            .chain(beside(["beside", "Gbit/s\nbeside"].map(str::to_owned))),
    );
    let shift = if several { 2 } else { 0 };
    let numbers =
        [2, 3, 5].into_iter().chain(6..6 + shift).chain((8..14).chain([16]).map(|column| column + shift));
    for column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for r in reports {
        let words = |w: Option<String>| w.unwrap_or_else(|| "-".to_owned());
        let count = |n: Option<u64>| words(n.map(|n| n.to_string()));
        let number = |n: Option<f64>| words(n.map(|n| format!("{n:.2}")));
        let asked = [
            r.op.clone(),
            r.mode.clone(),
            bytes(r.size),
            count(r.mtu),
            words(r.crc.map(|on| if on { "on" } else { "off" }.to_owned())),
            count(r.qps),
        ];
        let found = [
            words(r.progress.clone()),
            r.port.clone(),
            number(r.rtt_us.map(|l| l.p50)),
            number(r.rtt_us.map(|l| l.p99)),
            number(r.half_rtt_us.map(|l| l.p50)),
            number(r.gbit_s),
            number(r.mmsg_s),
            number(r.cpu_ns_per_msg),
            if r.verified { "yes" } else { "-" }.to_owned(),
        ];
        let beside = beside([words(r.beside.clone()), number(r.beside_gbit_s)]);
        table.add_row(
            asked.into_iter().chain(crew([count(r.engines), count(r.threads)])).chain(found).chain(beside),
        );
    }
    table.to_string()
}

/// Formats a size in the largest unit that divides it.
fn bytes(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

#[cfg(test)]
mod tests;
