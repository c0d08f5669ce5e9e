//! A shared receive queue used by many threads, with an engine's own thread and real doorbells.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use urnic_config::Progress;

use crate::api::simulation::{Simulation, alone};
use crate::*;

const CLIENTS: usize = 4;
const EACH: u64 = 600;
const BATCH: u64 = 32;
/// Receives of the queue, each with its buffer.
const SLOTS: u64 = 128;
/// Time limit that only a stopped machine exceeds.
const PATIENCE: Duration = Duration::from_secs(120);

fn init(cq: &Cq) -> QpInit<'_> {
    QpInit {
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: 16,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 8,
        signal_all: true,
    }
}

/// One thread sleeps until the limit event comes, and posts receives. One thread sleeps until completions come. Four
/// threads send as fast as there are receives. If an event or a wake-up were lost, all threads would stop.
#[test]
fn limit_events_keep_receives_coming() {
    for progress in [Progress::Adaptive, Progress::Dedicated] {
        let device = alone(progress).unwrap();
        let pd = device.alloc_pd();
        let channel = device.create_comp_channel().unwrap();
        // Two completion queues on one channel.
        let cqs = [(); 2].map(|()| device.create_cq(1024, Some(&channel)).unwrap());
        let srq = pd.create_srq(&SrqInit { max_wr: SLOTS as u32, max_sge: 1, limit: 0 }).unwrap();
        let buffers = pd.alloc_mr(SLOTS as usize * 8, Access::LOCAL_WRITE).unwrap();
        let events = device.create_event_channel().unwrap();
        let listener = events.listen(7000, 8).unwrap();
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for i in 0..CLIENTS {
            let server = pd.create_qp_with_srq(&init(&cqs[i % 2]), &srq).unwrap();
            let cq = device.create_cq(64, None).unwrap();
            let client = pd.create_qp(&init(&cq)).unwrap();
            let to = SocketAddrV4::new(Simulation::address(0), listener.port());
            events.connect(&client, to, &ConnParam::default()).unwrap();
            let mut established = 0;
            while established < 2 {
                match events.wait(PATIENCE).expect("no event") {
                    CmEvent::ConnectRequest(request) => {
                        request.accept(&server, &ConnParam::default()).unwrap();
                    }
                    CmEvent::Established { .. } => established += 1,
                    other => panic!("{other:?}"),
                }
            }
            servers.push(server);
            clients.push((client, cq));
        }
        // Number of posted receives that no client has claimed for a message.
        let credits = AtomicU64::new(0);
        // Buffers whose messages were read. Messages of one completion queue may be read long before older messages
        // of the other.
        let (free, start) = (SegQueue::new(), Instant::now());
        (0..SLOTS).for_each(|slot| free.push(slot));
        let total = CLIENTS as u64 * EACH;
        // Armed before anything completes, because completions that exist when a queue is armed raise no event.
        cqs.iter().for_each(|cq| cq.arm(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let told = device.async_events();
                let mut posted = 0;
                while posted < total {
                    while free.len() < BATCH as usize {
                        assert!(start.elapsed() < PATIENCE, "nothing is received");
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    let list: Vec<u64> = (0..BATCH).filter_map(|_| free.pop()).collect();
                    let sges: Vec<_> = list.iter().map(|slot| [Sge::of(&buffers, slot * 8, 8)]).collect();
                    let wrs: Vec<_> =
                        list.iter().zip(&sges).map(|(slot, sges)| RecvWr { wr_id: *slot, sges }).collect();
                    srq.post_recv_list(&wrs).unwrap();
                    posted += BATCH;
                    credits.fetch_add(BATCH, Ordering::SeqCst);
                    srq.set_limit(BATCH as u32 / 2).unwrap();
                    match told.wait(Some(PATIENCE)).expect("an event is lost") {
                        AsyncEvent::SrqLimitReached { srqn } => assert_eq!(srqn, srq.srqn()),
                        other => panic!("{other:?}"),
                    }
                }
            });
            for (client, cq) in &clients {
                let credits = &credits;
                scope.spawn(move || {
                    for i in 0..EACH {
                        let take = |n: u64| n.checked_sub(1);
                        while credits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
                            assert!(start.elapsed() < PATIENCE, "no receives come");
                            std::thread::sleep(Duration::from_micros(100));
                        }
                        let wr = SendWr { wr_id: i, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
                        client.post_send_inline(&wr, &i.to_le_bytes()).unwrap();
                        let mut wc = [Wc::default()];
                        while cq.poll(&mut wc) == 0 {}
                        assert_eq!((wc[0].wr_id, wc[0].status), (i, WcStatus::Success));
                    }
                });
            }
            let mut next = [0u64; CLIENTS];
            let mut all = 0;
            while all < total {
                let cq = channel.get_event(Some(PATIENCE)).expect("a wake-up is lost");
                cq.arm(false);
                let mut wcs = [Wc::default(); 8];
                loop {
                    let n = cq.poll(&mut wcs);
                    for wc in &wcs[..n] {
                        let from = servers.iter().position(|qp| qp.qpn() == wc.qpn).unwrap();
                        assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 8));
                        let mut message = [0; 8];
                        buffers.read_at(wc.wr_id * 8, &mut message).unwrap();
                        assert_eq!(
                            u64::from_le_bytes(message),
                            next[from],
                            "messages of a queue pair in order"
                        );
                        next[from] += 1;
                        free.push(wc.wr_id);
                    }
                    all += n as u64;
                    if n == 0 {
                        break;
                    }
                }
            }
        });
    }
}
