use super::*;

fn options(op: Op, mode: Mode, size: usize, qps: usize, verify: bool) -> PerfOptions {
    PerfOptions { qps, verify, ..PerfOptions::new(op, mode, size) }
}

#[test]
fn every_plan_is_one_that_a_server_accepts() {
    for op in [Op::Write, Op::Read, Op::Send, Op::Atomic] {
        for mode in [Mode::Lat, Mode::Bw, Mode::Rate] {
            let sizes = [8, 0, 1, 1500, 65536, 8 << 20];
            for &size in if op == Op::Atomic { &sizes[..1] } else { &sizes } {
                for qps in [1, 2, 1000] {
                    for verify in [false, true] {
                        let options = options(op, mode, size, qps, verify);
                        let session = plan(&options, Progress::Adaptive).unwrap();
                        assert_eq!(session.check(), Ok(()), "{options:?}");
                        // Messages in flight never share a slot when their bytes are checked.
                        assert!(!verify || session.window <= session.slots, "{session:?}");
                        // Neither the posted receives nor the unchecked messages of a queue pair exceed its slots.
                        assert!(
                            mode == Mode::Lat || !verify || session.credit <= session.slots,
                            "{session:?}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn impossible_wishes_are_usage_errors() {
    let good = options(Op::Write, Mode::Bw, 8, 1, false);
    for wrong in [
        PerfOptions { size: (1 << 30) + 1, ..good.clone() },
        PerfOptions { qps: 0, ..good.clone() },
        PerfOptions { op: Op::Atomic, size: 4, ..good.clone() },
        PerfOptions { qps: 20_000, ..good.clone() },
        PerfOptions { amount: Amount::Iters(0), ..good.clone() },
        PerfOptions { amount: Amount::Seconds(-1.0), ..good.clone() },
        PerfOptions { amount: Amount::Seconds(f64::NAN), ..good.clone() },
        PerfOptions { window: Some(0), ..good.clone() },
        PerfOptions { window: Some(4097), ..good.clone() },
        PerfOptions { window: Some(4), mode: Mode::Lat, ..good.clone() },
        PerfOptions { threads: 0, ..good.clone() },
        PerfOptions { threads: 65, ..good.clone() },
        PerfOptions { qps: 16_000, window: Some(4096), ..good.clone() },
    ] {
        assert!(plan(&wrong, Progress::Adaptive).unwrap_err().is_usage(), "{wrong:?}");
    }
}

#[test]
fn a_dedicated_engine_leaves_the_core_to_itself() {
    let options = options(Op::Write, Mode::Lat, 8, 1, false);
    assert_eq!(plan(&options, Progress::Dedicated).unwrap().wait, Wait::Event);
    assert_eq!(plan(&options, Progress::Inline).unwrap().wait, Wait::Poll);
    let polled = PerfOptions { wait: Some(Wait::Poll), ..options };
    assert_eq!(plan(&polled, Progress::Dedicated).unwrap().wait, Wait::Poll);
}
