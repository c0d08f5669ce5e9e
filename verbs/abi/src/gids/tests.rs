use std::net::IpAddr;

use super::Gids;

fn ip(host: u8) -> IpAddr {
    [10, 0, 0, host].into()
}

/// Returns the table when the device has the addresses with these last octets.
fn table(gids: &Gids, there: &[u8]) -> Vec<Option<IpAddr>> {
    gids.now(there.iter().map(|host| ip(*host)))
}

#[test]
fn places_stay() {
    let gids = Gids::default();
    assert_eq!(table(&gids, &[1, 2, 3]), [Some(ip(1)), Some(ip(2)), Some(ip(3))]);
    assert_eq!(table(&gids, &[3, 1]), [Some(ip(1)), None, Some(ip(3))], "one has gone");
    assert_eq!(table(&gids, &[2, 3, 1]), [Some(ip(1)), Some(ip(2)), Some(ip(3))], "and come back");
    assert_eq!(
        table(&gids, &[4, 3, 1]),
        [Some(ip(1)), Some(ip(4)), Some(ip(3))],
        "a stranger takes what is vacant"
    );
    assert_eq!(
        table(&gids, &[2, 4, 3, 1]),
        [Some(ip(1)), Some(ip(4)), Some(ip(3)), Some(ip(2))],
        "the table grows"
    );
    assert_eq!(table(&gids, &[]), [None; 4]);
}
