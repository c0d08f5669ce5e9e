//! Honest clients connect while strangers use up every place that a device grants to strangers. Each honest connect
//! succeeds, and is as fast as without the strangers.

mod common;

use common::raw::{raw_connection, with_raw};
use common::strangers::{self, Strangers};
use common::*;
use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Options, Simulation, TcpConfig};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};

/// Time limit of a connect: the time that it needs on a network with a delay of 5 us, and a little more.
const SOON: Duration = Duration::from_micros(200);
/// The node of the strangers, numbered after two devices.
const THEIRS: usize = 2;

/// A server on device 0 and clients on device 1.
struct Honest {
    server: End,
    client: End,
    _listener: Listener,
}

impl Honest {
    fn new(simulation: &Simulation, backlog: u32) -> Self {
        let [server, client] = [0, 1].map(|i| End::new(&simulation.device(i)));
        let _listener = server.events.listen(PORT, backlog).unwrap();
        Self { server, client, _listener }
    }

    /// Connects once, and ends the connection. Returns how long the connect took. The server rejects the strangers'
    /// requests.
    fn connects(&self, simulation: &mut Simulation) -> Duration {
        let ends = [&self.server, &self.client].map(|end| create_qp(&end.pd, &end.cq));
        let began = simulation.now();
        let mine = ConnParam { private_data: b"honest".to_vec(), ..ConnParam::default() };
        self.client.events.connect(&ends[1], address(0), &mine).unwrap();
        let mut answered = None;
        let done = simulation.run(began + Duration::from_secs(20), || {
            match self.server.events.poll() {
                Some(CmEvent::ConnectRequest(request)) if request.private_data() == b"honest" => {
                    request.accept(&ends[0], &ConnParam::default()).unwrap();
                }
                Some(CmEvent::ConnectRequest(request)) => drop(request.reject(b"")),
                _ => {}
            }
            match self.client.events.poll() {
                Some(CmEvent::Disconnected { .. }) | None => {}
                Some(event) => answered = Some(event),
            }
            answered.is_some()
        });
        assert!(done, "no answer within 20 s");
        assert!(matches!(answered, Some(CmEvent::Established { .. })), "{answered:?}");
        simulation.now() - began
    }

    /// Connects `times` times while strangers connect, and checks that each connect is fast.
    fn connects_soon(&self, simulation: &mut Simulation, times: usize) {
        for n in 0..times {
            let took = self.connects(simulation);
            assert!(took < SOON, "number {n}: {took:?}");
            let next = simulation.now() + Duration::from_millis(2);
            simulation.run(next, || false);
        }
    }
}

fn crowd(options: Options, who: fn(u32) -> (Ipv4Addr, u16)) -> (Simulation, Honest, Rc<RefCell<Strangers>>) {
    let (strangers, host) = strangers::node(THEIRS, who);
    let options = Options { devices: 2, gateway: Some(THEIRS), ..options };
    let simulation = Simulation::with_hosts(&options, vec![host]).unwrap();
    let honest = Honest::new(&simulation, 16);
    (simulation, honest, strangers)
}

/// Returns the address of stranger number `n`: each has a different address, of another network.
fn many_sources(n: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from_bits(0x0b00_0000 + n), 1024)
}

fn one_source(n: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::new(11, 0, 0, 1), 1024 + n as u16)
}

/// Returns the address of stranger number `n`: each has a different address of our own network, and so is a neighbour.
fn many_neighbours(n: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from_bits(0x0a01_0000 + n), 1024)
}

/// Number of slow strangers: more than a device has places for start-ups.
const SLOW: u32 = 6000;
const START_UPS: usize = 4096;

/// Checks that no client is delayed while thousands of peers connect, and then send nothing until the device removes
/// them.
fn slow_start_ups(options: Options, who: fn(u32) -> (Ipv4Addr, u16), neighbours: bool) {
    let (mut simulation, honest, strangers) = crowd(options, who);
    honest.connects_soon(&mut simulation, 3);
    strangers.borrow_mut().left = SLOW;
    honest.connects_soon(&mut simulation, 150);
    let all = strangers.borrow();
    assert_eq!((all.left, all.connected), (0, SLOW as usize));
    // The first RST to a neighbour is lost while its address is resolved. The device sends the next RST when the
    // neighbour sends anything.
    let heard = if neighbours { 0 } else { SLOW as usize - START_UPS - 1 };
    assert!(all.reset >= heard && all.reset <= SLOW as usize - START_UPS, "{} were reset", all.reset);
    drop(all);
    let theirs = |simulation: &Simulation| {
        let all = simulation.device(0).connections().unwrap();
        all.iter().filter(|c| c.peer.ip() != Simulation::address(1)).count()
    };
    assert_eq!(theirs(&simulation), START_UPS);
    // After their time limit the device has removed all of them.
    simulation.wait(Duration::from_secs(61));
    assert_eq!(theirs(&simulation), 0);
    honest.connects_soon(&mut simulation, 1);
}

#[test]
fn thousands_of_slow_start_ups_from_one_source() {
    slow_start_ups(options(), one_source, false);
}

#[test]
fn thousands_of_slow_start_ups_from_many_sources() {
    slow_start_ups(options(), many_sources, false);
}

#[test]
fn thousands_of_slow_start_ups_from_as_many_neighbours() {
    slow_start_ups(Options { prefix: 8, ..options() }, many_neighbours, true);
}

/// Idle connections take no place in the backlog: 69 clients connect beside 32 idle connections at a backlog of 3, and
/// beside 300 at a backlog of 128 (SEC-31).
#[test]
fn idle_connects_take_no_place_in_the_backlog() {
    for (backlog, idle) in [(3, 32), (128, 300)] {
        let (raw, host) = common::raw::node(THEIRS);
        let simulation = Simulation::with_hosts(&Options { devices: 2, ..options() }, vec![host]);
        let mut simulation = simulation.unwrap();
        let honest = Honest::new(&simulation, backlog);
        for _ in 0..idle {
            raw_connection(&mut simulation, &raw);
        }
        for n in 0..69 {
            let took = honest.connects(&mut simulation);
            assert!(took < SOON, "backlog {backlog}, number {n}: {took:?}");
        }
        assert!(raw.borrow().seen.closed.is_empty(), "there is room for all");
    }
}

/// A peer that sends nonsense, and does not close when its start-up has failed, is removed after five seconds.
/// Meanwhile such peers neither fill TCP's table nor delay others.
#[test]
fn peers_that_do_not_close_fill_no_table() {
    for who in [one_source, many_sources] {
        // With this table, the limits are 32 start-ups and 128 closing connections.
        let tcp = TcpConfig { max_connections: 4096, ..TcpConfig::default() };
        let (mut simulation, honest, strangers) = crowd(Options { tcp, ..options() }, who);
        honest.connects_soon(&mut simulation, 1);
        strangers.borrow_mut().say = vec![b'x'; 20];
        strangers.borrow_mut().left = SLOW;
        honest.connects_soon(&mut simulation, 150);
        let all = strangers.borrow();
        assert_eq!((all.left, all.connected, all.finished), (0, SLOW as usize, SLOW as usize));
        assert!(all.open.len() <= 128, "{} are open", all.open.len());
        drop(all);
        simulation.wait(Duration::from_secs(6));
        assert_eq!(strangers.borrow().open.len(), 0);
    }
}

/// Only complete Requests take places in the program's backlog. A Request keeps its place until the program answers,
/// even if its peer has hung up. The number of Requests that the program has not taken is bounded.
#[test]
fn requests_that_nobody_takes_are_bounded() {
    type Who = fn(u32) -> (Ipv4Addr, u16);
    for (who, places, hang_up) in [
        (many_sources as Who, 256, false),
        (many_sources, 256, true),
        (one_source, 16, false),
        (one_source, 16, true),
    ] {
        let (mut simulation, honest, strangers) = crowd(options(), who);
        let request = Initiator::new(&Offer { private_data: b"stranger", ..Offer::default() }).unwrap().1;
        {
            let mut all = strangers.borrow_mut();
            (all.say, all.hang_up, all.left) = (request, hang_up, SLOW);
        }
        let limit = simulation.now() + Duration::from_secs(1);
        assert!(!simulation.run(limit, || false));
        assert_eq!(strangers.borrow().connected, SLOW as usize);
        if !hang_up {
            assert_eq!(strangers.borrow().open.len(), places);
            assert_eq!(strangers.borrow().reset, SLOW as usize - places, "reset");
        }
        let mut taken = 0;
        while let Some(event) = honest.server.events.poll() {
            assert!(matches!(event, CmEvent::ConnectRequest(_)));
            taken += 1;
        }
        assert_eq!(taken, places);
        honest.connects_soon(&mut simulation, 3);
    }
}

/// A source that fills its share of the backlog keeps no other source out.
#[test]
fn a_source_fills_its_own_share_of_the_backlog() {
    let (mut simulation, honest, strangers) = crowd(options(), one_source);
    let request = Initiator::new(&Offer { private_data: b"stranger", ..Offer::default() }).unwrap().1;
    {
        let mut all = strangers.borrow_mut();
        (all.say, all.left) = (request, SLOW);
    }
    let limit = simulation.now() + Duration::from_secs(1);
    assert!(!simulation.run(limit, || false));
    assert_eq!(strangers.borrow().open.len(), 16);
    // The program has not answered these requests.
    let held: Vec<CmEvent> = std::iter::from_fn(|| honest.server.events.poll()).collect();
    assert_eq!(held.len(), 16);
    honest.connects_soon(&mut simulation, 3);
}

/// When the program has answered or dropped a request, its place is free for the next request.
#[test]
fn every_answer_frees_a_place() {
    let (mut simulation, end, raw) = with_raw(&options());
    let _listener = end.events.listen(PORT, 1).unwrap();
    let request = Initiator::new(&Offer::default()).unwrap().1;
    for n in 0..6 {
        let conn = raw_connection(&mut simulation, &raw);
        raw.borrow_mut().send(conn, &request);
        let CmEvent::ConnectRequest(request) = end.event(&mut simulation) else { panic!("no request") };
        match n % 3 {
            0 => request.reject(b"no").unwrap(),
            1 => drop(request),
            // The peer has left, so that the answer comes too late.
            _ => {
                raw.borrow_mut().abort(conn);
                let limit = simulation.now() + Duration::from_millis(1);
                simulation.run(limit, || false);
                let answer = request.accept(&end.qp, &ConnParam::default());
                assert!(matches!(answer, Err(Error::RequestGone)), "{:?}", answer.err());
            }
        }
    }
}
