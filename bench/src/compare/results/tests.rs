use super::*;

#[test]
fn medians() {
    assert_eq!(median([]), None);
    assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
    assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.0));
}

fn results(measured: &[(&str, Quantity, u64, f64)]) -> Results {
    let measurements = measured.iter().map(|&(who, quantity, size, value)| {
        let mut m = Measurement::new(who, quantity, size);
        m.add(Sample { run: 1, value, rtt_us: None, rtt_cdf: None });
        m
    });
    Results {
        started: String::new(),
        seconds: 0.0,
        quick: true,
        runs: 1,
        mtu: 1500,
        machine: BTreeMap::new(),
        versions: BTreeMap::new(),
        others_percent: vec![],
        verdicts: vec![],
        left_out: vec![],
        measurements: measurements.collect(),
    }
}

#[test]
fn goals_are_judged_by_medians() {
    use Quantity::{Bandwidth, Instructions, Latency};
    let mut all = results(&[
        (who::TCP_SPIN, Latency, 8, 9.0),
        (who::VIRTIO_WRITE, Latency, 8, 3.0),
        (who::VETH_WRITE, Latency, 8, 15.1),
        (who::UDP_SPIN, Latency, 8, 10.0),
        (who::SEND_LAT_VETH, Latency, 8, 16.0),
        (who::SOCKPERF, Latency, 14, 20.0),
        (who::VIRTIO_WRITE, Bandwidth, 65536, 30.0),
        (who::IPERF_TSO, Bandwidth, 65536, 60.0),
        (who::COUNT_RECEIVE, Instructions, 1448, 700.0),
        (who::COUNT_RECEIVE_SMOLTCP, Instructions, 1448, 2100.0),
        (who::COUNT_SEND, Instructions, 1448, 701.0),
        (who::COUNT_SEND_SMOLTCP, Instructions, 1448, 2100.0),
    ]);
    all.judge();
    let outcomes: Vec<Outcome> = all.verdicts.iter().map(|v| v.outcome).collect();
    assert_eq!(
        outcomes,
        [
            Outcome::Pass,
            Outcome::Fail,
            Outcome::Unknown,
            Outcome::Told,
            Outcome::Told,
            Outcome::Unknown,
            Outcome::Unknown,
            Outcome::Told,
            Outcome::Pass,
            Outcome::Fail
        ],
        "{:?}",
        all.verdicts
    );
    assert_eq!(all.verdicts[0].ratio, Some(3.0));
    assert_eq!(all.verdicts[7].ratio, Some(0.8));
}

#[test]
fn a_distribution_is_the_median_of_the_runs() {
    let mut m = Measurement::new("x", Quantity::Latency, 8);
    for (run, us) in [3.0, 1.0, 2.0].into_iter().enumerate() {
        let rtt_cdf = Some(vec![[us, 0.5], [us * 2.0, 1.0]]);
        m.add(Sample { run, value: us, rtt_us: None, rtt_cdf });
    }
    assert_eq!(m.cdf(), [[2.0, 0.5], [4.0, 1.0]]);
    assert_eq!(m.range(), Some((1.0, 3.0)));
}
