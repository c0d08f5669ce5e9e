use super::*;

fn told(answer: &str) -> Running {
    let mut told =
        Running { pid: 7, counters: BTreeMap::new(), engines: Vec::new(), connections: Vec::new() };
    read(answer, &mut told).expect("an answer");
    told
}

#[test]
fn engines_are_read_and_shown() {
    let told = told(
        "counter sent 5\n\
         engine 0 core=2 passes=100 busy_passes=40 queue_pairs=3 connections=4 frames_handed_over=9 frames_taken_over=0\n\
         engine 1 passes=1 busy_passes=0 queue_pairs=0 connections=0\n\
         news of a later version\n\
         connection local=1.2.3.4:5 peer=1.2.3.4:6 qpn=2 state=Established\n",
    );
    assert_eq!((told.counters.len(), told.engines.len(), told.connections.len()), (1, 2, 1));
    let json = serde_json::to_value(&told).expect("JSON");
    assert_eq!(json["engines"][0]["core"], 2);
    assert_eq!((&json["engines"][1]["number"], &json["engines"][1]["core"]), (&1.into(), &Value::Null));
    let text = text(&[told]);
    for line in [
        "  engine 0, core 2: 3 queue pairs, 4 connections, 100 passes, 40 with work, 9 frames handed over, 0 frames taken over\n",
        "  engine 1, core any: 0 queue pairs, 0 connections, 1 passes, 0 with work\n",
        "1.2.3.4:5 1.2.3.4:6 Established qp 2",
    ] {
        assert!(text.contains(line), "{line:?} is not in {text}");
    }
}

#[test]
fn programs_of_an_older_version_tell_of_no_engines() {
    let told = told("counter sent 5\n");
    assert!(told.engines.is_empty());
    assert!(!text(&[told]).contains("engine"));
}
