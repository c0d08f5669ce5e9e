//! Atomics and Writes with immediate data between two RNICs (RFC 7306).

mod common;

use common::*;
use urnic::simulation::Simulation;
use urnic::*;

/// Two connected ends with memory: words of the server on which the client works, and the client's memory for the
/// results.
struct Scene {
    simulation: Simulation,
    server: End,
    client: End,
    words: Mr,
    results: Mr,
}

fn scene() -> Scene {
    let (simulation, server, client) = connected(&options());
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let words = server.pd.alloc_mr(4096, all).unwrap();
    let results = client.pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    Scene { simulation, server, client, words, results }
}

fn word(mr: &Mr, at: u64) -> u64 {
    let mut octets = [0; 8];
    mr.read_at(at, &mut octets).unwrap();
    u64::from_ne_bytes(octets)
}

fn set_word(mr: &Mr, at: u64, value: u64) {
    mr.write_at(at, &value.to_ne_bytes()).unwrap();
}

impl Scene {
    /// Runs an Atomic to its end, and returns its result.
    fn atomic(&mut self, op: SendOp, opcode: WcOpcode) -> u64 {
        self.client.post(1, op, &[Sge::of(&self.results, 8, 8)]);
        let wc = self.client.next(&mut self.simulation);
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, WcStatus::Success, opcode, 8));
        assert_eq!((word(&self.results, 0), word(&self.results, 16)), (0, 0), "beside the result");
        word(&self.results, 8)
    }
}

/// RDMAPX-2, 5, 6, 7, 14, 16: every form of an Atomic, on words in the byte order of the machine.
#[test]
fn atomics_give_what_was_there() {
    let mut s = scene();
    let (addr, rkey) = (s.words.addr() + 16, s.words.rkey());
    set_word(&s.words, 16, 0x1_FFFF_FFFF);
    let (add, swap) = (WcOpcode::FetchAdd, WcOpcode::CmpSwap);
    for (op, opcode, old, new) in [
        (SendOp::FetchAdd { addr, rkey, add: 0 }, add, 0x1_FFFF_FFFF, 0x1_FFFF_FFFF),
        (SendOp::FetchAdd { addr, rkey, add: 1 }, add, 0x1_FFFF_FFFF, 0x2_0000_0000),
        (SendOp::MaskedFetchAdd { addr, rkey, add: 0xFFFF_FFFF, mask: 0 }, add, 0x2_0000_0000, 0x2_FFFF_FFFF),
        (SendOp::MaskedFetchAdd { addr, rkey, add: 1, mask: 1 << 31 }, add, 0x2_FFFF_FFFF, 0x2_0000_0000),
        (SendOp::CmpSwap { addr, rkey, compare: 2, swap: 9 }, swap, 0x2_0000_0000, 0x2_0000_0000),
        (SendOp::CmpSwap { addr, rkey, compare: 0x2_0000_0000, swap: 9 }, swap, 0x2_0000_0000, 9),
        (
            SendOp::MaskedCmpSwap {
                addr,
                rkey,
                compare: 0xFF09,
                compare_mask: 0xFF,
                swap: 0x77,
                swap_mask: 0xF0,
            },
            swap,
            9,
            0x79,
        ),
        (
            SendOp::MaskedCmpSwap {
                addr,
                rkey,
                compare: 1,
                compare_mask: 0,
                swap: u64::MAX,
                swap_mask: u64::MAX,
            },
            swap,
            0x79,
            u64::MAX,
        ),
        (SendOp::FetchAdd { addr, rkey, add: 1 }, add, u64::MAX, 0),
    ] {
        assert_eq!(s.atomic(op, opcode), old, "{op:?}");
        assert_eq!(word(&s.words, 16), new, "{op:?}");
    }
    assert_eq!((word(&s.words, 8), word(&s.words, 24)), (0, 0));
    assert_eq!(s.server.completions(), [], "nobody there is told (RDMAPX-11)");
}

/// RDMAPX-3: many connections, of two client devices and of the server's own device, work on one word. No operation is
/// lost or done twice.
#[test]
fn atomics_of_all_streams_are_atomic() {
    let mut options = options();
    options.devices = 3;
    let mut simulation = Simulation::new(&options).unwrap();
    let mut ends = Vec::new();
    for i in 0..8 {
        let mut server = End::new(&simulation.device(0));
        let mut client = End::new(&simulation.device(i % 3));
        connect(&mut simulation, &mut server, &mut client);
        ends.push((server, client));
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let counters: Vec<Mr> = ends.iter().map(|(server, _)| server.pd.alloc_mr(64, access).unwrap()).collect();
    // Each server end registers the same memory in its own protection domain.
    let shared: Vec<Mr> = ends
        .iter()
        // SAFETY: this is the memory of the first region, which outlives these regions.
        .map(|(server, _)| unsafe { server.pd.reg_mr(counters[0].as_ptr(), 64, access) }.unwrap())
        .collect();
    const EACH: u64 = 40;
    let results: Vec<Mr> =
        ends.iter().map(|(_, c)| c.pd.alloc_mr(8 * EACH as usize, Access::LOCAL_WRITE).unwrap()).collect();
    for n in 0..EACH {
        for (i, (_, client)) in ends.iter().enumerate() {
            let op = SendOp::FetchAdd { addr: shared[i].addr(), rkey: shared[i].rkey(), add: 1 };
            client.post(n, op, &[Sge::of(&results[i], 8 * n, 8)]);
        }
    }
    for (_, client) in &ends {
        for n in 0..EACH {
            let wc = client.next(&mut simulation);
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
        }
    }
    assert_eq!(word(&counters[0], 0), 8 * EACH);
    let mut seen: Vec<u64> = results.iter().flat_map(|mr| (0..EACH).map(|n| word(mr, 8 * n))).collect();
    for mr in &results {
        // RDMAPX-13: one stream's Atomics are performed in order.
        assert!((1..EACH).all(|n| word(mr, 8 * n) > word(mr, 8 * (n - 1))));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..8 * EACH).collect::<Vec<_>>());
}

/// RDMAPX-9, 19, 25, 30: Reads, Writes and Atomics of one queue pair on one word, posted at once, more than ORD allows.
/// Even without fences, each operation sees the effects of all operations that were posted before it.
#[test]
fn reads_writes_and_atomics_in_order() {
    let mut s = scene();
    let (addr, rkey) = (s.words.addr(), s.words.rkey());
    set_word(&s.results, 4000, 1000);
    let sink = |at: u64| [Sge::of(&s.results, at, 8)];
    let add = SendOp::FetchAdd { addr, rkey, add: 1 };
    s.client.post(0, SendOp::Write { addr, rkey }, &sink(4000));
    for round in 0..20 {
        s.client.post(3 * round + 1, add, &sink(24 * round));
        s.client.post(3 * round + 2, SendOp::Read { addr, rkey }, &sink(24 * round + 8));
        s.client.post(3 * round + 3, add, &sink(24 * round + 16));
    }
    for wr_id in 0..61 {
        let wc = s.client.next(&mut s.simulation);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success)); // RDMAP-62
    }
    for round in 0..20 {
        let got = [0, 8, 16].map(|at| word(&s.results, 24 * round + at));
        let first = 1000 + 2 * round;
        assert_eq!(got, [first, first + 1, first + 1], "round {round}");
    }
}

/// A fence also waits for Atomics, so that a later Write can contain their results. RDMAPX-18.
#[test]
fn a_fence_waits_for_atomics() {
    let mut s = scene();
    let (addr, rkey) = (s.words.addr(), s.words.rkey());
    set_word(&s.words, 0, 7777);
    s.client.post(1, SendOp::FetchAdd { addr, rkey, add: 1 }, &[Sge::of(&s.results, 0, 8)]);
    let sges = [Sge::of(&s.results, 0, 8)];
    let op = SendOp::Write { addr: addr + 64, rkey };
    let flags = SendFlags::FENCE | SendFlags::SIGNALED;
    s.client.qp.post_send(&SendWr { wr_id: 2, op, sges: &sges, flags }).unwrap();
    s.client.post(3, SendOp::Read { addr, rkey }, &[]);
    for wr_id in 1..4 {
        let wc = s.client.next(&mut s.simulation);
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
    assert_eq!(word(&s.words, 64), 7777);
}

/// RDMAPX-21, 22, 24: the Write has been placed when its immediate data arrives. Each end gets one completion.
/// The receiver's is solicited if the sender asked for that. RDMAP-56.
#[test]
fn writes_with_immediate_data() {
    let mut s = scene();
    let (addr, rkey) = (s.words.addr(), s.words.rkey());
    let inbox = s.server.pd.alloc_mr(100, Access::LOCAL_WRITE).unwrap();
    s.results.write_at(0, &pattern(4096, 9)).unwrap();
    for (i, len) in [0, 1, 8, 1000, 4096].into_iter().enumerate() {
        for flags in [SendFlags::empty(), SendFlags::SOLICITED] {
            s.words.write_at(0, &[0; 4096]).unwrap();
            s.server.post_recv(10, &[Sge::of(&inbox, 0, 100)]);
            let imm = 0xDEAD_0000 + i as u32;
            let sges = [Sge::of(&s.results, 0, len)];
            let op = SendOp::WriteImm { addr, rkey, imm };
            let flags = flags | SendFlags::SIGNALED;
            s.client.qp.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags }).unwrap();
            let got = s.server.next(&mut s.simulation);
            assert_eq!((got.wr_id, got.status), (10, WcStatus::Success));
            assert_eq!((got.opcode, got.byte_len), (WcOpcode::RecvRdmaWithImm, len));
            assert_eq!((got.imm_data(), got.imm), (imm, u64::from(imm) << 32));
            let solicited = flags & SendFlags::SOLICITED;
            let expected = if solicited.is_empty() { WcFlags::empty() } else { WcFlags::SOLICITED };
            assert_eq!(got.flags, WcFlags::WITH_IMM | expected);
            assert_eq!(content(&s.words)[..len as usize], pattern(4096, 9)[..len as usize]);
            assert_eq!(content(&inbox), [0; 100], "the receive's own memory is not touched");
            let wc = s.client.next(&mut s.simulation);
            assert_eq!(
                (wc.wr_id, wc.status, wc.opcode, wc.byte_len),
                (1, WcStatus::Success, WcOpcode::Write, len)
            );
        }
    }
    assert_eq!((s.server.completions(), s.client.completions()), (vec![], vec![]));
}

/// Sends and immediate data take receives in the order of posting (RDMAPX-22). All are unsignalled and inline.
/// RDMAP-44, 84.
#[test]
fn sends_and_immediate_data_in_order() {
    let mut s = scene();
    let (addr, rkey) = (s.words.addr(), s.words.rkey());
    for i in 0..40 {
        s.server.post_recv(i, &[]);
    }
    for i in 0..40u32 {
        let op = if i % 3 == 0 { SendOp::Send } else { SendOp::WriteImm { addr, rkey, imm: i } };
        let wr = SendWr { wr_id: i.into(), op, sges: &[], flags: SendFlags::empty() };
        let bytes = [i as u8; 5];
        s.client.qp.post_send_inline(&wr, if i % 3 == 0 { &[] } else { &bytes }).unwrap();
    }
    for i in 0..40u32 {
        let wc = s.server.next(&mut s.simulation);
        assert_eq!((wc.wr_id, wc.status), (i.into(), WcStatus::Success));
        let imm = wc.flags.contains(WcFlags::WITH_IMM).then_some((wc.imm_data(), wc.byte_len));
        assert_eq!(imm, (i % 3 != 0).then_some((i, 5)));
    }
    assert_eq!(content(&s.words)[..5], [38; 5]);
    assert_eq!(s.client.completions(), []);
}

/// A request that cannot be posted is refused with a reason, and is not queued.
#[test]
fn what_cannot_be_posted() {
    let s = scene();
    let post = |op, sges: &[Sge], flags| s.client.qp.post_send(&SendWr { wr_id: 1, op, sges, flags });
    let add = SendOp::FetchAdd { addr: s.words.addr(), rkey: s.words.rkey(), add: 1 };
    let sge = |len| Sge::of(&s.results, 0, len);
    let plain = SendFlags::empty();
    assert_eq!(post(SendOp::SendImm(7), &[sge(8)], plain), Err(PostError::SendImm));
    assert!(PostError::SendImm.to_string().contains("iWARP has no Send with immediate data"));
    for sges in [&[][..], &[sge(7)], &[sge(9)], &[sge(0)]] {
        assert_eq!(post(add, sges, plain), Err(PostError::AtomicSink));
    }
    assert_eq!(post(add, &[sge(4), sge(4)], plain), Err(PostError::TooManySges));
    let read = SendOp::Read { addr: s.words.addr(), rkey: s.words.rkey() };
    assert_eq!(post(read, &[sge(4); 5], plain), Err(PostError::TooManySges), "the queue pair takes four");
    assert_eq!(post(add, &[sge(8)], SendFlags::INLINE), Err(PostError::InlineRead));
    assert_eq!(s.client.completions(), []);
}
