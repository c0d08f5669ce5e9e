use super::*;

/// Returns a frame with a packet. `first` is the next header of the fixed header; `body` follows it.
fn frame(first: u8, body: &[u8]) -> Vec<u8> {
    let mut f = vec![0; 14];
    f.extend([0x60, 0x20, 0, 0]);
    f.extend((body.len() as u16).to_be_bytes());
    f.extend([first, 64]);
    f.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).octets());
    f.extend(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).octets());
    f.extend(body);
    f
}

fn read(first: u8, body: &[u8]) -> Result<(u8, usize, usize), Refused6> {
    let f = frame(first, body);
    let mut ip = parse(&f, 14).unwrap();
    assert_eq!((ip.ecn, ip.hop_limit), (2, 64));
    skip_extensions(&f, &mut ip)?;
    Ok((ip.protocol, ip.named_at, ip.payload.start - 54))
}

#[test]
fn without_extensions() {
    assert_eq!(read(next::TCP, &[0; 20]), Ok((next::TCP, 6, 0)));
    assert_eq!(read(next::NONE, &[]), Err(Refused6::Ignore));
    // Ethernet padding is no part of the packet. A packet that is cut short is refused.
    let mut f = frame(next::TCP, &[1; 20]);
    f.extend([0; 6]);
    assert_eq!(parse(&f, 14).unwrap().payload, 54..74);
    assert!(parse(&f[..73].to_vec(), 14).is_none());
    f[14] = 0x40;
    assert!(parse(&f, 14).is_none());
}

#[test]
fn extensions_are_skipped() {
    // Hop-by-hop options with a router alert, destination options with an unknown but skippable one, a routing header
    // with no segments left, and a Fragment header of a whole packet.
    let body = [
        &[next::DESTINATION, 0, 5, 2, 0, 0, 1, 0][..],
        &[next::ROUTING, 0, 0x3e, 4, 1, 2, 3, 4],
        &[next::FRAGMENT, 0, 0, 0, 0, 0, 0, 0],
        &[next::TCP, 0, 0, 0, 0, 0, 0, 7],
        &[9; 20],
    ]
    .concat();
    assert_eq!(read(next::HOP_BY_HOP, &body), Ok((next::TCP, 64, 32)));
}

#[test]
fn what_is_refused() {
    let problem = |code, at| Err(Refused6::Problem { code, at, even_group: false });
    // RFC 5095: routing headers of type 0 or of any other type are refused if segments are left.
    for kind in [0, 2, 4] {
        let mut body = [0; 24];
        (body[0], body[1], body[2], body[3]) = (next::TCP, 2, kind, 1);
        assert_eq!(read(next::ROUTING, &body), problem(problem::FIELD, 42));
    }
    // Hop-by-hop options in the wrong place.
    let body = [[next::HOP_BY_HOP, 0, 1, 4, 0, 0, 0, 0], [next::TCP, 0, 1, 4, 0, 0, 0, 0]].concat();
    assert_eq!(read(next::DESTINATION, &body), problem(problem::NEXT_HEADER, 40));
    // Unknown options that must not be skipped (RFC 8200 §4.2).
    let option = |kind| read(next::DESTINATION, &[next::TCP, 0, kind, 4, 0, 0, 0, 0]);
    assert_eq!(option(0x3f), Ok((next::TCP, 40, 8)));
    assert_eq!(option(0x40), Err(Refused6::Ignore));
    assert_eq!(option(0x80), Err(Refused6::Problem { code: problem::OPTION, at: 42, even_group: true }));
    assert_eq!(option(0xc2), problem(problem::OPTION, 42));
    // Options and headers that are longer than the space that contains them.
    assert_eq!(read(next::DESTINATION, &[next::TCP, 0, 1, 5, 0, 0, 0, 0]), Err(Refused6::Malformed));
    assert_eq!(read(next::DESTINATION, &[next::TCP, 0, 1, 4, 0, 0, 0]), Err(Refused6::Malformed));
    assert_eq!(read(next::DESTINATION, &[next::TCP, 1, 1, 4, 0, 0, 0, 0]), Err(Refused6::Malformed));
    // Fragments.
    let fragment = |a, b| read(next::FRAGMENT, &[next::TCP, 0, a, b, 0, 0, 0, 1]);
    assert_eq!(fragment(0, 1), Err(Refused6::Fragment { first: true }));
    assert_eq!(fragment(0, 8), Err(Refused6::Fragment { first: false }));
    assert_eq!(fragment(0, 6), Ok((next::TCP, 40, 8)));
    // Too many headers.
    let many = [next::DESTINATION, 0, 1, 4, 0, 0, 0, 0].repeat(20);
    assert_eq!(read(next::DESTINATION, &many), Err(Refused6::Malformed));
}

#[test]
fn groups() {
    let ip: Ipv6Addr = "fe80::200:ff:fe12:3456".parse().unwrap();
    assert_eq!(solicited_node(ip), "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
    assert_eq!(group_mac(solicited_node(ip)), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    assert!(is_link_local(ip) && !is_link_local(ALL_NODES) && is_no_host(ALL_NODES));
    assert!(is_no_host("::ffff:10.0.0.1".parse().unwrap()));
}
