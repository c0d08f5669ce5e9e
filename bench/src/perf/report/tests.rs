use super::*;

fn report() -> PerfReport {
    PerfReport {
        op: "write".into(),
        mode: "lat".into(),
        size: 65536,
        mtu: Some(1500),
        crc: Some(true),
        qps: Some(1),
        progress: Some("adaptive".into()),
        port: "virtio_user".into(),
        iters: 10,
        verified: true,
        rtt_us: Some(Latency { min: 1.0, p50: 2.0, p99: 3.0, p999: 4.0, max: 5.0 }),
        half_rtt_us: None,
        gbit_s: None,
        mmsg_s: None,
        cpu_ns_per_msg: Some(1500.0),
    }
}

#[test]
fn json_has_the_promised_names_and_nulls() {
    let json: serde_json::Value = serde_json::from_str(&report().to_json()).unwrap();
    let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let mut promised = [
        "op",
        "mode",
        "size",
        "mtu",
        "crc",
        "qps",
        "progress",
        "port",
        "iters",
        "verified",
        "rtt_us",
        "half_rtt_us",
        "gbit_s",
        "mmsg_s",
        "cpu_ns_per_msg",
    ];
    promised.sort_unstable();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(names, promised);
    assert!(json["half_rtt_us"].is_null() && json["gbit_s"].is_null());
    for percentile in ["min", "p50", "p99", "p999", "max"] {
        assert!(json["rtt_us"][percentile].is_number(), "{percentile}");
    }
    assert_eq!(serde_json::from_value::<PerfReport>(json).unwrap(), report());
}

#[test]
fn a_table_shows_units_and_dashes() {
    let table = table(&[report()]);
    assert!(table.contains("64 KiB") && table.contains("2.00") && table.contains('-'), "{table}");
}

#[test]
fn percentiles_are_microseconds() {
    let mut histogram = Histogram::<u64>::new(3).unwrap();
    assert_eq!(Latency::of(&histogram), None);
    for ns in 1..=1000u64 {
        histogram.record(ns * 1000).unwrap();
    }
    let latency = Latency::of(&histogram).unwrap();
    assert!((latency.p50 - 500.0).abs() < 1.0 && (latency.p99 - 990.0).abs() < 2.0, "{latency:?}");
    assert!((latency.half().p50 - 250.0).abs() < 0.5);
}
