//! `urnic info --connections`: the connections that running programs report.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::failure::{Failure, print};

/// A device of a running program; the JSON form is a contract with scripts.
#[derive(Serialize)]
struct Running {
    pid: u32,
    counters: BTreeMap<String, Value>,
    /// Counters of each engine; empty if the program's urnic is too old to report them.
    engines: Vec<BTreeMap<String, Value>>,
    connections: Vec<BTreeMap<String, Value>>,
}

/// The longest answer that is read, in bytes.
const LONGEST: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

pub fn run(json: bool) -> Result<(), Failure> {
    let sockets = std::fs::read_to_string("/proc/net/unix")
        .map_err(|e| Failure::Failed(format!("cannot read /proc/net/unix: {e}")))?;
    let mut names: Vec<&str> = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'))
        .filter(|name| name.starts_with("urnic/"))
        .collect();
    names.sort_unstable();
    names.dedup();
    // A program that ends meanwhile, or belongs to another user, gives no answer.
    let running: Vec<Running> = names.into_iter().filter_map(ask).collect();
    if json {
        return print(&serde_json::to_string(&running).map_err(|e| Failure::Failed(e.to_string()))?);
    }
    print(&text(&running))
}

fn ask(name: &str) -> Option<Running> {
    let pid = name.split('/').nth(1)?.parse().ok()?;
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name).ok()?).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut answer = String::new();
    stream.take(LONGEST).read_to_string(&mut answer).ok()?;
    // The device refused to answer, or is just ending.
    if answer.is_empty() {
        return None;
    }
    let mut told = Running { pid, counters: BTreeMap::new(), engines: Vec::new(), connections: Vec::new() };
    read(&answer, &mut told)?;
    Some(told)
}

/// Reads the lines of an answer; skips lines of unknown kinds. Returns `None` if a line is malformed.
fn read(answer: &str, told: &mut Running) -> Option<()> {
    let pairs = |rest: &str| -> BTreeMap<String, Value> {
        let pairs = rest.split(' ').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, v)| (name.to_owned(), value(v))).collect()
    };
    for line in answer.lines() {
        match line.split_once(' ')? {
            ("counter", rest) => {
                let (name, number) = rest.split_once(' ')?;
                told.counters.insert(name.to_owned(), value(number));
            }
            ("engine", rest) => {
                let (number, rest) = rest.split_once(' ')?;
                let mut engine = pairs(rest);
                engine.insert("number".to_owned(), value(number));
                told.engines.push(engine);
            }
            ("connection", rest) => told.connections.push(pairs(rest)),
            _ => {}
        }
    }
    Some(())
}

/// Converts a word to JSON: a number or boolean keeps its type, any other word becomes a string.
fn value(word: &str) -> Value {
    match serde_json::from_str(word) {
        Ok(value @ (Value::Number(_) | Value::Bool(_))) => value,
        _ => Value::String(word.to_owned()),
    }
}

fn text(running: &[Running]) -> String {
    if running.is_empty() {
        return "no program of yours has a device open in this network namespace".into();
    }
    let mut text = String::new();
    let shown = |of: &BTreeMap<String, Value>, name: &str| match of.get(name) {
        Some(Value::String(s)) => s.clone(),
        Some(v) => v.to_string(),
        None => "-".into(),
    };
    for device in running {
        let _ = writeln!(text, "process {}: {} connections", device.pid, device.connections.len());
        for e in &device.engines {
            let word = |name: &str| shown(e, name);
            let _ = write!(
                text,
                "  engine {}, core {}: {} queue pairs, {} connections, {} passes, {} with work",
                word("number"),
                e.get("core").map_or("any".into(), Value::to_string),
                word("queue_pairs"),
                word("connections"),
                word("passes"),
                word("busy_passes"),
            );
            for (name, said) in [("frames_handed_over", "handed over"), ("frames_taken_over", "taken over")] {
                if let Some(count) = e.get(name) {
                    let _ = write!(text, ", {count} frames {said}");
                }
            }
            text.push('\n');
        }
        for c in &device.connections {
            let word = |name: &str| shown(c, name);
            let _ = writeln!(
                text,
                "  {} {} {} qp {}: rtt {} us, cwnd {}, in flight {}, retransmits {}, delivered {}, received {}",
                word("local"),
                word("peer"),
                word("state"),
                word("qpn"),
                word("rtt_us"),
                word("cwnd"),
                word("in_flight"),
                word("retransmits"),
                word("delivered"),
                word("received"),
            );
        }
        for (name, v) in device.counters.iter().filter(|(_, v)| v.as_u64().is_some_and(|n| n > 0)) {
            let _ = writeln!(text, "  {name:<32} {v}");
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests;
