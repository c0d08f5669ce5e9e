use super::*;

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn host(n: u16) -> Ipv4Addr {
    Ipv4Addr::from(0x0a00_0000 + u32::from(n))
}

fn mac(n: u16) -> [u8; 6] {
    [2, 0, 0, 1, (n >> 8) as u8, n as u8]
}

fn cache(limit: u32) -> Arp {
    Arp::new(OUR_MAC, US, limit, Time::ZERO)
}

/// A frame that another host would send.
fn from(n: u16, operation: ArpOperation, target: Ipv4Addr) -> [u8; ARP_FRAME] {
    let other = Arp::new(mac(n), host(n), 1, Time::ZERO);
    other.packet(operation, EthernetAddress([0xff; 6]), target, EthernetAddress(OUR_MAC))
}

#[test]
fn a_request_is_answered_and_its_sender_remembered() {
    let mut a = cache(8);
    let (_, reply) = a.receive(&from(7, ArpOperation::Request, US), Time::ZERO);
    let reply = reply.unwrap();
    assert_eq!((&reply[..6], &reply[6..12], &reply[22..28]), (&mac(7)[..], &OUR_MAC[..], &OUR_MAC[..]));
    let n = a.hold(host(7)).unwrap();
    assert_eq!(a.resolve(n, Time::ZERO), Some(mac(7)));
}

/// What others say to others is not remembered; what strangers claim of us is not believed.
#[test]
fn strangers_are_ignored() {
    let mut a = cache(8);
    for frame in [
        from(7, ArpOperation::Request, host(9)),
        from(7, ArpOperation::Reply, US),
        from(1, ArpOperation::Reply, US),
    ] {
        assert_eq!(a.receive(&frame, Time::ZERO), (None, None));
    }
    assert!(a.index.is_empty());
    assert_eq!(a.hold(US), Some(Neighbour::OWN));
    assert_eq!(a.resolve(Neighbour::OWN, Time::ZERO), Some(OUR_MAC));
}

#[test]
fn who_waits_is_told() {
    let mut a = cache(8);
    let n = a.hold(host(7)).unwrap();
    assert_eq!(a.resolve(n, Time::ZERO), None);
    assert_eq!(a.resolve(n, Time::ZERO), None);
    assert!(a.next_request().is_some_and(|r| r[..6] == [0xff; 6]));
    assert!(a.next_request().is_none(), "one request for many who ask");
    let (resolved, _) = a.receive(&from(7, ArpOperation::Reply, US), Time::ZERO);
    assert_eq!(resolved, Some(Resolved::Found(n)));
}

/// The cache is bounded; those that connections hold stay.
/// Requests that were lost while the link was down are not waited for.
#[test]
fn a_link_that_comes_up_is_asked_at_once() {
    let mut a = cache(8);
    let n = a.hold(host(7)).unwrap();
    assert_eq!(a.resolve(n, Time::ZERO), None);
    assert!(a.next_request().is_some() && !a.has_requests());
    a.link_came_up(Time::ZERO);
    assert!(a.next_request().is_some() && !a.has_requests());
    a.receive(&from(7, ArpOperation::Reply, US), Time::ZERO);
    a.link_came_up(Time::ZERO);
    assert!(!a.has_requests(), "who has answered is not asked");
}

#[test]
fn bounded() {
    let mut a = cache(16);
    let held: Vec<_> = (100..108).map(|n| a.hold(host(n)).unwrap()).collect();
    for n in 200..1200 {
        a.receive(&from(n, ArpOperation::Request, US), Time::ZERO);
    }
    assert!(a.entries.len() <= 16 && a.index.len() <= 16);
    for (n, &held) in (100..108).zip(&held) {
        assert_eq!(a.hold(host(n)), Some(held));
    }
    for n in 2000..2008 {
        assert!(a.hold(host(n)).is_some());
    }
    assert_eq!(a.hold(host(3000)), None, "connections hold every place");
    a.release(held[0]);
    a.release(held[0]);
    assert!(a.hold(host(3000)).is_some());
}

/// Neighbours that nobody needs are forgotten after a while.
#[test]
fn unused_ones_are_forgotten() {
    let mut a = cache(16);
    for n in 200..210 {
        a.receive(&from(n, ArpOperation::Request, US), Time::ZERO);
    }
    while let Some(resolved) = a.advance(Time::from_secs(61)) {
        assert_eq!(resolved, None);
    }
    assert!(a.index.is_empty());
    assert!(!a.has_requests());
    assert_eq!(a.next_deadline(), None);
}

/// A neighbour that does not answer where it was is looked for everywhere, while it is still sent to.
#[test]
fn a_neighbour_that_has_moved_is_found() {
    let mut a = cache(8);
    let n = a.hold(host(7)).unwrap();
    let mut wrong = from(7, ArpOperation::Request, US);
    wrong[22..28].copy_from_slice(&mac(8));
    a.receive(&wrong, Time::ZERO);
    let mut asked = Vec::new();
    let mut now = Time::ZERO;
    while asked.len() < 2 {
        now = a.next_deadline().unwrap();
        while a.advance(now).is_some() {}
        asked.extend(a.next_request().map(|r| <[u8; 6]>::try_from(&r[..6]).unwrap()));
        assert_eq!(a.resolve(n, now), Some(mac(8)));
    }
    assert_eq!(asked, [mac(8), [0xff; 6]]);
    a.receive(&from(7, ArpOperation::Reply, US), now);
    assert_eq!(a.resolve(n, now), Some(mac(7)));
}
