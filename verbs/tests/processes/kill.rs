//! One end is killed under traffic. The other end reports this, flushes its work, and serves the next peer at the same
//! path.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use urnic::*;

use super::Link;
use super::child::{PATIENCE, alone, arg, orders, say};
use super::node::{Node, PORT, Place, Wait};
use super::traffic::{Memory, Traffic};

/// Number of successful operations after which an end reports that there is traffic.
const TRAFFIC: u64 = 50;
/// Maximum lifetime of a victim after it has reported traffic.
const LIFE: Duration = Duration::from_millis(40);
/// Some victims are killed earlier, at most this long after they started. Their numbers start at `EARLY`.
const YOUTH: Duration = Duration::from_millis(600);
const EARLY: u64 = 1 << 32;

/// Returns the number of kills in each role: 5, or the value of `URNIC_KILLS`.
fn kills() -> u64 {
    std::env::var("URNIC_KILLS").map_or(5, |n| n.parse().expect("URNIC_KILLS: a number"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    Server,
    Client,
}

fn survives(kinds: [&'static str; 2], killed: Killed) {
    survives_with(kinds, killed, "");
}

/// Runs the test. `settings` are lines of both ends' configuration.
fn survives_with(kinds: [&'static str; 2], killed: Killed, settings: &str) {
    let link = Link::new(kinds);
    let seed = std::env::var("URNIC_KILL_SEED").map_or(1, |n| n.parse().expect("URNIC_KILL_SEED: a number"));
    println!("{killed:?} killed, server {} client {}, seed {seed}", kinds[0], kinds[1]);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut survivor, start): (_, &dyn Fn(u64) -> _) = match killed {
        Killed::Server => (link.client("survivor", "client 0", settings), &|id| {
            link.server("victim", &format!("server {id}"), settings)
        }),
        Killed::Client => (link.server("survivor", "server 0", settings), &|id| {
            link.client("victim", &format!("client {id}"), settings)
        }),
    };
    survivor.expect("open");
    let mut reasons = BTreeMap::<String, u64>::new();
    let (mut told, mut served) = (Duration::ZERO, Duration::ZERO);
    for id in 1..=kills() {
        if random.u8(..3) == 0 {
            // The victim is killed in any state. The survivor reports the end of this victim before it reports anything
            // about the next one.
            let mut victim = start(EARLY + id);
            std::thread::sleep(YOUTH.mul_f64(random.f64()));
            victim.kill();
        }
        let started = Instant::now();
        let mut victim = start(id);
        victim.expect("open");
        victim.expect("traffic 0");
        while survivor.line() != format!("traffic {id}") {}
        served = served.max(started.elapsed());
        std::thread::sleep(LIFE.mul_f64(random.f64()));
        let killed = Instant::now();
        victim.kill();
        let reason = survivor.expect_start(&format!("disconnected {id}"));
        told = told.max(killed.elapsed());
        // The kernel closes the sockets of a killed process, at any position in a message, or resets them if data was
        // unread. The survivor answers a FIN by a Terminate if work is left (ERR-46).
        let expected: &[&str] = if kinds == Link::KERNEL {
            &["Peer", "Reset", "Truncated", "TerminateSent"]
        } else {
            &["LinkLost", "TimedOut"]
        };
        assert!(expected.contains(&reason.as_str()), "{reason}");
        *reasons.entry(reason).or_default() += 1;
        let flushed: u64 = survivor.expect_start(&format!("flushed {id}")).parse().expect("a number");
        // At least the two requests that were posted too late are flushed.
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
    survives(Link::KERNEL, Killed::Client);
}

#[test]
fn survives_the_servers_sigkill() {
    let _alone = alone();
    survives(Link::VIRTIO, Killed::Server);
    survives(Link::VHOST, Killed::Server);
    survives(Link::KERNEL, Killed::Server);
}

/// Each engine has its own queue of the link, and either engine may own the connection.
#[test]
fn two_engines_survive_the_peers_sigkill() {
    let _alone = alone();
    for kinds in [Link::VIRTIO, Link::VHOST] {
        for killed in [Killed::Client, Killed::Server] {
            survives_with(kinds, killed, "[engine]\nengines = 2\n");
        }
    }
}

#[test]
#[ignore = "takes minutes with many kills"]
fn long_four_engines_survive_the_peers_sigkill() {
    let _alone = alone();
    for kinds in [Link::VIRTIO, Link::VHOST, Link::KERNEL] {
        for killed in [Killed::Client, Killed::Server] {
            survives_with(kinds, killed, "[engine]\nengines = 4\n");
        }
    }
}

/// Runs the end that is killed. It does the same work as the survivor, but never finishes it.
pub fn victim() {
    serve();
}

pub fn survivor() {
    serve();
}

fn serve() {
    let node = Node::open(Wait::Poll);
    let memory = Memory::new(&node);
    let is_server = arg::<String>(0) == "server";
    let _listener = is_server.then(|| node.events.listen(PORT, 16).unwrap());
    let place = memory.place().encode();
    let hello = [&place[..], &arg::<u64>(1).to_be_bytes()].concat();
    let param = ConnParam { private_data: hello, ..ConnParam::default() };
    let mut end = End { is_server, node, param, orders: orders(), request: None, next_id: 0 };
    say("open");
    while end.connection(&memory) {}
}

/// Returns the content of the peer's private data: its memory and its number.
fn meet(hello: &[u8]) -> (Place, u64) {
    let (place, id) = hello.split_at(hello.len() - size_of::<u64>());
    (Place::decode(place), id.try_into().map(u64::from_be_bytes).unwrap())
}

struct End {
    is_server: bool,
    node: Node,
    param: ConnParam,
    orders: Receiver<String>,
    /// A request that arrived before this end knew that the peer's predecessor was dead; `None`: there is none.
    request: Option<ConnRequest>,
    next_id: u64,
}

impl End {
    fn is_told_to_stop(&self) -> bool {
        self.orders.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Handles one connection, from its beginning to its end. Returns `false` if the test wants this end to stop.
    fn connection(&mut self, memory: &Memory) -> bool {
        let mut traffic = Traffic::new(&self.node, memory, self.next_id);
        let mut asked = false;
        let mut said = false;
        let mut peer = 0;
        let reason = loop {
            if !asked && self.is_server {
                if let Some(request) = self.request.take() {
                    let (place, id) = meet(request.private_data());
                    // The peer may have been killed meanwhile.
                    if request.accept(&traffic.qp, &self.param).is_ok() {
                        asked = true;
                        (traffic.peer, peer) = (Some(place), id);
                    }
                }
            } else if !asked {
                let server = super::node::server();
                self.node.events.connect(&traffic.qp, server, &self.param).unwrap();
                asked = true;
            }
            match self.node.events.poll() {
                Some(CmEvent::ConnectRequest(request)) => self.request = Some(request),
                Some(CmEvent::Established { private_data, .. }) if !self.is_server => {
                    let (place, id) = meet(&private_data);
                    (traffic.peer, peer) = (Some(place), id);
                }
                Some(CmEvent::Established { .. }) => {}
                Some(CmEvent::Disconnected { qpn, reason }) => {
                    assert_eq!(qpn, traffic.qp.qpn());
                    break reason;
                }
                // The next server has not started yet.
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
                say(&format!("traffic {peer}"));
            }
            if traffic.done.is_multiple_of(16) && self.is_told_to_stop() {
                return false;
            }
        };
        // After `TerminateSent`, the error state may follow later: when the Terminate has been sent and the
        // connection has ended.
        let state = traffic.qp.state();
        let terminating = reason == DisconnectReason::TerminateSent && state == QpState::Terminate;
        assert!(terminating || state == QpState::Error, "{reason:?}: {state:?}");
        say(&format!("disconnected {peer} {reason:?}"));
        self.flush(&mut traffic);
        say(&format!("flushed {peer} {}", traffic.flushed));
        self.next_id = traffic.next_id();
        true
    }

    fn take(&self) -> Vec<Wc> {
        let mut found = [Wc::default(); 32];
        let n = self.node.cq.poll(&mut found);
        found[..n].to_vec()
    }

    /// Checks that every posted request completes once, including requests that this function posts.
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
