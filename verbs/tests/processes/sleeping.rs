//! A target whose application sleeps, so that only its engine's thread serves Reads and Writes.

use std::thread;
use std::time::Duration;

use urnic::{SendOp, Sge};

use super::Link;
use super::child::{alone, arg, say};
use super::node::{ALL, Node, PORT, Place, Wait, pattern, send, success};

const LEN: u32 = 8;
/// Maximum silence on the link before each operation. The silences have random lengths, so that operations arrive in
/// every state of the target's engine.
const SILENCE: Duration = Duration::from_millis(4);
/// Offsets in the region of each end.
const READ: u64 = 0;
const WRITTEN: u64 = 8;
const SOURCE: u64 = 16;

fn reads_and_writes(kinds: [&'static str; 2], operations: u64) {
    println!("{kinds:?}");
    let link = Link::new(kinds);
    let mut target = link.server("target", "", "[engine]\nprogress = \"adaptive\"\n");
    target.expect("listening");
    let mut reader = link.client("reader", &operations.to_string(), "");
    target.expect("sleeping");
    reader.expect("done");
    reader.finish();
    target.kill();
}

pub fn target() {
    let node = Node::open(Wait::Channel);
    let memory = node.pd.alloc_mr(4096, ALL).unwrap();
    memory.write_at(READ, &pattern(0, LEN as usize)).unwrap();
    let _listener = node.events.listen(PORT, 1).unwrap();
    let qp = node.qp();
    say("listening");
    node.accept(&qp, &Place::of(&memory).encode());
    say("sleeping");
    loop {
        // SAFETY: the call has no arguments and changes no memory.
        unsafe { libc::pause() };
    }
}

pub fn reader() {
    let mut node = Node::open(Wait::Poll);
    let memory = node.pd.alloc_mr(4096, ALL).unwrap();
    let qp = node.qp();
    let Place { addr, rkey } = Place::decode(&node.connect(&qp, &[]));
    let read = |node: &mut Node, at: u64, expected: &[u8]| {
        send(&qp, at, SendOp::Read { addr: addr + at, rkey }, Sge::of(&memory, at, LEN));
        while let Some(wc) = node.completions("a Read or Write").first() {
            success(wc);
            if wc.wr_id == at {
                break;
            }
        }
        let mut found = [0; LEN as usize];
        memory.read_at(at, &mut found).unwrap();
        assert_eq!(found, expected);
    };
    let mut random = fastrand::Rng::with_seed(1);
    for number in 1..=arg(0) {
        thread::sleep(SILENCE.mul_f64(random.f64()));
        read(&mut node, READ, &pattern(0, LEN as usize));
        thread::sleep(SILENCE.mul_f64(random.f64()));
        let bytes = pattern(number, LEN as usize);
        memory.write_at(SOURCE, &bytes).unwrap();
        send(&qp, SOURCE, SendOp::Write { addr: addr + WRITTEN, rkey }, Sge::of(&memory, SOURCE, LEN));
        success(&node.completions("the Write")[0]);
        read(&mut node, WRITTEN, &bytes);
    }
    say("done");
}

#[test]
fn a_sleeping_application_is_read_and_written() {
    let _alone = alone();
    reads_and_writes(Link::VIRTIO, 200);
    reads_and_writes(Link::VHOST, 200);
    reads_and_writes(Link::MEMIF, 100);
    reads_and_writes(Link::KERNEL, 200);
}
