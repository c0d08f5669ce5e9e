use super::*;
use crate::drive::draft::Draft;
use crate::drive::port::sim::{SimFrame, SimPort, SimWire, Steer};
use crate::shared::grace::{Fellow, PassNumber};
use fastrand::Rng;
use std::collections::HashMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use urnic_tcp::Frame;

const PORT: u16 = 7471;
const OCTETS: usize = 20_000;

/// Records the events that an engine receives.
#[derive(Default)]
struct Ear {
    /// The data that has arrived on each connection.
    heard: HashMap<ConnId, Vec<u8>>,
    open: Vec<ConnId>,
    finished: Vec<ConnId>,
    closed: Vec<CloseReason>,
}

impl Events<StreamRange<SimFrame>> for Ear {
    fn incoming(&mut self, _: BindId, conn: ConnId, _: SocketAddr) -> u64 {
        self.open.push(conn);
        0
    }
    fn connected(&mut self, conn: ConnId, _: u64) {
        self.open.push(conn);
    }
    fn data(&mut self, conn: ConnId, _: u64, data: StreamRange<SimFrame>) -> Option<StreamRange<SimFrame>> {
        self.heard.entry(conn).or_default().extend(data.bytes());
        None
    }
    fn acked(&mut self, _: ConnId, _: u64, _: u64) {}
    fn finished(&mut self, conn: ConnId, _: u64) {
        self.finished.push(conn);
    }
    fn closed(&mut self, _: ConnId, _: u64, reason: CloseReason) {
        self.closed.push(reason);
    }
    fn pinnable(&mut self, _: usize) {}
    fn link(&mut self, _: bool) {}
}

/// An engine that counts how often it is woken.
#[derive(Default)]
struct Sleeper(AtomicUsize);

impl Fellow for Sleeper {
    fn ring(&self, _: u32) {}
    fn ring_receives(&self) {}

    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn pass_under_way(&self) -> Option<PassNumber> {
        None
    }
    fn has_ended(&self, _: PassNumber) -> bool {
        true
    }
}

/// The transports of a device, without the layers above them.
struct Device {
    engines: Vec<(OverPort<SimPort>, Ear)>,
    wire: SimWire,
    sleepers: Vec<Arc<Sleeper>>,
}

fn address(node: usize) -> [u8; 4] {
    [10, 0, 0, 1 + node as u8]
}

fn mac(node: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, 1 + node as u8]
}

impl Device {
    /// Makes a device. If `steers` is `Some`, the wire delivers frames to the owner, and the ports report this way of
    /// choosing queues.
    fn new(node: usize, engines: usize, seed: u64, steers: Option<Spread>) -> Device {
        Self::with_peer(node, engines, seed, steers, None)
    }

    /// Makes a device. `peer_queues` is the peer's number of queues, if its queues are paired with ours.
    fn with_peer(
        node: usize,
        engines: usize,
        seed: u64,
        steers: Option<Spread>,
        peer_queues: Option<usize>,
    ) -> Device {
        let config = StackConfig::new(mac(node), address(node), 24, 77 + node as u64);
        let commons = Commons::new().unwrap();
        let rng = Rng::with_seed(seed);
        let steering = match steers {
            Some(Spread::Nic { key, entries }) => Steering::like_nic(0, engines, key, entries),
            _ => Steering::new(0, engines, config.seed),
        };
        let steer = match steering {
            Some(steering) if steers.is_some() => Steer::ByOwner(steering, rng),
            _ => Steer::Random(rng),
        };
        let (mut queues, wire) = SimPort::several(1500, engines, steer);
        queues.iter_mut().for_each(|queue| queue.says(steers.unwrap_or(Spread::Unknown)));
        if let Some(peers) = peer_queues {
            queues.iter_mut().for_each(|queue| queue.pair_with(peers));
        }
        let transports = OverPort::of_device(queues, &config, &commons, Time::ZERO).unwrap();
        let sleepers: Vec<_> = (0..engines).map(|_| Arc::new(Sleeper::default())).collect();
        let weak = |one: &Arc<Sleeper>| -> Weak<dyn Fellow> {
            let one: Arc<dyn Fellow> = one.clone();
            Arc::downgrade(&one)
        };
        commons.introduce(sleepers.iter().map(weak));
        let engines = transports.into_iter().map(|port| (port, Ear::default())).collect();
        Device { engines, wire, sleepers }
    }

    fn listen(&mut self) {
        let any = SocketAddr::from(([0, 0, 0, 0], PORT));
        let bound = self.engines[0].0.bind(any, false).unwrap();
        for (i, (engine, _)) in self.engines.iter_mut().enumerate() {
            if i > 0 {
                engine.enter_binding(bound, false).unwrap();
            }
            engine.listen(bound.id, 64).unwrap();
        }
    }

    fn figure(&self, name: &str) -> u64 {
        let facts = self.engines.iter().flat_map(|(engine, _)| engine.facts().counters);
        facts.filter(|(n, _)| *n == name).map(|(_, figure)| figure).sum()
    }
}

/// Runs a pass of every engine, and delivers the frames to the device to which they are addressed.
fn step(devices: &mut [Device], now: Time, rng: &mut Rng, loss: f64) -> bool {
    let mut sent = Vec::new();
    let mut busy = false;
    for device in &mut *devices {
        for (engine, ear) in &mut device.engines {
            busy |= engine.receive(now, ear);
            engine.advance(now, ear);
            engine.flush();
        }
        sent.extend(std::iter::from_fn(|| device.wire.take()));
    }
    for frame in sent {
        busy = true;
        for (node, device) in devices.iter().enumerate() {
            let is_for =
                frame.starts_with(&mac(node)) || frame[0] & 1 != 0 && !frame[6..].starts_with(&mac(node));
            if is_for && rng.f64() >= loss {
                device.wire.deliver(frame.clone());
            }
        }
    }
    busy
}

fn run(devices: &mut [Device], now: &mut Time, rng: &mut Rng, loss: f64, done: impl Fn(&[Device]) -> bool) {
    for _ in 0..200_000 {
        if done(devices) {
            return;
        }
        if !step(devices, *now, rng, loss) {
            let engines = devices.iter().flat_map(|device| &device.engines);
            let next = engines.filter_map(|(engine, _)| engine.next_deadline()).min();
            *now = (*now).max(next.expect("something happens"));
        }
    }
    panic!("it never ends");
}

fn send(engine: &mut OverPort<SimPort>, now: Time, conn: ConnId, octets: &[u8]) {
    for piece in octets.chunks(1000) {
        let mut draft = engine.draft().unwrap();
        draft.append(piece.len()).unwrap().copy_from_slice(piece);
        engine.send(conn, draft, None, 0);
    }
    engine.output(now, conn);
    engine.close(now, conn);
}

/// A record that is sent early is on the wire before the next flush.
#[test]
fn early_records_do_not_wait_for_the_flush() {
    let mut devices = vec![Device::new(0, 1, 1, None), Device::new(1, 1, 2, None)];
    devices[1].listen();
    let (mut now, mut rng) = (Time::from_secs(1), Rng::with_seed(3));
    let conn = devices[0].engines[0].0.connect(now, None, SocketAddr::from((address(1), PORT)), 0).unwrap();
    let open = |devices: &[Device]| devices.iter().all(|d| !d.engines[0].1.open.is_empty());
    run(&mut devices, &mut now, &mut rng, 0.0, open);
    let Device { engines, wire, .. } = &mut devices[0];
    let engine = &mut engines[0].0;
    engine.flush();
    while wire.take().is_some() {}
    for early in [false, true] {
        let mut draft = engine.draft().unwrap();
        draft.append(1000).unwrap().fill(7);
        engine.send(conn, draft, None, 0);
        if early {
            engine.send_early(now, conn)
        } else {
            engine.output(now, conn)
        }
        assert_eq!(wire.take().is_some(), early);
    }
}

/// Two devices with random numbers of engines exchange data over a network that loses frames. Checks that all
/// data arrives in both directions. Returns how many frames crossed between engines of the second device, apart
/// from those that concern all its engines.
fn exchange(seed: u64, steers: Option<Spread>) -> u64 {
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let counts = (rng.usize(1..=5), rng.usize(2..=5));
    let mut devices = vec![Device::new(0, counts.0, seed, steers), Device::new(1, counts.1, !seed, steers)];
    devices[1].listen();
    let mut now = Time::from_secs(1);
    let (a, b): (Vec<u8>, Vec<u8>) = ((0..OCTETS).map(|i| (i * 7) as u8).collect(), vec![0xb0; OCTETS]);
    let opened = 2 * devices[0].engines.len();
    for (engine, _) in &mut devices[0].engines {
        for tag in 0..2 {
            engine.connect(now, None, SocketAddr::from((address(1), PORT)), tag).unwrap();
        }
    }
    let open = |devices: &[Device]| {
        devices.iter().all(|d| d.engines.iter().map(|(_, ear)| ear.open.len()).sum::<usize>() == opened)
    };
    run(&mut devices, &mut now, &mut rng, 0.01, open);
    for (device, octets) in devices.iter_mut().zip([&a, &b]) {
        for (engine, ear) in &mut device.engines {
            ear.open.iter().for_each(|conn| send(engine, now, *conn, octets));
        }
    }
    let over = |devices: &[Device]| {
        let finished = |d: &Device| d.engines.iter().map(|(_, ear)| ear.finished.len()).sum::<usize>();
        devices.iter().all(|d| finished(d) == opened)
    };
    run(&mut devices, &mut now, &mut rng, 0.01, over);
    while step(&mut devices, now, &mut rng, 0.01) {}
    for (device, octets) in devices.iter().zip([&b, &a]) {
        for (_, ear) in &device.engines {
            assert!(ear.open.iter().all(|conn| ear.heard[conn] == *octets));
            assert!(ear.closed.iter().all(|reason| *reason == CloseReason::Graceful));
        }
    }
    let crossed = devices[1].figure("frames_handed_over");
    assert_eq!(crossed, devices[1].figure("frames_taken_over"));
    assert_eq!(devices[1].figure("frames_between_engines_dropped"), 0);
    let neighbours = counts.1 as u64 - 1;
    let told: u64 = devices[1].engines.iter().map(|(engine, _)| engine.stack.counters().shared).sum();
    crossed - told * neighbours
}

#[test]
fn frames_may_reach_any_engine() {
    for seed in 0..60 {
        assert!(exchange(seed, None) > 0);
    }
}

/// If the port steers connections to their engines, only messages about neighbours cross between engines, because
/// they concern all engines.
#[test]
fn with_right_steering_no_segment_crosses() {
    for seed in 0..60 {
        assert_eq!(exchange(seed, Some(Spread::Unknown)), 0);
        assert_eq!(exchange(seed, Some(Spread::Nic { key: 0x6d5a, entries: 128 })), 0);
    }
}

/// Two devices with these numbers of engines exchange data. Their queues are paired: a frame that queue `i` sends
/// arrives at queue `i` of the peer, if the peer has as many queues. Returns how many segments and strays crossed
/// between the engines of each device.
fn exchange_in_pairs(counts: [usize; 2]) -> [u64; 2] {
    let paired = |node: usize| Device::with_peer(node, counts[node], 3, None, Some(counts[1 - node]));
    let mut devices = [paired(0), paired(1)];
    devices[1].listen();
    let mut now = Time::from_secs(1);
    for (engine, _) in &mut devices[0].engines {
        for tag in 0..8 {
            engine.connect(now, None, SocketAddr::from((address(1), PORT)), tag).unwrap();
        }
    }
    let (opened, octets) = (8 * counts[0], vec![7; OCTETS]);
    let mut sent = HashMap::<(usize, usize), usize>::new();
    for _ in 0..100_000 {
        for (node, device) in devices.iter_mut().enumerate() {
            for (number, (engine, ear)) in device.engines.iter_mut().enumerate() {
                engine.receive(now, ear);
                engine.advance(now, ear);
                let before = sent.insert((node, number), ear.open.len()).unwrap_or(0);
                for conn in &ear.open[before..] {
                    send(engine, now, *conn, &octets);
                }
                engine.flush();
            }
        }
        let mut idle = true;
        for node in 0..2 {
            while let Some((queue, frame)) = devices[node].wire.take_from() {
                assert!(queue < counts[1 - node].max(1), "queue {queue} is not the peer's");
                devices[1 - node].wire.deliver_to(queue % counts[1 - node], frame);
                idle = false;
            }
        }
        let finished = |d: &Device| d.engines.iter().map(|(_, ear)| ear.finished.len()).sum::<usize>();
        if devices.iter().all(|d| finished(d) == opened) {
            let heard = devices.iter().flat_map(|d| &d.engines).flat_map(|(_, ear)| ear.heard.values());
            assert!(heard.into_iter().all(|heard| *heard == octets));
            return [0, 1].map(|node| {
                let shared = devices[node].engines.iter().map(|(engine, _)| engine.stack.counters().shared);
                devices[node].figure("frames_handed_over") - shared.sum::<u64>() * (counts[node] as u64 - 1)
            });
        }
        if idle {
            let engines = devices.iter().flat_map(|device| &device.engines);
            let next = engines.filter_map(|(engine, _)| engine.next_deadline()).min();
            now = now.max(next.expect("something happens"));
        }
    }
    panic!("it never ends");
}

/// Each engine exchanges frames only with the peer's engine of the same number, although the devices share no secret.
#[test]
fn between_pairs_of_queues_nothing_crosses() {
    for engines in 1..=5 {
        assert_eq!(exchange_in_pairs([engines; 2]), [0, 0], "{engines} engines each");
    }
}

/// The first queue sends the frames of engines whose queue has no pair at the peer.
#[test]
fn a_peer_with_fewer_queues_hears_all() {
    assert!(exchange_in_pairs([3, 2])[0] > 0);
    assert!(exchange_in_pairs([1, 4])[1] > 0);
}

/// A frame for another engine wakes that engine and no other. The woken engine wants a pass at once.
#[test]
fn whoever_gets_a_frame_is_woken() {
    let mut devices = vec![Device::new(0, 1, 5, None), Device::new(1, 4, 6, None)];
    devices[1].listen();
    let mut rng = Rng::with_seed(5);
    let mut now = Time::from_secs(1);
    let to = SocketAddr::from((address(1), PORT));
    devices[0].engines[0].0.connect(now, None, to, 0).unwrap();
    run(&mut devices, &mut now, &mut rng, 0.0, |d| !d[0].engines[0].1.open.is_empty());
    while step(&mut devices, now, &mut rng, 0.0) {}
    let owner = devices[1].engines.iter().position(|(_, ear)| !ear.open.is_empty()).unwrap();
    let wakes =
        |d: &Device| -> Vec<usize> { d.sleepers.iter().map(|s| s.0.load(Ordering::SeqCst)).collect() };
    let before = wakes(&devices[1]);
    let conn = devices[0].engines[0].1.open[0];
    let engine = &mut devices[0].engines[0].0;
    send(engine, now, conn, &[1; 100]);
    engine.flush();
    let frames: Vec<_> = std::iter::from_fn(|| devices[0].wire.take()).collect();
    let other = (owner + 1) % 4;
    let Device { engines, wire, .. } = &mut devices[1];
    frames.into_iter().for_each(|frame| wire.deliver_to(other, frame));
    {
        let (engine, ear) = &mut engines[other];
        assert!(engine.receive(now, ear));
    }
    assert_eq!(engines[owner].0.next_deadline(), Some(Time::ZERO));
    let (engine, ear) = &mut engines[owner];
    assert!(engine.receive(now, ear));
    assert_eq!(ear.heard[&ear.open[0]], [1; 100]);
    assert_ne!(engine.next_deadline(), Some(Time::ZERO));
    let mut expected = before;
    expected[owner] += 1;
    assert_eq!(wakes(&devices[1]), expected);
}

/// Frames that a full inbox cannot take are dropped and counted.
#[test]
fn a_full_inbox_drops_frames() {
    let mut device = Device::new(0, 2, 1, None);
    let mut question = vec![0xff; 6];
    question.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 0, 0, 9]);
    question.extend([0, 0, 0, 0, 0, 0]);
    question.extend(address(0));
    let (engine, ear) = &mut device.engines[0];
    for i in 0..1000u64 {
        device.wire.deliver_to(0, question.clone());
        engine.receive(Time::from_secs(1) + Duration::from_millis(i), ear);
    }
    assert_eq!(device.figure("frames_handed_over"), 512);
    assert_eq!(device.figure("frames_between_engines_dropped"), 488);
    let (engine, ear) = &mut device.engines[1];
    let mut passes = 0;
    while engine.receive(Time::from_secs(3), ear) {
        passes += 1;
    }
    assert_eq!((passes, device.figure("frames_taken_over")), (512 / BURST, 512));
}

/// The first engine claims the addresses, only once, and an objection counts whichever engine it reaches.
#[cfg(feature = "dpdk")]
#[test]
fn an_objection_may_reach_any_engine() {
    let device = Device::new(0, 3, 1, None);
    let mut rival = vec![0xff; 6];
    rival.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9]);
    rival.extend(address(0));
    rival.extend([0, 0, 0, 0, 0, 0]);
    rival.extend(address(0));
    device.wire.deliver_to(2, rival);
    let mut all: Vec<_> = device.engines.into_iter().map(|(engine, _)| engine).collect();
    let refused = OverPort::claim_addresses(&mut all, &crate::drive::clock::Watch::new()).unwrap_err();
    assert!(refused.to_string().contains("02:00:00:00:00:09"), "{refused}");
    // The device asked at most once, or never if the objection came first.
    assert!(std::iter::from_fn(|| device.wire.take()).count() <= 1);
}

/// Frames that a peer has sent show that the peer is up, also if another engine has received them. Strays, which this
/// device sends itself, do not.
#[test]
fn only_frames_of_the_peer_show_that_it_is_up() {
    let mut device = Device::with_peer(0, 2, 1, None, Some(1));
    device.wire.set_link(false);
    let now = Time::from_secs(1);
    let (engine, ear) = &mut device.engines[1];
    engine.connect(now, None, SocketAddr::from((address(1), PORT)), 0).unwrap();
    engine.advance(now, ear);
    engine.flush();
    let (engine, ear) = &mut device.engines[0];
    while engine.receive(now, ear) {}
    assert_eq!(device.figure("frames_taken_over"), 1, "the question for the peer's MAC address");
    assert!(device.engines[0].0.only_peer_has_ended());

    let mut question = vec![0xff; 6];
    question.extend([2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
    question.extend([0, 0, 0, 0, 0, 0]);
    question.extend(address(0));
    device.wire.deliver_to(1, question);
    for number in [1, 0] {
        let (engine, ear) = &mut device.engines[number];
        while engine.receive(now, ear) {}
    }
    assert_eq!(device.figure("frames_taken_over"), 2);
    assert!(!device.engines[0].0.only_peer_has_ended());
}

/// A frame of two pieces, until it is kept.
struct Halves {
    octets: Vec<u8>,
    cut: usize,
    is_kept: bool,
}

impl Frame for Halves {
    fn bytes(&self) -> &[u8] {
        if self.is_kept { &self.octets } else { &self.octets[..self.cut] }
    }
    fn len(&self) -> usize {
        self.octets.len()
    }
    fn keep(&mut self) {
        self.is_kept = true;
    }
    fn checksum_trusted(&self) -> bool {
        true
    }
}

impl Received for Halves {
    fn piece(&self, range: Range<usize>) -> Octets<'_> {
        let end = if range.start < self.cut { range.end.min(self.cut) } else { range.end };
        self.octets[range.start..end].into()
    }
    fn is_shared(&self) -> bool {
        !self.is_kept
    }
}

/// Whatever part of the stream is skipped, the pieces make up the rest, and so do the octets of the kept frame.
#[test]
fn stream_data_has_the_pieces_of_its_frame() {
    let octets: Vec<u8> = (0..100).collect();
    for (cut, skip) in (20..=100).flat_map(|cut| [0, 1, 40, 80, 90].map(|skip| (cut, skip))) {
        let frame = Halves { octets: octets.clone(), cut, is_kept: false };
        let mut data = StreamRange { frame, range: 10..90 };
        data.skip(skip);
        let expected = &octets[10 + skip.min(80)..90];
        assert!(data.len() == expected.len() && data.is_shared());
        let mut all = Vec::new();
        while all.len() < data.len() {
            data.piece(all.len()).append_to(&mut all);
        }
        assert!(data.piece(data.len()).is_empty() && data.piece(usize::MAX).is_empty());
        assert_eq!(all, expected);
        data.keep();
        assert_eq!((data.bytes(), data.is_shared()), (expected, false));
    }
}
