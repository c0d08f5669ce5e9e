//! One end is killed under traffic: the other tells of it, flushes, and serves the next peer at the same path.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use urnic::*;

use super::Link;
use super::child::{PATIENCE, alone, arg, orders, say};
use super::node::{Node, PORT, Place, SERVER, Wait};
use super::traffic::{Memory, Traffic};

/// Successful operations after which an end says that there is traffic.
const TRAFFIC: u64 = 50;
/// A victim lives at most this long after that.
const LIFE: Duration = Duration::from_millis(40);

/// Kills in each role; `URNIC_KILLS` asks for more than a few.
fn kills() -> u64 {
    std::env::var("URNIC_KILLS").map_or(5, |n| n.parse().expect("URNIC_KILLS: a number"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Server,
    Client,
}

fn survives(kinds: [&'static str; 2], killed: Killed) {
    let link = Link::new(kinds);
    let seed = std::env::var("URNIC_KILL_SEED").map_or(1, |n| n.parse().expect("URNIC_KILL_SEED: a number"));
    println!("{killed:?} killed, server {} client {}, seed {seed}", kinds[0], kinds[1]);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut survivor, start): (_, &dyn Fn() -> _) = match killed {
        Killed::Server => (link.client("survivor", "client", ""), &|| link.server("victim", "server", "")),
        Killed::Client => (link.server("survivor", "server", ""), &|| link.client("victim", "client", "")),
    };
    survivor.expect("open");
    let mut reasons = BTreeMap::<String, u64>::new();
    let (mut told, mut served) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..kills() {
        let started = Instant::now();
        let mut victim = start();
        victim.expect("open");
        victim.expect("traffic");
        survivor.expect("traffic");
        served = served.max(started.elapsed());
        std::thread::sleep(LIFE.mul_f64(random.f64()));
        let killed = Instant::now();
        victim.kill();
        let reason = survivor.expect_start("disconnected");
        told = told.max(killed.elapsed());
        assert!(reason == "LinkLost" || reason == "TimedOut", "{reason}");
        *reasons.entry(reason).or_default() += 1;
        let flushed: u64 = survivor.expect_start("flushed").parse().expect("a number");
        // The two that were posted too late, at least.
        assert!(flushed >= 2);
    }
    println!("    told within {told:?}, served again within {served:?}: {reasons:?}");
    survivor.finish();
}

#[test]
fn survives_the_clients_sigkill() {
    let _alone = alone();
    survives(Link::VIRTIO, Killed::Client);
    survives(Link::VHOST, Killed::Client);
}

#[test]
fn survives_the_servers_sigkill() {
    let _alone = alone();
    survives(Link::VIRTIO, Killed::Server);
    survives(Link::VHOST, Killed::Server);
}

/// Both ends do the same work; a victim just never gets to the end of it.
pub fn victim() {
    serve();
}

pub fn survivor() {
    serve();
}

fn serve() {
    let mut end = End {
        is_server: arg::<String>(0) == "server",
        node: Node::open(Wait::Poll),
        orders: orders(),
        next_id: 0,
    };
    let memory = Memory::new(&end.node);
    let _listener = end.is_server.then(|| end.node.events.listen(PORT, 16).unwrap());
    say("open");
    while end.connection(&memory) {}
}

struct End {
    is_server: bool,
    node: Node,
    orders: Receiver<String>,
    next_id: u64,
}

impl End {
    fn is_told_to_stop(&self) -> bool {
        self.orders.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// One connection, from its beginning to its end. False: it is time to stop.
    fn connection(&mut self, memory: &Memory) -> bool {
        let mut traffic = Traffic::new(&self.node, memory, self.next_id);
        let mut asked = false;
        let mut said = false;
        let reason = loop {
            if !self.is_server && !asked {
                let param = ConnParam { private_data: memory.place().encode(), ..ConnParam::default() };
                self.node.events.connect(&traffic.qp, SocketAddrV4::new(SERVER, PORT), &param).unwrap();
                asked = true;
            }
            match self.node.events.poll() {
                Some(CmEvent::ConnectRequest(request)) if !asked => {
                    let place = Place::decode(request.private_data());
                    let param = ConnParam { private_data: memory.place().encode(), ..ConnParam::default() };
                    // The peer may have been killed meanwhile.
                    if request.accept(&traffic.qp, &param).is_ok() {
                        asked = true;
                        traffic.peer = Some(place);
                    }
                }
                Some(CmEvent::Established { private_data, .. }) if !self.is_server => {
                    traffic.peer = Some(Place::decode(&private_data));
                }
                Some(CmEvent::Established { .. }) => {}
                Some(CmEvent::Disconnected { qpn, reason }) => {
                    assert_eq!(qpn, traffic.qp.qpn());
                    break reason;
                }
                // The server is not back yet.
                Some(CmEvent::ConnectError { .. }) => asked = false,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            traffic.post();
            for wc in self.take() {
                traffic.complete(&wc, true);
            }
            if traffic.done >= TRAFFIC && !said {
                said = true;
                say("traffic");
            }
            if traffic.done % 16 == 0 && self.is_told_to_stop() {
                return false;
            }
        };
        assert_eq!(traffic.qp.state(), QpState::Error, "{reason:?}");
        say(&format!("disconnected {reason:?}"));
        self.flush(&mut traffic);
        say(&format!("flushed {}", traffic.flushed));
        self.next_id = traffic.next_id();
        true
    }

    fn take(&self) -> Vec<Wc> {
        let mut found = [Wc::default(); 32];
        let n = self.node.cq.poll(&mut found);
        found[..n].to_vec()
    }

    /// Everything posted completes, what is posted now too, and nothing more than that.
    fn flush(&self, traffic: &mut Traffic<'_>) {
        let start = Instant::now();
        traffic.post_in_vain();
        while traffic.outstanding() > 0 {
            assert!(start.elapsed() < PATIENCE, "{} of the work never completed", traffic.outstanding());
            self.take().iter().for_each(|wc| traffic.complete(wc, false));
        }
        for _ in 0..100 {
            self.take().iter().for_each(|wc| traffic.complete(wc, false));
        }
    }
}
