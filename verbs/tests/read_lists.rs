//! Reads into several pieces of memory (lists), which are one Read on the wire. The tests check where the data is
//! placed, and that a Read with an unwritable element fails.

mod common;

use common::*;
use fastrand::Rng;
use urnic::simulation::{Options, Simulation};
use urnic::*;

const MAX_SGE: u8 = 32;
const SOURCE: usize = 3 << 20;
/// Octets of the sinks. Two are small, so that random Reads often reach the end of a sink.
const SINKS: [usize; 3] = [977, 70_001, 2 << 20];

struct Scene {
    simulation: Simulation,
    server: End,
    client: End,
    source: Mr,
    sinks: Vec<Mr>,
    /// Expected content of the sinks.
    model: Vec<Vec<u8>>,
}

fn scene(options: &Options) -> Scene {
    let mut simulation = Simulation::new(options).unwrap();
    let (mut server, mut client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    let init = QpInit {
        send_cq: &client.cq,
        recv_cq: &client.cq,
        max_send_wr: 64,
        max_recv_wr: 1,
        max_send_sge: MAX_SGE,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: false,
    };
    client.qp = client.pd.create_qp(&init).unwrap();
    connect(&mut simulation, &mut server, &mut client);
    let source = server.pd.alloc_mr(SOURCE, Access::REMOTE_READ).unwrap();
    source.write_at(0, &pattern(SOURCE, 1)).unwrap();
    let sinks: Vec<Mr> =
        SINKS.iter().map(|len| client.pd.alloc_mr(*len, Access::LOCAL_WRITE).unwrap()).collect();
    for mr in &sinks {
        mr.write_at(0, &pattern(mr.len() as usize, 100)).unwrap();
    }
    let model = sinks.iter().map(content).collect();
    Scene { simulation, server, client, source, sinks, model }
}

impl Scene {
    /// Returns a list of at most `most` octets: elements in any order, some of length 0 with any address and
    /// key.
    fn list(&self, rng: &mut Rng, most: usize) -> Vec<(usize, Sge)> {
        let mut left = most;
        let elements = rng.usize(..=usize::from(MAX_SGE));
        let list = (0..elements).map(|_| {
            if rng.u8(..5) == 0 {
                return (0, Sge { addr: rng.u64(..), len: 0, lkey: rng.u32(..) });
            }
            let which = rng.usize(..SINKS.len());
            let most = left.min(SINKS[which]);
            let len = if rng.bool() { rng.usize(..=most) } else { rng.usize(..=most.min(100)) };
            left -= len;
            let at = rng.usize(..=SINKS[which] - len);
            (which, Sge::of(&self.sinks[which], at as u64, len as u32))
        });
        list.collect()
    }

    /// Posts a Read into `list`, and notes the expected data. Returns its length.
    fn read(&mut self, wr_id: u64, from: usize, list: &[(usize, Sge)]) -> u32 {
        let sges: Vec<Sge> = list.iter().map(|(_, sge)| *sge).collect();
        let op = SendOp::Read { addr: self.source.addr() + from as u64, rkey: self.source.rkey() };
        self.client.post(wr_id, op, &sges);
        let data = pattern(SOURCE, 1);
        let mut next = from;
        // Copies to the elements in order, because they may overlap. An element of length 0 changes nothing.
        for (which, sge) in list.iter().filter(|(_, sge)| sge.len > 0) {
            let (at, len) = ((sge.addr - self.sinks[*which].addr()) as usize, sge.len as usize);
            self.model[*which][at..at + len].copy_from_slice(&data[next..next + len]);
            next += len;
        }
        (next - from) as u32
    }

    #[track_caller]
    fn agrees(&self, what: &str) {
        for (mr, model) in self.sinks.iter().zip(&self.model) {
            let differs = content(mr).iter().zip(model).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{what}: first octet that differs, in {} octets", mr.len());
        }
    }

    /// Checks that request 1 fails at the client, and that the Terminate blames no segment (ERR-44).
    #[track_caller]
    fn fails_here(&mut self, what: &str) {
        let wc = self.client.next(&mut self.simulation);
        assert_eq!(
            (wc.wr_id, wc.status, wc.opcode),
            (1, WcStatus::LocalProtection, WcOpcode::Read),
            "{what}"
        );
        assert_eq!(self.client.end(&mut self.simulation), DisconnectReason::TerminateSent, "{what}");
        assert_eq!(self.server.end(&mut self.simulation), DisconnectReason::TerminateReceived, "{what}");
        let t = self.server.qp.terminate().unwrap();
        assert_eq!((t.layer, t.etype, t.code), (0, 0, 0), "{what}: {t}");
        self.agrees(what);
    }
}

/// Checks that random Reads into lists, one after the other and several at a time, place the same octets as a copy in a
/// loop, and change no others.
fn reads_agree_with_the_model(seed: u64, options: &Options) {
    let mut rng = Rng::with_seed(seed);
    let mut scene = scene(options);
    for round in 0..rng.usize(2..8) {
        let most = [0, 1, 5000, 100_000, SOURCE][rng.usize(..5)];
        let lens: Vec<u32> = (0..rng.u64(1..8))
            .map(|wr_id| {
                let list = scene.list(&mut rng, most);
                let from = rng.usize(..=SOURCE - most);
                scene.read(wr_id, from, &list)
            })
            .collect();
        for (wr_id, len) in lens.into_iter().enumerate() {
            let wc = scene.client.next(&mut scene.simulation);
            let expected = (wr_id as u64, WcStatus::Success, WcOpcode::Read, len);
            assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), expected, "seed {seed}, round {round}");
        }
        scene.agrees(&format!("seed {seed}, round {round}"));
    }
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let text = std::env::var("URNIC_SEEDS").ok();
    0..text.map_or(default, |text| text.parse().expect("URNIC_SEEDS is a number"))
}

/// RDMAP-15, RDMAP-35: random lists over a good network.
#[test]
fn any_list_takes_what_a_loop_would_copy() {
    for seed in seeds(20) {
        reads_agree_with_the_model(seed, &options());
    }
}

/// Random lists over a network that loses, repeats and reorders frames.
#[test]
fn any_list_takes_it_over_a_bad_network() {
    for seed in seeds(20) {
        let network = format!("delay=5us,loss=0.02,dup=0.02,reorder=0.1,seed={}", seed + 1);
        reads_agree_with_the_model(seed, &Options { network: network.parse().unwrap(), ..options() });
    }
}

/// A list may have as many elements as the device allows. Posting refuses a list that exceeds its queue's limit by one.
#[test]
fn a_list_has_as_many_elements_as_max_sge_rd_says() {
    let mut scene = scene(&options());
    let limits = scene.simulation.device(1).attributes().unwrap();
    assert_eq!((limits.max_sge_rd, limits.max_sge), (MAX_SGE, MAX_SGE));
    let list: Vec<(usize, Sge)> =
        (0..u64::from(MAX_SGE)).map(|i| (1, Sge::of(&scene.sinks[1], 2000 * i, 1000))).collect();
    let len = scene.read(1, 17, &list);
    let wc = scene.client.next(&mut scene.simulation);
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (1, WcStatus::Success, len));
    scene.agrees("as many as there may be");
    let sges = [list[0].1; MAX_SGE as usize + 1];
    let op = SendOp::Read { addr: scene.source.addr(), rkey: scene.source.rkey() };
    let wr = SendWr { wr_id: 2, op, sges: &sges, flags: SendFlags::empty() };
    assert_eq!(scene.client.qp.post_send(&wr), Err(PostError::TooManySges));
}

/// The RNIC checks each element before it sends the Read. Whichever element is wrong, nothing is placed.
#[test]
fn an_element_that_cannot_be_written_ends_the_read_before_it_begins() {
    type Spoil = fn(&Scene, &mut Sge);
    let spoils: [(&str, Spoil); 6] = [
        ("no such key", |_, sge| sge.lkey ^= 0x100),
        ("another key of it", |_, sge| sge.lkey ^= 1),
        ("beyond the end", |s, sge| sge.addr = s.sinks[1].addr() + SINKS[1] as u64 - 99),
        ("before the start", |s, sge| sge.addr = s.sinks[1].addr() - 1),
        ("wraps around", |_, sge| sge.addr = u64::MAX - 50),
        ("longer than the region", |_, sge| sge.len = SINKS[1] as u32),
    ];
    for (name, spoil) in spoils {
        for wrong in 0..3 {
            let mut scene = scene(&options());
            let mut sges: Vec<Sge> = (0..3).map(|i| Sge::of(&scene.sinks[1], 1000 * i + 1, 100)).collect();
            spoil(&scene, &mut sges[wrong]);
            let op = SendOp::Read { addr: scene.source.addr(), rkey: scene.source.rkey() };
            scene.client.post(1, op, &sges);
            scene.fails_here(&format!("{name}, element {wrong}"));
        }
    }
    type Region = fn(&Scene) -> Mr;
    let regions: [(&str, Region); 2] = [
        ("of another domain", |s| {
            s.simulation.device(1).alloc_pd().alloc_mr(100, Access::LOCAL_WRITE).unwrap()
        }),
        ("not for writing", |s| s.client.pd.alloc_mr(100, Access::REMOTE_READ).unwrap()),
    ];
    for (name, region) in regions {
        let mut scene = scene(&options());
        let op = SendOp::Read { addr: scene.source.addr(), rkey: scene.source.rkey() };
        let mine = scene.client.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
        let wrong = region(&scene);
        scene.client.post(1, op, &[Sge::of(&mine, 0, 100), Sge::of(&wrong, 0, 100)]);
        scene.fails_here(name);
        assert!(content(&mine) == [0; 100] && content(&wrong) == [0; 100], "{name}");
    }
}
