//! Devices with several engines on one port. Each engine has its own queue of the port.

use super::child::{Child, PATIENCE, alone};
use super::crowd::Report;
use super::{Link, config, node};

fn engines(n: usize, progress: &str) -> String {
    format!("[engine]\nengines = {n}\nprogress = \"{progress}\"\n")
}

/// Runs all-to-all traffic between processes. Returns the reports of the server and the client.
fn meet(kinds: [&'static str; 2], there: usize, here: usize, progress: &str) -> [Report; 2] {
    let link = Link::new(kinds);
    let mut server = link.server("crowd-server", "", &engines(there, progress));
    server.expect("listening");
    let mut client = link.client("crowd-client", "", &engines(here, progress));
    let client_says = Report::of(&client.line_within(2 * PATIENCE));
    server.order("enough");
    let server_says = Report::of(&server.line_within(2 * PATIENCE));
    if kinds == Link::MEMIF {
        // The driver may crash an end that still polls when the other leaves.
        client.kill();
        server.kill();
    } else {
        client.finish();
        server.finish();
    }
    println!("{kinds:?} {there}:{here} {progress}: {server_says:?} {client_says:?}");
    [server_says, client_says]
}

/// Checks that few frames have arrived at another engine than their own. If both ends have the same number of engines,
/// each engine speaks to the peer's engine of the same number. Then only two kinds of frames arrive elsewhere: frames
/// about neighbours, which concern all engines, and the last frames of ended connections.
fn hands_little_over(report: &Report, engines: u64) {
    assert_eq!((report.engines, report.lost), (engines, 0), "{report:?}");
    assert!(report.moved * 8 < report.frames, "{report:?}");
}

#[test]
fn two_engines_at_each_end_of_a_link_hand_next_to_nothing_over() {
    let _alone = alone();
    for kinds in [Link::VIRTIO, Link::VHOST, Link::MEMIF] {
        for progress in ["adaptive", "inline"] {
            meet(kinds, 2, 2, progress).iter().for_each(|report| hands_little_over(report, 2));
        }
        // Four engines must get along with the default amount of memory.
        meet(kinds, 4, 4, "adaptive").iter().for_each(|report| hands_little_over(report, 4));
    }
}

/// Either end may have more engines than the other. Then frames for a queue that the peer does not have leave by the
/// first queue, or an engine polls several of the peer's queues. While an engine waits for a processor, its inbox may
/// fill, and further frames for it are lost. TCP sends them again.
#[test]
fn ends_of_a_link_may_have_other_numbers_of_engines() {
    let _alone = alone();
    for kinds in [Link::VIRTIO, Link::VHOST, Link::MEMIF] {
        for (there, here) in [(2, 1), (1, 2), (3, 2), (2, 3)] {
            let [server, client] = meet(kinds, there, here, "adaptive");
            assert_eq!((server.engines, client.engines), (there as u64, here as u64));
        }
    }
}

#[test]
fn two_engines_at_each_end_of_a_ring_hand_next_to_nothing_over() {
    let _alone = alone();
    let mut both = Child::start("crowd-ring", "", &config("ring:a", node::SERVER, &engines(2, "adaptive")));
    for _ in 0..2 {
        hands_little_over(&Report::of(&both.line_within(2 * PATIENCE)), 2);
    }
    both.finish();
    assert_eq!(both.complaints(), [""; 0]);
}

#[test]
fn a_device_has_no_more_engines_than_its_port_has_queues() {
    let _alone = alone();
    let [server, client] = meet(Link::MEMIF, 1, 9, "adaptive");
    assert_eq!((server.engines, client.engines), (1, 8));
}
