use super::*;
use crate::shared::numbers::MAX_QPS;
use urnic_tcp::TcpConfig;

/// Even when all rooms are full, every queue pair can have a connection, and TCP's table has free places.
#[test]
fn the_rooms_leave_room() {
    let tcp = TcpConfig::default();
    let rooms = Rooms::new(tcp.max_connections);
    let strangers = rooms.starting.limit() + rooms.waiting.limit() + rooms.closing.limit();
    let programs = rooms.carried.limit() + MAX_QPS as usize;
    assert_eq!(strangers, 4096 + 8192 + 16_384);
    assert!(strangers + programs < tcp.max_connections as usize);
    assert!(strangers < tcp.max_neighbours as usize);
    // A program may destroy all its queue pairs at once: their connections have seats until their last data is sent.
    assert!(rooms.carried.limit() >= MAX_QPS as usize);
}
