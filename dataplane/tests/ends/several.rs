//! Ends with several queues, each driven by a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use urnic_config::PortSpec;
use urnic_dataplane::{Eal, Port, PortOptions};

use super::{PATIENCE, await_flag, await_link, echo, exchange, receives_in_place, say, sleeping_echo};

/// A queue, together with all that is made from its pools.
struct Queue(Port);

// SAFETY: a queue moves to a thread as a whole, before anything is made from its pools, and stays there.
unsafe impl Send for Queue {}

/// Opens the port and runs `work` on each queue, in a thread of its own.
fn each(eal: &Arc<Eal>, spec: &PortSpec, options: &PortOptions, work: impl Fn(&mut Port) + Sync) {
    let queues = Port::open_queues(eal, spec, options).expect("several queues");
    assert_eq!(queues.len(), usize::from(options.queues));
    say("open");
    thread::scope(|scope| {
        for queue in queues.into_iter().map(Queue) {
            let work = &work;
            scope.spawn(move || {
                let mut queue = queue;
                let Queue(port) = &mut queue;
                if receives_in_place() {
                    port.work_in_place();
                }
                work(port);
            });
        }
    });
}

pub fn run(role: &str, eal: &Arc<Eal>, spec: &PortSpec, options: &PortOptions, stop: &AtomicBool) {
    match role {
        "echo" => each(eal, spec, options, |port| echo(port, stop)),
        "sleeping echo" => each(eal, spec, options, |port| {
            await_link(port, true);
            sleeping_echo(port, stop);
        }),
        "ping" => {
            let verified = AtomicU16::new(0);
            each(eal, spec, options, |port| {
                exchange::all(eal, port);
                if verified.fetch_add(1, Ordering::AcqRel) + 1 == options.queues {
                    say("verified");
                }
                // Keeps the port, unpolled, until the peer has ended.
                await_flag(stop);
            });
        }
        "ring" => {
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let done = &done;
                scope.spawn(move || each(eal, spec, options, |port| echo(port, done)));
                each(eal, spec, options, |port| exchange::all(eal, port));
                done.store(true, Ordering::Relaxed);
            });
            say("verified");
        }
        "survive" => {
            let echoed = AtomicUsize::new(0);
            each(eal, spec, options, |port| survive(port, usize::from(options.queues), &echoed, stop));
        }
        "count served" => count_served(eal, spec, options, stop),
        other => panic!("no role {other}"),
    }
}

/// Reports the number of queues that the peer serves whenever that number has changed and stayed the same for a while.
fn count_served(eal: &Arc<Eal>, spec: &PortSpec, options: &PortOptions, stop: &AtomicBool) {
    const SETTLED: Duration = Duration::from_millis(700);
    let mut queues = Port::open_queues(eal, spec, options).expect("several queues");
    say("open");
    let (mut told, mut seen, mut since) = (0, 0, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        let up: Vec<bool> = queues.iter_mut().map(Port::link_up).collect();
        let now = if up[0] { queues.iter().filter(|queue| queue.is_served()).count() } else { 0 };
        assert!(
            up.iter().all(|other| *other || !up[0]),
            "each queue has a way to the peer if the first has one"
        );
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        if seen != told && since.elapsed() > SETTLED {
            told = seen;
            say(&format!("served {told}"));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Exchanges frames with one peer after the other, on all queues. The thread of the first queue reports each exchange.
fn survive(port: &mut Port, queues: usize, echoed: &AtomicUsize, stop: &AtomicBool) {
    let tells = port.queue() == 0;
    let told = |line: &str| {
        if tells {
            say(line);
        }
    };
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        while !port.link_up() {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        told("up");
        exchange::until_echoed(port);
        rounds += 1;
        echoed.fetch_add(1, Ordering::AcqRel);
        let start = Instant::now();
        while tells && echoed.load(Ordering::Acquire) < rounds * queues {
            assert!(start.elapsed() < PATIENCE, "a queue gets no frame back");
            port.link_up();
            thread::sleep(Duration::from_millis(1));
        }
        told("echoed");
        // The test kills the peer while frames are in flight on all queues.
        exchange::until_down(port, stop);
        if !stop.load(Ordering::Relaxed) {
            told("down");
        }
    }
}
