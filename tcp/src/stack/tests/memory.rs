//! Memory of connections.

use crate::testing::*;
use crate::*;
use std::sync::Arc;

/// A stack can be moved to the thread that drives it.
#[test]
fn a_stack_is_send() {
    struct Portable;
    impl Buffers for Portable {
        type Frame = Vec<u8>;
        type Payload = Arc<[u8]>;
    }
    fn send<T: Send>() {}
    send::<Stack<Portable>>();
}

/// A hundred connections are opened and closed twenty times. None stays open, they need a hundred places, and TIME-WAIT
/// keeps its limit.
#[test]
fn places_are_used_again() {
    let mut p = Pair::new(|c| c.tcp.max_time_wait = 100);
    for _ in 0..20 {
        let open: Vec<_> = (0..100).map(|_| p.connect()).collect();
        assert_eq!(p.a.stack.census().0, 100);
        assert!(open.iter().all(|(c, s)| c.index < 100 && s.index < 100));
        for (c, s) in open {
            p.a.stack.close(p.now, c, &mut p.a.out);
            p.b.stack.close(p.now, s, &mut p.b.out);
        }
        p.settle();
        assert_eq!((p.a.stack.census().0, p.b.stack.census().0), (0, 0));
        assert!(p.a.stack.census().2 <= 100 && p.b.stack.census().2 <= 100);
    }
}

/// Connections beyond the limit are refused, on both sides, and the others go on.
#[test]
fn connections_are_bounded() {
    let mut p = Pair::new(|c| c.tcp.max_connections = 10);
    for _ in 0..10 {
        p.connect();
    }
    let to = std::net::SocketAddrV4::new(B, PORT);
    assert_eq!(p.a.stack.connect(p.now, to, 0, &mut p.a.out), Err(ConnectError::TooMany));
    let mut other = Node::new(config(std::net::Ipv4Addr::new(10, 0, 0, 3)));
    std::mem::swap(&mut p.a, &mut other);
    p.a.stack.connect(p.now, to, 0, &mut p.a.out).unwrap();
    p.settle();
    assert_eq!(p.b.stack.census(), (10, 0, 0));
    assert_eq!(p.b.stack.counters().syn_backlog_full, 1);
}
