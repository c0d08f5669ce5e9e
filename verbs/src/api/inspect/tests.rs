use std::io::Read;

use urnic_config::Progress;

use super::*;
use crate::api::fake;

/// A device answers every client. When the device is gone, there is no answer.
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
