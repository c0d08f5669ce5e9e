//! Counts the instructions per segment of urnic's TCP and of smoltcp's, by callgrind. These results do not depend on
//! other load on the machine. The counted program is `tcp/examples/bulk.rs`.

use std::{path::Path, process::Command};

use super::lab::Words;
use super::results::{Measurement, Quantity, Sample, who};

/// Octets of data in one segment of the counted program.
pub const SEGMENT: u64 = 1448;
/// Segments of the shorter run; the longer one has twice as many.
const SEGMENTS: u64 = 4096;

/// What is counted: the name in the report, and the program's arguments for the stack and the direction.
const COUNTED: [(&str, &str, &str); 6] = [
    (who::COUNT_RECEIVE, "urnic", "receive"),
    (who::COUNT_RECEIVE_COPYING, "urnic-copying", "receive"),
    (who::COUNT_RECEIVE_SMOLTCP, "smoltcp", "receive"),
    (who::COUNT_SEND, "urnic", "send"),
    (who::COUNT_SEND_COPYING, "urnic-copying", "send"),
    (who::COUNT_SEND_SMOLTCP, "smoltcp", "send"),
];

/// Counts all of `COUNTED` by running `program`, the example `bulk`.
///
/// # Errors
/// The program or valgrind is missing, or fails.
pub fn measure(program: &Path) -> Words<Vec<Measurement>> {
    let measured = COUNTED.iter().map(|&(who, stack, direction)| {
        let count = |segments| count(program, stack, direction, segments);
        // The difference of a long and a short run leaves out the cost of starting up, which both have.
        let value = (count(2 * SEGMENTS)? - count(SEGMENTS)?) / SEGMENTS as f64;
        let mut measurement = Measurement::new(who, Quantity::Instructions, SEGMENT);
        measurement.add(Sample { run: 1, value, rtt_us: None, rtt_cdf: None });
        Ok(measurement)
    });
    measured.collect()
}

fn count(program: &Path, stack: &str, direction: &str, segments: u64) -> Words<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args([stack, direction, &segments.to_string()])
        .output()
        .map_err(|e| format!("valgrind: {e} (Debian: apt install valgrind)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("Collected")).filter(|_| output.status.success());
    line.and_then(|line| line.split_whitespace().last()?.parse().ok()).ok_or_else(|| said.into_owned())
}
