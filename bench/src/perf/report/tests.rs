use super::*;

fn report() -> PerfReport {
    PerfReport {
        op: "write".into(),
        mode: "lat".into(),
        size: 65536,
        mtu: Some(1500),
        crc: Some(true),
        qps: Some(1),
        window: None,
        engines: Some(1),
        threads: Some(1),
        progress: Some("adaptive".into()),
        port: "virtio_user".into(),
        iters: 10,
        verified: true,
        rtt_us: Some(Latency { min: 1.0, p50: 2.0, p99: 3.0, p999: 4.0, max: 5.0 }),
        half_rtt_us: None,
        gbit_s: None,
        mmsg_s: None,
        cpu_ns_per_msg: Some(1500.0),
        rtt_cdf: None,
        beside: None,
        beside_gbit_s: None,
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
        "window",
        "engines",
        "threads",
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

#[test]
fn a_distribution_rises_to_all_of_them() {
    let mut histogram = crate::perf::measure::histogram();
    for ns in 1..=1000 {
        histogram.record(ns * 1000).unwrap();
    }
    let cdf = cdf(&histogram);
    assert!(cdf.is_sorted_by(|a, b| a[0] <= b[0] && a[1] < b[1]), "{cdf:?}");
    let (first, last) = (cdf[0], cdf[cdf.len() - 1]);
    assert!(first[0] < 1.1 && last[1] == 1.0 && (last[0] - 1000.0).abs() < 2.0, "{cdf:?}");
    let median = cdf.iter().find(|point| point[1] == 0.5).unwrap();
    assert!((median[0] - 500.0).abs() < 1.0, "{median:?}");
}

#[test]
fn a_table_shows_engines_and_threads_where_there_are_several() {
    assert!(!table(&[report()]).contains("threads"));
    let many = PerfReport { engines: Some(32), threads: Some(31), ..report() };
    let table = table(&[report(), many]);
    for word in ["engines", "threads", "32", "31"] {
        assert!(table.contains(word), "{word} is not in {table}");
    }
}

#[test]
fn a_table_shows_the_load_beside_where_there_is_one() {
    assert!(!table(&[report()]).contains("beside"));
    let loaded = PerfReport { beside: Some("write:8".into()), beside_gbit_s: Some(48.25), ..report() };
    let table = table(&[report(), loaded]);
    assert!(table.contains("write:8") && table.contains("48.25"), "{table}");
}

#[test]
fn results_of_older_versions_had_one_engine_and_one_thread() {
    let mut json = serde_json::to_value(report()).unwrap();
    for name in ["engines", "threads"] {
        json.as_object_mut().unwrap().remove(name);
    }
    assert_eq!(serde_json::from_value::<PerfReport>(json).unwrap(), report());
}
