use crate::testing::*;
use crate::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

fn both_families() -> Pair {
    Pair::new(|c| {
        let ip = v6(c.ipv4().unwrap().0);
        c.addresses.push(Address { ip: ip.into(), prefix_len: 64 });
    })
}

/// Connects A to `to`. Returns the listener of B that accepted, or the reason for the failure.
fn reach(p: &mut Pair, to: SocketAddr) -> Result<BindId, CloseReason> {
    p.b.seen.events.clear();
    let c = p.a.stack.connect(p.now, to, 1, &mut p.a.out).unwrap();
    p.settle();
    let listener = p.b.seen.events.iter().find_map(|e| match e {
        testing::Event::Accepted(listener, ..) => Some(*listener),
        _ => None,
    });
    listener.ok_or_else(|| p.a.closed(c).expect("an answer"))
}

/// Listens at `ip` of B.
fn listen(p: &mut Pair, ip: IpAddr, v6only: bool) -> BindId {
    let bound = p.b.stack.bind((ip, PORT).into(), v6only).unwrap();
    assert_eq!(bound.address, (ip, PORT).into());
    p.b.stack.listen(bound.id, 4).unwrap();
    bound.id
}

#[test]
fn each_family_has_its_listener() {
    let mut p = both_families();
    let (v4, v6only) = (listen(&mut p, ANY, false), listen(&mut p, ANY6, true));
    assert_eq!(p.b.stack.bind((ANY6, PORT).into(), false), Err(BindError::InUse(PORT)));
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(v4));
    assert_eq!(reach(&mut p, (v6(B), PORT).into()), Ok(v6only));
    p.b.stack.unbind(v4);
    assert_eq!(reach(&mut p, (B, PORT).into()), Err(CloseReason::Refused));
    assert_eq!(reach(&mut p, (v6(B), PORT).into()), Ok(v6only));
}

/// RFC 3493 §5.3: an unspecified IPv6 address covers both families.
#[test]
fn one_listener_has_both_families() {
    let mut p = both_families();
    let all = listen(&mut p, ANY6, false);
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(all));
    assert_eq!(reach(&mut p, (v6(B), PORT).into()), Ok(all));
}

#[test]
fn a_listener_of_one_address_hears_only_what_is_for_it() {
    let mut p = both_families();
    let one = listen(&mut p, v6(B).into(), false);
    assert_eq!(reach(&mut p, (v6(B), PORT).into()), Ok(one));
    assert_eq!(reach(&mut p, (B, PORT).into()), Err(CloseReason::Refused));
    let other = listen(&mut p, B.into(), false);
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(other));
    assert_eq!(p.b.stack.bind((A, PORT).into(), false), Err(BindError::NotOurs(A.into())));
}

#[test]
fn what_is_only_reserved_refuses() {
    let mut p = both_families();
    let bound = p.b.stack.bind((ANY6, PORT).into(), false).unwrap();
    assert_eq!(reach(&mut p, (B, PORT).into()), Err(CloseReason::Refused));
    p.b.stack.listen(bound.id, 1).unwrap();
    assert_eq!(p.b.stack.listen(bound.id, 1), Err(ListenError::NotReserved));
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(bound.id));
    p.b.stack.unbind(bound.id);
    p.b.stack.unbind(bound.id);
    assert_eq!(p.b.stack.listen(bound.id, 1), Err(ListenError::NotReserved));
}

/// An id that is no longer valid does not affect the new reservation in its place.
#[test]
fn names_are_of_one_reservation() {
    let mut p = both_families();
    let old = p.b.stack.bind((ANY, PORT).into(), false).unwrap();
    p.b.stack.unbind(old.id);
    let new = listen(&mut p, ANY, false);
    assert_eq!(old.id.index(), new.index(), "the place is used again");
    p.b.stack.unbind(old.id);
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(new));
}

#[test]
fn a_connection_comes_from_what_is_reserved() {
    let mut p = both_families();
    p.b.stack.listen_on(PORT, 4).unwrap();
    let own = SocketAddr::new(v6(A).into(), 1023);
    let bound = p.a.stack.bind(own, false).unwrap();
    let to = SocketAddr::new(v6(B).into(), PORT);
    let c = p.a.stack.connect_from(p.now, Some(bound.id), to, 1, &mut p.a.out).unwrap();
    p.settle();
    let s = p.b.accepted().unwrap();
    assert_eq!((p.a.stack.local_addr(c), p.b.stack.peer_addr(s)), (Some(own), Some(own)));
    let again = p.a.stack.connect_from(p.now, Some(bound.id), to, 1, &mut p.a.out);
    assert_eq!(again, Err(ConnectError::InUse(1023)));
    let other = p.a.stack.connect_from(p.now, Some(bound.id), (B, PORT), 1, &mut p.a.out);
    assert_eq!(other, Err(ConnectError::Family(B.into())));
    p.a.stack.unbind(bound.id);
    assert_eq!(p.a.stack.bind(own, false), Err(BindError::InUse(1023)), "the connection has it");
    let gone = p.a.stack.connect_from(p.now, Some(bound.id), to, 1, &mut p.a.out);
    assert_eq!(gone, Err(ConnectError::NoPort));
}

/// RFC 9293 §3.6.1: each connection starts above the sequence numbers that the peer may remember, although the
/// connection before it is still in TIME-WAIT. TIME-WAIT does not keep a reserved port.
#[test]
fn connections_follow_each_other_from_one_port() {
    let mut p = both_families();
    p.b.stack.listen_on(PORT, 4).unwrap();
    let bound = p.a.stack.bind((ANY, 1023).into(), false).unwrap();
    for round in 0..5 {
        p.b.seen.events.clear();
        let to = SocketAddr::new(B.into(), PORT);
        let c = p.a.stack.connect_from(p.now, Some(bound.id), to, 1, &mut p.a.out).unwrap();
        p.settle();
        let s = p.b.accepted().unwrap_or_else(|| panic!("round {round}: {:?}", p.a.closed(c)));
        p.transfer(c, s, &pattern(100_000), 1400, Duration::from_secs(1), |_, _| Act::Pass);
        p.a.stack.close(p.now, c, &mut p.a.out);
        p.b.stack.close(p.now, s, &mut p.b.out);
        p.settle();
        assert_eq!(p.a.closed(c), Some(CloseReason::Graceful));
        assert_eq!(p.a.stack.census(), (0, 0, 1), "in TIME-WAIT");
    }
    p.a.stack.unbind(bound.id);
    assert!(p.a.stack.bind((ANY, 1023).into(), false).is_ok(), "TIME-WAIT does not keep a reserved port");
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LOOPBACK6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A loopback address stands for all addresses of its family, because the network port has no loopback of its own.
/// Linux's connection manager does so as well (`cma_any_addr`).
#[test]
fn a_loopback_address_stands_for_all_of_its_family() {
    let mut p = both_families();
    let v4 = listen(&mut p, LOOPBACK, false);
    for taken in [ANY, B.into(), Ipv4Addr::new(127, 3, 2, 1).into()] {
        assert_eq!(p.b.stack.bind((taken, PORT).into(), false), Err(BindError::InUse(PORT)), "{taken}");
    }
    let v6only = listen(&mut p, LOOPBACK6, false);
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(v4));
    assert_eq!(reach(&mut p, (v6(B), PORT).into()), Ok(v6only));
}

/// Connects B to `to`. Returns the addresses of the two ends.
fn reach_itself(p: &mut Pair, to: IpAddr) -> (IpAddr, IpAddr) {
    p.b.seen.events.clear();
    let to = p.b.stack.destination((to, PORT).into());
    p.b.stack.connect(p.now, to, 1, &mut p.b.out).unwrap();
    p.settle();
    let s = p.b.accepted().expect("it reaches itself");
    (p.b.stack.local_addr(s).unwrap().ip(), p.b.stack.peer_addr(s).unwrap().ip())
}

#[test]
fn loopback_addresses_lead_to_ourselves() {
    let mut p = both_families();
    listen(&mut p, ANY6, false);
    for to in [LOOPBACK, Ipv4Addr::new(127, 255, 255, 254).into(), "::ffff:127.0.0.1".parse().unwrap()] {
        assert_eq!(reach_itself(&mut p, to), (B.into(), B.into()), "{to}");
    }
    assert_eq!(reach_itself(&mut p, LOOPBACK6), (v6(B).into(), v6(B).into()));
    let other = SocketAddr::from((A, PORT));
    assert_eq!(p.b.stack.destination(other), other);
}

#[test]
fn without_addresses_of_its_family_a_loopback_address_leads_to_the_other() {
    let mut p = Pair::new(|_| {});
    let v4 = listen(&mut p, LOOPBACK6, true);
    assert_eq!(reach(&mut p, (B, PORT).into()), Ok(v4));
    assert_eq!(reach_itself(&mut p, LOOPBACK6), (B.into(), B.into()));
}
