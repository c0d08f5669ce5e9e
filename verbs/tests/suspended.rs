//! Devices that no thread has driven for a while, for example because the machine was suspended, in virtual time. What
//! arrived in time counts, although it is looked at late (MPA-75, MPA-76).

mod common;

use common::raw::{raw_connection, with_raw};
use common::*;
use std::time::Duration;
use urnic::simulation::Simulation;
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};

/// Longer than all time limits of a start-up.
const SUSPENDED: Duration = Duration::from_secs(100);

/// Two devices, of which the second one connects to the first.
struct Start {
    simulation: Simulation,
    server: End,
    client: End,
    _listener: Listener,
}

impl Start {
    fn new(rtr: RtrChoice) -> Self {
        let simulation = Simulation::new(&options()).unwrap();
        let (server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
        let listener = server.events.listen(PORT, 4).unwrap();
        let param = ConnParam { timeout: SUSPENDED / 2, rtr: Some(rtr), ..ConnParam::default() };
        client.connection = Some(client.events.connect(&client.qp, address(0), &param).unwrap());
        Self { simulation, server, client, _listener: listener }
    }

    fn request(&mut self) -> ConnRequest {
        match self.server.event(&mut self.simulation) {
            CmEvent::ConnectRequest(request) => request,
            other => panic!("{other:?}"),
        }
    }

    fn accept(&mut self) {
        let request = self.request();
        self.server.connection = Some(request.accept(&self.server.qp, &ConnParam::default()).unwrap());
    }
}

fn established(simulation: &mut Simulation, end: &End) {
    let event = end.event(simulation);
    assert!(matches!(event, CmEvent::Established { .. }), "{event:?}");
}

/// The TCP connection exists before its Request is sent. Idle engines read the clock only in some of their passes, so
/// the test runs different numbers of passes.
#[test]
fn a_request_on_the_way_is_in_time() {
    for passes in 0..16 {
        let (mut simulation, end, raw) = with_raw(&options());
        let _listener = end.events.listen(PORT, 4).unwrap();
        let conn = raw_connection(&mut simulation, &raw);
        simulation.wait(Duration::from_secs(1));
        raw.borrow_mut().send(conn, &Initiator::new(&Offer::default()).unwrap().1);
        // The host's turn sends the Request.
        simulation.step(Duration::MAX);
        assert!((0..passes).all(|_| end.events.poll().is_none()));
        simulation.suspend(SUSPENDED);
        let event = end.event(&mut simulation);
        assert!(matches!(event, CmEvent::ConnectRequest(_)), "{event:?}");
    }
}

#[test]
fn a_reply_on_the_way_is_in_time() {
    let mut start = Start::new(RtrChoice::Off);
    start.accept();
    let Start { mut simulation, server, client, .. } = start;
    simulation.suspend(SUSPENDED);
    established(&mut simulation, &client);
    established(&mut simulation, &server);
    works(&mut simulation, &server, &client);
}

#[test]
fn a_ready_to_receive_indication_on_the_way_is_in_time() {
    let mut start = Start::new(RtrChoice::Any);
    start.accept();
    let Start { mut simulation, server, client, .. } = start;
    established(&mut simulation, &client);
    // This pass sends the indication.
    assert!(client.events.poll().is_none());
    simulation.suspend(SUSPENDED);
    established(&mut simulation, &server);
    works(&mut simulation, &server, &client);
}

/// The request has no answer yet, so nothing is on the way.
#[test]
fn what_has_not_arrived_is_late() {
    let mut start = Start::new(RtrChoice::Off);
    let _request = start.request();
    start.simulation.suspend(SUSPENDED);
    let event = start.client.event(&mut start.simulation);
    let expected = ConnectFailure::TimedOut;
    assert!(matches!(event, CmEvent::ConnectError { reason, .. } if reason == expected), "{event:?}");
}
