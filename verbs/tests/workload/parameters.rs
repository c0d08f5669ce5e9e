//! Derives the parameters of a workload from a seed.

use super::Rule;
use fastrand::Rng;
use std::fmt;
use urnic::simulation::{Congestion, Impairment, MpaChange, Options, RtrChoice, Steering, TcpConfig};

/// How a connection of the workload ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// One side disconnects when all work is done.
    Graceful,
    /// One side posts an operation that must be refused.
    Poison(Poison),
}

/// An operation that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    WriteUnknownStag,
    WriteBeyondEnd,
    WriteBeforeStart,
    WriteWithoutRight,
    WriteOtherDomain,
    WriteInvalidated,
    ReadUnknownStag,
    ReadBeyondEnd,
    ReadWithoutRight,
    ReadOtherDomain,
    SendTooLong,
    LocalKey,
    AtomicUnaligned,
    AtomicWithoutRight,
}

impl Poison {
    pub const ALL: [Poison; 14] = [
        Poison::WriteUnknownStag,
        Poison::WriteBeyondEnd,
        Poison::WriteBeforeStart,
        Poison::WriteWithoutRight,
        Poison::WriteOtherDomain,
        Poison::WriteInvalidated,
        Poison::ReadUnknownStag,
        Poison::ReadBeyondEnd,
        Poison::ReadWithoutRight,
        Poison::ReadOtherDomain,
        Poison::SendTooLong,
        Poison::LocalKey,
        Poison::AtomicUnaligned,
        Poison::AtomicWithoutRight,
    ];

    /// Returns layer, error type and code of the Terminate (RFC 5040 §4.8, RFC 5041 §7.2, RFC 6580).
    pub fn codes(self) -> (u8, u8, u8) {
        match self {
            Poison::WriteUnknownStag | Poison::WriteWithoutRight | Poison::WriteInvalidated => (1, 1, 0),
            Poison::WriteBeyondEnd | Poison::WriteBeforeStart => (1, 1, 1),
            Poison::WriteOtherDomain => (1, 1, 2),
            Poison::ReadUnknownStag => (0, 1, 0),
            Poison::ReadBeyondEnd => (0, 1, 1),
            Poison::ReadWithoutRight => (0, 1, 2),
            Poison::ReadOtherDomain => (0, 1, 3),
            Poison::SendTooLong => (1, 2, 5),
            Poison::LocalKey => (0, 0, 0),
            Poison::AtomicUnaligned => (0, 2, 7),
            Poison::AtomicWithoutRight => (0, 1, 2),
        }
    }
}

/// The parameters that a seed determines.
#[derive(Clone)]
pub struct Parameters {
    pub seed: u64,
    pub options: Options,
    /// Probability that words are exchanged in a way that the Internet checksum does not notice, once all
    /// connections are established.
    pub swap: f64,
    /// IRD and ORD that both sides offer.
    pub reads: (u16, u16),
    /// Number of operations of each end.
    pub ops: usize,
    /// Total octets of each end's messages.
    pub budget: usize,
    pub largest: usize,
    pub shared_cq: bool,
    pub signal_all: bool,
    pub queue: u32,
    /// How each connection ends.
    pub endings: Vec<Ending>,
    /// The rule that the RNICs appear to break; `None`: no rule.
    pub broken: Option<Rule>,
}

impl Parameters {
    /// Returns the divisor `n`: one operation takes at most 1/n of the rest of a region.
    pub fn share(&self) -> usize {
        if self.ops <= 12 { 2 } else { 16 }
    }

    pub fn random(seed: u64) -> Parameters {
        let mut rng = Rng::with_seed(seed ^ 0x6c6f_7373_7900);
        let crc = rng.u8(..4) > 0;
        let tame = rng.u8(..8) == 0;
        let network =
            if tame { Impairment { delay: 5_000, ..Impairment::default() } } else { network(&mut rng) };
        let swap = if crc && rng.u8(..5) == 0 { pick(&mut rng, &[1e-3, 5e-3, 3e-2]) } else { 0.0 };
        let tcp = TcpConfig {
            sack: rng.bool(),
            timestamps: rng.bool(),
            window_scale: rng.bool(),
            congestion: if rng.bool() { Congestion::Reno } else { Congestion::Cubic },
            recv_window: pick(&mut rng, &[8192, 65_536, 1 << 20, 1 << 20]),
            initial_window: pick(&mut rng, &[1, 4, 10]),
            ..TcpConfig::default()
        };
        let mtu = match rng.u8(..4) {
            0 => 576,
            1 => 1500,
            2 => 9000,
            _ => rng.u16(576..=9000),
        };
        let ipv6 = seed.is_multiple_of(3);
        let mtu = if ipv6 { mtu.max(1280) } else { mtu };
        let gso_max = pick(&mut rng, &[0, 5000, 18 << 10]);
        let mpa_rev = rng.u8(1..=2);
        // Revision 1 does not negotiate IRD and ORD, so the applications agree on them beforehand.
        let reads = if mpa_rev == 1 { (16, rng.u16(1..=16)) } else { (rng.u16(1..=16), rng.u16(1..=16)) };
        let big = rng.u8(..25) == 0;
        let pairs = if big { 1 } else { rng.usize(1..=4) };
        let endings = (0..pairs)
            .map(|_| {
                if rng.u8(..3) == 0 { Ending::Poison(pick(&mut rng, &Poison::ALL)) } else { Ending::Graceful }
            })
            .collect();
        let mut start_up = Rng::with_seed(seed ^ 0x5044);
        let marked = [0, 1].into_iter().filter(|_| start_up.u8(..3) == 0).collect::<Vec<usize>>();
        Parameters {
            seed,
            options: Options {
                network: Impairment { seed, ..network },
                ipv6,
                mtu,
                gso_max,
                lends_from: pick(&mut start_up, &[usize::MAX, 1, 300]),
                tcp,
                mpa_rev,
                crc,
                rtr: if mpa_rev == 2 { pick(&mut start_up, &RTR) } else { RtrChoice::Off },
                exceptions: marked.iter().map(|device| (*device, MARKERS)).collect(),
                ..Options::default()
            },
            swap,
            reads,
            ops: rng.usize(5..=if big { 12 } else { 60 }),
            budget: if big { 3 << 20 } else { 256 << 10 },
            largest: if big { 2 << 20 } else { pick(&mut rng, &[100, 3000, 64 << 10]) },
            shared_cq: rng.bool(),
            signal_all: rng.u8(..4) == 0,
            queue: pick(&mut rng, &[2, 8, 32]),
            endings,
            broken: None,
        }
    }

    /// Returns the workload of `seed` between devices of several engines. Depending on the seed, frames reach
    /// any engine, or only the engine that owns their connection. With most seeds, only one or two connections
    /// may be half open, so that cookies answer the others.
    pub fn between_engines(seed: u64) -> Parameters {
        let mut p = Parameters::random(seed);
        let mut rng = Rng::with_seed(seed ^ 0x656e_6769);
        p.options.engines = vec![rng.usize(2..=8), rng.usize(2..=8)];
        p.options.steering = if rng.u8(..4) == 0 { Steering::ToOwner } else { Steering::Random };
        p.options.tcp.max_syn_backlog = pick(&mut rng, &[1, 2, 1024]);
        p
    }

    /// Returns the workload of `seed` with RNICs that appear to break `rule`.
    pub fn breaking(rule: Rule, seed: u64) -> Parameters {
        let mut p = Parameters::random(seed);
        p.broken = Some(rule);
        rule.configure(&mut p);
        p
    }
}

const RTR: [RtrChoice; 5] =
    [RtrChoice::Off, RtrChoice::Any, RtrChoice::Write, RtrChoice::Read, RtrChoice::Send];
/// With this change, the device asks for markers in the FPDUs that it receives.
const MARKERS: MpaChange = |mpa| mpa.markers = true;

fn network(rng: &mut Rng) -> Impairment {
    let rate = if rng.bool() { Some(pick(rng, &[10_000_000, 1_000_000_000, 10_000_000_000])) } else { None };
    Impairment {
        loss: pick(rng, &[0.0, 0.001, 0.01, 0.03]),
        dup: pick(rng, &[0.0, 0.0, 0.01]),
        reorder: pick(rng, &[0.0, 0.0, 0.01, 0.1]),
        corrupt: pick(rng, &[0.0, 0.0, 1e-3, 1e-2]),
        delay: pick(rng, &[0, 5_000, 50_000, 2_000_000]),
        jitter: pick(rng, &[0, 0, 10_000, 500_000]),
        rate,
        queue: if rate.is_some() { pick(rng, &[10, 100, 1000]) } else { 1000 },
        ..Impairment::default()
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.options;
        write!(
            f,
            "seed {} (URNIC_SEED={0} runs it alone): network {} swap={}, IPv6 {}, mtu {}, lends from {}, MPA {}, RTR {}, markers \
             to {:?}, crc {}, sack {}, timestamps {}, \
             window scale {}, {:?}, window {}, IW {}, IRD/ORD {:?}, {} operations of {} octets at most, queues of {}, \
             shared CQ {}, engines {:?} {:?}, endings {:?}",
            self.seed,
            o.network,
            self.swap,
            o.ipv6,
            o.mtu,
            o.lends_from,
            o.mpa_rev,
            o.rtr,
            o.exceptions.iter().map(|(device, _)| *device).collect::<Vec<_>>(),
            o.crc,
            o.tcp.sack,
            o.tcp.timestamps,
            o.tcp.window_scale,
            o.tcp.congestion,
            o.tcp.recv_window,
            o.tcp.initial_window,
            self.reads,
            self.ops,
            self.largest,
            self.queue,
            self.shared_cq,
            o.engines,
            o.steering,
            self.endings
        )
    }
}
