//! Memory that becomes inaccessible as soon as its deregistration has returned, whatever is under way. The
//! device must no longer access it. An access is a SIGSEGV, which ends the test's process; `-- --nocapture`
//! shows in which case.

mod common;

use common::pages::Pages;
use common::*;
use std::time::Duration;
use urnic::simulation::{Options, Simulation};
use urnic::*;

/// Octets of a region. All regions of an end together are many times as large as the initial congestion window,
/// so that work is under way for a while.
const LEN: usize = 64 << 10;
const MESSAGE: u32 = 20_000;
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The use of an end's region.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// The source of Writes and Sends; a port may have been lent this payload.
    Payload,
    /// The source of the peer's Reads, from which Read Responses are made.
    Source,
    /// The target of the peer's Writes and Atomics, by its own key and by a window's key.
    Target,
    /// The sink of this end's Reads and Atomics.
    Sink,
    /// The memory of the receives.
    Inbox,
}

const USES: [Use; 5] = [Use::Payload, Use::Source, Use::Target, Use::Sink, Use::Inbox];

/// How memory is given back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Dropped,
    Deregistered,
    /// The region moves to other memory.
    Elsewhere,
}

/// One end's memory: a region for each use.
struct Memory {
    pages: Vec<Pages>,
    regions: Vec<Option<Mr>>,
    /// The memory to which regions move.
    other: Pages,
    window: Option<Mw>,
}

impl Memory {
    fn new(end: &End) -> Memory {
        let pages: Vec<Pages> = USES.iter().map(|_| Pages::new(LEN)).collect();
        let regions = pages.iter().map(|pages| Some(pages.register(&end.pd, ALL))).collect();
        Memory { pages, regions, other: Pages::new(LEN), window: None }
    }

    fn of(&self, usage: Use) -> &Mr {
        self.regions[usage as usize].as_ref().unwrap()
    }

    /// Deregisters the memory of one use, and makes it inaccessible at once.
    fn vanish(&mut self, usage: Use, way: Way) {
        let mut region = self.regions[usage as usize].take().unwrap();
        match way {
            Way::Dropped => drop(region),
            Way::Deregistered => {
                if let Err((region, error)) = region.deregister() {
                    // The region has a bound window, which must be dropped first.
                    assert!(matches!(error, Error::WindowsBound(1)) && usage == Use::Target, "{error}");
                    self.window = None;
                    region.deregister().unwrap();
                }
            }
            Way::Elsewhere => {
                if usage == Use::Target {
                    self.window = None;
                }
                let memory = Some((self.other.base(), LEN));
                // SAFETY: mapped for longer than the region lives, without references to it.
                unsafe { region.rereg(&Rereg { memory, ..Rereg::default() }) }.unwrap();
                self.regions[usage as usize] = Some(region);
            }
        }
        self.pages[usage as usize].take_away();
    }
}

/// Posts twenty requests from one end to the other: Writes to a region and to a window, Reads, Sends and
/// Atomics.
fn post(from: &End, own: &Memory, theirs: &Memory, window: u32) {
    let sge = |usage, at: u64, len| Sge::of(own.of(usage), at, len);
    let (target, source) = (theirs.of(Use::Target), theirs.of(Use::Source));
    let flags = SendFlags::SIGNALED;
    let mut wr_id = 100;
    let mut post = |op, sges: &[Sge]| {
        wr_id += 1;
        from.qp.post_send(&SendWr { wr_id, op, sges, flags }).unwrap();
    };
    for i in 0..4 {
        let at = i * 8192;
        post(
            SendOp::Write { addr: target.addr() + at, rkey: target.rkey() },
            &[sge(Use::Payload, at, MESSAGE)],
        );
        post(
            SendOp::Read { addr: source.addr() + at, rkey: source.rkey() },
            &[sge(Use::Sink, 16 + at, MESSAGE)],
        );
        post(SendOp::Send, &[sge(Use::Payload, at, 3000), sge(Use::Payload, at + 5000, 3000)]);
        post(
            SendOp::FetchAdd { addr: target.addr() + 8 * i, rkey: target.rkey(), add: 1 },
            &[sge(Use::Sink, 8, 8)],
        );
        post(
            SendOp::Write { addr: target.addr() + at, rkey: window },
            &[sge(Use::Payload, 4096 + at, MESSAGE)],
        );
    }
}

/// Posts receives whose pieces are scattered.
fn post_receives(to: &End, own: &Memory) {
    for i in 0..4 {
        let piece = |n: u64| Sge::of(own.of(Use::Inbox), i * 16_000 + n * 5000, 2000);
        to.post_recv(i, &[piece(0), piece(1), piece(2)]);
    }
}

/// Binds a window over the target of an end. Returns its key.
fn bind(simulation: &mut Simulation, end: &End, memory: &mut Memory) -> u32 {
    let window = end.pd.alloc_mw(MwKind::Two).unwrap();
    let (rkey, region) = (window.fresh_rkey(), memory.of(Use::Target));
    let (lkey, addr) = (region.lkey(), region.addr());
    end.post(1, SendOp::BindMw { rkey, lkey, addr, len: LEN as u64, access: Access::REMOTE_WRITE }, &[]);
    let wc = end.next(simulation);
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success));
    memory.window = Some(window);
    rkey
}

/// Numbers of cases of each kind, which show that the test has met all kinds.
#[derive(Debug, Default)]
struct Met {
    /// Number of cases in which some work was done and some was left.
    midway: u32,
    /// Number of cases in which data was sent again afterwards.
    retransmitting: u32,
    /// Numbers of cases in which the connection survived, and in which it ended.
    survived: u32,
    ended: u32,
}

fn retransmitted(simulation: &Simulation, device: usize) -> u64 {
    let counters = simulation.device(device).attributes().unwrap().counters;
    counters.iter().find(|(name, _)| *name == "tcp_retransmitted").map_or(0, |c| c.1)
}

/// Runs `steps` steps of traffic in both directions, then takes the memory of `lost` away from the end `whose`.
/// Then runs the simulation for 60 s, in which TCP sends lost data again.
fn lose(options: &Options, steps: u32, whose: usize, lost: &[Use], way: Way, met: &mut Met) {
    let (mut simulation, server, client) = connected(options);
    works(&mut simulation, &server, &client);
    let ends = [server, client];
    let mut memories = [Memory::new(&ends[0]), Memory::new(&ends[1])];
    let windows = [0, 1].map(|i| bind(&mut simulation, &ends[i], &mut memories[i]));
    for i in [0, 1] {
        post_receives(&ends[i], &memories[i]);
    }
    for i in [1, 0] {
        post(&ends[i], &memories[i], &memories[1 - i], windows[1 - i]);
    }
    for _ in 0..steps {
        simulation.step(LIMIT);
    }
    let done: usize = ends.iter().map(|end| end.completions().len()).sum();
    let before = [0, 1].map(|device| retransmitted(&simulation, device));
    for &usage in lost {
        memories[whose].vanish(usage, way);
    }
    simulation.wait(Duration::from_secs(60));
    met.midway += u32::from(done > 0 && done < 48);
    met.retransmitting += u32::from([0, 1].map(|device| retransmitted(&simulation, device)) != before);
    match ends[0].qp.state() {
        QpState::Rts => met.survived += 1,
        _ => met.ended += 1,
    }
    let completed = done + ends.iter().map(|end| end.completions().len()).sum::<usize>();
    assert_eq!(completed, 48, "each request completes once");
    // The devices still serve other connections.
    let mut next = [0, 1].map(|i| End::new(&simulation.device(i)));
    let [server, client] = &mut next;
    connect(&mut simulation, server, client);
    works(&mut simulation, server, client);
    // Regions are dropped before their memory.
    for memory in &mut memories {
        memory.window = None;
        memory.regions.clear();
    }
}

fn lose_everything_at_every_moment(network: &str, lends_from: usize) {
    let mut met = Met::default();
    let choices = USES.map(|usage| vec![usage]).into_iter().chain([USES.to_vec()]);
    for (n, lost) in choices.enumerate() {
        for steps in (0..480).step_by(4) {
            let way = [Way::Dropped, Way::Deregistered, Way::Elsewhere][(n + steps as usize / 4) % 3];
            let whose = steps as usize / 12 % 2;
            println!(
                "{network} lends from {lends_from}: end {whose} loses {lost:?} ({way:?}) after {steps} steps"
            );
            let options = Options {
                network: format!("{network},seed={}", steps + 1).parse().unwrap(),
                lends_from,
                ..Options::default()
            };
            lose(&options, steps, whose, &lost, way, &mut met);
        }
    }
    println!("{met:?}");
    assert!(met.midway > 200 && met.retransmitting > 150 && met.survived > 200 && met.ended > 200, "{met:?}");
}

/// SEC-7, for a port that copies payload when it is sent.
#[test]
fn what_is_copied_is_not_touched_any_more() {
    lose_everything_at_every_moment("delay=20us,loss=0.03", usize::MAX);
}

/// SEC-7, for a port that is lent the payload: TCP sends the payload again until it is acknowledged.
#[test]
fn what_is_lent_is_not_touched_any_more() {
    lose_everything_at_every_moment("delay=20us,loss=0.03", 1000);
}
