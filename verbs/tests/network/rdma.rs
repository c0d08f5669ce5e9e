//! An RNIC in a child process, with a program on ordinary sockets as its peer.

use urnic::*;

use super::child;
use super::node::{ALL, Node, PORT, Place, Wait, pattern, receive, send, success};

/// Bytes of each transfer: many FPDUs, and not a multiple of the word size.
pub const LEN: usize = 300_001;

/// Runs the RNIC's part of the exchange. The peer writes to the first part of our memory and sends a message. We write
/// to the first part of the peer's memory, read its second part into our third, and send a message. The peer reads our
/// first part, sends a message and leaves.
pub fn run() {
    let server = child::arg::<String>(0) == "server";
    let mut node = Node::open(Wait::Channel);
    let mr = node.pd.alloc_mr(4 * LEN, ALL).expect("memory");
    let qp = node.qp();
    let words = 3 * LEN as u64;
    // Posts exactly one receive for each message of the peer, because a further receive would be flushed when the peer
    // leaves.
    for n in 0..2 + u64::from(server) {
        receive(&qp, n, Sge::of(&mr, words + 64 * n, 64));
    }
    let mut listener = None;
    let said = if server {
        listener = Some(node.events.listen(PORT, 4).expect("a listener"));
        child::say("listening");
        node.accept(&qp, &Place::of(&mr).encode())
    } else {
        node.connect(&qp, &Place::of(&mr).encode())
    };
    let peer = Place::decode(&said);
    let mut heard = 0;
    let mut completed = 0;
    let mut hear = |node: &mut Node, words: u64, ops: u64| {
        while heard < words || completed < ops {
            for wc in node.completions("the peer") {
                success(&wc);
                if wc.opcode == WcOpcode::Recv { heard += 1 } else { completed += 1 }
            }
        }
    };
    let word = |text: &[u8]| {
        mr.write_at(words + 512, text).expect("our memory");
        Sge::of(&mr, words + 512, text.len() as u32)
    };
    // The side that opened the connection sends first (RFC 5044 §7.1.2).
    let (mut words_heard, mut ops) = (u64::from(server), 0);
    if !server {
        send(&qp, 10, SendOp::Send, word(b"go"));
        ops += 1;
    }
    words_heard += 1;
    hear(&mut node, words_heard, ops);
    let check = |at: usize, number: u64| {
        let mut bytes = vec![0; LEN];
        mr.read_at(at as u64, &mut bytes).expect("our memory");
        assert!(bytes == pattern(number, LEN), "the content at {at}");
    };
    check(0, 1);
    mr.write_at(LEN as u64, &pattern(2, LEN)).expect("our memory");
    let (second, third) = (Sge::of(&mr, LEN as u64, LEN as u32), Sge::of(&mr, 2 * LEN as u64, LEN as u32));
    send(&qp, 11, SendOp::Write { addr: peer.addr, rkey: peer.rkey }, second);
    send(&qp, 12, SendOp::Read { addr: peer.addr + LEN as u64, rkey: peer.rkey }, third);
    hear(&mut node, words_heard, ops + 2);
    check(2 * LEN, 3);
    send(&qp, 13, SendOp::Send, word(b"answered"));
    hear(&mut node, words_heard + 1, ops + 3);
    match node.event("the peer's farewell") {
        CmEvent::Disconnected { reason: DisconnectReason::Peer, .. } => {}
        other => panic!("{other:?} instead of an orderly end"),
    }
    child::say("done");
    drop((qp, listener));
}
