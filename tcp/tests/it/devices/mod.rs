//! Several stacks as one host: any of them may get any frame, and no frame stays at the wrong stack.

mod lan;

use crate::floods::Forge;
use crate::harness::{Host, MOST_SEEDS, Script, for_seeds, ip, ip6, mac, solicitation};
use crate::paths::Path;
use crate::peer::{Seg, arp};
use crate::random::{impairment, script, settings};
use fastrand::Rng;
use lan::{Aim, Device, Lan, RST, address, ends, family};
use smoltcp::wire::ArpOperation;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use urnic_sim::Impairment;
use urnic_tcp::{Address, Claim, ConnectError, StackConfig, Steering, sum};

/// Returns two devices with different settings and numbers of stacks, on a random network.
fn world(rng: &mut Rng, aim: Aim) -> Lan {
    let impairment = impairment(rng);
    let v6 = rng.bool();
    let mut device = |n: u8| {
        let (stacks, tune) = (rng.usize(1..=8), settings(rng));
        Device::new(n, stacks, |c| {
            tune(c);
            family(n, v6, c);
        })
    };
    let devices = vec![device(1), device(2)];
    let mut lan = Lan::new(&impairment, rng.fork(), aim, devices);
    lan.introduce();
    lan
}

/// Opens some connections in both directions, from any stacks. Returns how many.
fn open_some(lan: &mut Lan, rng: &mut Rng, most: usize) -> usize {
    for device in &mut lan.devices {
        let script = Script { close_first: true, ..script(rng, 1500) };
        device.listen(7, 64, &Script { send: script.send / 8, ..script });
    }
    let count = rng.usize(1..=most);
    for _ in 0..count {
        let (from, to) = if rng.bool() { (0, 1) } else { (1, 0) };
        let to = SocketAddr::new(lan.devices[to].address(), 7);
        let script = script(rng, 9000);
        let stack = rng.usize(..lan.devices[from].hosts.len());
        let script = Script { send: script.send / 8, ..script };
        lan.devices[from].hosts[stack].connect(lan.now, to, script);
    }
    count
}

/// Runs connections whose frames reach random stacks, and are sometimes lost on the way to the right one.
pub fn one(seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0xde1);
    let mut lan = world(&mut rng, Aim::Random);
    lan.lossy = if rng.bool() { 0.0 } else { rng.f64() * 0.05 };
    let count = open_some(&mut lan, &mut rng, 8);
    lan.run_to_end(count, Duration::from_secs(7200));
}

#[test]
fn connections_whose_frames_reach_any_stack() {
    for_seeds(MOST_SEEDS, one);
}

/// Runs connections whose frames reach their owners. Connections stay with the stack that opened them, and nothing is
/// handed over.
pub fn steered(seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0x57ee);
    let mut lan = world(&mut rng, Aim::Right);
    let count = open_some(&mut lan, &mut rng, 8);
    lan.run_to_end(count, Duration::from_secs(7200));
    for device in &lan.devices {
        // If the network corrupts the protocol number of an IPv6 packet, any stack may get the packet. That stack hands
        // it to the first stack, which sends the ICMP error.
        let spoiled = device.count(|c| c.unknown_protocol);
        assert!(device.count(|c| c.handed_over) <= spoiled, "{}", lan.describe());
    }
}

#[test]
fn with_right_steering_nothing_is_handed_over() {
    for_seeds(100, steered);
}

/// Both ends of a connection of a device with itself belong to the stack that opens it.
#[test]
fn a_device_talks_to_itself_within_a_stack() {
    for_seeds(20, |seed| {
        let mut rng = Rng::with_seed(seed ^ 0x5e1f);
        let mut lan = world(&mut rng, Aim::Random);
        let device = &mut lan.devices[0];
        device.listen(7, 64, &Script { close_first: true, ..Script::send(30_000) });
        let to = SocketAddr::new(device.address(), 7);
        for host in &mut device.hosts {
            host.connect(lan.now, to, Script::send(20_000));
        }
        let count = device.hosts.len();
        lan.run_to_end(count, Duration::from_secs(60));
        let device = &lan.devices[0];
        assert!(device.hosts.iter().all(|host| host.app.sessions.len() == 2));
        assert_eq!(device.count(|c| c.handed_over), 0);
    });
}

/// Runs connections over a path whose MTU becomes smaller. The ICMP error about a frame reaches the owner of the
/// connection, whichever stack receives the error.
pub fn narrow(seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0x9a7b);
    let v6 = rng.bool();
    let stacks = [rng.usize(2..=8), rng.usize(2..=8)];
    let mut lan = Lan::pair(stacks, seed, |c| {
        c.mtu = 9000;
        // Without reports, the connection would detect a black hole, but much later.
        c.tcp.rto_min = Duration::from_secs(1);
        family(c.mac[5], v6, c);
    });
    lan.devices[1].listen(7, 64, &Script::send(300_000));
    let to = SocketAddr::new(address(2, v6), 7);
    for host in &mut lan.devices[0].hosts {
        host.connect(lan.now, to, Script::send(300_000));
    }
    let connected = |lan: &Lan| lan.devices[1].sessions().count() == stacks[0];
    assert!(lan.run(Duration::from_secs(10), connected));
    lan.path = Path { mtu: 1400, tells: true };
    lan.run_to_end(stacks[0], Duration::from_secs(600));
    for device in &lan.devices {
        assert_eq!(device.count(|c| c.path_mtu_black_holes), 0, "a message went astray: {}", lan.describe());
    }
}

#[test]
fn path_mtus_reach_the_owners() {
    for_seeds(40, narrow);
}

/// SYNs to a port without a listener reach random stacks. The owner answers each SYN with one RST.
pub fn refused(seed: u64) {
    let mut lan = Lan::pair([5, 1], seed, |_| {});
    lan.keeps = true;
    for i in 0..40 {
        let syn = Seg { from: 5000 + i, to: 9, syn: true, seq: 1, ..Seg::default() };
        lan.throw(0, syn.frame(2, 1));
        // A segment that belongs to no connection is refused in the same way.
        let data = Seg { from: 6000 + i, to: 7, seq: 1, ack: Some(5), ..Seg::default() };
        lan.throw(0, data.frame(2, 1));
    }
    lan.settle();
    let resets: Vec<_> = lan.sent.iter().filter_map(|(node, _, f)| Some((node, ends(f)?))).collect();
    let of = |from: u16| resets.iter().filter(|(node, (_, to, _))| **node == 0 && to.port() == from).count();
    assert!(resets.iter().all(|(node, (_, _, flags))| **node != 0 || flags & RST != 0));
    assert!((0..40).all(|i| of(5000 + i) == 1 && of(6000 + i) == 1), "{resets:?}");
    assert_eq!(lan.devices[0].count(|c| c.resets_out), 80);
}

#[test]
fn the_owner_refuses_what_nobody_listens_for() {
    for_seeds(20, refused);
}

/// A request for an address or for an echo gets one answer, whichever stack it reaches. After that, all stacks know
/// the neighbour.
pub fn asked(seed: u64) {
    for v6 in [false, true] {
        let mut lan = Lan::pair([6, 1], seed, |c| family(c.mac[5], v6, c));
        lan.keeps = true;
        for round in 1..=20 {
            // A new host.
            let asker = 100 + round;
            let question = if v6 { solicitation(asker, 1) } else { arp(ArpOperation::Request, asker, 1) };
            lan.throw(0, question);
            lan.settle();
            assert_eq!(lan.sent.len(), usize::from(round), "one answer for each question");
        }
        lan.sent.clear();
        // No stack needs to ask for the neighbour, whichever stack connects.
        let to = SocketAddr::new(address(105, v6), 9);
        for host in &mut lan.devices[0].hosts {
            host.connect(lan.now, to, Script::silent());
        }
        lan.settle();
        assert!(
            lan.sent.iter().all(|(_, _, f)| ends(f).is_some()),
            "a stack asks for a neighbour that others know"
        );
        assert_eq!(lan.sent.len(), 6);
        lan.sent.clear();
        for id in 0..20 {
            lan.throw(0, echo(id, v6));
        }
        lan.settle();
        assert!(lan.sent.iter().all(|(_, stack, _)| *stack == 0));
        assert_eq!((lan.sent.len(), lan.devices[0].count(|c| c.echo_replies)), (20, 20));
    }
}

#[test]
fn one_stack_answers() {
    for_seeds(20, asked);
}

/// Returns an echo request from host 2 to host 1.
fn echo(id: u8, v6: bool) -> Vec<u8> {
    let mut frame = [mac(1), mac(2)].concat();
    let mut message = vec![if v6 { 128 } else { 8 }, 0, 0, 0, 0, id, 0, 1, 0xaa, 0xbb];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, message.len() as u8, 58, 64]);
        let addresses = [ip6(2).octets(), ip6(1).octets()].concat();
        let pseudo = [&addresses[..], &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]].concat();
        let checksum = !sum::add(sum::sum(&pseudo), sum::sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        frame.extend(addresses);
    } else {
        let checksum = !sum::sum(&message);
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = vec![0x45, 0, 0, 20 + message.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0];
        packet.extend(ip(2).octets());
        packet.extend(ip(1).octets());
        let checksum = !sum::sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        frame.extend([8, 0]);
        frame.extend(packet);
    }
    frame.extend(message);
    frame
}

/// Our addresses are probed for, announced and defended once, not by each stack. All stacks know the result.
#[test]
fn one_stack_claims_and_defends() {
    let both = |c: &mut StackConfig| {
        let n = c.mac[5];
        c.addresses.push(Address { ip: ip6(n).into(), prefix_len: 64 });
    };
    let count = |stacks: usize| {
        let mut lan = Lan::pair([stacks, 1], 7, both);
        lan.run(Duration::from_secs(10), |_| false);
        lan.keeps = true;
        let now = lan.now;
        lan.devices[0].hosts.iter_mut().for_each(|host| host.stack.claim_address(now));
        let held = |lan: &Lan| lan.devices[0].hosts.iter().all(|host| host.stack.claim() == Claim::Held);
        assert!(!held(&lan) && lan.run(Duration::from_secs(1), held));
        lan.run(Duration::from_secs(10), |_| false);
        // Another host claims the address.
        let mut rival = arp(ArpOperation::Request, 1, 1);
        rival[6..12].copy_from_slice(&mac(66));
        rival[22..28].copy_from_slice(&mac(66));
        lan.throw(0, rival.clone());
        lan.run(Duration::from_secs(1), |_| false);
        assert_eq!(lan.devices[0].count(|c| c.arp_conflicts), 1);
        let said = lan.sent.iter().filter(|(node, _, _)| *node == 0).count();
        // While a probe is out, all stacks learn that the address is taken.
        let now = lan.now;
        lan.devices[0].hosts.iter_mut().for_each(|host| host.stack.claim_address(now));
        lan.throw(0, rival);
        lan.settle();
        assert!(lan.devices[0].hosts.iter().all(|host| host.stack.claim() == Claim::Conflict(mac(66))));
        said
    };
    assert_eq!(count(4), count(1));
}

/// A router's advertisement gives all stacks the same address, which is probed for once.
#[test]
fn all_stacks_follow_a_router() {
    let count = |stacks: usize| {
        let mut lan = Lan::pair([stacks, 1], 3, |c| c.autoconf = c.mac[5] == 1);
        lan.keeps = true;
        let now = lan.now;
        lan.devices[0].hosts.iter_mut().for_each(|host| host.stack.claim_address(now));
        lan.run(Duration::from_secs(1), |_| false);
        lan.throw(0, advertisement());
        lan.run(Duration::from_secs(20), |_| false);
        let addresses: Vec<_> = lan.devices[0].hosts.iter().map(|host| host.stack.addresses()).collect();
        assert!(addresses.iter().all(|known| known.len() == 3 && *known == addresses[0]), "{addresses:?}");
        lan.sent.iter().filter(|(node, _, _)| *node == 0).count()
    };
    assert_eq!(count(4), count(1));
}

/// Returns an advertisement of a router (host 2) that offers the prefix 2001:db8::/64.
fn advertisement() -> Vec<u8> {
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([1, 1]);
    message.extend(mac(2));
    message.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    message.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut addresses = vec![0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2];
    addresses.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let pseudo = [&addresses[..], &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]].concat();
    let checksum = !sum::add(sum::sum(&pseudo), sum::sum(&message));
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&[0x33, 0x33, 0, 0, 0, 1][..], &mac(2)].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, message.len() as u8, 58, 255]);
    frame.extend(addresses);
    frame.extend(message);
    frame
}

/// Honest connections during a flood of SYNs at all stacks. Each opens at the first try, because the stack that gets
/// the returned cookie accepts it.
pub fn flooded(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut lan = Lan::pair([4, 3], seed, |_| {});
    lan.devices[0].listen(7, 16, &Script::send(5000));
    let mut syn = Forge::new(&Seg { syn: true, mss: Some(1460), ..Seg::default() });
    let mut opened: u64 = 0;
    for i in 0..3000 {
        let from = Ipv4Addr::new(10, 1 + rng.u8(..200), rng.u8(..), rng.u8(1..));
        lan.throw(0, syn.frame(from, rng.u16(1..), rng.u32(..), 0));
        if i % 60 == 59 {
            lan.turn(0);
            lan.devices[0].hosts.iter_mut().for_each(|host| host.out.frames.clear());
            let stack = rng.usize(..3);
            let to = SocketAddr::new(ip(1).into(), 7);
            lan.devices[1].hosts[stack].connect(lan.now, to, Script::send(5000));
            opened += 1;
            let open = |lan: &Lan| lan.devices[1].sessions().all(|s| s.established);
            assert!(lan.run(Duration::ZERO, open), "a connection is not open: {}", lan.describe());
        }
    }
    let taken = lan.devices[0].count(|c| c.syn_cookies_in);
    assert!(taken > opened * 3 / 4, "{taken} of {opened}");
    assert_eq!(lan.devices[1].count(|c| c.resets_in), 0);
    lan.run_to_end(opened as usize, Duration::from_secs(60));
}

#[test]
fn cookies_come_back_to_their_owner() {
    for_seeds(10, flooded);
}

/// The same addresses are used repeatedly, and either end closes first. From a reserved port, only one stack can
/// connect to a given peer; the other stacks refuse, and name that stack. The next connection opens although either end
/// may have TIME-WAIT entries.
pub fn again(seed: u64) {
    let mut rng = Rng::with_seed(seed ^ 0xa6a1);
    let v6 = rng.bool();
    let mut lan = Lan::pair([rng.usize(1..=8), rng.usize(1..=8)], seed, |c| family(c.mac[5], v6, c));
    let server_closes = rng.bool();
    lan.aim = *rng.choice([Aim::Random, Aim::Right].as_slice()).unwrap_or(&Aim::Right);
    let server = Script { close_first: server_closes, ..Script::send(3000) };
    lan.devices[1].listen(7, 64, &server);
    let from = lan.devices[0].bind(900);
    let to = SocketAddr::new(address(2, v6), 7);
    let home = lan.devices[0].hosts[0].stack.home_of(from, to).expect("a home");
    for round in 1..=6 {
        let now = lan.now;
        let mut conn = None;
        for (i, host) in lan.devices[0].hosts.iter_mut().enumerate() {
            match host.stack.connect_from(now, Some(from), to, 0, &mut host.out) {
                Ok(id) if i == home => {
                    let client = Script { close_first: !server_closes, ..Script::send(4000) };
                    host.app.add(id, 900, 1_000_900, client, false);
                    conn = Some(id);
                }
                Err(ConnectError::Elsewhere(there)) if i != home => assert_eq!(there, home),
                other => panic!("stack {i} of {home}: {other:?}"),
            }
        }
        assert!(conn.is_some());
        let both = |lan: &Lan| lan.devices.iter().map(|d| d.sessions().count()).sum::<usize>() == 2 * round;
        let over = |lan: &Lan| lan.devices.iter().all(|d| d.hosts.iter().all(Host::done));
        assert!(lan.run(Duration::from_secs(5), |lan| both(lan) && over(lan)), "{}", lan.describe());
        let whole = |d: usize, n| lan.devices[d].sessions().all(|s| s.received == n);
        assert!(whole(0, 3000) && whole(1, 4000), "{}", lan.describe());
        // Some time within TIME-WAIT.
        lan.run(Duration::from_millis(rng.u64(..3000)), |_| false);
    }
    // Frames that take different ways may arrive after the end of their connection.
    let resets = |d: usize| lan.devices[d].count(|c| c.resets_out);
    assert!(lan.aim == Aim::Random || (resets(0), resets(1)) == (0, 0), "{}", lan.describe());
}

#[test]
fn addresses_are_used_again() {
    for_seeds(60, again);
}

/// A reservation and a listener exist at all stacks under the same id, until all stacks have removed them.
#[test]
fn a_listener_is_everywhere_or_nowhere() {
    let mut lan = Lan::pair([3, 2], 11, |_| {});
    let first = lan.devices[0].listen(7, 64, &Script::silent());
    lan.devices[0].unbind(first);
    let second = lan.devices[0].listen(8, 64, &Script::silent());
    let third = lan.devices[0].bind(0);
    assert!(second != third && first != second);
    for port in [7, 8] {
        for host in &mut lan.devices[1].hosts {
            for _ in 0..10 {
                host.connect(lan.now, SocketAddr::new(ip(1).into(), port), Script::silent());
            }
        }
    }
    lan.settle();
    let open = |established| lan.devices[1].sessions().filter(|s| s.established == established).count();
    assert_eq!((open(true), open(false)), (20, 20));
    assert!(lan.devices[1].sessions().all(|s| s.established || s.closed.is_some()));
    // A stack that has missed a step reports it.
    let bound = lan.devices[0].hosts[0].stack.bind(SocketAddr::new(ip(1).into(), 99), false).expect("free");
    lan.devices[0].hosts[0].stack.bind(SocketAddr::new(ip(1).into(), 99), false).expect_err("taken");
    let other = lan.devices[0].hosts[0].stack.bind(SocketAddr::new(ip(1).into(), 98), false).expect("free");
    let stack = &mut lan.devices[0].hosts[1].stack;
    assert!(stack.enter_binding(other, false).is_err());
    assert!(stack.enter_binding(bound, false).is_ok() && stack.enter_binding(other, false).is_ok());
}

/// A connection gets a port for which its own stack is the owner, until no such port is free. Each port serves one
/// connection per peer.
#[test]
fn ports_lead_home() {
    let mut lan = Lan::pair([7, 1], 5, |_| {});
    let to = SocketAddr::new(ip(2).into(), 7);
    let mut seen = std::collections::HashSet::new();
    for host in &mut lan.devices[0].hosts {
        for _ in 0..300 {
            let session = host.connect(lan.now, to, Script::silent());
            let conn = host.app.sessions[session].conn;
            let local = host.stack.local_addr(conn).expect("is live");
            let steering: Steering = host.stack.config().steering;
            assert_eq!(steering.owner(local, to), steering.number());
            assert!(seen.insert(local.port()), "the port {} twice", local.port());
            host.out.frames.clear();
        }
    }
}

/// A single stack hands no frames over.
#[test]
fn one_stack_hands_nothing_over() {
    let devices = vec![Device::new(1, 1, |_| {}), Device::new(2, 1, |_| {})];
    let mut lan = Lan::new(&Impairment::default(), Rng::with_seed(1), Aim::Random, devices);
    lan.devices[1].listen(7, 64, &Script::send(10_000));
    lan.devices[0].hosts[0].connect(lan.now, SocketAddr::new(ip(2).into(), 7), Script::send(10_000));
    lan.run_to_end(1, Duration::from_secs(60));
    for device in &lan.devices {
        assert_eq!(device.count(|c| c.handed_over + c.shared + c.strays), 0);
    }
}
