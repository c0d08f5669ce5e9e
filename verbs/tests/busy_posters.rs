//! Programs that post before each of their polls, whose requests therefore wait for each other: everything arrives, in
//! order and once, and nothing stays behind when the program stops polling. Over the kernel's sockets, in real time.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use urnic::*;

/// Time limit of a step, which only a stopped machine exceeds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of Sends on each queue pair.
const SENDS: u64 = 400;

/// One end of the connections.
struct End {
    device: Device,
    pd: Pd,
    channel: CompChannel,
    cq: Cq,
    events: EventChannel,
    qps: Vec<Qp>,
    /// Completions that were taken.
    taken: Vec<Wc>,
}

impl End {
    fn new(connections: usize) -> Self {
        let device = Device::open(&Config::default()).unwrap();
        let pd = device.alloc_pd();
        let channel = device.create_comp_channel().unwrap();
        let cq = device.create_cq(1 << 16, Some(&channel)).unwrap();
        let init = QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 512,
            max_recv_wr: 512,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 64,
            signal_all: true,
        };
        let qps = (0..connections).map(|_| pd.create_qp(&init).unwrap()).collect();
        let events = device.create_event_channel().unwrap();
        Self { device, pd, channel, cq, events, qps, taken: Vec::new() }
    }

    fn event(&self) -> CmEvent {
        self.events.wait(PATIENCE).expect("an event")
    }

    /// Polls once. Returns whether there was a completion.
    fn poll(&mut self) -> bool {
        let mut wcs = [Wc::default(); 16];
        let n = self.cq.poll(&mut wcs);
        self.taken.extend(&wcs[..n]);
        n > 0
    }

    /// Takes completions until there are `n` in all, and sleeps while there are none.
    fn sleep_until(&mut self, n: usize) {
        loop {
            self.cq.arm(false);
            while self.poll() {}
            if self.taken.len() >= n {
                break;
            }
            assert!(
                self.channel.get_event(Some(PATIENCE)).is_some(),
                "{} of {n} completions",
                self.taken.len()
            );
        }
    }

    /// Returns how often polls have held requests back. Runs a pass, with which all that waits leaves.
    fn holds(&self) -> u64 {
        let counters = self.device.attributes().unwrap().counters;
        counters.iter().find(|(name, _)| *name == "waited_for_bursts").expect("a counter").1
    }

    /// Polls until `n` completions were taken in all.
    fn poll_until(&mut self, n: usize) {
        let start = Instant::now();
        while self.taken.len() < n {
            self.poll();
            assert!(start.elapsed() < PATIENCE, "{} of {n} completions", self.taken.len());
        }
    }

    /// Checks that on each queue pair, all requests have succeeded in order, and nothing else has completed.
    fn check(&self) {
        for qp in &self.qps {
            let of_qp = self.taken.iter().filter(|wc| wc.qpn == qp.qpn());
            let told: Vec<_> = of_qp.map(|wc| (wc.wr_id, wc.status)).collect();
            let expected: Vec<_> = (0..SENDS).map(|number| (number, WcStatus::Success)).collect();
            assert!(told == expected, "{} completions", told.len());
        }
    }
}

/// Makes two ends with connected queue pairs, and posts all receives of the server. Also returns both ends'
/// connections, and the receives' memory.
fn connected(connections: usize) -> (End, End, [Vec<Connection>; 2], Mr) {
    let (server, client) = (End::new(connections), End::new(connections));
    let listener = server.events.listen(0, 128).unwrap();
    let to: SocketAddr = (IpAddr::V4(Ipv4Addr::LOCALHOST), listener.port()).into();
    let memory = server.pd.alloc_mr(8 * SENDS as usize * connections, Access::LOCAL_WRITE).unwrap();
    let mut links = [Vec::new(), Vec::new()];
    for (i, (there, here)) in server.qps.iter().zip(&client.qps).enumerate() {
        for number in 0..SENDS {
            let at = 8 * (SENDS as usize * i + number as usize);
            there.post_recv(&RecvWr { wr_id: number, sges: &[Sge::of(&memory, at as u64, 8)] }).unwrap();
        }
        links[1].push(client.events.connect(here, to, &ConnParam::default()).unwrap());
        let CmEvent::ConnectRequest(request) = server.event() else { panic!("no request") };
        links[0].push(request.accept(there, &ConnParam::default()).unwrap());
        for end in [&client, &server] {
            assert!(matches!(end.event(), CmEvent::Established { .. }));
        }
    }
    (server, client, links, memory)
}

/// Sends numbers on each queue pair in turn, with one poll after each post.
fn post_and_poll(client: &mut End) {
    for number in 0..SENDS {
        for i in 0..client.qps.len() {
            let send = SendWr { wr_id: number, op: SendOp::Send, sges: &[], flags: SendFlags::INLINE };
            client.qps[i].post_send_inline(&send, &number.to_le_bytes()).unwrap();
            client.poll();
        }
    }
}

/// What the program does after the last poll of [`post_and_poll`].
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// It sleeps until there is a completion.
    Sleep,
    /// It disconnects all queue pairs.
    Disconnect,
}

/// Posts and polls over `connections` connections, and checks that everything arrives. Returns how often polls have
/// held requests back.
fn exchange(connections: usize, then: Then) -> u64 {
    println!("{connections} connections, then {then:?}");
    let all = SENDS as usize * connections;
    let (mut server, mut client, links, memory) = connected(connections);
    post_and_poll(&mut client);
    match then {
        Then::Nothing => {}
        Then::Sleep => client.sleep_until(all),
        Then::Disconnect => links[1].iter().for_each(|link| link.disconnect().unwrap()),
    }
    // Only the server polls now.
    server.poll_until(all);
    server.check();
    client.poll_until(all);
    client.check();
    for (i, number) in (0..all).map(|at| (at, at as u64 % SENDS)) {
        let mut octets = [0; 8];
        memory.read_at(8 * i as u64, &mut octets).unwrap();
        assert_eq!(u64::from_le_bytes(octets), number);
    }
    client.holds()
}

#[test]
fn what_busy_posters_send_arrives() {
    for then in [Then::Nothing, Then::Sleep, Then::Disconnect] {
        // With few queue pairs, bursts are poor, and requests hardly ever wait.
        exchange(1, then);
        exchange(8, then);
        // A poster that a busy machine interrupts time and again does not count as busy.
        assert!((0..50).any(|_| exchange(40, then) > 0), "no poll has held requests back");
    }
}
