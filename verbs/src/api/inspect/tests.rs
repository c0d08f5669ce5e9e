use std::io::Read;

use urnic_config::Progress;

use super::*;
use crate::api::fake;

/// A device answers every client. When its inspector is gone, there is no answer.
#[test]
fn a_device_answers() {
    let (device, _knobs) = fake::device(Progress::Inline);
    let inspector = Inspector::start(&device.shared.shards, &[]).expect("an abstract socket");
    let name = inspector.name.clone();
    for _ in 0..3 {
        let mut text = String::new();
        UnixStream::connect_addr(&name).expect("connect").read_to_string(&mut text).expect("read");
        let known = ["counter ", "engine ", "connection "];
        assert!(text.lines().all(|l| known.iter().any(|word| l.starts_with(word))), "{text}");
        let engine = text.lines().find(|l| l.starts_with("engine ")).expect("an engine");
        assert!(engine.starts_with("engine 0 passes="), "no thread, no core: {engine}");
        assert!(engine.contains(" busy_passes=") && engine.contains(" queue_pairs="), "{engine}");
    }
    drop(inspector);
    assert!(UnixStream::connect_addr(&name).is_err());
}

/// The line of an engine contains its counters of frames that reached the wrong engine, and none of its other
/// counters.
#[test]
fn frames_handed_over_are_told_for_each_engine() {
    let counters = vec![(FRAMES_HANDED_OVER, 9), ("arp_conflicts", 3), (FRAMES_TAKEN_OVER, 2)];
    let text = text(&[EngineFigures { number: 1, counters, ..EngineFigures::default() }], &[]);
    let engine = text.lines().find(|line| line.starts_with("engine 1 ")).expect("an engine");
    assert!(engine.ends_with(" frames_handed_over=9 frames_taken_over=2"), "{engine}");
    assert!(text.contains("counter arp_conflicts 3\n"), "{text}");
}
