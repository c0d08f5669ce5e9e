//! Compares goodput in virtual time with a table in the repository. The table has a row for each loss, round-trip time
//! and congestion control, and columns with and without SACK. A change of loss recovery changes the table, and its
//! effect can be reviewed.
//! `URNIC_UPDATE_GOODPUT=1 cargo test -p urnic-tcp --test it goodput` writes the table anew.

use crate::harness::{Script, World};
use std::fmt::Write;
use std::time::Duration;
use urnic_tcp::Congestion;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goodput.snap");
const LOSSES: [&str; 4] = ["0", "0.1%", "1%", "3%"];
/// Round-trip times, in ms.
const ROUND_TRIPS: [u64; 3] = [1, 10, 50];
const ALGORITHMS: [(&str, Congestion); 2] = [("reno", Congestion::Reno), ("cubic", Congestion::Cubic)];
/// Octets of one transfer, and its longest duration.
const OCTETS: u64 = 6_000_000;
const LONGEST: Duration = Duration::from_secs(40);
/// Number of transfers for each mean.
const SEEDS: u64 = 3;

/// Returns Mbit/s of payload through 100 Mbit/s with a queue of 100 frames and a round-trip time of `rtt` ms.
fn goodput(loss: &str, rtt: u64, congestion: Congestion, sack: bool) -> f64 {
    let total: f64 = (0..SEEDS)
        .map(|seed| {
            let impairment =
                format!("loss={loss},rate=100mbit,queue=100,delay={}us,seed={}", rtt * 500, seed * 7 + 1);
            let mut w = World::pair(&impairment, |c| {
                c.tcp.sack = sack;
                c.tcp.congestion = congestion;
            });
            w.hosts[1].app.unchecked = true;
            w.open(Script { records: vec![1448], ..Script::send(OCTETS) }, Script::silent());
            assert!(w.run(LONGEST, |w| !w.hosts[1].app.sessions.is_empty()), "no connection");
            let start = w.now;
            let received = |w: &World| w.hosts[1].app.sessions.first().map_or(0, |s| s.received);
            w.run(LONGEST, |w| received(w) == OCTETS);
            (received(&w) * 8) as f64 / (w.now - start).as_secs_f64() / 1e6
        })
        .sum();
    total / SEEDS as f64
}

fn table() -> String {
    let mut text = String::from(
        "Goodput in Mbit/s through 100 Mbit/s with a queue of 100 frames, in virtual time. See tests/it/goodput.rs.\n\n\
         loss   rtt ms  algorithm     sack  no sack\n",
    );
    for loss in LOSSES {
        for rtt in ROUND_TRIPS {
            for (name, congestion) in ALGORITHMS {
                let [with, without] = [true, false].map(|sack| goodput(loss, rtt, congestion, sack));
                let _ = writeln!(text, "{loss:<6} {rtt:>6}  {name:<9} {with:>8.2} {without:>8.2}");
            }
        }
    }
    text
}

#[test]
fn goodput_is_as_the_table_says() {
    let now = table();
    if std::env::var_os("URNIC_UPDATE_GOODPUT").is_some() {
        std::fs::write(TABLE, &now).expect("writing the table");
    }
    let expected = std::fs::read_to_string(TABLE).expect("the table");
    assert_eq!(now, expected, "goodput changed; if that is right, write the table anew");
}
