use super::*;

#[test]
fn what_cannot_be_measured_is_refused() {
    let config = Config::default();
    let refusal = |mode, size| match run_floor(&config, Link::Ring, &FloorOptions::new(mode, size), false) {
        Err(PerfError::Usage(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refusal(Mode::Rate, 64).contains("--mode"));
    assert!(refusal(Mode::Lat, MIN_FRAME - 1).contains("--size"));
    assert!(refusal(Mode::Bw, MAX_FRAME + 1).contains("--size"));
}

#[test]
fn control_frames_are_told_from_measured_ones() {
    for size in MIN_FRAME..=MAX_FRAME {
        let control = FloorOptions::new(Mode::Bw, size).control_size();
        assert!(control != size && control >= HEADER.len() + 16);
    }
}

#[test]
fn payload_is_copied_in_order_within_memory() {
    let mut memory = Memory::new();
    let size = memory.octets.len();
    for round in 1..=3 {
        for number in 0..size / 1500 {
            let octets = memory.next(1500);
            assert_eq!(octets.len(), 1500);
            octets.fill((number + round) as u8);
        }
        assert!(
            (0..size / 1500)
                .all(|n| memory.octets[n * 1500..][..1500].iter().all(|&b| b == (n + round) as u8))
        );
    }
    assert_eq!(memory.next(MAX_FRAME).len(), MAX_FRAME);
}

/// Runs both modes over a pair of rings in this process. The receiver counts all frames that are sent.
#[test]
fn measures_a_ring() {
    let cases = [(Mode::Lat, MIN_FRAME, 500), (Mode::Bw, 64, 20_000), (Mode::Bw, 1514, 5000)];
    for ((mode, size, iters), copies) in cases.into_iter().flat_map(|case| [(case, false), (case, true)]) {
        let options = FloorOptions { amount: Amount::Iters(iters), copies, ..FloorOptions::new(mode, size) };
        let report = run_floor(&Config::default(), Link::Ring, &options, false).expect("a measurement");
        let op = if copies { "floor+copies" } else { "floor" };
        assert_eq!((report.op.as_str(), report.port.as_str(), report.size), (op, "ring", size as u64));
        assert_eq!(report.mode, mode.to_string());
        assert!(report.iters >= iters, "{report:?}");
        assert_eq!(report.rtt_us.is_some(), mode == Mode::Lat);
        assert_eq!(report.half_rtt_us.is_some(), mode == Mode::Lat);
        assert_eq!(report.mmsg_s.is_some_and(|m| m > 0.0), mode == Mode::Bw);
        assert_eq!(report.gbit_s.is_some_and(|g| g > 0.0), mode == Mode::Bw);
    }
}
