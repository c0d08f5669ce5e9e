//! A random workload of two RNICs against each other, and a model of its expected results.
//!
//! The model contains every octet of both nodes' memory, which operation writes it, and when the effect is
//! certain. No two operations write the same octets, except for the slots and the words of Atomics, which are
//! overwritten again and again. So at the end every octet has one right value. It has two if a connection ended
//! before the model could know whether an operation took place.
#![allow(dead_code)]

mod arena;
mod broken;
mod end;
mod extensions;
mod parameters;
mod traffic;

use arena::Arena;
pub use broken::Rule;
use end::{End, Fate};
pub use parameters::{Ending, Parameters, Poison};

use std::net::SocketAddr;
use std::time::Duration;
use urnic::simulation::{Impairment, Simulation};
use urnic::*;

/// The result, or a description of the failure.
pub type Checked<T = ()> = Result<T, String>;

/// Returns an error from the calling function unless `$cond` is true.
#[macro_export]
macro_rules! check {
    ($cond:expr, $($why:tt)+) => {
        if !$cond {
            return Err(format!($($why)+));
        }
    };
}

/// Numbers of events in a run, to check that the run has tested each of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub operations: u64,
    pub octets: u64,
    pub lost: u64,
    pub corrupted: u64,
    pub swapped: u64,
    pub crc_errors: u64,
    pub refused: u64,
    /// Numbers of Atomics and of immediate data that were complete.
    pub atomics: u64,
    pub immediates: u64,
}

impl std::ops::AddAssign for Seen {
    fn add_assign(&mut self, o: Seen) {
        self.operations += o.operations;
        self.octets += o.octets;
        self.lost += o.lost;
        self.corrupted += o.corrupted;
        self.swapped += o.swapped;
        self.crc_errors += o.crc_errors;
        self.refused += o.refused;
        self.atomics += o.atomics;
        self.immediates += o.immediates;
    }
}

const LIMIT: Duration = Duration::from_secs(20_000);
/// Maximum number of steps of a run, far more than any seed needs.
const MOST_STEPS: usize = 10_000_000;
const PORT: u16 = 7000;

/// The effect of an operation on memory, and whether it is known to have happened.
struct Effect {
    device: usize,
    pieces: Vec<arena::Piece>,
    data: Vec<u8>,
    fate: Fate,
}

/// Two devices and the connections between them.
struct World {
    p: Parameters,
    rng: fastrand::Rng,
    /// The generator of choices that exist only between several engines.
    choices: fastrand::Rng,
    // The ends precede the arenas, so that their regions are dropped first.
    ends: Vec<[End; 2]>,
    decoys: Vec<arena::Region>,
    arenas: [Arena; 2],
    effects: Vec<Effect>,
    events: [EventChannel; 2],
    cqs: [Vec<Cq>; 2],
    _listeners: Vec<Listener>,
    seen: Seen,
    /// Completions that the broken rule has reported too early.
    early: Vec<Wc>,
    /// Whether the last look at the completion queues found nothing.
    quiet: bool,
    /// Number of frames in which the links have swapped words so far.
    swapped: u64,
}

/// Runs the workload of `p`.
pub fn run(p: &Parameters) -> Checked<Seen> {
    // Corruption begins after the start-up, because ARP has no checksum. A changed MAC address would cut the nodes off
    // from each other until the next ARP request, possibly for as long as the start-up may take.
    let mut options = p.options.clone();
    options.network.corrupt = 0.0;
    let mut simulation = Simulation::new(&options).map_err(|e| e.to_string())?;
    let mut world = World::new(p, &simulation)?;
    world.connect()?;
    drive(&mut simulation, &mut world, "connect", World::all_established)?;
    let network = Impairment { swap: p.swap, ..p.options.network };
    for (from, to) in [(0, 1), (1, 0)] {
        if let Some(link) = simulation.network().link_mut(from, to) {
            link.set_impairment(&network);
        }
    }
    if let Err(stuck) = drive(&mut simulation, &mut world, "work", World::all_over) {
        // A changed length field makes the receiver wait for octets that are never sent, because it checks the CRC only
        // when they have arrived. The application must give up.
        check!(world.swapped > 0 && stuck.starts_with("stuck"), "{stuck}");
        world.give_up();
        drive(&mut simulation, &mut world, "give up", World::all_over)?;
    }
    world.settle()?;
    for (from, to) in [(0, 1), (1, 0)] {
        if let Some(link) = simulation.network().link(from, to) {
            world.seen.lost += link.statistics().lost + link.statistics().overflowed;
            world.seen.corrupted += link.statistics().corrupted;
            world.seen.swapped += link.statistics().swapped;
        }
    }
    Ok(world.seen)
}

/// Lets `world` work until `done` returns `true`.
fn drive(
    simulation: &mut Simulation,
    world: &mut World,
    phase: &str,
    done: impl Fn(&World) -> bool,
) -> Checked {
    for _ in 0..MOST_STEPS {
        let network = simulation.network();
        world.swapped = network.links().map(|link| link.statistics().swapped).sum();
        world.turn()?;
        if done(world) {
            return Ok(());
        }
        if !simulation.step(LIMIT) {
            // Nothing more happens in the simulation, but the application has not yet seen all results.
            for _ in 0..1000 {
                world.turn()?;
                if done(world) {
                    return Ok(());
                }
            }
            return Err(format!("stuck in phase {phase:?} at {:?}: {}", simulation.now(), world.describe()));
        }
    }
    Err(format!("no end of phase {phase:?} at {:?}: {}", simulation.now(), world.describe()))
}

impl World {
    fn new(p: &Parameters, simulation: &Simulation) -> Checked<World> {
        let mut rng = fastrand::Rng::with_seed(p.seed);
        let mut choices = fastrand::Rng::with_seed(p.seed ^ 0x766e_6365);
        let devices = [simulation.device(0), simulation.device(1)];
        let pairs = p.endings.len();
        let size = pairs * End::memory(p) + 8192;
        let mut arenas = [Arena::new(size, &mut rng), Arena::new(size, &mut rng)];
        let cq_depth = 4096;
        let mut cqs = [Vec::new(), Vec::new()];
        let mut ends = Vec::new();
        let mut decoys = Vec::new();
        for (device, arena) in devices.iter().zip(&mut arenas) {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            decoys.push(arena.region(&device.alloc_pd(), 1000, 64, access));
        }
        for pair in 0..pairs {
            let mut pick = |side: usize| {
                let device = &devices[side];
                let mut cq = |list: &mut Vec<Cq>| match list.first() {
                    Some(cq) if p.shared_cq => cq.clone(),
                    _ => {
                        let vector = choices.u32(..device.attributes().unwrap().engines);
                        let init = CqInit { depth: cq_depth, channel: None, timestamps: false, vector };
                        let cq = device.create_cq_with(&init).unwrap();
                        list.push(cq.clone());
                        cq
                    }
                };
                let (send_cq, recv_cq) = (cq(&mut cqs[side]), cq(&mut cqs[side]));
                End::new(p, device, &mut arenas[side], &send_cq, &recv_cq, pair, side)
            };
            ends.push([pick(0), pick(1)]);
        }
        let events = [0, 1].map(|d: usize| devices[d].create_event_channel().unwrap());
        Ok(World {
            p: p.clone(),
            rng,
            choices,
            ends,
            decoys,
            arenas,
            effects: Vec::new(),
            events,
            cqs,
            _listeners: Vec::new(),
            seen: Seen::default(),
            early: Vec::new(),
            quiet: false,
            swapped: 0,
        })
    }

    /// Starts all connections, every other one in the opposite direction.
    fn connect(&mut self) -> Checked {
        for (events, _) in self.events.iter().zip(0..) {
            self._listeners.push(events.listen(PORT, 64).map_err(|e| e.to_string())?);
        }
        for pair in 0..self.ends.len() {
            for side in 0..2 {
                self.post_receives(pair, side)?;
            }
            let (passive, active) = (pair % 2, 1 - pair % 2);
            let to = match self.p.options.ipv6 {
                true => SocketAddr::new(Simulation::address6(passive).into(), PORT),
                false => SocketAddr::new(Simulation::address(passive).into(), PORT),
            };
            let param = self.param(pair);
            let end = &mut self.ends[pair][active];
            end.connection =
                Some(self.events[active].connect(&end.qp, to, &param).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    fn param(&self, pair: usize) -> ConnParam {
        let (ird, ord) = self.p.reads;
        ConnParam {
            private_data: vec![pair as u8],
            ird,
            ord,
            timeout: Duration::from_secs(600),
            ..ConnParam::default()
        }
    }

    fn all_established(&self) -> bool {
        self.ends.iter().flatten().all(|end| end.established)
    }

    fn all_over(&self) -> bool {
        self.quiet && self.ends.iter().flatten().all(End::is_over)
    }

    /// Does the application's turn: handles events and completions, and posts new work.
    fn turn(&mut self) -> Checked {
        self.quiet = true;
        for side in 0..2 {
            while let Some(event) = self.events[side].poll() {
                self.event(side, event)?;
            }
            for i in 0..self.cqs[side].len() {
                if !self.p.options.engines.is_empty() && self.choices.u8(..100) == 0 {
                    let depth = self.choices.u32(2048..8192);
                    self.cqs[side][i].resize(depth).map_err(|e| format!("resize: {e}"))?;
                }
                let mut batch = [Wc::default(); 16];
                let most = self.rng.usize(1..=batch.len());
                let n = self.cqs[side][i].poll(&mut batch[..most]);
                self.quiet &= n == 0;
                for wc in &batch[..n] {
                    for wc in self.seen(side, *wc) {
                        self.completion(side, &wc)?;
                    }
                }
            }
            for wc in self.report_early(side) {
                self.completion(side, &wc)?;
            }
        }
        for pair in 0..self.ends.len() {
            for side in 0..2 {
                self.work(pair, side)?;
            }
            self.end_pair(pair)?;
        }
        Ok(())
    }

    fn event(&mut self, side: usize, event: CmEvent) -> Checked {
        let of = |world: &World, qpn: u32| {
            world.ends.iter().position(|e| e[side].qp.qpn() == qpn).ok_or(format!("an event of QP {qpn}"))
        };
        match event {
            CmEvent::ConnectRequest(request) => {
                let pair = match request.private_data() {
                    [pair] => usize::from(*pair),
                    other => return Err(format!("private data {other:?}")),
                };
                let param = self.param(pair);
                let end = &mut self.ends[pair][side];
                end.connection = Some(request.accept(&end.qp, &param).map_err(|e| e.to_string())?);
            }
            CmEvent::Established { qpn, .. } => {
                let pair = of(self, qpn)?;
                let end = &mut self.ends[pair][side];
                check!(!end.established, "pair {pair} side {side}: established twice");
                end.established = true;
            }
            CmEvent::Disconnected { qpn, reason } => {
                let pair = of(self, qpn)?;
                self.ends[pair][side].disconnected(pair, side, reason)?;
            }
            other => return Err(format!("side {side}: {other:?}")),
        }
        Ok(())
    }

    fn completion(&mut self, side: usize, wc: &Wc) -> Checked {
        let pair = self
            .ends
            .iter()
            .position(|e| e[side].qp.qpn() == wc.qpn)
            .ok_or(format!("completion of another QP: {wc:?}"))?;
        let place = format!("pair {pair} side {side}");
        let done = if wc.wr_id & end::RECEIVE != 0 {
            self.received(pair, side, wc)
        } else {
            self.sent(pair, side, wc)
        };
        done.map_err(|e| format!("{place}: {e}; {wc:?}"))
    }

    /// Ends the connection of `pair` in the chosen way, once its work is done.
    fn end_pair(&mut self, pair: usize) -> Checked {
        let [a, b] = &self.ends[pair];
        if a.ending || b.ending || a.failed() || b.failed() {
            return Ok(());
        }
        match self.p.endings[pair] {
            Ending::Graceful => {
                if !(a.is_idle() && b.is_idle()) {
                    return Ok(());
                }
                let side = self.rng.usize(..2);
                for end in &mut self.ends[pair] {
                    end.ending = true;
                }
                let connection = self.ends[pair][side].connection.clone().ok_or("no connection")?;
                connection.disconnect().map_err(|e| e.to_string())
            }
            Ending::Poison(poison) => {
                // Only this side must be idle. Its peer and other pairs may still be at work.
                let side = pair % 2;
                if self.ends[pair][side].is_idle() {
                    self.poison(pair, side, poison)?;
                }
                Ok(())
            }
        }
    }

    /// Aborts all connections that still exist, as the application.
    fn give_up(&mut self) {
        for end in self.ends.iter_mut().flatten() {
            if !end.is_over() {
                end.gave_up = true;
                end.qp.to_error();
            }
        }
    }

    /// Checks, at the end of a run, the reasons for the ends of the connections, and the content of memory.
    fn settle(&mut self) -> Checked {
        for pair in 0..self.ends.len() {
            self.settle_pair(pair).map_err(|e| format!("pair {pair}: {e}"))?;
            for side in 0..2 {
                self.look_at_slot(pair, side).map_err(|e| format!("pair {pair}: {e}"))?;
                self.look_at_word(pair, side).map_err(|e| format!("pair {pair}: {e}"))?;
                self.flushes_at_once(pair, side).map_err(|e| format!("pair {pair} side {side}: {e}"))?;
            }
        }
        for effect in std::mem::take(&mut self.effects) {
            self.arenas[effect.device].settle(&effect);
        }
        for (side, arena) in self.arenas.iter().enumerate() {
            if let Some((at, is, should)) = arena.first_difference() {
                let place = self.whose(side, at);
                return Err(format!(
                    "side {side}: octet {at} of memory ({place}) is {is:#04x} instead of {should:#04x}"
                ));
            }
        }
        Ok(())
    }

    fn settle_pair(&mut self, pair: usize) -> Checked {
        let reasons = [0, 1].map(|s: usize| self.ends[pair][s].disconnected);
        let terminates = [0, 1].map(|s: usize| self.ends[pair][s].qp.terminate());
        let told = || format!("ended with {reasons:?}, {terminates:?}");
        for end in &self.ends[pair] {
            let over = matches!(end.qp.state(), QpState::Terminate | QpState::Error);
            check!(over, "state {:?} after the end", end.qp.state());
        }
        let gave_up = self.ends[pair].iter().any(|e| e.gave_up);
        let crc = terminates.iter().flatten().any(|t| (t.layer, t.etype, t.code) == (2, 0, 2));
        if crc {
            self.seen.crc_errors += 1;
            check!(self.swapped > 0, "a CRC error that nobody caused: {}", told());
            return Ok(());
        }
        if gave_up {
            return Ok(());
        }
        use DisconnectReason::*;
        // A Responder that has received no valid FPDU must not send any FPDU, not even a Terminate (MPA-92). The other
        // end then has work left, and reports this by a Terminate (ERR-46).
        let unheard = |side: usize| {
            let left = |t: TerminateInfo| t.sent && (t.layer, t.etype, t.code) == (0, 2, 7);
            reasons[side] == Some(Aborted)
                && terminates[side].is_none()
                && terminates[1 - side].is_none_or(left)
        };
        if self.swapped > 0 && (unheard(0) || unheard(1)) {
            return Ok(());
        }
        match self.p.endings[pair] {
            Ending::Graceful => match reasons {
                [Some(Local), Some(Peer)] | [Some(Peer), Some(Local)] => self.prove_all(pair),
                // A changed length field made one side wait for the rest of an FPDU, while the other closed.
                _ if self.swapped > 0 && reasons.contains(&Some(Truncated)) => Ok(()),
                // The end of the connection took longer than its time limit.
                [Some(Aborted), _] | [_, Some(Aborted)] if self.ends[pair][0].ending => Ok(()),
                _ => Err(told()),
            },
            Ending::Poison(poison) => {
                let by = usize::from(self.ends[pair][1].ending);
                check!(self.ends[pair][by].ending, "ended too early: {}", told());
                // The side that posts a request with a wrong local key finds this fault itself. The peer finds all
                // other faults.
                let finder = if poison == Poison::LocalKey { by } else { 1 - by };
                let (sent, received) = (terminates[finder], terminates[1 - finder]);
                let codes = |t: TerminateInfo| (t.layer, t.etype, t.code);
                let right = sent.is_some_and(|t| t.sent && codes(t) == poison.codes());
                check!(right, "{poison:?} found, but {}", told());
                self.seen.refused += 1;
                match received {
                    Some(t) => check!(!t.sent && codes(t) == poison.codes(), "{}", told()),
                    None => check!(
                        matches!(reasons[1 - finder], Some(Reset | Aborted))
                            || self.swapped > 0 && reasons[1 - finder] == Some(Truncated),
                        "not told of the error: {}",
                        told()
                    ),
                }
                Ok(())
            }
        }
    }

    /// Describes the state of all ends in words.
    fn describe(&self) -> String {
        let describe = |(i, e): (usize, &End)| format!("[{} side {}: {}]", i / 2, i % 2, e.describe());
        self.ends.iter().flatten().enumerate().map(describe).collect::<Vec<_>>().join(" ")
    }

    fn whose(&self, side: usize, at: usize) -> String {
        for (pair, ends) in self.ends.iter().enumerate() {
            if let Some(name) = ends[side].region_at(at) {
                return format!("{name} of pair {pair}");
            }
        }
        "in no region".to_owned()
    }
}
