use std::{net::Ipv4Addr, thread};

use super::*;

/// Returns a port that is free now.
fn free_port(protocol: Protocol) -> u16 {
    let any = (Ipv4Addr::LOCALHOST, 0);
    let address = match protocol {
        Protocol::Tcp => TcpListener::bind(any).and_then(|socket| socket.local_addr()),
        Protocol::Udp => UdpSocket::bind(any).and_then(|socket| socket.local_addr()),
    };
    address.expect("a socket").port()
}

#[test]
fn both_protocols_play_and_end() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        for wait in [Wait::Spin, Wait::Block] {
            let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, free_port(protocol));
            let game = PingPong { protocol, wait, server, size: 8 };
            let other = thread::spawn(move || serve(&game));
            let rounds = play(&game, Duration::from_millis(50)).expect("a game");
            other.join().expect("no panic").expect("the server ends in good order");
            assert!(rounds.iters > 0 && rounds.rtt_us.min > 0.0, "{game:?}: {rounds:?}");
            assert_eq!(rounds.rtt_cdf.last().expect("points")[1], 1.0);
        }
    }
}
