//! Tests how queue pairs, connections and requests for events pass between the engines of a device, with whole
//! engines in virtual time.

use std::net::SocketAddr;
use std::time::Duration;

use crate::api::channel::CompChannel;
use crate::api::cm::{EventChannel, Listener};
use crate::api::cq::{Cq, CqInit};
use crate::api::pd::Pd;
use crate::api::qp::{Qp, QpInit};
use crate::api::simulation::{Options, Simulation};
use crate::shared::cm::{CmEvent, ConnParam, RequestId};
use crate::shared::engines::EngineNumber;
use crate::shared::error::{Error, PostError};
use crate::shared::queue::Payload;
use crate::shared::wc::{Wc, WcStatus};
use crate::shared::wr::{RecvWr, SendFlags, SendOp, SendWr};

const PORT: u16 = 7000;

/// A device of three engines, with a queue pair that begins at the first engine, and its peer.
struct Setting {
    simulation: Simulation,
    cq: Cq,
    qp: Qp,
    channel: CompChannel,
    events: EventChannel,
    far: (Pd, Cq, Qp, EventChannel),
    _listener: Listener,
}

type Outcome = Result<(), &'static str>;

fn engine(index: usize) -> EngineNumber {
    EngineNumber::new(index).unwrap()
}

fn create_qp(pd: &Pd, cq: &Cq) -> Qp {
    let init = QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 8,
        signal_all: true,
    };
    pd.create_qp(&init).unwrap()
}

const SEND: SendWr<'static> = SendWr { wr_id: 1, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };

impl Setting {
    fn new() -> Self {
        let network = "delay=5us".parse().unwrap();
        let options = Options { engines: vec![3, 1], network, ..Options::default() };
        let simulation = Simulation::new(&options).unwrap();
        let [device, other] = [0, 1].map(|index| simulation.device(index));
        let channel = device.create_comp_channel().unwrap();
        let init = CqInit { depth: 64, channel: Some(&channel), timestamps: false, vector: 0 };
        let cq = device.create_cq_with(&init).unwrap();
        let qp = create_qp(&device.alloc_pd(), &cq);
        let events = device.create_event_channel().unwrap();
        let (pd, far_cq) = (other.alloc_pd(), other.create_cq(64, None).unwrap());
        let far_qp = create_qp(&pd, &far_cq);
        (0..8).for_each(|wr_id| far_qp.post_recv(&RecvWr { wr_id, sges: &[] }).unwrap());
        let far_events = other.create_event_channel().unwrap();
        let _listener = far_events.listen(PORT, 4).unwrap();
        let far = (pd, far_cq, far_qp, far_events);
        Self { simulation, cq, qp, channel, events, far, _listener }
    }

    fn run(&mut self, mut done: impl FnMut(&Cq) -> bool) -> bool {
        let limit = self.simulation.now() + Duration::from_secs(1);
        self.simulation.run(limit, || done(&self.cq))
    }

    fn connect(&mut self) {
        let to = SocketAddr::new(Simulation::address(1).into(), PORT);
        self.events.connect(&self.qp, to, &ConnParam::default()).unwrap();
        let limit = self.simulation.now() + Duration::from_secs(10);
        let (events, (_, _, far_qp, far_events)) = (&self.events, &self.far);
        let mut established = 0;
        let all = self.simulation.run(limit, || {
            for event in [events.poll(), far_events.poll()].into_iter().flatten() {
                match event {
                    CmEvent::ConnectRequest(request) => {
                        request.accept(far_qp, &ConnParam::default()).unwrap();
                    }
                    CmEvent::Established { .. } => established += 1,
                    other => panic!("{other:?}"),
                }
            }
            established == 2
        });
        assert!(all);
    }

    /// Waits up to a second for the next completion, which must be a success.
    fn completes(&mut self) -> Outcome {
        let mut wc = [Wc::default()];
        if !self.run(|cq| cq.poll(&mut wc) == 1) {
            return Err("a request does not complete");
        }
        assert_eq!(wc[0].status, WcStatus::Success);
        Ok(())
    }

    /// Posts a Send without telling any engine.
    fn post_silently(&self) -> Result<(), PostError> {
        self.qp.shared.send.poster().push(&SEND, Payload::Bytes(&[]))
    }
}

/// A posting thread has seen the queue pair at its former engine, and rings there.
fn a_doorbell_at_the_former_engine_is_heard() -> Outcome {
    let mut setting = Setting::new();
    let device = setting.simulation.device(0).shared;
    for to in [1, 2] {
        device.move_qp(&setting.qp.shared, engine(to)).unwrap();
    }
    assert_eq!(setting.qp.shared.owner.get(), engine(2));
    setting.connect();
    setting.run(|_| false);
    // This doorbell must follow the queue pair across two moves.
    setting.post_silently().unwrap();
    assert!(setting.qp.shared.send.bell.ring());
    device.shards.first().ring(setting.qp.qpn());
    setting.completes()
}

/// The doorbell of a moving queue pair is heard before the queue pair has come, and is lost.
fn a_doorbell_that_comes_first_is_made_up_for() -> Outcome {
    let mut setting = Setting::new();
    let device = setting.simulation.device(0).shared;
    let (qp, to) = (&setting.qp.shared, engine(1));
    let [there, here] = [engine(0), to].map(|number| device.shards.of(number));
    assert!(qp.owner.leave(engine(0)));
    let parcel = there.arrange(|engine| engine.release_qp(qp.qpn, to)).unwrap();
    assert!(qp.send.bell.ring());
    there.ring(qp.qpn);
    there.pass();
    here.pass();
    assert!(there.doorbells.is_empty() && here.doorbells.is_empty());
    here.control(|engine| {
        qp.owner.join(to);
        engine.admit_qp(parcel)
    })
    .unwrap();
    setting.connect();
    setting.qp.post_send_inline(&SEND, &[]).unwrap();
    setting.completes()?;
    // Once data of the peer has arrived, only the queue pair's doorbell makes the engine look at the queues.
    setting.qp.post_recv(&RecvWr { wr_id: 2, sges: &[] }).unwrap();
    setting.far.2.post_send_inline(&SEND, &[]).unwrap();
    setting.completes()?;
    setting.run(|_| false);
    setting.qp.post_send_inline(&SEND, &[]).unwrap();
    setting.completes()
}

/// Posters have taken the locks of their queues and seen that the bells have rung. The engine answers the bells before
/// the requests are in the queues, and looks again later.
#[test]
fn a_request_that_is_being_posted_is_looked_for_again() {
    const QPS: u32 = 40;
    let setting = Setting::new();
    let device = setting.simulation.device(0);
    let shard = device.shared.shards.first();
    let pd = device.alloc_pd();
    let qps: Vec<Qp> = (0..QPS).map(|_| create_qp(&pd, &setting.cq)).collect();
    shard.pass();
    for qp in &qps {
        assert!(qp.shared.send.bell.ring());
        shard.ring(qp.qpn());
    }
    let posts: Vec<_> = qps.iter().map(|qp| qp.shared.send.begin_post()).collect();
    for _ in 0..3 {
        shard.pass();
        assert_eq!(shard.doorbells.entered(), QPS);
    }
    drop(posts);
    shard.pass();
    assert!(shard.doorbells.is_empty());
    assert!(qps.iter().all(|qp| qp.shared.send.bell.ring()));
}

/// A batch rings when it is posted, however long that takes. The engine does not look for its requests before.
#[test]
fn the_engine_does_not_wait_for_a_batch() {
    let setting = Setting::new();
    let device = setting.simulation.device(0).shared;
    let (shard, qp) = (device.shards.first(), &setting.qp.shared);
    assert!(qp.send.bell.ring());
    shard.ring(qp.qpn);
    let batch = setting.qp.send_batch();
    shard.pass();
    assert!(shard.doorbells.is_empty());
    drop(batch);
    assert!(qp.send.bell.ring());
}

/// As above, and the queue pair arrives at an engine meanwhile.
#[test]
fn a_request_that_is_being_posted_is_looked_for_at_the_new_engine() {
    let setting = Setting::new();
    let device = setting.simulation.device(0).shared;
    let qp = &setting.qp.shared;
    assert!(qp.send.bell.ring());
    let post = qp.send.begin_post();
    device.move_qp(qp, engine(1)).unwrap();
    let here = device.shards.of(engine(1));
    assert!(!here.doorbells.is_empty());
    drop(post);
    here.pass();
    assert!(here.doorbells.is_empty());
    assert!(qp.send.bell.ring());
}

/// Three engines complete to a queue that was armed once.
fn one_wish_gets_one_event() -> Outcome {
    let setting = Setting::new();
    let cq = &setting.cq.shared;
    (1..3).for_each(|index| cq.open_lane(engine(index)));
    let told = || setting.channel.get_event(Some(Duration::ZERO)).is_some();
    for solicited_only in [false, true] {
        setting.cq.arm(solicited_only);
        let flushed = Wc { status: WcStatus::Flushed, ..Wc::default() };
        cq.push(engine(1), flushed).unwrap();
        assert!(told());
        (0..3).for_each(|index| cq.push(engine(index), flushed).unwrap());
        if told() {
            return Err("a second event");
        }
    }
    Ok(())
}

#[test]
fn doorbells_follow_queue_pairs_that_move() {
    a_doorbell_at_the_former_engine_is_heard().unwrap();
    a_doorbell_that_comes_first_is_made_up_for().unwrap();
}

#[test]
fn one_arming_gets_one_event_of_several_engines() {
    one_wish_gets_one_event().unwrap();
}

#[cfg(feature = "sabotage")]
#[test]
fn doorbells_that_are_lost_and_events_that_are_doubled_are_noticed() {
    use crate::shared::sabotage::{Rule, set};
    let rules: [(Rule, fn() -> Outcome); 3] = [
        (Rule::ForwardDoorbells, a_doorbell_at_the_former_engine_is_heard),
        (Rule::LookOnArrival, a_doorbell_that_comes_first_is_made_up_for),
        (Rule::OneEvent, one_wish_gets_one_event),
    ];
    for (rule, test) in rules {
        set(Some(rule));
        let outcome = test();
        set(None);
        assert!(outcome.is_err(), "{rule:?} is broken, and nobody notices");
    }
}

/// Each engine numbers its connections from the beginning, so that connections of different engines have the same
/// ids.
#[test]
fn a_request_is_answered_by_its_own_engine_only() {
    let Setting { mut simulation, qp, events, far, .. } = Setting::new();
    let device = simulation.device(0).shared;
    let _listener = events.listen(PORT, 16).unwrap();
    let clients: Vec<_> = (0..16).map(|_| create_qp(&far.0, &far.1)).collect();
    let to = SocketAddr::new(Simulation::address(0).into(), PORT);
    clients.iter().for_each(|qp| drop(far.3.connect(qp, to, &ConnParam::default()).unwrap()));
    let mut requests = Vec::new();
    let limit = simulation.now() + Duration::from_secs(10);
    let all = simulation.run(limit, || {
        while let Some(event) = events.poll() {
            match event {
                CmEvent::ConnectRequest(request) => requests.push(request),
                other => panic!("{other:?}"),
            }
        }
        requests.len() == clients.len()
    });
    assert!(all);
    let mut wrong = 0;
    for request in &requests {
        for number in device.shards.numbers().filter(|number| *number != request.id.engine) {
            let named = RequestId { engine: number, ..request.id };
            wrong += usize::from(requests.iter().any(|other| other.id == named));
            let shard = device.shards.of(number);
            let answer = shard.control(|engine| engine.accept(request.id, qp.qpn(), &ConnParam::default()));
            assert!(matches!(answer, Err(Error::UnknownQp(_) | Error::RequestGone)), "{answer:?}");
            let answer = shard.control(|engine| engine.local(request.id));
            assert!(matches!(answer, Err(Error::RequestGone)), "{answer:?}");
        }
    }
    assert!(wrong > 0, "no requests of different engines have the same endpoint id");
}
