//! Two hosts on the kernel's sockets, and a cable between them that is cut for a moment or for good.

use std::process::Stdio;
use std::time::{Duration, Instant};

use urnic::*;

use super::child::{self, Child};
use super::netns::{Namespace, Veth};
use super::node::{ALL, CLIENT, Node, PORT, Place, SERVER, Wait, pattern, receive, send, success};

const LEN: usize = 4 << 20;
const REQUESTS: u64 = 32;
/// Time limits shorter than the defaults: an end gives up a peer that is silent for 3 s, or does not acknowledge for 4
/// s.
const PATIENCE: &str = "[tcp]\nkeepalive_idle = \"2s\"\nkeepalive_interval = \"250ms\"\nkeepalive_count = 4\nuser_timeout = \"4s\"\n";
/// Shortest time after which an end may give up its peer.
const AT_LEAST: Duration = Duration::from_secs(2);
/// Longest time after which an end must have given up its peer, even on a busy machine.
const AT_MOST: Duration = Duration::from_secs(20);

/// Runs the program of one end. The server has memory and waits. The client does the work that its argument names.
pub fn run() {
    let (end, work) = (child::arg::<String>(0), child::arg::<String>(1));
    let mut node = Node::open(Wait::Fd);
    let memory = node.pd.alloc_mr(2 * LEN, ALL).expect("memory");
    memory.write_at(0, &pattern(1, LEN)).expect("in bounds");
    let qp = node.qp();
    if end == "server" {
        receive(&qp, 0, Sge::of(&memory, LEN as u64, 64));
        let _listener = node.events.listen(PORT, 1).expect("a listener");
        child::say("listening");
        node.accept(&qp, &Place::of(&memory).encode());
        child::say("connected");
        ends(&mut node, 1);
        return;
    }
    let Place { addr, rkey } = Place::decode(&node.connect(&qp, &[]));
    child::say("connected");
    let there = addr + LEN as u64;
    let post = |id: u64| match work.as_str() {
        "writes" => send(&qp, id, SendOp::Write { addr: there, rkey }, Sge::of(&memory, 0, LEN as u32)),
        _ => send(&qp, id, SendOp::Read { addr, rkey }, Sge::of(&memory, LEN as u64, LEN as u32)),
    };
    if work == "nothing" {
        return ends(&mut node, 0);
    }
    // The client keeps the same number of requests outstanding until it is told to stop. When asked, it reports the
    // next completion.
    let orders = child::orders();
    (0..REQUESTS).for_each(post);
    let (mut under_way, mut enough, mut failed) = (REQUESTS, false, false);
    child::say("works");
    while under_way > 0 && !failed {
        for wc in node.completions("a request") {
            under_way -= 1;
            failed |= wc.status != WcStatus::Success;
            match orders.try_recv() {
                Ok(order) if order == "enough" => enough = true,
                Ok(_) => child::say("works"),
                Err(_) => {}
            }
            if !enough && !failed {
                post(wc.wr_id);
                under_way += 1;
            }
        }
    }
    if failed {
        return ends(&mut node, under_way);
    }
    // The data at the server and at the client must be unchanged.
    let op = if work == "writes" { SendOp::Read { addr: there, rkey } } else { SendOp::Read { addr, rkey } };
    send(&qp, 0, op, Sge::of(&memory, LEN as u64, LEN as u32));
    success(&node.completions("the last Read")[0]);
    let mut bytes = vec![0; LEN];
    memory.read_at(LEN as u64, &mut bytes).expect("in bounds");
    assert!(bytes == pattern(1, LEN));
    child::say("intact");
}

/// Waits for the end of the connection, reports its reason, and checks that posted work is flushed.
fn ends(node: &mut Node, mut posted: u64) {
    match node.event("the end") {
        CmEvent::Disconnected { reason, .. } => child::say(&format!("{reason:?}")),
        other => panic!("{other:?}"),
    }
    while posted > 0 {
        for wc in node.completions("what is flushed") {
            assert_ne!(wc.status, WcStatus::Success);
            posted -= 1;
        }
    }
    child::say("flushed");
}

/// Starts (`deaf`) or stops dropping all frames that arrive at an interface. The interface keeps its carrier and
/// routes.
fn deafen(namespace: &Namespace, interface: &str, deaf: bool) {
    let filter = ["filter", if deaf { "add" } else { "del" }, "dev", interface, "ingress", "prio", "1"];
    let mut tc = namespace.program("tc");
    tc.args(filter);
    if deaf {
        // A program of one instruction, which returns TC_ACT_SHOT.
        tc.args(["protocol", "all", "bpf", "da", "bytecode", "1,6 0 0 2"]);
    }
    assert!(tc.stdout(Stdio::null()).status().expect("tc runs").success());
}

/// Two hosts with a connection between them; the client does some work.
struct Hosts {
    veth: Veth,
    server: Child,
    client: Child,
}

impl Hosts {
    fn new(work: &str) -> Self {
        let veth = Veth::new(1500);
        for (host, interface, address) in [(&veth.a, "va", CLIENT), (&veth.b, "vb", SERVER)] {
            host.ip(&["link", "set", "lo", "up"]);
            host.ip(&["address", "add", &format!("{address}/24"), "dev", interface]);
            let qdisc = host.program("tc").args(["qdisc", "add", "dev", interface, "clsact"]).status();
            assert!(qdisc.expect("tc runs").success());
        }
        let start = |host: &Namespace, interface, end| {
            let config = format!("[port]\nport = \"kernel:{interface}\"\n{PATIENCE}");
            Child::start_in(&host.file, "cut", &format!("{end} {work}"), &config)
        };
        let mut server = start(&veth.b, "vb", "server");
        server.expect("listening");
        let mut client = start(&veth.a, "va", "client");
        client.expect("connected");
        server.expect("connected");
        if work != "nothing" {
            client.expect("works");
        }
        Self { veth, server, client }
    }

    fn cut(&self, cut: bool) {
        deafen(&self.veth.a, "va", cut);
        deafen(&self.veth.b, "vb", cut);
    }
}

/// Each end notices the cut: by keep-alive if nothing is under way, else by missing acknowledgements or by the missing
/// response to a Read.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_a_cut_cable_is_noticed_over_the_kernels_sockets() {
    let _alone = child::alone();
    for work in ["nothing", "writes", "reads"] {
        let mut hosts = Hosts::new(work);
        let start = Instant::now();
        hosts.cut(true);
        for end in [&mut hosts.client, &mut hosts.server] {
            end.expect("TimedOut");
            let took = start.elapsed();
            println!("{work}: {took:?}");
            assert!((AT_LEAST..AT_MOST).contains(&took), "{work}: {took:?}");
            end.expect("flushed");
            end.finish();
        }
    }
}

/// A cable that is cut for less than the ends' time limits costs only time.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_a_cable_that_is_mended_costs_nothing_over_the_kernels_sockets() {
    let _alone = child::alone();
    for work in ["writes", "reads"] {
        let mut hosts = Hosts::new(work);
        for _ in 0..3 {
            hosts.cut(true);
            std::thread::sleep(Duration::from_millis(700));
            hosts.cut(false);
            hosts.client.order("again");
            hosts.client.expect("works");
        }
        hosts.client.order("enough");
        println!("{work}: mended three times");
        hosts.client.expect("intact");
        hosts.client.finish();
        hosts.server.expect("Peer");
        hosts.server.expect("flushed");
        hosts.server.finish();
    }
}
