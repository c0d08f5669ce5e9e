//! Reports of a relay, for people and for programs.

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use urnic_sim::Link;

use super::{Counted, Relay};

/// The frames of one direction; its JSON form is a contract with scripts. Every frame that was received or duplicated
/// is counted once as sent, lost, overflowed, over the limit, undeliverable or held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// The port that the frames come from.
    pub from: String,
    /// The port that the frames go to.
    pub to: String,
    /// The impairment, in the syntax of the command's options.
    pub fault: String,
    /// Number of frames received from the port `from`.
    pub received: u64,
    /// Octets of the received frames, without FCS.
    pub received_bytes: u64,
    /// Number of frames queued at the port `to`, duplicates included.
    pub sent: u64,
    /// Octets of the sent frames, without FCS.
    pub sent_bytes: u64,
    /// Number of frames dropped at random.
    pub lost: u64,
    /// Number of frames of which the relay made a copy, to send both.
    pub duplicated: u64,
    /// Number of frames held back, so that other frames can overtake them.
    pub reordered: u64,
    /// Number of frames in which the relay flipped a bit.
    pub corrupted: u64,
    /// Number of frames in which the relay exchanged two words, which the Internet checksum does not detect.
    pub swapped: u64,
    /// Number of frames marked Congestion Experienced.
    pub marked: u64,
    /// Number of frames dropped because the queue of the rate limit was full.
    pub overflowed: u64,
    /// Number of frames dropped because the relay already held the maximum number of frames or octets.
    pub over_limit: u64,
    /// Number of frames dropped because the destination port had no link or no buffer.
    pub undeliverable: u64,
    /// Number of frames that the port `from` dropped, because it had no buffer or no room in its ring, or
    /// because the frame exceeded the MTU.
    pub rx_dropped: u64,
    /// Number of frames still held at the end.
    pub held: u64,
}

/// The report of a relay; its JSON form is a contract with scripts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelayReport {
    /// Time for which the relay ran, in seconds.
    pub seconds: f64,
    /// Frames from A to B.
    pub a_to_b: DirectionReport,
    /// Frames from B to A.
    pub b_to_a: DirectionReport,
}

impl Relay {
    /// Returns the report on the time until now, or until the relay stopped.
    pub fn report(&self) -> RelayReport {
        let end = self.stopped.unwrap_or_else(|| self.clock.now());
        let [a, b] = &self.sides;
        let [there, back] = &self.links;
        let [counted_there, counted_back] = &self.counted;
        RelayReport {
            seconds: end.saturating_sub(self.started) as f64 / 1e9,
            a_to_b: DirectionReport::of(&a.port, &b.port, there, counted_there),
            b_to_a: DirectionReport::of(&b.port, &a.port, back, counted_back),
        }
    }
}

impl DirectionReport {
    fn of(
        from: &urnic_dataplane::Port,
        to: &urnic_dataplane::Port,
        link: &Link<Vec<u8>>,
        counted: &Counted,
    ) -> Self {
        let s = link.statistics();
        Self {
            from: from.spec().to_string(),
            to: to.spec().to_string(),
            fault: link.impairment().to_string(),
            received: s.pushed,
            received_bytes: counted.received_bytes,
            sent: counted.sent,
            sent_bytes: counted.sent_bytes,
            lost: s.lost,
            duplicated: s.duplicated,
            reordered: s.reordered,
            corrupted: s.corrupted,
            swapped: s.swapped,
            marked: s.marked,
            overflowed: s.overflowed,
            over_limit: s.over_limit,
            undeliverable: counted.undeliverable,
            rx_dropped: from.stats().rx_dropped,
            held: link.len() as u64,
        }
    }

    /// Returns the counters with their names.
    fn counters(&self) -> [(&'static str, u64); 15] {
        [
            ("received", self.received),
            ("  bytes", self.received_bytes),
            ("sent", self.sent),
            ("  bytes", self.sent_bytes),
            ("lost", self.lost),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("corrupted", self.corrupted),
            ("swapped", self.swapped),
            ("marked", self.marked),
            ("overflowed", self.overflowed),
            ("over limit", self.over_limit),
            ("undeliverable", self.undeliverable),
            ("dropped at entry", self.rx_dropped),
            ("held at the end", self.held),
        ]
    }
}

impl RelayReport {
    /// Returns the report as one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data with string keys serialises")
    }

    /// Returns the report as a table.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([format!("{:.1} s", self.seconds), "A to B".to_owned(), "B to A".to_owned()]);
        for column in [1, 2] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for ((name, there), (_, back)) in self.a_to_b.counters().into_iter().zip(self.b_to_a.counters()) {
            table.add_row([name.to_owned(), there.to_string(), back.to_string()]);
        }
        format!("A = {}, B = {}\n{table}", self.a_to_b.from, self.a_to_b.to)
    }
}
