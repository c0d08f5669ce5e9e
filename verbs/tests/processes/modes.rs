//! Every way to drive the engine, combined with every way to wait for completions.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::TryRecvError;

use urnic::{Device, Mr, Qp, SendOp, Sge, Wc, WcOpcode};

use super::Link;
use super::child::{Child, alone, arg, config, log_warnings, orders, say};
use super::node::{ALL, CLIENT, Node, PORT, SERVER, pattern, receive, send, success};

/// Maximum number of messages in a question. The answer to a question is one message.
const BURST: u64 = 16;
const LEN: usize = 3000;
const QUESTIONS: u64 = 500;

/// Runs two ends, one of which asks and one of which answers. Each has its own progress mode and way to wait.
fn talk(kinds: [&'static str; 2], server: [&str; 2], client: [&str; 2]) {
    let settings = |progress: &str| format!("[engine]\nprogress = \"{progress}\"\n");
    let link = Link::new(kinds);
    println!("{kinds:?} {server:?} {client:?}");
    let answerer = link.server("answerer", server[1], &settings(server[0]));
    let slept = converse(answerer, || link.client("asker", client[1], &settings(client[0])));
    for (slept, how) in slept.iter().zip([client[1], server[1]]) {
        assert_eq!(slept == "0", how == "poll", "{how}: {slept} sleeps");
    }
}

/// Does the same as [`talk`], but both ends have the same settings, and run as `user` if there is one.
pub fn talk_with(kinds: [&'static str; 2], user: Option<u32>, settings: &str) {
    let link = Link::new(kinds);
    println!("{kinds:?} {user:?} {settings:?}");
    if let Some(user) = user {
        std::os::unix::fs::chown(link.dir.path(), Some(user), Some(user)).expect("giving the directory away");
    }
    let start =
        |role: &str, spec: &str, ip| Child::start_as(user, role, "poll", &super::config(spec, ip, settings));
    let answerer = start("answerer", &link.server_spec(), SERVER);
    converse(answerer, || start("asker", &link.spec(link.client), CLIENT));
}

/// Returns how often each end slept, first the asking end, then the answering end.
fn converse(mut answerer: Child, asker: impl FnOnce() -> Child) -> [String; 2] {
    answerer.expect("listening");
    let mut asker = asker();
    let slept = [asker.expect_start("done"), answerer.expect_start("done")];
    println!("    the asker slept {} times, the answerer {}", slept[0], slept[1]);
    // Both ends stop at once, because an end that is no longer driven does not answer the other's FIN.
    asker.stop();
    answerer.finish();
    asker.finish();
    slept
}

/// One end of the talk.
struct Talker {
    node: Node,
    qp: Qp,
    memory: Mr,
    sent: u64,
    received: u64,
    done: u64,
    seed: u64,
}

impl Talker {
    fn new(node: Node, seed: u64) -> Self {
        let memory = node.pd.alloc_mr(3 * BURST as usize * LEN, ALL).unwrap();
        let qp = node.qp();
        let talker = Self { node, qp, memory, sent: 0, received: 0, done: 0, seed };
        (0..2 * BURST).for_each(|i| receive(&talker.qp, i, talker.slot(i)));
        talker
    }

    fn slot(&self, slot: u64) -> Sge {
        Sge::of(&self.memory, slot * LEN as u64, LEN as u32)
    }

    /// Sends the next message. The last byte of the message tells whether it is the last message of the question.
    fn send(&mut self, last: bool) {
        let slot = 2 * BURST + self.sent % BURST;
        let mut bytes = pattern(self.sent ^ self.seed, LEN);
        bytes[LEN - 1] = u8::from(last);
        self.memory.write_at(slot * LEN as u64, &bytes).unwrap();
        send(&self.qp, slot, SendOp::Send, self.slot(slot));
        self.sent += 1;
    }

    /// Handles a completion. Returns `true` if it is for the last message of the peer's question or answer.
    fn complete(&mut self, wc: &Wc, peers_seed: u64) -> bool {
        success(wc);
        if wc.opcode != WcOpcode::Recv {
            self.done += 1;
            return false;
        }
        let mut bytes = vec![0; LEN];
        self.memory.read_at(wc.wr_id * LEN as u64, &mut bytes).unwrap();
        let expected = pattern(self.received ^ peers_seed, LEN);
        assert!(bytes[..LEN - 1] == expected[..LEN - 1], "message {}", self.received);
        self.received += 1;
        receive(&self.qp, wc.wr_id, self.slot(wc.wr_id));
        bytes[LEN - 1] != 0
    }

    /// Waits until the peer's question or answer has arrived, and all of this end's Sends have completed.
    fn listen(&mut self, peers_seed: u64, what: &str) {
        let mut heard = false;
        while !heard || self.done < self.sent {
            for wc in self.node.completions(what) {
                heard |= self.complete(&wc, peers_seed);
            }
        }
    }

    fn ask_all(&mut self) {
        let mut random = fastrand::Rng::with_seed(1);
        for number in 0..QUESTIONS {
            let burst = random.u64(1..=BURST);
            (1..=burst).for_each(|i| self.send(i == burst));
            self.listen(ANSWERER, &format!("answer {number}"));
        }
    }

    fn answer_all(&mut self) {
        for number in 0..QUESTIONS {
            self.listen(ASKER, &format!("question {number}"));
            self.send(true);
        }
        while self.done < self.sent {
            for wc in self.node.completions("the last answer") {
                self.complete(&wc, ASKER);
            }
        }
    }
}

impl Talker {
    /// Drives the engine until `ended` returns `true`. Progress `inline` needs this, because TCP may still have to send
    /// data of completed requests, or send it again.
    fn stay(&mut self, ended: impl Fn() -> bool) {
        while !ended() {
            self.node.cq.poll(&mut [Wc::default()]);
            std::thread::yield_now();
        }
    }

    /// Drives the engine until the test wants this end to stop.
    fn stay_until_told(&mut self) {
        let orders = orders();
        self.stay(|| orders.try_recv() != Err(TryRecvError::Empty));
    }
}

const ASKER: u64 = 1 << 32;
const ANSWERER: u64 = 1 << 33;

pub fn answerer() {
    let node = Node::open(arg(0));
    let _listener = node.events.listen(PORT, 1).unwrap();
    let mut talker = Talker::new(node, ANSWERER);
    say("listening");
    talker.node.accept(&talker.qp, &[]);
    talker.answer_all();
    say(&format!("done {}", talker.node.wakes));
    talker.stay_until_told();
}

pub fn asker() {
    let mut talker = Talker::new(Node::open(arg(0)), ASKER);
    talker.node.connect(&talker.qp, &[]);
    talker.ask_all();
    say(&format!("done {}", talker.node.wakes));
    talker.stay_until_told();
}

/// Runs two devices of one process, one at each end of a ring, each with a thread. A third device cannot open the ring.
///
/// The process exits before the engines have closed their connections. Both engines close them at exit, at the same
/// time.
pub fn both_ends_of_a_ring() {
    log_warnings();
    let open = |ip| {
        let mut config = config();
        config.ip.addresses = vec![format!("{ip}/24").parse().unwrap()];
        Device::open(&config)
    };
    let (server, client) = (open(SERVER).unwrap(), open(CLIENT).unwrap());
    let third = open(CLIENT).map(drop).unwrap_err().to_string();
    assert!(third.contains("both ends of this link are open already"), "{third}");
    let wait = arg(0);
    let all_said = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let node = Node::on(&server, wait);
        let listener = node.events.listen(PORT, 1).unwrap();
        let all_said = &all_said;
        scope.spawn(move || {
            let _listener = listener;
            let mut talker = Talker::new(node, ANSWERER);
            talker.node.accept(&talker.qp, &[]);
            talker.answer_all();
            all_said.fetch_add(1, Ordering::Relaxed);
            talker.stay(|| all_said.load(Ordering::Relaxed) == 2);
        });
        let mut talker = Talker::new(Node::on(&client, wait), ASKER);
        talker.node.connect(&talker.qp, &[]);
        talker.ask_all();
        all_said.fetch_add(1, Ordering::Relaxed);
        talker.stay(|| all_said.load(Ordering::Relaxed) == 2);
    });
    say("done");
    std::process::exit(0);
}

/// In each combination, at most two of the four threads (a program and an engine at each end) are busy.
#[test]
fn every_progress_mode_carries_data() {
    let _alone = alone();
    for (server, client) in [
        (["inline", "poll"], ["inline", "poll"]),
        (["inline", "channel"], ["inline", "channel"]),
        (["adaptive", "poll"], ["adaptive", "poll"]),
        (["adaptive", "fd"], ["adaptive", "fd"]),
        (["adaptive", "channel"], ["inline", "poll"]),
        (["dedicated", "fd"], ["dedicated", "fd"]),
        (["dedicated", "channel"], ["adaptive", "poll"]),
        (["dedicated", "poll"], ["adaptive", "fd"]),
    ] {
        talk(Link::VIRTIO, server, client);
    }
    talk(Link::VHOST, ["adaptive", "fd"], ["adaptive", "fd"]);
    talk(Link::MEMIF, ["adaptive", "fd"], ["adaptive", "fd"]);
    talk(Link::MEMIF, ["inline", "poll"], ["inline", "poll"]);
    talk(Link::KERNEL, ["adaptive", "fd"], ["adaptive", "channel"]);
    talk(Link::KERNEL, ["inline", "poll"], ["dedicated", "fd"]);
}

#[test]
fn a_ring_joins_two_devices_of_a_process() {
    let _alone = alone();
    for (progress, wait) in
        [("inline", "poll"), ("adaptive", "poll"), ("adaptive", "fd"), ("dedicated", "fd")]
    {
        println!("{progress} {wait}");
        let settings = format!("[engine]\nprogress = \"{progress}\"\n");
        let mut both = Child::start("ring", wait, &super::config("ring:a", SERVER, &settings));
        both.expect("done");
        both.finish();
        assert_eq!(both.complaints(), [""; 0]);
    }
}
