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

/// Returns a frame that another host would send.
fn from(n: u16, operation: ArpOperation, target: Ipv4Addr) -> [u8; ARP_FRAME] {
    let other = Arp::new(mac(n), host(n), 1, Time::ZERO);
    other.packet(operation, EthernetAddress([0xff; 6]), host(n), target, EthernetAddress(OUR_MAC))
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

/// Exchanges between other hosts are not remembered, and claims of strangers to our address are not believed.
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
    assert!(a.places.numbers().all(|i| a.places.get(i).is_none()));
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

/// Requests that were lost while the link was down are repeated at once when it comes up.
#[test]
fn a_link_that_comes_up_is_asked_at_once() {
    let mut a = cache(8);
    let n = a.hold(host(7)).unwrap();
    assert_eq!(a.resolve(n, Time::ZERO), None);
    assert!(a.next_request().is_some() && !a.has_requests());
    a.ask_again(Time::ZERO);
    assert!(a.next_request().is_some() && !a.has_requests());
    a.receive(&from(7, ArpOperation::Reply, US), Time::ZERO);
    a.ask_again(Time::ZERO);
    assert!(!a.has_requests(), "who has answered is not asked");
}

#[test]
fn bounded() {
    let mut a = cache(16);
    let held: Vec<_> = (100..108).map(|n| a.hold(host(n)).unwrap()).collect();
    for n in 200..1200 {
        a.receive(&from(n, ArpOperation::Request, US), Time::ZERO);
    }
    assert!(a.places.numbers().len() <= 16 && a.audit().is_ok());
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

/// Unused neighbours are forgotten after a while.
#[test]
fn unused_ones_are_forgotten() {
    let mut a = cache(16);
    for n in 200..210 {
        a.receive(&from(n, ArpOperation::Request, US), Time::ZERO);
    }
    while let Some(resolved) = a.advance(Time::from_secs(61)) {
        assert_eq!(resolved, None);
    }
    assert!(a.places.numbers().all(|i| a.places.get(i).is_none()));
    assert!(!a.has_requests());
    assert_eq!(a.next_deadline(), None);
}

/// A neighbour that does not answer at its known MAC address is asked for by broadcast. Until it answers, frames still
/// go to the known MAC address.
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

/// Returns a request to us in which host 8 claims to be host 7.
fn usurper() -> [u8; ARP_FRAME] {
    let mut claim = from(7, ArpOperation::Request, US);
    claim[22..28].copy_from_slice(&mac(8));
    claim
}

/// The next connection to a host may begin at a stack that has no connection to it yet. So no stack may believe a
/// usurper at once.
#[test]
fn one_of_several_stacks_asks_a_neighbour_that_it_does_not_use_before_it_believes_another() {
    let mut a = cache(8);
    a.be_one_of_several();
    a.receive(&from(7, ArpOperation::Request, US), Time::ZERO);
    let mut now = Time::from_secs(2);
    a.receive(&usurper(), now);
    assert_eq!(a.next_request().map(|r| <[u8; 6]>::try_from(&r[..6]).unwrap()), Some(mac(7)));
    a.receive(&from(7, ArpOperation::Reply, US), now);
    a.receive(&usurper(), now);
    let n = a.hold(host(7)).unwrap();
    assert_eq!(a.resolve(n, now), Some(mac(7)));
    // A host that does not object has moved.
    now = Time::from_secs(4);
    a.receive(&usurper(), now);
    now = now + OBJECTION + Duration::from_millis(20);
    while a.advance(now).is_some() {}
    assert_eq!(a.resolve(n, now), Some(mac(8)));
}

/// Another stack asks for a neighbour every minute. The stacks that hear the answers keep the neighbour as well.
#[test]
fn one_of_several_stacks_remembers_what_another_uses() {
    let mut a = cache(8);
    a.be_one_of_several();
    a.receive(&from(7, ArpOperation::Request, US), Time::ZERO);
    for minute in 1..5 {
        let now = Time::from_secs(minute * 61);
        while a.advance(now).is_some() {}
        a.receive(&from(7, ArpOperation::Reply, US), now);
        assert!(a.places.find(host(7)).is_some());
    }
    while a.advance(Time::from_secs(5 * 61 + 5)).is_some() {}
    assert!(a.places.find(host(7)).is_none());
    assert_eq!(a.next_deadline(), None);
}

fn probe_of(mac: [u8; 6]) -> [u8; ARP_FRAME] {
    Arp::new(mac, US, 1, Time::ZERO).from(Ipv4Addr::UNSPECIFIED)
}

fn sender(frame: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(frame[28], frame[29], frame[30], frame[31])
}

/// RFC 5227 §2.1.1, §2.3: probes without a sender address, then announcements.
#[test]
fn an_address_is_probed_for_and_announced() {
    let mut a = cache(8);
    let mut now = Time::ZERO;
    assert_eq!(a.claim(), Claim::Held);
    a.claim_address(now);
    let mut sent = Vec::new();
    while a.claim_step < Time::MAX {
        assert_eq!(a.next_deadline(), Some(crate::timer::round_up(a.claim_step)));
        now = a.claim_step;
        a.advance_claim(now);
        while let Some(frame) = a.next_request() {
            sent.push((now.as_nanos() / 1_000_000, sender(&frame), a.claim()));
            assert_eq!((&frame[..6], &frame[38..42]), (&[0xff; 6][..], &US.octets()[..]));
        }
        assert!(sent.len() < 10);
        if a.claim() == Claim::Probing {
            // We do not answer for the address before it is ours. Our own probe may come back from a loop.
            assert_eq!(a.receive(&from(7, ArpOperation::Request, US), now), (None, None));
            assert_eq!(a.receive(&probe_of(OUR_MAC), now), (None, None));
        }
    }
    let none = Ipv4Addr::UNSPECIFIED;
    let probes = [0, 40, 80].map(|ms| (ms, none, Claim::Probing));
    let announcements = [120, 2120].map(|ms| (ms, US, Claim::Held));
    assert_eq!(sent, [&probes[..], &announcements[..]].concat());
    assert_eq!((a.claim(), a.conflicts().0), (Claim::Held, 0));
}

/// RFC 5227 §2.1: a request names its sender's address, so none leaves while another host may have ours.
#[test]
fn neighbours_are_asked_only_from_an_address_that_is_ours() {
    let mut a = cache(8);
    let n = a.hold(host(7)).unwrap();
    a.claim_address(Time::ZERO);
    let mut asked = Vec::new();
    let mut resolve_and_send = |a: &mut Arp, now: Time| {
        a.advance_claim(now);
        while a.advance(now).is_some() {}
        assert_eq!(a.resolve(n, now), None);
        while let Some(frame) = a.next_request() {
            asked.push((now.as_nanos() / 1_000_000, sender(&frame), frame[41]));
        }
        assert!(!a.has_requests());
    };
    for ms in (0..=120).step_by(20) {
        resolve_and_send(&mut a, Time::from_millis(ms));
    }
    // Another claim, as when the link has come up again. This time another host has the address.
    let again = Time::from_millis(1000);
    a.claim_address(again);
    resolve_and_send(&mut a, again);
    let other = Arp::new(mac(9), US, 1, Time::ZERO);
    let (all, nobody) = (EthernetAddress([0xff; 6]), EthernetAddress([0; 6]));
    a.receive(&other.packet(ArpOperation::Reply, all, US, host(3), nobody), again);
    assert_eq!(a.claim(), Claim::Conflict(mac(9)));
    for second in 2..200 {
        resolve_and_send(&mut a, Time::from_secs(second));
        assert!(a.audit().is_ok());
    }
    let none = Ipv4Addr::UNSPECIFIED;
    assert_eq!(
        asked,
        [(0, none, 1), (40, none, 1), (80, none, 1), (120, US, 1), (120, US, 7), (1000, none, 1)]
    );
}

/// RFC 5227 §2.1.1: a host that uses our address keeps it, even if the host has our own Ethernet address. A host that
/// probes for our address while we do keeps it too, if its Ethernet address differs from ours.
#[test]
fn a_conflict_ends_the_claim() {
    let theirs = mac(9);
    let claims = |mac: [u8; 6], operation| {
        let other = Arp::new(mac, US, 1, Time::ZERO);
        other.packet(operation, EthernetAddress([0xff; 6]), US, host(3), EthernetAddress([0; 6]))
    };
    for (frame, by) in [
        (claims(theirs, ArpOperation::Reply), theirs),
        (claims(theirs, ArpOperation::Request), theirs),
        (claims(OUR_MAC, ArpOperation::Reply), OUR_MAC),
        (probe_of(theirs), theirs),
    ] {
        let mut a = cache(8);
        a.claim_address(Time::ZERO);
        a.advance_claim(Time::ZERO);
        assert!(a.next_request().is_some());
        assert_eq!(a.receive(&frame, Time::ZERO), (None, None));
        assert_eq!((a.claim(), a.conflicts()), (Claim::Conflict(by), (1, Some(by))));
        a.advance_claim(Time::ZERO + Duration::from_secs(60));
        assert!(a.next_request().is_none(), "no announcement of an address that is not ours");
        assert_eq!(a.claim(), Claim::Conflict(by));
        // The address is the other host's: we do not answer for it, and do not contest it.
        let now = Time::ZERO + Duration::from_secs(61);
        assert_eq!(a.receive(&from(7, ArpOperation::Request, US), now), (None, None));
        assert_eq!(a.receive(&probe_of(mac(8)), now), (None, None));
        assert_eq!(a.receive(&claims(theirs, ArpOperation::Request), now), (None, None));
        assert_eq!((a.claim(), a.conflicts()), (Claim::Conflict(by), (2, Some(theirs))));
        assert!(a.next_request().is_none(), "no defence of an address that is not ours");
        // The claim may be repeated. If nobody objects this time, we answer for the address.
        a.claim_address(now);
        while a.claim_step < Time::MAX {
            a.advance_claim(a.claim_step);
        }
        assert!(a.receive(&from(7, ArpOperation::Request, US), now).1.is_some());
    }
}

/// RFC 5227 §2.4 (b): while another host uses our address, we defend the address at most once in ten seconds. A probe
/// is answered like any request. The answer to a probe from our own Ethernet address is broadcast, so that a switch
/// lets it through.
#[test]
fn an_address_that_is_held_is_defended() {
    let mut a = cache(8);
    let intruder = {
        let other = Arp::new(mac(9), US, 1, Time::ZERO);
        other.packet(ArpOperation::Reply, EthernetAddress([0xff; 6]), US, US, EthernetAddress([0; 6]))
    };
    let mut defended = 0;
    for ms in (0..25_000).step_by(100) {
        let now = Time::ZERO + Duration::from_millis(ms);
        assert_eq!(a.receive(&intruder, now), (None, None));
        while let Some(frame) = a.next_request() {
            assert_eq!(sender(&frame), US);
            defended += 1;
        }
    }
    assert_eq!((defended, a.claim(), a.conflicts()), (3, Claim::Held, (250, Some(mac(9)))));
    let reply = a.receive(&probe_of(mac(9)), Time::ZERO).1.expect("a reply to a probe");
    assert_eq!((&reply[..6], sender(&reply)), (&mac(9)[..], US));
    let reply = a.receive(&probe_of(OUR_MAC), Time::ZERO).1.expect("a reply to a probe of our twin");
    assert_eq!((&reply[..6], sender(&reply)), (&[0xff; 6][..], US));
}
