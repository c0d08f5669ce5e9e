//! `urnic rping`: the ping-pong of librdmacm's rping, with its wire protocol, so that stock rping is a possible peer.
//!
//! One ping: the client fills a buffer and Sends its location; the server Reads the buffer and Sends a go-ahead; the
//! client Sends the location of another buffer; the server Writes the text of the first buffer to this one and Sends a
//! go-ahead. The messages with locations are requests. Requests and go-aheads have 16 bytes ([`wire::Info`]); the
//! contents of a go-ahead have no meaning.

mod client;
mod lane;
mod server;
pub mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::args::RpingArgs;
use crate::failure::{Failure, print};
use crate::settings::Settings;

/// Default TCP port: the same as that of librdmacm's rping.
const DEFAULT_PORT: u16 = 7174;

pub fn run(args: &RpingArgs) -> Result<(), Failure> {
    let config = Settings::of_node(&args.node).and_no_crc(args.no_crc).load_node()?;
    if args.server { server::run(&config, args) } else { client::run(&config, args) }
}

/// The result of a connection. Its JSON form is a contract with scripts.
#[derive(Serialize)]
struct Report {
    op: &'static str,
    role: &'static str,
    peer: SocketAddr,
    /// Bytes of a ping; at a server, the bytes of the largest ping.
    size: u32,
    /// Number of completed pings.
    pings: u64,
    /// Whether every byte of every ping was checked.
    verified: bool,
    /// Durations of the pings, in microseconds; `None` at a server.
    ping_us: Option<Quantiles>,
}

#[derive(Serialize)]
struct Quantiles {
    min: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Quantiles {
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Self {
            min: us(histogram.min()),
            p50: us(histogram.value_at_quantile(0.5)),
            p99: us(histogram.value_at_quantile(0.99)),
            p999: us(histogram.value_at_quantile(0.999)),
            max: us(histogram.max()),
        })
    }
}

impl Report {
    fn show(&self, json: bool) -> Result<(), Failure> {
        if json {
            let text = serde_json::to_string(self)
                .map_err(|error| Failure::Failed(format!("cannot write the result: {error}")))?;
            return print(&text);
        }
        let checked = if self.verified { "verified" } else { "not verified" };
        let mut text = format!(
            "{} with {}: {} pings of {} bytes, {checked}",
            self.role, self.peer, self.pings, self.size
        );
        if let Some(q) = &self.ping_us {
            text += &format!(
                "; us per ping: min {:.1}, p50 {:.1}, p99 {:.1}, max {:.1}",
                q.min, q.p50, q.p99, q.max
            );
        }
        print(&text)
    }
}

/// Time limit of each wait: for the connection, for a completion, and for the peer's answer. Only a server
/// waits for its client's requests without a limit.
const PATIENCE: Duration = Duration::from_secs(20);
