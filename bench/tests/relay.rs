//! The relay between two links in this process. The tests call every pass of the relay, and choose the time;
//! only the last test runs the relay's own loop, in real time.

use std::time::Instant;

use arrayvec::ArrayVec;
use urnic_bench::relay::{Relay, RelayOptions, RelayReport};
use urnic_config::{Config, PortSpec};
use urnic_dataplane::{BURST, Eal, EalConfig, Mbuf, Port, PortOptions, TxQueue};
use urnic_sim::Impairment;

/// The relay, and for each of its ports the port at the other end of the link, which the test uses.
struct Bench {
    relay: Relay,
    a: Port,
    b: Port,
}

impl Bench {
    fn new(name: &str, there: &str, back: &str) -> Self {
        let impairment = |text: &str| text.parse::<Impairment>().expect(text);
        let config = Config::default();
        let eal = EalConfig { memory_mb: config.memory_mb(), ..EalConfig::default() };
        let eal = Eal::start(&eal).expect("EAL");
        let ports = [format!("ring:{name}-a"), format!("ring:{name}-b")];
        let ports = ports.map(|p| p.parse::<PortSpec>().expect("a port"));
        let [a, b] = ports.each_ref().map(|p| {
            let options = PortOptions { rx_frames: 512, tx_frames: 512, ..PortOptions::default() };
            Port::open(&eal, p, &options).expect("the port opens")
        });
        let impairments = [impairment(there), impairment(back)];
        let relay = Relay::open(&config, &RelayOptions { ports, impairments }).expect("the relay opens");
        let mut bench = Self { relay, a, b };
        bench.relay.look();
        bench
    }

    /// Sends a frame that contains `number`, from A's peer if `from_a` is set, else from B's peer.
    fn send(&mut self, from_a: bool, number: u32, leave_checksum: bool) {
        let port = if from_a { &mut self.a } else { &mut self.b };
        let mut queue = TxQueue::new();
        let frame = port.frame(&frame(number), &[], leave_checksum).expect("a buffer");
        assert!(queue.push(frame).is_ok());
        assert_eq!(port.tx_burst(&mut queue), 1);
    }

    /// Returns the frames that have arrived at B's peer if `at_b` is set, else at A's peer.
    fn receive(&mut self, at_b: bool) -> Vec<Vec<u8>> {
        let port = if at_b { &mut self.b } else { &mut self.a };
        let mut out = Vec::new();
        loop {
            let mut burst = ArrayVec::<Mbuf, BURST>::new();
            if port.rx_burst(&mut burst) == 0 {
                return out;
            }
            out.extend(burst.iter().map(|f| f.data().to_vec()));
        }
    }

    fn report(&self) -> RelayReport {
        let report = self.relay.report();
        for d in [&report.a_to_b, &report.b_to_a] {
            let gone = d.lost + d.overflowed + d.over_limit + d.undeliverable;
            assert_eq!(d.received + d.duplicated, d.sent + gone + d.held, "{d:?}");
        }
        report
    }
}

/// Returns a TCP segment of eight octets, whose checksum is not filled in.
fn frame(number: u32) -> Vec<u8> {
    let mut f = vec![0u8; 62];
    f[12..14].copy_from_slice(&[0x08, 0x00]);
    f[14..34].copy_from_slice(&[0x45, 2, 0, 48, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f[46] = 0x50;
    f[54..58].copy_from_slice(&number.to_be_bytes());
    f
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame[54..].first_chunk().expect("a whole frame"))
}

/// Sends `frames` frames from A to B, `gap` nanoseconds apart. Returns the frames that arrived, and the report.
fn cross(name: &str, fault: &str, frames: u32, gap: u64) -> (Vec<Vec<u8>>, RelayReport) {
    let mut bench = Bench::new(name, fault, "");
    let mut out = Vec::new();
    for i in 0..frames {
        bench.send(true, i, false);
        bench.relay.pass(u64::from(i) * gap);
        out.extend(bench.receive(true));
    }
    // This time is after the release of every frame.
    bench.relay.pass(u64::from(frames) * gap + 10_000_000_000);
    for _ in 0..100 {
        out.extend(bench.receive(true));
        bench.relay.pass(u64::from(frames) * gap + 10_000_000_000);
    }
    assert_eq!(bench.receive(false), Vec::<Vec<u8>>::new(), "nothing comes back");
    let report = bench.report();
    assert_eq!(report.a_to_b.sent, out.len() as u64);
    (out, report)
}

#[test]
fn frames_cross_both_ways_unchanged_and_in_order() {
    let mut bench = Bench::new("plain", "", "delay=1ms");
    let mut from_a = Vec::new();
    for i in 0..500 {
        bench.send(true, i, false);
        bench.send(false, 1000 + i, false);
        assert!(bench.relay.pass(0));
        from_a.extend(bench.receive(true));
    }
    assert_eq!(from_a, (0..500).map(frame).collect::<Vec<_>>());
    assert_eq!(bench.receive(false), Vec::<Vec<u8>>::new());
    assert_eq!(bench.report().b_to_a.held, 500);
    assert!(!bench.relay.pass(999_999));
    let mut from_b = Vec::new();
    while bench.relay.pass(1_000_000) {
        from_b.extend(bench.receive(false));
    }
    assert_eq!(from_b, (1000..1500).map(frame).collect::<Vec<_>>());
    let report = bench.report();
    for d in [&report.a_to_b, &report.b_to_a] {
        assert_eq!((d.received, d.sent, d.held), (500, 500, 0));
        assert_eq!((d.received_bytes, d.sent_bytes), (31_000, 31_000));
    }
    let json: RelayReport = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_eq!(json.a_to_b, report.a_to_b);
    assert!(report.table().contains("ring:plain-a"));
}

/// The same seed and the same frames lead to the same decisions, at any pace. Another seed leads to other decisions.
#[test]
fn decisions_follow_the_seed() {
    let fault = |seed: u32| format!("loss=5%,dup=5%,corrupt=5%,mark=5%,delay=20us,seed={seed}");
    let (out, report) = cross("seed1", &fault(1), 2000, 1000);
    let d = &report.a_to_b;
    assert!([d.lost, d.duplicated, d.corrupted, d.marked].iter().all(|&n| n > 50), "{d:?}");
    assert_eq!(d.received, 2000);
    let (again, _) = cross("seed2", &fault(1), 2000, 70_000);
    assert_eq!(again, out);
    let (other, _) = cross("seed3", &fault(2), 2000, 1000);
    assert_ne!(other, out);
}

#[test]
fn frames_are_reordered_and_slowed_down() {
    let (out, report) = cross("reorder", "reorder=5%,seed=4", 2000, 10_000);
    let numbers: Vec<u32> = out.iter().map(|f| number(f)).collect();
    let overtaken = numbers.windows(2).filter(|w| w[0] > w[1]).count();
    assert!(report.a_to_b.reordered > 50 && overtaken > 30, "{overtaken} {report:?}");
    let mut sorted = numbers;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..2000).collect::<Vec<_>>());

    // 62 octets and 24 of overhead are 688 bits: 68.8 us at 10 Mbit/s. Of 100 frames that arrive at once, 20 may wait.
    let mut bench = Bench::new("rate", "rate=10mbit,queue=20,ecn=10", "");
    (0..100).for_each(|i| bench.send(true, i, false));
    while bench.relay.pass(0) {}
    assert_eq!(bench.receive(true).len(), 0);
    bench.relay.pass(68_800);
    assert_eq!(bench.receive(true).len(), 1);
    bench.relay.pass(19 * 68_800);
    assert_eq!(bench.receive(true).len(), 18);
    let d = bench.report().a_to_b;
    assert_eq!((d.received, d.sent, d.held, d.overflowed, d.marked), (100, 19, 1, 80, 10));
}

#[test]
fn what_is_held_is_bounded() {
    let mut bench = Bench::new("bound", "delay=1s,limit=100", "delay=1s,limit_bytes=6200");
    for i in 0..400 {
        bench.send(true, i, false);
        bench.send(false, i, false);
        bench.relay.pass(0);
    }
    let report = bench.report();
    for d in [&report.a_to_b, &report.b_to_a] {
        assert_eq!((d.held, d.over_limit), (100, 300));
    }
}

/// If the sender leaves a checksum to the link, the relay fills it in.
#[test]
fn checksums_are_filled() {
    let mut bench = Bench::new("checksum", "", "");
    for left in [true, false] {
        bench.send(true, 7, left);
        bench.relay.pass(0);
        let out = bench.receive(true);
        let checksum = [out[0][50], out[0][51]];
        // 0a00 + 0001 + 0a00 + 0002 + 0006 + 001c + 5000 + 0007 = 642c
        assert_eq!(checksum, if left { (!0x642cu16).to_be_bytes() } else { [0, 0] });
        assert_eq!(out[0][..50], frame(7)[..50]);
    }
}

/// Frames for a port without a peer are dropped, and the relay goes on.
#[test]
fn frames_without_a_way_out_are_counted() {
    let mut bench = Bench::new("out", "", "");
    // Disconnects B's peer.
    let Bench { mut relay, mut a, b } = bench;
    drop(b);
    relay.look();
    let mut queue = TxQueue::new();
    for i in 0..300 {
        let frame = a.frame(&frame(i), &[], false).expect("a buffer");
        assert!(queue.push(frame).is_ok());
        a.tx_burst(&mut queue);
        relay.pass(0);
    }
    let d = relay.report().a_to_b;
    assert_eq!((d.received, d.sent, d.undeliverable, d.held), (300, 0, 300, 0));
    bench = Bench::new("out2", "", "");
    bench.send(true, 1, false);
    bench.relay.pass(0);
    assert_eq!(bench.receive(true).len(), 1);
}

/// The loop relays in real time until the test stops it.
#[test]
fn it_runs_until_told_to_stop() {
    let mut bench = Bench::new("run", "delay=3ms", "");
    (0..50).for_each(|i| bench.send(true, i, false));
    let Bench { relay, b, .. } = &mut bench;
    let (start, mut arrived) = (Instant::now(), 0);
    let until = || {
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        arrived += b.rx_burst(&mut burst);
        arrived < 50 && start.elapsed().as_secs() < 60
    };
    relay.run(&Config::default(), false, until).expect("it runs");
    assert_eq!(arrived, 50);
    assert!(start.elapsed().as_millis() >= 3);
    assert!(bench.report().seconds >= 0.003);
}
