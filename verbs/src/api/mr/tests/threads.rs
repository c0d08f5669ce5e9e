//! Memory that is taken away while the engine's own thread and many others use it.

use std::net::SocketAddrV4;
use std::time::Duration;

use urnic_config::Progress;

use crate::api::simulation::{Simulation, alone};
use crate::*;

const LEN: usize = 32 << 10;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// Time limit that only a stopped machine exceeds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A mapping. Once it is gone, a thread that touches it ends the process.
struct Pages(*mut u8);

// SAFETY: a mapping belongs to no thread.
unsafe impl Send for Pages {}

impl Pages {
    fn new() -> Self {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast())
    }

    fn register(&self, pd: &Pd) -> Mr {
        // SAFETY: mapped, without references to it; the test drops regions before their memory.
        unsafe { pd.reg_mr(self.0, LEN, ALL) }.unwrap()
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        // SAFETY: both are LEN bytes.
        unsafe { super::copy::read(self.0, &mut bytes) };
        bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.0.cast(), LEN) };
    }
}

struct End {
    cq: Cq,
    qp: Qp,
    events: EventChannel,
}

/// Makes two connected queue pairs of a domain.
fn pair(device: &Device, pd: &Pd, port: u16) -> [End; 2] {
    let end = || {
        let cq = device.create_cq(128, None).unwrap();
        let init = QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline: 0,
            signal_all: true,
        };
        let qp = pd.create_qp(&init).unwrap();
        End { qp, events: device.create_event_channel().unwrap(), cq }
    };
    let [server, client] = [end(), end()];
    let _listener = server.events.listen(port, 1).unwrap();
    let param = ConnParam::default();
    let to = SocketAddrV4::new(Simulation::address(0), port);
    client.events.connect(&client.qp, to, &param).unwrap();
    let Some(CmEvent::ConnectRequest(request)) = server.events.wait(PATIENCE) else { panic!("no request") };
    request.accept(&server.qp, &param).unwrap();
    for end in [&server, &client] {
        assert!(matches!(end.events.wait(PATIENCE), Some(CmEvent::Established { .. })));
    }
    [server, client]
}

impl End {
    /// Polls until `count` requests have completed, each once.
    fn collect(&self, count: usize) -> Vec<Wc> {
        let start = std::time::Instant::now();
        let (mut all, mut some) = (Vec::new(), [Wc::default(); 16]);
        while all.len() < count {
            let n = self.cq.poll(&mut some);
            all.extend_from_slice(&some[..n]);
            assert!(start.elapsed() < PATIENCE, "{} of {count} completions", all.len());
        }
        assert_eq!(all.len(), count);
        all
    }
}

/// Does the work of one thread: all kinds of transfers. Takes memory away while they are under way.
fn work(device: &Device, thread: u16, rounds: usize) -> (usize, usize) {
    let mut rng = fastrand::Rng::with_seed(u64::from(thread));
    let pd = device.alloc_pd();
    let (mut broken, mut whole) = (0, 0);
    let mut ends = pair(device, &pd, 7000 + thread);
    for _ in 0..rounds {
        let memory = [(); 3].map(|()| Pages::new());
        // Three regions: the source of Sends and Writes and sink of Reads; the target of Writes and source of
        // Reads; and the memory of receives.
        let mut regions = memory.each_ref().map(|pages| Some(pages.register(&pd)));
        let mut memory = memory.map(Some);
        let keys = regions.each_ref().map(|mr| mr.as_ref().map(|mr| (mr.addr(), mr.rkey())).unwrap());
        let [server, client] = &ends;
        let sge = |which: usize| [Sge { addr: keys[which].0, len: LEN as u32, lkey: keys[which].1 }];
        let receives = 4;
        for i in 0..receives {
            server.qp.post_recv(&RecvWr { wr_id: i, sges: &sge(2) }).unwrap();
        }
        let (addr, rkey) = keys[1];
        let sends = 12;
        let mut sent = 0;
        for i in 0..sends {
            let op = match rng.u8(..3) {
                0 => SendOp::Write { addr, rkey },
                1 => SendOp::Read { addr, rkey },
                _ if sent < receives => SendOp::Send,
                _ => SendOp::Write { addr, rkey },
            };
            sent += u64::from(op == SendOp::Send);
            let wr = SendWr { wr_id: i, op, sges: &sge(0), flags: SendFlags::empty() };
            client.qp.post_send(&wr).unwrap();
        }
        // Waits a moment, sometimes longer.
        let most = 1 << rng.u8(..14);
        for _ in 0..rng.usize(..most) {
            std::hint::spin_loop();
        }
        let victim = rng.usize(..3);
        match rng.u8(..3) {
            // Takes memory away at once, in the middle of any work.
            0 => {
                drop(regions[victim].take());
                drop(memory[victim].take());
            }
            // Revokes a region: its content no longer changes.
            1 => {
                if let (Some(mr), Some(pages)) = (&regions[victim], &memory[victim]) {
                    mr.revoke().unwrap();
                    let then = pages.content();
                    for _ in 0..rng.usize(1..20) {
                        assert!(pages.content() == then);
                    }
                }
            }
            // Gives a region other memory: the engine no longer touches the old memory.
            _ => {
                let pages = Pages::new();
                if let Some(mr) = &mut regions[victim] {
                    let change = Rereg { memory: Some((pages.0, LEN)), ..Rereg::default() };
                    // SAFETY: as for `register`.
                    unsafe { mr.rereg(&change) }.unwrap();
                }
                memory[victim] = Some(pages);
            }
        }
        // All requests complete, in order and once, whatever became of the connection.
        let done = client.collect(sends as usize);
        assert!(done.iter().map(|wc| wc.wr_id).eq(0..sends));
        if done.iter().all(|wc| wc.status == WcStatus::Success) && sent < receives {
            for i in sent..receives {
                client
                    .qp
                    .post_send(&SendWr { wr_id: i, op: SendOp::Send, sges: &[], flags: SendFlags::empty() })
                    .unwrap();
            }
            client.collect((receives - sent) as usize);
        }
        let got = server.collect(receives as usize);
        assert!(got.iter().map(|wc| wc.wr_id).eq(0..receives));
        let fine = done.iter().chain(&got).all(|wc| wc.status == WcStatus::Success)
            && server.qp.state() == QpState::Rts
            && client.qp.state() == QpState::Rts;
        if fine {
            whole += 1;
        } else {
            broken += 1;
            ends = pair(device, &pd, 7000 + thread);
        }
        // The memory is dropped after its regions.
        drop(regions);
        drop(memory);
    }
    (broken, whole)
}

/// No use after free: memory is unmapped as soon as its deregistration returns, at random moments, while the
/// engine's own thread and four others are at work (SEC-7).
#[test]
fn memory_may_be_freed_when_its_deregistration_returns() {
    for progress in [Progress::Dedicated, Progress::Adaptive] {
        let device = alone(progress).unwrap();
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|i| {
                    scope.spawn({
                        let device = &device;
                        move || work(device, i, 60)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let broken: usize = outcomes.iter().map(|o| o.0).sum();
        assert!(broken > 20, "{progress:?}: memory was seldom taken away during a transfer: {outcomes:?}");
    }
}
