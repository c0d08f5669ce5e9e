//! perftest, as the distribution ships it, over virtio/vhost: all its programs, in the modes that they have on iWARP.
//!
//! A pair takes one to two seconds: two starts, and for each size a quarter of a second at either end, in which
//! perftest measures the frequency of the processor. With `-C`, perftest reports latencies in cycles, and measures the
//! frequency half as often.

mod stock;

use stock::{Node, alone};

/// Runs both ends with the same arguments; the client also gets the address.
fn perftest(arguments: &[&str]) {
    for arguments in arguments {
        let _alone = alone();
        let folder = tempfile::tempdir().expect("a folder");
        let node = |ip: &str, kind| {
            let port = format!("{kind}:{}/link.sock", folder.path().display());
            Node { ip: ip.into(), port, ..Node::default() }
        };
        stock::perftest(&node("10.4.0.1", "virtio_user"), &node("10.4.0.2", "vhost"), arguments);
    }
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_latencies() {
    perftest(&[
        "ib_write_lat -R -n 50",
        "ib_read_lat -R -n 100",
        "ib_send_lat -R -n 100 -C",
        "ib_atomic_lat -R -n 100 -C",
        "ib_send_lat -R -n 100 -C --use-srq",
    ]);
}

/// Programs that are not run with all sizes.
#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_bandwidths() {
    perftest(&["ib_atomic_bw -R -n 200", "ib_send_bw -R -n 100 --use-srq"]);
}

/// Writes are left out, because perftest has no events for them. The numbers of `ib_send_bw` avoid a deadlock of
/// perftest 4.5 (`run_iter_bw`, `run_iter_bi`): a sender without credits sleeps until its next event, but credits come
/// by a Write of the peer, which causes none. With an odd number of Sends below 512 (`-n 495`), the peer has one
/// receive more than there are Sends (`force_dependecies`), and no sender needs a credit. The number must be a multiple
/// of the Sends per completion (`-Q 99`), because perftest counts that many for each completion.
#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_sleepers() {
    perftest(&[
        "ib_read_lat -R -n 100 -C -e",
        "ib_send_lat -R -n 100 -C -e",
        "ib_atomic_lat -R -n 100 -C -e",
        "ib_read_bw -R -n 200 -e",
        "ib_send_bw -R -n 495 -Q 99 -e",
        "ib_atomic_bw -R -n 200 -e",
        "ib_send_bw -R -n 495 -Q 99 -b -e",
    ]);
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_many_queue_pairs() {
    perftest(&[
        "ib_write_bw -R -n 100 -q 16",
        "ib_read_bw -R -n 100 -q 16",
        "ib_send_bw -R -n 100 -q 16",
        "ib_atomic_bw -R -n 100 -q 16",
    ]);
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_both_directions() {
    perftest(&[
        "ib_read_bw -R -n 200 -b",
        "ib_send_bw -R -n 200 -b",
        "ib_atomic_bw -R -n 200 -b",
        "ib_write_bw -R -n 100 -b -q 16",
    ]);
}

/// Runs messages of 2 bytes to 8 MiB.
#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_all_sizes() {
    perftest(&[
        "ib_send_lat -R -n 5 -a -C",
        "ib_write_bw -R -n 5 -a",
        "ib_read_bw -R -n 5 -a",
        "ib_send_bw -R -n 5 -a",
    ]);
}

#[test]
#[ignore = "takes a minute, and needs the package perftest"]
fn long_ib_write_lat_all_sizes() {
    perftest(&[
        "ib_write_lat -R -n 5 -a",
        "ib_read_lat -R -n 5 -a",
        "ib_send_lat -R -n 5 -a",
        "ib_write_bw -R -n 5 -a -b",
        "ib_read_bw -R -n 5 -a -b -e",
        "ib_send_bw -R -n 5 -a -b",
    ]);
}

/// A client may fail only because it was refused before the server listened again.
#[test]
fn only_perftests_own_race_is_excused() {
    let connecting =
        |at: &str| format!("2026-01-01T00:00:{at}Z DEBUG urnic_verbs: connecting to 10.4.0.1:18515\n");
    let listening =
        |at: &str| format!("2026-01-01T00:00:{at}Z DEBUG urnic_verbs: listening at 0.0.0.0:18515\n");
    let twice = connecting("01.000000") + &connecting("02.000000");
    let refused = twice.clone() + "RDMA CM event error:\nEvent: RDMA_CM_EVENT_REJECTED; error: 111.\n";
    assert!(stock::came_too_early(&refused, &listening("02.000001")));
    assert!(stock::came_too_early(&refused, ""), "the server never listened anew");
    assert!(
        !stock::came_too_early(&refused, &listening("01.999999")),
        "refused although the server listened"
    );
    assert!(!stock::came_too_early(&twice, ""), "a crash or a hang without a refusal");
    let first = connecting("01.000000") + "Event: RDMA_CM_EVENT_REJECTED; error: 111.\n";
    assert!(!stock::came_too_early(&first, ""), "the first connection found a listener");
}
