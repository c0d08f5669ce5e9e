//! Tests that memory comes back only when a peer that reads late has read it. A device is connected with itself, so the
//! frames of a pass arrive in the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urnic_config::Progress;
use urnic_tcp::Time;

use super::*;
use crate::Connection;
use crate::api::cq::Cq;
use crate::api::device::Device;
use crate::api::mr::Mr;
use crate::api::qp::Qp;
use crate::api::qp::tests::init;
use crate::api::simulation::{Options, Simulation, alone_on};
use crate::shared::cm::{CmEvent, ConnParam};
use crate::shared::memory::Access;
use crate::shared::wr::{SendFlags, SendOp, SendWr, Sge};

/// Several segments: the last FPDU of a message is copied.
const LEN: u32 = 5000;

/// A clock that moves by a microsecond each time it is read.
#[derive(Clone, Default)]
struct Ticking(Arc<AtomicU64>);

impl Clock for Ticking {
    fn now(&self) -> Time {
        Time::from_micros(1_000_000 + self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A queue pair that has lent `source` to TCP for a Write, which has left but not arrived.
struct Lender {
    device: Device,
    qp: Option<Qp>,
    source: Option<Mr>,
    _rest: (Qp, Mr, Cq, Connection),
}

impl Lender {
    fn new(reads_late: bool) -> Self {
        let options = Options { lends_from: 1000, reads_late, ..Options::default() };
        let device = alone_on(Ticking::default(), &options, Progress::Inline).unwrap();
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64, None).unwrap());
        let [qp, peer] = [(); 2].map(|()| pd.create_qp(&init(&cq)).unwrap());
        let (events, param) = (device.create_event_channel().unwrap(), ConnParam::default());
        let next = || (0..100).find_map(|_| events.poll()).expect("an event");
        let listener = events.listen(7000, 1).unwrap();
        let to = std::net::SocketAddr::new(Simulation::address(0).into(), listener.port());
        let connection = events.connect(&qp, to, &param).unwrap();
        let CmEvent::ConnectRequest(request) = next() else { panic!("no request") };
        request.accept(&peer, &param).unwrap();
        assert!([(); 2].map(|()| next()).iter().all(|event| matches!(event, CmEvent::Established { .. })));
        // What belongs to the start has arrived and is acknowledged.
        assert!((0..100).all(|_| events.poll().is_none()));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let [source, sink] = [(); 2].map(|()| pd.alloc_mr(LEN as usize, access).unwrap());
        let op = SendOp::Write { addr: sink.addr(), rkey: sink.rkey() };
        let sges = [Sge::of(&source, 0, LEN)];
        let lender = Self { device, qp: Some(qp), source: Some(source), _rest: (peer, sink, cq, connection) };
        let before = lender.segments("tcp_segments_out");
        let wr = SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::SIGNALED };
        lender.qp.iter().for_each(|qp| qp.post_send(&wr).unwrap());
        assert!(lender.segments("tcp_segments_out") > before + 1);
        lender
    }

    /// Returns the value of a counter. Runs no pass.
    fn segments(&self, name: &str) -> u64 {
        let shard = self.device.shared.shards.first();
        let counters = shard.arrange(|engine| Ok(engine.attributes())).unwrap().counters;
        counters.iter().find(|(of, _)| *of == name).unwrap().1
    }
}

#[test]
fn memory_comes_back_when_a_peer_that_reads_late_has_acknowledged_it() {
    let verbs: [fn(&mut Lender); 3] = [
        |lender| drop(lender.source.take()),
        |lender| drop(lender.qp.take()),
        |lender| lender.qp.iter().for_each(Qp::to_error),
    ];
    for (number, verb) in verbs.into_iter().enumerate() {
        let came = [false, true].map(|reads_late| {
            let mut lender = Lender::new(reads_late);
            let before = lender.segments("tcp_segments_in");
            verb(&mut lender);
            lender.segments("tcp_segments_in") - before
        });
        // A pass may receive the Write in any case, but its acknowledgement comes later.
        assert!(came[1] > came[0], "verb {number}: {came:?} segments");
    }
}
