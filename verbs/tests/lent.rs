//! Payload that is lent to TCP instead of being copied.

mod common;

use common::*;
use std::time::Duration;
use urnic::simulation::Options;
use urnic::*;

const LEN: usize = 20_000;
const SENDS: u64 = 4;

fn lending(network: &str) -> Options {
    Options { network: network.parse().unwrap(), lends_from: 1000, ..Options::default() }
}

/// Posts receives at `to` and Sends from `from`, whose payload is in `source`.
fn post_sends(from: &End, to: &End, source: &Mr) -> Mr {
    let inbox = to.pd.alloc_mr(LEN * SENDS as usize, Access::LOCAL_WRITE).unwrap();
    for i in 0..SENDS {
        to.post_recv(i, &[Sge::of(&inbox, i * LEN as u64, LEN as u32)]);
        from.post(i, SendOp::Send, &[Sge::of(source, i * LEN as u64, LEN as u32)]);
    }
    inbox
}

/// A request completes when the peer has acknowledged the lent payload, not when TCP has taken it. A request
/// whose payload is too small to be lent completes at once.
#[test]
fn requests_complete_when_the_peer_has_acknowledged() {
    let (mut simulation, server, client) = connected(&lending("delay=1ms"));
    let source = client.pd.alloc_mr(LEN * SENDS as usize, Access::empty()).unwrap();
    source.write_at(0, &pattern(LEN * SENDS as usize, 9)).unwrap();
    // This message fits into the initial congestion window, so all of it leaves at once.
    let inbox = server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    server.post_recv(7, &[Sge::of(&inbox, 0, 10_000)]);
    client.post(7, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
    simulation.wait(Duration::from_micros(1900));
    assert_eq!(server.completions().len(), 1, "all of it has arrived");
    assert_eq!(client.completions().len(), 0, "the peer's acknowledgement has not");
    simulation.wait(Duration::from_micros(200));
    assert_eq!(client.completions().len(), 1);
    // A request whose payload is too small to be lent needs no acknowledgement, but does not complete before earlier
    // requests.
    let inboxes = post_sends(&client, &server, &source);
    server.post_recv(8, &[Sge::of(&inbox, 0, 100)]);
    client.post(8, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    for wr_id in (0..SENDS).chain([8]) {
        assert_eq!(client.next(&mut simulation).wr_id, wr_id);
    }
    simulation.wait(Duration::from_millis(2));
    assert!(content(&inboxes) == content(&source));
    server.post_recv(9, &[Sge::of(&inbox, 0, 100)]);
    client.post(9, SendOp::Send, &[Sge::of(&source, 0, 100)]);
    simulation.wait(Duration::from_micros(10));
    assert_eq!(client.completions().len(), 1, "copied");
}

/// The same after so many octets that TCP's first sequence number seems to lie ahead.
#[test]
fn so_they_do_after_two_gibibytes() {
    const CHUNK: usize = 32 << 20;
    let options = Options { mtu: 9000, gso_max: 62_000, crc: false, ..lending("delay=1ms") };
    let (mut simulation, server, client) = connected(&options);
    let source = client.pd.alloc_mr(CHUNK, Access::empty()).unwrap();
    let target = server.pd.alloc_mr(CHUNK, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let write = SendOp::Write { addr: target.addr(), rkey: target.rkey() };
    for octets in (0..(1 << 31) + (1 << 28)).step_by(CHUNK) {
        client.post(octets, write, &[Sge::of(&source, 0, CHUNK as u32)]);
        assert_eq!(client.next(&mut simulation).wr_id, octets);
    }
    client.post(7, write, &[Sge::of(&source, 0, 200_000)]);
    simulation.wait(Duration::from_micros(1900));
    assert_eq!(client.completions().len(), 0, "the peer's acknowledgement has not arrived");
    simulation.wait(Duration::from_micros(200));
    assert_eq!(client.completions().len(), 1);
}

/// The test drops the queue pair, deregisters the region, and reuses its memory, at many moments before the
/// peer has acknowledged all payload. TCP's retransmissions still contain the octets that were lent.
#[test]
fn memory_that_is_given_back_early_is_copied_first() {
    let mut retransmitted = 0;
    for seed in 0..40 {
        let (mut simulation, server, client) =
            connected(&lending(&format!("delay=50us,loss=0.1,seed={seed}")));
        let mut memory = pattern(LEN * SENDS as usize, 9);
        // SAFETY: the vector lives until the region is gone, and no other code writes to it.
        let source = unsafe { client.pd.reg_mr(memory.as_mut_ptr(), memory.len(), Access::empty()) }.unwrap();
        let inbox = post_sends(&client, &server, &source);
        if seed % 4 == 3 {
            // This request fails in the same turn in which TCP is lent the other payloads.
            client.post(99, SendOp::Send, &[Sge { addr: 0x1000, len: 5000, lkey: 0 }]);
        }
        simulation.wait(Duration::from_micros(seed * 10));
        let End { pd, cq, qp, events, connection } = client;
        match seed % 3 {
            // Drops the queue pair first, without a disconnect.
            0 => drop(qp),
            // The region is dropped first, so that data that has not been sent yet has no memory.
            1 => {}
            // Takes back the memory first; the region stays.
            _ => source.revoke().unwrap(),
        }
        if seed % 3 == 2 {
            memory.fill(0xEE);
            drop(source);
        } else {
            drop(source);
            memory.fill(0xEE);
        }
        simulation.wait(Duration::from_secs(20));
        let received: Vec<Wc> =
            server.completions().into_iter().filter(|wc| wc.status == WcStatus::Success).collect();
        let (got, want) = (content(&inbox), pattern(LEN * SENDS as usize, 9));
        for wc in &received {
            let range = wc.wr_id as usize * LEN..(wc.wr_id as usize + 1) * LEN;
            assert!(got[range.clone()] == want[range], "seed {seed}: message {}", wc.wr_id);
        }
        assert!(got.iter().zip(&want).all(|(got, want)| got == want || *got == 0), "seed {seed}");
        let blamed = server.qp.terminate().filter(|t| t.sent);
        assert!(blamed.is_none(), "seed {seed}: {blamed:?}");
        let counters = simulation.device(1).attributes().unwrap().counters;
        retransmitted += counters.iter().find(|(name, _)| *name == "tcp_retransmitted").map_or(0, |c| c.1);
        drop((pd, cq, events, connection));
    }
    assert!(retransmitted > 100, "{retransmitted}");
}

/// If a port can send only from the device's own memory, the device copies payload from all other memory, and a request
/// with copied payload completes at once.
#[test]
fn memory_that_the_port_cannot_send_from_is_copied() {
    let options = Options { lends_own_only: true, ..lending("delay=1ms") };
    for own in [true, false] {
        let (mut simulation, server, client) = connected(&options);
        let mut memory = pattern(10_000, 9);
        let source = match own {
            true => client.pd.alloc_mr(memory.len(), Access::empty()).unwrap(),
            // SAFETY: the vector lives until the region is gone, and no other code writes to it.
            false => unsafe { client.pd.reg_mr(memory.as_mut_ptr(), memory.len(), Access::empty()) }.unwrap(),
        };
        source.write_at(0, &pattern(10_000, 9)).unwrap();
        let inbox = server.pd.alloc_mr(10_000, Access::LOCAL_WRITE).unwrap();
        server.post_recv(1, &[Sge::of(&inbox, 0, 10_000)]);
        client.post(1, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
        simulation.wait(Duration::from_micros(10));
        assert_eq!(client.completions().len(), usize::from(!own), "copied unless it is its own: {own}");
        simulation.wait(Duration::from_millis(5));
        assert_eq!(server.completions().len(), 1);
        assert!(content(&inbox) == content(&source));
        drop(source);
    }
}

/// If lent payload cannot be copied, the device ends the connection, and reports that it has done so itself.
#[test]
fn memory_that_cannot_be_copied_ends_the_connection() {
    let (mut simulation, server, client) = connected(&Options { copies_lent: false, ..lending("delay=1ms") });
    let source = client.pd.alloc_mr(LEN, Access::empty()).unwrap();
    let inbox = server.pd.alloc_mr(LEN, Access::LOCAL_WRITE).unwrap();
    server.post_recv(1, &[Sge::of(&inbox, 0, 10_000)]);
    // This message fits into the initial congestion window, so all of it leaves at once.
    client.post(1, SendOp::Send, &[Sge::of(&source, 0, 10_000)]);
    simulation.wait(Duration::from_micros(500));
    assert!(client.completions().is_empty(), "the payload is lent");
    source.revoke().unwrap();
    assert_eq!(client.end(&mut simulation), DisconnectReason::Aborted);
    assert_eq!(client.next(&mut simulation).status, WcStatus::Flushed);
}

/// One direction of [`buffers_may_be_overwritten_at_completion`]: Writes from slots of `source` to slots of `target`.
struct Way {
    source: Mr,
    target: Mr,
    posted: u64,
    completed: u64,
    arrived: u64,
}

impl Way {
    const SLOTS: u64 = 6;
    const LEN: u64 = 1 << 20;
    /// Distance of the marks in a message. Every FPDU has some.
    const STEP: u64 = 4096;
    /// Together more than 2^31 octets.
    const MESSAGES: u64 = (1 << 11) + (1 << 7);

    fn new(from: &End, to: &End) -> Self {
        let room = (Self::SLOTS * Self::LEN) as usize;
        let source = from.pd.alloc_mr(room, Access::empty()).unwrap();
        let target = to.pd.alloc_mr(room, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        for i in 0..Self::SLOTS {
            to.post_recv(i, &[]);
        }
        Self { source, target, posted: 0, completed: 0, arrived: 0 }
    }

    /// Returns the places of the marks of a message.
    fn places(number: u64) -> impl Iterator<Item = u64> {
        let start = number % Self::SLOTS * Self::LEN;
        (start..start + Self::LEN).step_by(Self::STEP as usize)
    }

    /// Returns a mark, which no other place of this or another message has.
    fn mark(number: u64, place: u64) -> [u8; 8] {
        (number << 32 | place).to_be_bytes()
    }

    fn post(&mut self, from: &End) {
        while self.posted < Self::MESSAGES && self.posted < Self::SLOTS + self.completed.min(self.arrived) {
            for place in Self::places(self.posted) {
                self.source.write_at(place, &Self::mark(self.posted, place)).unwrap();
            }
            let at = self.posted % Self::SLOTS * Self::LEN;
            let (addr, rkey) = (self.target.addr() + at, self.target.rkey());
            let op = SendOp::WriteImm { addr, rkey, imm: self.posted as u32 };
            from.post(self.posted, op, &[Sge::of(&self.source, at, Self::LEN as u32)]);
            self.posted += 1;
        }
    }

    /// Overwrites the payload of a request that is complete.
    fn complete(&mut self, wc: &Wc) {
        assert_eq!((wc.wr_id, wc.status), (self.completed, WcStatus::Success));
        for place in Self::places(self.completed) {
            self.source.write_at(place, &[0xee; 8]).unwrap();
        }
        self.completed += 1;
    }

    /// Verifies a message that has arrived.
    fn arrive(&mut self, wc: &Wc, to: &End) {
        assert_eq!((wc.status, u64::from(wc.imm_data())), (WcStatus::Success, self.arrived));
        for place in Self::places(self.arrived) {
            let mut found = [0; 8];
            self.target.read_at(place, &mut found).unwrap();
            assert_eq!(found, Self::mark(self.arrived, place), "message {} at {place}", self.arrived);
        }
        self.arrived += 1;
        to.post_recv(wc.wr_id, &[]);
    }
}

/// A program may overwrite a buffer as soon as its request is complete. Both ends do so for more than 2^31 octets,
/// while the network loses frames, and find every message as it was posted. Without CRCs, nothing but this test would
/// notice wrong octets.
#[test]
fn buffers_may_be_overwritten_at_completion() {
    let options =
        Options { mtu: 9000, gso_max: 62_000, crc: false, ..lending("delay=20us,loss=0.002,seed=3") };
    let (mut simulation, server, client) = connected(&options);
    let ends = [client, server];
    let mut ways = [Way::new(&ends[0], &ends[1]), Way::new(&ends[1], &ends[0])];
    // The end that connected sends first.
    ways[0].post(&ends[0]);
    let done = simulation.run(simulation.now() + LIMIT, || {
        for (i, end) in ends.iter().enumerate() {
            for wc in end.completions() {
                match wc.opcode {
                    WcOpcode::Write => ways[i].complete(&wc),
                    _ => ways[1 - i].arrive(&wc, end),
                }
                if ways[0].arrived > 0 {
                    ways[0].post(&ends[0]);
                    ways[1].post(&ends[1]);
                }
            }
        }
        ways.iter().all(|way| way.completed == Way::MESSAGES && way.arrived == Way::MESSAGES)
    });
    assert!(
        done,
        "{:?} complete, {:?} arrived",
        ways.each_ref().map(|w| w.completed),
        ways.map(|w| w.arrived)
    );
    for device in 0..2 {
        let counters = simulation.device(device).attributes().unwrap().counters;
        let again = counters.iter().find(|(name, _)| *name == "tcp_retransmitted").map_or(0, |c| c.1);
        assert!(again > 0, "device {device} retransmitted nothing");
    }
}

/// When a queue pair is destroyed, its payload is copied before the call returns, although other queue pairs keep the
/// engine busy.
#[test]
fn memory_of_a_destroyed_queue_pair_may_be_overwritten_at_once() {
    const BULK: usize = 1 << 18;
    for seed in 0..20 {
        let options = Options { crc: false, ..lending(&format!("delay=50us,loss=0.01,seed={seed}")) };
        let (mut simulation, server, client) = connected(&options);
        let bulk = client.pd.alloc_mr(BULK, Access::empty()).unwrap();
        let sink = server.pd.alloc_mr(BULK, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let mut busy = Vec::new();
        for i in 0..30 {
            let (mut to, mut from) =
                (server.sibling(&simulation.device(0)), client.sibling(&simulation.device(1)));
            connect(&mut simulation, &mut to, &mut from);
            let write = SendOp::Write { addr: sink.addr(), rkey: sink.rkey() };
            from.post(i, write, &[Sge::of(&bulk, 0, BULK as u32)]);
            busy.push((to, from));
        }
        let source = client.pd.alloc_mr(LEN * SENDS as usize, Access::empty()).unwrap();
        source.write_at(0, &pattern(LEN * SENDS as usize, 9)).unwrap();
        let inbox = post_sends(&client, &server, &source);
        let mut passes = 0;
        let limit = simulation.now() + LIMIT;
        simulation.run(limit, || {
            passes += 1;
            passes > 60 * seed + 1
        });
        drop(client.qp);
        source.write_at(0, &[0xee; LEN * SENDS as usize]).unwrap();
        simulation.wait(Duration::from_secs(20));
        let (got, want) = (content(&inbox), pattern(LEN * SENDS as usize, 9));
        assert!(got.iter().zip(&want).all(|(got, want)| got == want || *got == 0), "seed {seed}");
    }
}
