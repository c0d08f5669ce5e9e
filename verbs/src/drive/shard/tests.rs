use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urnic_config::Progress;
use urnic_dataplane::RxEvent;

use super::{Doorbells, Polled, Shard};
use crate::api::fake::{self, Knobs};
use crate::api::qp::QpInit;
use crate::drive::wakeup::Wakeup;
use crate::shared::error::PostError;
use crate::shared::eventfd::EventFd;
use crate::shared::qp::QpState;
use crate::shared::queue::{Payload, WrNumber};
use crate::shared::wc::Wc;
use crate::shared::wr::{SendFlags, SendOp, SendWr};

const ALL: [Progress; 3] = [Progress::Inline, Progress::Adaptive, Progress::Dedicated];

/// Waits until `happened` returns true. Panics after a long time, so that a failed test ends.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < limit, "{what} did not happen");
        thread::yield_now();
    }
}

fn passes(knobs: &Knobs) -> u64 {
    knobs.passes.load(Ordering::SeqCst)
}

/// Naps grow while nothing happens, so that the thread uses almost no processor time.
#[test]
fn an_idle_adaptive_thread_naps() {
    let (_device, knobs) = fake::device(Progress::Adaptive);
    let (start, before) = (Instant::now(), passes(&knobs));
    until("200 passes", || passes(&knobs) >= before + 200);
    // 200 naps that grow from 50 us to 1.5 ms last at least 290 ms. On a busy machine they take longer.
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn threads_drive_without_callers() {
    for progress in [Progress::Adaptive, Progress::Dedicated] {
        let (_device, knobs) = fake::device(progress);
        knobs.arrivals.store(1000, Ordering::SeqCst);
        until("serving what arrives", || knobs.arrivals.load(Ordering::SeqCst) == 0);
    }
}

#[test]
fn inline_has_no_thread() {
    let (device, knobs) = fake::device(Progress::Inline);
    let before = passes(&knobs);
    assert_eq!(device.shared.shards.first().poll_pass(), Polled::Idle);
    knobs.arrivals.store(1, Ordering::SeqCst);
    assert_eq!(device.shared.shards.first().try_pass(), Polled::Worked);
    assert_eq!(passes(&knobs), before + 2);
}

/// Requests may wait for further polls only in the pass of a poll that will be followed by others, and only if a thread
/// of the engine's own sends them should the program stop polling.
#[test]
fn only_polls_may_hold_requests_back() {
    for (progress, may) in [(Progress::Inline, 0), (Progress::Adaptive, 1)] {
        let (device, knobs) = fake::device(progress);
        let cq = device.create_cq(4, None).unwrap();
        let polls = || knobs.polls.load(Ordering::SeqCst);
        let shard = device.shared.shards.first();
        let counts = |poll: &dyn Fn()| {
            let before = (polls(), passes(&knobs));
            // A poll does nothing if the engine's thread is in a pass.
            until("a poll", || {
                poll();
                passes(&knobs) > before.1 && (may == 0 || polls() > before.0)
            });
        };
        counts(&|| _ = cq.poll(&mut []));
        assert_eq!(polls() > 0, may == 1, "{progress:?}");
        let before = polls();
        cq.arm(false);
        for _ in 0..10 {
            cq.poll(&mut []);
            shard.try_pass();
            shard.pass();
            shard.control(|_| Ok(())).unwrap();
        }
        knobs.arrivals.store(10, Ordering::SeqCst);
        until("serving what arrives", || {
            shard.try_pass();
            knobs.arrivals.load(Ordering::SeqCst) == 0
        });
        assert_eq!(polls(), before, "{progress:?}");
    }
}

#[test]
fn passes_that_find_work_are_counted_beside_all() {
    let (device, knobs) = fake::device(Progress::Inline);
    let shard = device.shared.shards.first();
    let figures = || shard.figures(crate::shared::engines::EngineNumber::FIRST).unwrap();
    let before = figures();
    assert_eq!((before.number, before.core), (0, None));
    for arrivals in [0, 1, 0, 0, 1] {
        knobs.arrivals.store(arrivals, Ordering::SeqCst);
        shard.try_pass();
    }
    let after = figures();
    assert_eq!(after.busy_passes, before.busy_passes + 2);
    // The call that returns the figures also runs a pass.
    assert_eq!(after.passes, before.passes + 6);
}

#[test]
fn visitors_drive_an_engine_unless_others_have_driven_it_since() {
    let (device, knobs) = fake::device(Progress::Inline);
    let shard = device.shared.shards.first();
    shard.visit(false);
    let before = passes(&knobs);
    assert_eq!(shard.visit(false), Some(Polled::Idle), "nobody else does");
    thread::scope(|scope| scope.spawn(|| shard.poll_pass()).join().unwrap());
    assert_eq!(shard.visit(false), None, "somebody else does");
    assert_eq!(shard.visit(false), Some(Polled::Idle), "it has stopped");
    shard.poll_pass();
    shard.kick(0);
    assert_eq!(shard.visit(false), Some(Polled::Idle), "this thread's own passes and posts do not count");
    assert_eq!(passes(&knobs), before + 5);
}

#[test]
fn posts_do_not_keep_visitors_away() {
    let (device, _) = fake::device(Progress::Inline);
    let shard = device.shared.shards.first();
    let other = |does: fn(&Shard)| thread::scope(|scope| scope.spawn(move || does(shard)).join().unwrap());
    let polls = |shard: &Shard| assert_eq!(shard.poll_pass(), Polled::Idle);
    let posts = |shard: &Shard| _ = shard.kick(0);
    other(polls);
    assert_eq!(shard.visit(false), None);
    shard.kick(0);
    assert_eq!(shard.visit(false), Some(Polled::Idle), "a post of this thread after the pass of another");
    other(posts);
    assert_eq!(shard.visit(false), Some(Polled::Idle), "a post of another thread");
    other(polls);
    shard.kick(0);
    assert_eq!(shard.visit(false), None, "a post of this thread does not hide the pass of another");
}

#[test]
fn an_engine_is_far_while_visits_find_that_another_thread_drives_it() {
    let (device, _) = fake::device(Progress::Inline);
    let shard = device.shared.shards.first();
    let other = |does: &(dyn Fn() -> bool + Sync)| thread::scope(|scope| scope.spawn(does).join().unwrap());
    shard.visit(false);
    assert!(!shard.is_far(), "nobody else drives it");
    for _ in 0..2 {
        let far_for_itself = other(&|| {
            shard.poll_pass();
            shard.adopt();
            shard.is_far()
        });
        assert!(!far_for_itself);
        assert_eq!(shard.visit(false), None);
        assert!(shard.is_far());
    }
    shard.visit(false);
    assert!(!shard.is_far(), "the other thread has stopped");
    // This thread's own passes and posts do not count.
    shard.poll_pass();
    shard.kick(0);
    shard.visit(false);
    assert!(!shard.is_far(), "this thread drives it");
    // An engine that no polling thread has adopted is not far, whoever drives it.
    for gives_up in [false, true] {
        other(&|| {
            shard.poll_pass();
            shard.adopt();
            if gives_up {
                shard.hand_over();
            }
            gives_up
        });
        assert_eq!(shard.visit(false), None);
        assert_eq!(shard.is_far(), !gives_up);
    }
    other(&|| {
        shard.poll_pass();
        shard.adopt();
        true
    });
    assert_eq!(shard.visit(false), None);
    assert!(shard.is_far());
    until("the end of the time in which the engine is far", || !shard.is_far());
}

/// While the engine's thread drives the engine, posts do not leave requests to a thread that polled earlier.
#[test]
fn no_poller_has_an_engine_that_its_own_thread_drives() {
    let (device, _) = fake::device(Progress::Adaptive);
    let shard = device.shared.shards.first();
    thread::scope(|scope| scope.spawn(|| shard.adopt()).join().unwrap());
    until("giving up", || shard.visits.adopter.load(Ordering::Relaxed) == 0);
}

/// A post waits, because the thread that runs a pass may lose its core after it has reported a completion, but before
/// it has freed the completed request's slot.
#[test]
fn a_post_that_finds_the_queue_full_waits_for_the_pass_under_way() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None).unwrap());
    let qp = pd.create_qp(&QpInit { max_send_wr: 4, ..crate::api::qp::tests::init(&cq) }).unwrap();
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sges: &[], flags: SendFlags::empty() };
    for _ in 0..4 {
        qp.post_send(&wr).unwrap();
    }
    assert_eq!(qp.post_send(&wr), Err(PostError::QueueFull), "no pass is under way");
    for list in [false, true] {
        let posted = || {
            if list { qp.post_send_list(&[wr]).map_err(|e| e.error) } else { qp.post_send(&wr) }
        };
        let shard = device.shared.shards.first();
        thread::scope(|scope| {
            let pass = shard.lock();
            let poster = scope.spawn(posted);
            until("waiting", || shard.is_wanted() || poster.is_finished());
            qp.shared.send.release(WrNumber(list.into()));
            drop(pass);
            assert_eq!(poster.join().unwrap(), Ok(()));
        });
    }
}

#[test]
fn pollers_leave_a_dedicated_engine_alone() {
    let (device, _) = fake::device(Progress::Dedicated);
    assert_eq!(device.shared.shards.first().poll_pass(), Polled::Skipped);
}

/// A thread whose engine always has work still ends with the device.
#[test]
fn a_busy_thread_stops() {
    for progress in [Progress::Adaptive, Progress::Dedicated] {
        let (device, knobs) = fake::device(progress);
        knobs.arrivals.store(u32::MAX, Ordering::SeqCst);
        let before = passes(&knobs);
        until("being busy", || passes(&knobs) > before + 100);
        drop(device);
        assert!(knobs.shut_down.load(Ordering::SeqCst));
    }
}

/// While another thread polls, the engine's thread runs no passes. When the polling stops, the engine's thread runs
/// passes again.
#[test]
fn adaptive_watches_pollers_and_takes_over() {
    let (device, knobs) = fake::device(Progress::Adaptive);
    let shard = device.shared.shards.first();
    let polling = |rounds: u64| {
        let before = passes(&knobs);
        let mut own = 0;
        for _ in 0..rounds {
            own += u64::from(shard.poll_pass() != Polled::Skipped);
        }
        (own, passes(&knobs) - before)
    };
    // At first, the engine's thread may still run passes that it began before.
    let mut quiet = false;
    let limit = Instant::now() + Duration::from_secs(60);
    while !quiet && Instant::now() < limit {
        let (own, all) = polling(200_000);
        quiet = all == own;
    }
    assert!(quiet, "the thread went on while somebody polled");
    let before = passes(&knobs);
    until("taking over", || passes(&knobs) > before);
}

/// The engine's thread may have woken up on the core of the thread that holds the lock, in the middle of a pass. If it
/// did not sleep then, the pass would not continue for a time slice of the scheduler.
#[test]
fn a_thread_that_finds_the_lock_taken_sleeps_in_spite_of_doorbells() {
    let (device, knobs) = fake::device(Progress::Adaptive);
    let shard = device.shared.shards.first();
    let pass = shard.lock();
    let before = passes(&knobs);
    shard.doorbells.ring_receives();
    until("sleeping", || shard.driver.is_watching());
    drop(pass);
    until("taking over", || passes(&knobs) > before);
}

/// Pollers, control verbs and the engine's thread compete for the engine. Only one of them has the engine at a time,
/// and all control verbs get it.
#[test]
fn one_driver_at_a_time() {
    for progress in ALL {
        let (device, knobs) = fake::device(progress);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        device.shared.shards.first().poll_pass();
                        thread::yield_now();
                    }
                });
            }
            for _ in 0..500 {
                device.attributes().unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(knobs.overlaps.load(Ordering::SeqCst), 0);
    }
}

/// Control verbs get the lock although two pollers release it only for moments.
#[test]
fn control_is_not_starved_by_busy_pollers() {
    let (device, _) = fake::device(Progress::Inline);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    device.shared.shards.first().poll_pass();
                }
            });
        }
        for _ in 0..100 {
            device.attributes().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// After a hand-over or a doorbell, the engine's thread runs a pass, even if another thread has just polled.
#[test]
fn hand_over_and_doorbells_wake() {
    let (device, knobs) = fake::device(Progress::Adaptive);
    let shard = device.shared.shards.first();
    for round in 0..200 {
        shard.poll_pass();
        let before = passes(&knobs);
        if round % 2 == 0 {
            shard.hand_over();
        } else {
            shard.ring(1);
        }
        until("a pass of the thread", || passes(&knobs) > before);
    }
}

/// If the port signals frames, a nap lasts until a frame comes, a doorbell rings, or a caller is about to sleep. In
/// tests, the nap's time limit is an hour.
#[test]
fn frames_and_doorbells_end_a_nap_of_an_armed_port() {
    let (device, knobs) = fake::device(Progress::Adaptive);
    let frames = EventFd::new().unwrap();
    assert!(knobs.wakeup.set(Arc::new(RxEvent::new(frames.as_fd()).unwrap())).is_ok());
    let armed = || knobs.armed.load(Ordering::SeqCst);
    for round in 0..200 {
        let before = armed();
        match round % 4 {
            0 => {
                knobs.arrivals.store(1, Ordering::SeqCst);
                frames.signal();
            }
            // Nothing receives these frames. The thread must nevertheless notice the next signal.
            1 => frames.signal(),
            2 => device.shared.shards.first().ring(1),
            _ => device.shared.shards.first().hand_over(),
        }
        until("the next nap", || armed() > before && knobs.arrivals.load(Ordering::SeqCst) == 0);
    }
}

/// The event of a port at which no frame arrives.
struct NoFrames {
    event: EventFd,
    /// Whether the engine's thread has begun to wait for the event. It then no longer looks for doorbells before it
    /// sleeps.
    awaited: AtomicBool,
}

impl AsFd for NoFrames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.awaited.store(true, Ordering::SeqCst);
        self.event.as_fd()
    }
}

impl Wakeup for NoFrames {
    fn clear(&self) {}
}

/// A caller's pass takes a queue pair's number out. Until the pass enters the number again, because of a post that is
/// under way, the engine's thread may find no doorbell and go to sleep. In tests, it then sleeps for an hour. The
/// poster wakes nobody if it sees that the bell has rung, so the caller must wake the thread.
#[test]
fn doorbells_that_a_caller_leaves_wake_the_thread() {
    type Visit = fn(&Shard);
    let visits: [(&str, Visit); 4] = [
        ("try_pass", |shard| assert_ne!(shard.try_pass(), Polled::Skipped)),
        ("poll_pass", |shard| assert_ne!(shard.poll_pass(), Polled::Skipped)),
        ("pass", |shard| _ = shard.pass()),
        ("kick", |shard| assert!(!shard.kick(0), "the fake engine sends nothing")),
    ];
    for (name, visit) in visits {
        let (device, knobs) = fake::device(Progress::Adaptive);
        let (pd, cq) = (device.alloc_pd(), device.create_cq(16, None).unwrap());
        let qp = pd.create_qp(&crate::api::qp::tests::init(&cq)).unwrap();
        qp.shared.set_state(QpState::Rts);
        let (shard, send) = (device.shared.shards.first(), &qp.shared.send);
        let frames = Arc::new(NoFrames { event: EventFd::new().unwrap(), awaited: AtomicBool::new(false) });
        assert!(knobs.wakeup.set(frames.clone()).is_ok());
        until("sleeping", || frames.awaited.load(Ordering::SeqCst));
        let wake_ups = shard.driver.wake_ups();
        visit(shard);
        assert_eq!(shard.driver.wake_ups(), wake_ups, "{name}: the thread has nothing to do");

        assert!(send.bell.ring());
        shard.doorbells.ring(qp.qpn());
        let mut post = send.begin_post();
        visit(shard);
        assert_eq!(shard.driver.wake_ups(), wake_ups + 1, "{name}: the thread must look for the request");
        let wr = SendWr { wr_id: 7, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
        post.push(&wr, Payload::Bytes(&[])).unwrap();
        // The poster rings if the thread is just answering the bell. A sleeping thread does not answer.
        let rings = !send.bell.has_rung();
        drop(post);
        if rings && send.bell.ring() {
            shard.ring(qp.qpn());
        }
        let mut wc = [Wc::default()];
        // Unlike a poll, `take` drives no engine.
        until(&format!("{name}: the completion"), || {
            cq.shared.take(&mut cq.shared.polls.poller.lock(), &mut wc, 0) == 1
        });
        assert_eq!(wc[0].wr_id, 7);
    }
}

/// A verb is refused in a signal handler that has interrupted a pass of the same thread, because the thread would
/// wait for itself. After the handler, the thread continues.
#[test]
fn a_verb_in_the_middle_of_ones_own_pass_is_refused() {
    for progress in ALL {
        let (device, knobs) = fake::device(progress);
        let region = device.alloc_pd().alloc_mr(4096, crate::Access::LOCAL_WRITE).unwrap();
        let address = region.as_ptr();
        let pass = device.shared.shards.first().lock().unwrap();
        assert!(matches!(device.attributes(), Err(crate::Error::Interrupted)));
        assert_eq!(device.shared.shards.first().poll_pass(), Polled::Skipped);
        // The interrupted pass may still write to the memory, so the memory stays valid.
        drop(region);
        // SAFETY: this test checks that the memory stays valid.
        unsafe { address.write_volatile(1) };
        drop(pass);
        device.attributes().unwrap();
        assert_eq!(knobs.overlaps.load(Ordering::SeqCst), 0);
    }
}

/// Forgetting a doorbell keeps the others, even while others ring.
#[test]
fn forgetting_a_doorbell_keeps_the_others() {
    let doorbells = Doorbells::new(64);
    for qpn in 0..60 {
        doorbells.ring(qpn);
    }
    thread::scope(|scope| {
        scope.spawn(|| (60..64).for_each(|qpn| doorbells.ring(qpn)));
        (10..20).for_each(|qpn| doorbells.forget(qpn));
    });
    let mut left: Vec<_> = std::iter::from_fn(|| doorbells.pop()).collect();
    left.sort_unstable();
    assert_eq!(left, (0..10).chain(20..64).collect::<Vec<_>>());
}

/// A forked child of a process with a device gets an error when it uses the device. It can drop the handles that it
/// has inherited without an effect on the parent's device.
#[test]
fn a_forked_child_leaves_the_device_alone() {
    for progress in ALL {
        let (device, knobs) = fake::device(progress);
        // SAFETY: the child takes no lock that another thread may hold, and ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let refused = matches!(device.attributes(), Err(crate::Error::Forked));
            let skipped = device.shared.shards.first().poll_pass() == Polled::Skipped;
            drop(device);
            let untouched = !knobs.shut_down.load(Ordering::SeqCst) && Arc::strong_count(&knobs) == 2;
            // SAFETY: ends the child without running anything that belongs to the parent.
            unsafe { libc::_exit(i32::from(!(refused && skipped && untouched))) };
        }
        let mut status = -1;
        // SAFETY: waits for the child forked above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(device.attributes().is_ok(), "the parent goes on");
    }
}
