//! Measurements between two ends in this process, over a pair of rings. Every byte is verified.
//!
//! This file is one test, because several tests would run at once and compete for the cores that they poll on.

use urnic_bench::perf::{Amount, Link, Mode, Op, PerfOptions, PerfReport, run_pair};
use urnic_config::{Config, Progress};

fn measure(config: &Config, options: &PerfOptions) -> PerfReport {
    run_pair(config, Link::Ring, options, false).unwrap_or_else(|error| panic!("{options:?}: {error}"))
}

fn options(op: Op, mode: Mode, size: usize) -> PerfOptions {
    PerfOptions { amount: Amount::Iters(200), verify: true, ..PerfOptions::new(op, mode, size) }
}

#[test]
fn everything_arrives_and_is_reported() {
    let config = Config::default();
    for op in [Op::Write, Op::Read, Op::Send, Op::Atomic] {
        for mode in [Mode::Lat, Mode::Bw, Mode::Rate] {
            for size in [0, 1, 8, 1408, 65_536] {
                if op == Op::Atomic && size != 8 {
                    continue;
                }
                let report = measure(&config, &options(op, mode, size));
                assert_eq!(report.iters, 200);
                assert!(report.verified);
                let answered = matches!(op, Op::Read | Op::Atomic);
                assert_eq!(report.rtt_us.is_some(), mode == Mode::Lat);
                assert_eq!(report.gbit_s.is_some(), mode != Mode::Lat);
                assert_eq!(report.half_rtt_us.is_some(), mode == Mode::Lat && !answered);
            }
        }
    }

    let many = PerfOptions { qps: 20, ..options(Op::Write, Mode::Bw, 1000) };
    assert_eq!(measure(&config, &many).qps, Some(20));

    let atomics = PerfOptions { qps: 5, ..options(Op::Atomic, Mode::Rate, 8) };
    assert!(measure(&config, &atomics).verified);

    let by_time = PerfOptions { amount: Amount::Seconds(0.1), ..options(Op::Send, Mode::Rate, 8) };
    assert!(measure(&config, &by_time).iters > 0);

    let mut config = config;
    config.mpa.crc = false;
    assert_eq!(measure(&config, &options(Op::Send, Mode::Bw, 5000)).crc, Some(false));
    config.engine.progress = Progress::Inline;
    assert_eq!(measure(&config, &options(Op::Read, Mode::Bw, 5000)).progress.as_deref(), Some("inline"));
}
