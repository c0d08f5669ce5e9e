//! Bodies of the fuzz targets: they take any octets and check what must hold for them. Ordinary tests run them
//! briefly as well.

use super::*;
use urnic_iwarp::startup::*;

/// Returns a node with everything that inbound messages may use.
fn target(role: Role, crc: bool, rx_markers: bool) -> Node {
    let mut node = Node::new(&Negotiated { crc, rx_markers, ..negotiated(role, 4, 4) });
    node.memory.add(0x11, 0, 256);
    node.memory.add(0x22, 0x1000, 64).write = false;
    node.memory.add(0x33, u64::MAX - 64, 64).read = false;
    for len in [0, 16, 300] {
        node.memory.post_receive(len);
    }
    if role == Role::Initiator {
        for len in [0, 8, 200] {
            node.read(len, (0x11, 16), (5, 0)).unwrap();
        }
        // The id of this Atomic is 4, because three Reads precede it. A response must carry that id.
        node.atomic((0x11, 240), (5, 0), AtomicOp::FetchAdd { add: 1, mask: 0 }).unwrap();
        node.take_out();
    }
    node
}

/// Feeds `octets` in chunks whose sizes `sizes` yields. Returns the fault; `None` if there was none.
fn feed(node: &mut Node, mut octets: &[u8], mut sizes: impl FnMut() -> usize) -> Option<Fault> {
    let mut fault = None;
    while !octets.is_empty() {
        let (chunk, rest) = octets.split_at(sizes().clamp(1, octets.len()));
        octets = rest;
        let before = (node.memory.placements, node.memory.events.len());
        let over = node.stream.ended();
        let result = node.receive(chunk);
        if over {
            assert_eq!(result, Ok(()), "a second fault");
            assert_eq!(before, (node.memory.placements, node.memory.events.len()), "alive after the end");
        }
        fault = result.err().or(fault);
        assert!(node.live.get() <= 8);
        assert!(node.memory.guards_intact());
        // Requests accumulate up to IRD, so some are served now and then.
        if chunk.len() % 3 == 0 && node.stream.may_send() && !node.stream.ended() {
            node.respond(1454);
        }
    }
    fault
}

/// Runs a stream. `data[0]` selects role, CRC, sizes of chunks, and framing: raw octets, or pieces of `data` as
/// ULPDUs inside good FPDUs. Events, memory and fault must be the same for any split into chunks, and nothing
/// outside the regions may change.
pub fn iwarp_stream(data: &[u8]) {
    stream(data, false);
}

/// Like [`iwarp_stream`], for a stream with markers. The FPDUs made of pieces of `data` have correct markers; raw
/// octets may have any.
pub fn marker_stream(data: &[u8]) {
    stream(data, true);
}

fn stream(data: &[u8], markers: bool) {
    let Some((&how, data)) = data.split_first() else { return };
    let role = if how & 1 != 0 { Role::Initiator } else { Role::Responder };
    let framed = how & 2 != 0;
    let crc = how & 4 != 0;
    let octets = if framed {
        let mut octets = Vec::new();
        let n = Negotiated { tx_markers: markers, ..negotiated(Role::Initiator, 0, 0) };
        let mut sender = Node::new(&n);
        let mut rest = data;
        while let Some((&len, after)) = rest.split_first() {
            let (ulpdu, after) = after.split_at(usize::from(len).min(after.len()));
            octets.extend(mark(&mut sender.stream, super::fpdu(ulpdu), true));
            rest = after;
        }
        octets
    } else {
        data.to_vec()
    };
    let mut whole = target(role, crc, markers);
    let fault = feed(&mut whole, &octets, || 3 * 1460);
    let mut seed = fastrand_like(data);
    let mut split = target(role, crc, markers);
    let split_fault = feed(&mut split, &octets, || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match how >> 6 {
            0 => 1,
            1 => (seed >> 33) as usize % 8,
            _ => (seed >> 33) as usize % 2000,
        }
    });
    // The sizes of the chunks decide how often Requests are served, and so when IRD is exceeded.
    let limited = |f: &Option<Fault>| f.as_ref().is_some_and(|f| matches!(f.cause, Cause::ReadLimit { .. }));
    if !limited(&fault) && !limited(&split_fault) {
        assert_eq!(fault, split_fault);
        assert_eq!(whole.memory.events, split.memory.events);
        assert_eq!(whole.memory.received, split.memory.received);
        // The sizes of the chunks also decide when Atomics are performed: before or after later Writes (RDMAPX-20).
        let atomics = whole.memory.events.contains(&Delivery::AtomicRequested);
        for (a, b) in whole.memory.regions.iter().zip(&split.memory.regions) {
            assert!((a.data() == b.data() || atomics) && a.valid == b.valid);
        }
    }
    // The Terminate sent in answer can be parsed.
    if let Some(t) = fault.and_then(|f| f.terminate) {
        whole.take_out();
        whole.send(Op::Terminate(t), &[], 1454).unwrap();
        assert_eq!(Terminate::decode(&whole.out[20..]), Some(t));
        assert!(!t.to_string().contains("unknown"), "{t}");
    }
}

fn fastrand_like(data: &[u8]) -> u64 {
    data.iter().fold(0xCBF2_9CE4_8422_2325, |h, &o| (h ^ u64::from(o)).wrapping_mul(0x0100_0000_01B3))
}

/// Runs one end of a start-up. `data[0]` selects the end and its offer. The rest of `data` must give the same
/// result in one piece and octet by octet.
pub fn mpa_startup(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let offer = Offer {
        rev: 1 + (how >> 1 & 1),
        crc: how & 4 != 0,
        ird: u16::from(how >> 3),
        ord: u16::from(how >> 4),
        markers: how & 0x20 != 0,
        private_data: b"ours",
        peer_to_peer: (how & 0x82 == 0x82).then_some(RtrKinds { send: false, write: true, read: true }),
    };
    if how & 1 == 0 {
        respond(&offer, data);
    } else {
        initiate(&offer, data);
    }
}

fn respond(offer: &Offer<'_>, data: &[u8]) {
    let limits = Limits { max_private_data: 256, ..Limits::default() };
    let whole = Responder::new(limits).receive(data);
    let mut responder = Responder::new(limits);
    let mut last = Ok(Request::NeedMore);
    let mut used = 0;
    for octet in data {
        last = responder.receive(&[*octet]);
        used += 1;
        if last != Ok(Request::NeedMore) {
            break;
        }
    }
    if used < data.len() && last.is_ok() {
        assert_eq!(whole, Err(StartupError::Surplus));
    } else {
        assert_eq!(whole, last);
    }
    match last {
        Ok(Request::Arrived(peer, data)) => {
            assert!(data.len() <= 256);
            let (reply, n) = responder.accept(offer).unwrap();
            assert!(peer.ird.is_none_or(|ird| n.ord <= ird));
            assert_eq!(n.crc, offer.crc || peer.crc);
            // An Initiator of the same revision accepts the Reply.
            let ask = Offer { rev: if peer.enhanced { 2 } else { 1 }, ird: 0x3FFE, ..*offer };
            let ask = Offer { peer_to_peer: None, ..ask };
            let (mut initiator, _) = Initiator::new(&ask).unwrap();
            assert!(
                matches!(initiator.receive(&reply), Ok(Progress::Done { consumed, .. }) if consumed == reply.len())
            );
            assert_eq!(responder.receive(&[0]).unwrap_err(), StartupError::Surplus);
        }
        Ok(Request::NeedMore) | Err(_) => assert!(responder.accept(offer).is_err()),
    }
}

fn initiate(offer: &Offer<'_>, data: &[u8]) {
    let run = |step: usize| {
        let (mut initiator, request) = Initiator::new(offer).unwrap();
        assert!(request.len() <= 20 + 512);
        let mut at = 0;
        for chunk in data.chunks(step.max(1)) {
            match initiator.receive(chunk)? {
                Progress::NeedMore { consumed } => {
                    assert_eq!(consumed, chunk.len());
                    at += consumed;
                }
                Progress::Done { consumed, outcome } => return Ok(Some((at + consumed, outcome))),
            }
        }
        Ok::<_, StartupError>(None)
    };
    let whole = run(data.len());
    // A key may begin like an Initiator's and have a wrong octet later. Octet by octet, the error is then
    // `BothInitiators`, before the wrong octet arrives. In one piece, it is `NotMpa`.
    let either = [Err(StartupError::BothInitiators), Err(StartupError::NotMpa)];
    let split = run(1);
    assert!(whole == split || [&whole, &split].iter().all(|r| either.contains(r)), "{whole:?} {split:?}");
    if let Ok(Some((_, Outcome::Accepted(n, peer, _)))) = whole {
        assert_eq!((n.ird, peer.enhanced), (offer.ird, offer.rev == 2));
        assert!(n.ord <= offer.ord.max(1) && n.tx_markers == peer.markers && n.rx_markers == offer.markers);
    }
}

/// Takes `data` as the content of a Terminate. A Terminate that can be decoded stays the same when it is encoded and
/// decoded again, and has a text.
pub fn terminate(data: &[u8]) {
    let data = &data[..data.len().min(4000)];
    let decoded = Terminate::decode(data);
    let mut receiver = Node::initiator();
    let received = receiver.receive(&fpdu(&untagged(0x41, 0x47, 2, 1, 0, data)));
    let Some(t) = decoded else {
        let fault = received.expect_err("a Terminate that cannot be read");
        assert_eq!((fault.terminate, fault.cause), (None, Cause::MalformedTerminate));
        return;
    };
    assert_eq!(receiver.events(), [Delivery::Terminated(t.after_startup())]);
    let mut responder = Node::responder();
    responder.receive(&fpdu(&untagged(0x41, 0x47, 2, 1, 0, data))).unwrap();
    assert_eq!(responder.events(), [Delivery::Terminated(t)], "in the first FPDU of an initiator");
    assert!(!t.to_string().is_empty() && t.layer < 16 && t.etype < 16);
    let mut sender = Node::initiator();
    sender.send(Op::Terminate(t), &[], 1454).unwrap();
    let again = Terminate::decode(&sender.out[20..]).expect("our own Terminate");
    assert_eq!((again.layer, again.etype, again.code), (t.layer, t.etype, t.code));
    assert_eq!((again.ddp, again.rdma), (t.ddp, t.rdma));
}
