//! A process that exits as soon as its last Send has completed. All Sends must arrive nevertheless.

use urnic::{CmEvent, SendOp, Sge};

use super::Link;
use super::child::{alone, say};
use super::node::{Node, PORT, Wait, pattern, receive, send, success};

const SENDS: u64 = 64;
const LEN: usize = 4096;

/// Checks that all messages arrive if a process posts 64 Sends, waits until they have completed, and calls
/// `exit(0)`. The process's port loses frames as `fault` says; empty: none.
fn all_arrive(link: [&'static str; 2], fault: &str, progress: &str) {
    println!("{link:?} fault {fault:?} progress {progress}");
    let link = Link::new(link);
    let mut server = link.server("exit-server", "", "");
    server.expect("listening");
    let fault = if fault.is_empty() { String::new() } else { format!("fault = \"{fault}\"\n") };
    let settings = format!("{fault}[engine]\nprogress = \"{progress}\"\n");
    let mut client = link.client("exit-client", "", &settings);
    client.expect("completed");
    assert_eq!(client.status().code(), Some(0));
    server.expect("received all");
    server.expect("disconnected Peer");
    server.finish();
}

pub fn server() {
    let mut node = Node::open(Wait::Poll);
    let memory = node.pd.alloc_mr(SENDS as usize * LEN, super::node::ALL).unwrap();
    let _listener = node.events.listen(PORT, 1).unwrap();
    let qp = node.qp();
    let place = |i: u64| Sge::of(&memory, i * LEN as u64, LEN as u32);
    (0..SENDS).for_each(|i| receive(&qp, i, place(i)));
    say("listening");
    node.accept(&qp, &[]);
    let mut received = 0;
    while received < SENDS {
        for wc in node.completions("a Send") {
            success(&wc);
            assert_eq!((wc.wr_id, wc.byte_len), (received, LEN as u32));
            let mut bytes = vec![0; LEN];
            memory.read_at(received * LEN as u64, &mut bytes).unwrap();
            assert!(bytes == pattern(received, LEN), "message {received}");
            received += 1;
        }
    }
    say("received all");
    match node.event("the end of the peer") {
        CmEvent::Disconnected { reason, .. } => say(&format!("disconnected {reason:?}")),
        other => panic!("{other:?}"),
    }
}

pub fn client() {
    let mut node = Node::open(Wait::Poll);
    let memory = node.pd.alloc_mr(SENDS as usize * LEN, super::node::ALL).unwrap();
    let qp = node.qp();
    node.connect(&qp, &[]);
    for i in 0..SENDS {
        memory.write_at(i * LEN as u64, &pattern(i, LEN)).unwrap();
        send(&qp, i, SendOp::Send, Sge::of(&memory, i * LEN as u64, LEN as u32));
    }
    let mut completed = 0;
    while completed < SENDS {
        for wc in node.completions("a completion") {
            success(&wc);
            completed += 1;
        }
    }
    say("completed");
    std::process::exit(0);
}

#[test]
fn what_completed_before_exit_arrives() {
    let _alone = alone();
    let progress = ["inline", "adaptive", "dedicated"];
    for seed in 1..=6 {
        all_arrive(Link::VIRTIO, &format!("loss=0.01,seed={seed}"), progress[seed % 3]);
    }
    for seed in 1..=3 {
        all_arrive(Link::VHOST, &format!("loss=0.05,seed={seed}"), progress[seed % 3]);
    }
}

#[test]
fn what_completed_before_exit_arrives_over_memif() {
    let _alone = alone();
    for seed in 1..=3 {
        all_arrive(Link::MEMIF, &format!("loss=0.01,seed={seed}"), "adaptive");
    }
}

#[test]
fn what_completed_before_exit_arrives_over_the_kernels_sockets() {
    let _alone = alone();
    for progress in ["inline", "adaptive", "dedicated"] {
        all_arrive(Link::KERNEL, "", progress);
    }
}
