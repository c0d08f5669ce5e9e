//! FPDUs of a whole RNIC, as its peer sees them on the wire, with markers and without.

mod common;

use common::raw::{Raw, finished, raw_connection, until, with_path, with_raw};
use common::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{MpaChange, Options, Simulation};
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::ConnId;

const MARKERS: MpaChange = |mpa| mpa.markers = true;

/// One FPDU of a stream.
struct Fpdu {
    /// Offset in the stream at which the FPDU begins, including its leading marker.
    start: usize,
    /// Offset in the stream at which the FPDU ends.
    end: usize,
    ulpdu: Vec<u8>,
}

/// Parses a stream by counting, and checks every marker and CRC.
fn parse(stream: &[u8], markers: bool, crc: bool) -> Vec<Fpdu> {
    let mut fpdus = Vec::new();
    let mut start = 0;
    while start < stream.len() {
        let mut at = start;
        let length_at = if markers && start % 512 == 0 { start + 4 } else { start };
        let mut take = |n: usize| -> Vec<u8> {
            let mut taken = Vec::new();
            while taken.len() < n {
                if markers && at % 512 == 0 {
                    let pointer = at.saturating_sub(length_at) as u32;
                    assert_eq!(stream[at..at + 4], pointer.to_be_bytes(), "marker at {at}");
                    at += 4;
                }
                taken.push(stream[at]);
                at += 1;
            }
            taken
        };
        let len = usize::from(u16::from_be_bytes(take(2).try_into().unwrap()));
        let ulpdu = take(len);
        let pad = take((2 + len).next_multiple_of(4) - 2 - len);
        assert!(pad.iter().all(|octet| *octet == 0));
        let field = take(4);
        let covered = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &stream[start..at - 4]));
        assert_eq!(field, if crc { covered } else { 0 }.to_le_bytes(), "CRC of the FPDU at {start}");
        fpdus.push(Fpdu { start, end: at, ulpdu });
        start = at;
    }
    fpdus
}

/// Connects the raw node to the device, and sends a zero-length Write. Returns the connection and the length of the
/// Reply.
fn open(
    simulation: &mut Simulation,
    end: &End,
    raw: &Rc<RefCell<Raw>>,
    offer: &Offer<'_>,
) -> (ConnId, usize) {
    let _listener = end.events.listen(PORT, 2).unwrap();
    let conn = raw_connection(simulation, raw);
    raw.borrow_mut().send(conn, &Initiator::new(offer).unwrap().1);
    let CmEvent::ConnectRequest(request) = end.event(simulation) else { panic!("no request") };
    request.accept(&end.qp, &ConnParam::default()).unwrap();
    let CmEvent::Established { terms, .. } = end.event(simulation) else { panic!("not established") };
    assert_eq!(terms.tx_markers, offer.markers);
    until(simulation, "the Reply", || raw.borrow().heard(conn).len() >= 24);
    assert_eq!(raw.borrow().heard(conn)[16] & 0x80 != 0, terms.rx_markers);
    let ulpdu = [&[0xC1, 0x40, 0, 0, 0, 1][..], &[0; 8]].concat();
    raw.borrow_mut().send(conn, &fpdu(&ulpdu, terms.rx_markers));
    (conn, 24)
}

/// Makes the first FPDU of a direction, with its leading marker if `marker`.
fn fpdu(ulpdu: &[u8], marker: bool) -> Vec<u8> {
    let mut octets = if marker { vec![0; 4] } else { Vec::new() };
    octets.extend((ulpdu.len() as u16).to_be_bytes());
    octets.extend(ulpdu);
    octets.resize(octets.len().next_multiple_of(4), 0);
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &octets));
    octets.extend(crc.to_le_bytes());
    octets
}

/// MPA-3, 4, 7, 13, 20, 24, 35, 38, 40, 42, 43: a long Send on the wire, for several segment sizes, with and
/// without markers. Every ULPDU but the last is as large as the MULPDU of that size, every segment begins with
/// an FPDU, markers are where they must be, and the parts make up the message. The first FPDU directly follows
/// the Reply (MPA-49).
#[test]
fn a_long_message_on_the_wire() {
    for mtu in [576, 1500, 9000] {
        for (markers, crc) in [(false, true), (true, true), (true, false)] {
            let (mut simulation, end, raw) = with_raw(&Options { mtu, crc, ..options() });
            let (conn, skip) = open(&mut simulation, &end, &raw, &Offer { markers, crc, ..Offer::default() });
            let len = 100_000;
            let source = end.pd.alloc_mr(len, Access::empty()).unwrap();
            source.write_at(0, &pattern(len, 1)).unwrap();
            end.post(1, SendOp::Send, &[Sge::of(&source, 0, len as u32)]);
            end.post(2, SendOp::Send, &[]);
            assert_eq!((end.next(&mut simulation).wr_id, end.next(&mut simulation).wr_id), (1, 2));
            pass(&mut simulation, Duration::from_secs(1));
            let stream = raw.borrow().heard(conn)[skip..].to_vec();
            let fpdus = parse(&stream, markers, crc);

            let pieces = raw.borrow().seen.pieces[&conn][1..].to_vec();
            let emss = *pieces.iter().max().unwrap();
            let room = usize::from(mtu) - 40;
            assert!(emss <= room && emss + 40 > room, "{emss} octets in a segment, MTU {mtu}");
            let emss = room - 12 * usize::from(emss <= room - 12); // timestamps
            let mulpdu = urnic_iwarp::mulpdu(emss, markers);
            let (last, others) = fpdus[..fpdus.len() - 1].split_last().unwrap();
            assert!(others.iter().all(|f| f.ulpdu.len() == mulpdu), "MTU {mtu}, markers {markers}");
            assert!(last.ulpdu.len() <= mulpdu);

            let starts: Vec<usize> = fpdus.iter().map(|f| f.start).collect();
            let mut at = 0;
            for piece in pieces {
                assert!(starts.contains(&at), "a segment begins at {at}, inside an FPDU");
                at += piece;
            }
            assert_eq!(at, fpdus.last().unwrap().end);

            let mut message = Vec::new();
            for Fpdu { ulpdu, .. } in &fpdus[..fpdus.len() - 1] {
                assert_eq!(ulpdu[14..18], (message.len() as u32).to_be_bytes(), "MO");
                message.extend_from_slice(&ulpdu[18..]);
            }
            assert!(message == pattern(len, 1));
            assert_eq!(fpdus.last().unwrap().ulpdu.len(), 18);
        }
    }
}

/// MPA-43: small FPDUs fill segments, whether they have one size or not, and no segment splits an FPDU. Two FPDUs of
/// the first size fill a segment exactly.
#[test]
fn small_messages_fill_segments() {
    const EMSS: usize = 1500 - 40 - 12;
    for lens in [[EMSS / 2 - 24; 3], [64; 3], [64, 700, 300]] {
        let (mut simulation, end, raw) = with_raw(&options());
        let (conn, skip) = open(&mut simulation, &end, &raw, &Offer::default());
        let source = end.pd.alloc_mr(EMSS, Access::empty()).unwrap();
        for (i, len) in lens.into_iter().cycle().take(30).enumerate() {
            end.post(i as u64, SendOp::Send, &[Sge::of(&source, 0, len as u32)]);
        }
        (0..30).for_each(|i| assert_eq!(end.next(&mut simulation).wr_id, i));
        pass(&mut simulation, Duration::from_secs(1));
        let stream = raw.borrow().heard(conn)[skip..].to_vec();
        let fpdus = parse(&stream, false, true);
        assert_eq!(fpdus.len(), 30);
        let pieces = raw.borrow().seen.pieces[&conn][1..].to_vec();
        let (mut at, mut short) = (0, 0);
        for piece in pieces {
            let Some(next) = fpdus.iter().find(|fpdu| fpdu.start >= at + piece) else { break };
            assert_eq!(next.start, at + piece, "{lens:?}: a segment splits an FPDU");
            short += usize::from(piece + next.end - next.start <= EMSS);
            at += piece;
        }
        assert!(short <= 1, "{lens:?}: {short} segments had room for more");
    }
}

/// RFC 5044 §5.1, RFC 1191, RFC 4821: from the middle of a long Write on, the path carries only smaller packets. A
/// router reports this, or large packets vanish without a report. The FPDUs adapt: after the FPDUs that were already
/// formed, all are as large as the MULPDU of the new segment size, and segments begin with FPDUs again. Every octet
/// arrives.
#[test]
fn fpdus_follow_the_path_mtu() {
    for (mtu, later, tells, found) in [
        (1500, 1000, true, 1000),
        (9000, 3000, true, 3000),
        (1500, 1300, false, 1280),
        (9000, 2000, false, 1500),
    ] {
        for markers in [false, true] {
            let network = "delay=50us,seed=1".parse().unwrap();
            let (mut simulation, end, raw, path) = with_path(&Options { mtu, network, ..options() }, tells);
            let (conn, skip) =
                open(&mut simulation, &end, &raw, &Offer { markers, crc: true, ..Offer::default() });
            let len = 3_000_000;
            let source = end.pd.alloc_mr(len, Access::empty()).unwrap();
            source.write_at(0, &pattern(len, 3)).unwrap();
            end.post(1, SendOp::Write { addr: 0x5000, rkey: 7 }, &[Sge::of(&source, 0, len as u32)]);
            until(&mut simulation, "some of it", || raw.borrow().heard(conn).len() > 200_000);
            path.mtu.set(later);
            assert_eq!(end.next(&mut simulation).status, WcStatus::Success);
            until(&mut simulation, "all of it", || {
                let octets = raw.borrow().seen.data[&conn].len();
                octets > len && raw.borrow().seen.pieces[&conn].iter().sum::<usize>() == octets
            });
            pass(&mut simulation, Duration::from_secs(200));
            assert!(path.refused.get() > 0, "nothing was too large");

            let stream = raw.borrow().heard(conn)[skip..].to_vec();
            let fpdus = parse(&stream, markers, true);
            let mulpdu = |packet: u16| urnic_iwarp::mulpdu(usize::from(packet) - 52, markers);
            let what = format!("from {mtu} to {later}, markers {markers}");
            assert!(fpdus[..50].iter().all(|f| f.ulpdu.len() == mulpdu(mtu)), "{what}: at first");
            let late = fpdus.iter().position(|f| f.start > 1_500_000).unwrap();
            let (_, late) = fpdus[late..].split_last().unwrap();
            let seen = late[0].ulpdu.len();
            assert!(late.iter().all(|f| f.ulpdu.len() == mulpdu(found)), "{what}: later, {seen}");
            // Each of the later segments begins with an FPDU.
            let (mut at, mut largest) = (0, 0);
            for &piece in &raw.borrow().seen.pieces[&conn][1..] {
                if at > late[0].start {
                    assert!(
                        fpdus.binary_search_by_key(&at, |f| f.start).is_ok(),
                        "{what}: a segment at {at}"
                    );
                    largest = largest.max(piece);
                }
                at += piece;
            }
            assert!(largest <= usize::from(found) - 52, "{what}: {largest} octets in a segment");

            let mut written = Vec::new();
            for Fpdu { ulpdu, .. } in &fpdus {
                assert_eq!(ulpdu[6..14], (0x5000 + written.len() as u64).to_be_bytes(), "TO");
                written.extend_from_slice(&ulpdu[14..]);
            }
            assert!(written == pattern(len, 3), "{what}");
        }
    }
}

/// Posts every operation at `from`, with payloads of several lengths, and checks the effect at both ends. The regions
/// have the same length and all rights.
fn operations(simulation: &mut Simulation, (from, here): (&End, &Mr), (to, there): (&End, &Mr)) {
    let whole = here.len() as usize;
    let clear = |mr: &Mr| mr.write_at(0, &vec![0; whole]).unwrap();
    let (addr, rkey) = (there.addr(), there.rkey());
    let mut done = |op, sges: &[Sge]| {
        from.post(1, op, sges);
        let wc = from.next(simulation);
        assert_eq!((wc.wr_id, wc.status), (1, WcStatus::Success), "{op:?}");
    };
    for (n, seed) in [(0, 1), (1, 2), (500, 3), (3000, 4), (whole, 5)] {
        let text = pattern(n, seed);
        let sges = [Sge::of(here, 0, n as u32)];
        here.write_at(0, &text).unwrap();
        clear(there);
        done(SendOp::Write { addr, rkey }, &sges);
        clear(here);
        done(SendOp::Read { addr, rkey }, &sges);
        assert!(
            content(here)[..n] == text && content(there)[..n] == text,
            "a Write and a Read of {n} octets"
        );
    }
    let word = there.addr() + 8;
    there.write_at(8, &5u64.to_ne_bytes()).unwrap();
    let result = [Sge::of(here, 16, 8)];
    done(SendOp::FetchAdd { addr: word, rkey, add: 2 }, &result);
    done(SendOp::CmpSwap { addr: word, rkey, compare: 7, swap: 9 }, &result);
    assert_eq!(content(here)[16..24], 7u64.to_ne_bytes());
    assert_eq!(content(there)[8..16], 9u64.to_ne_bytes());
    for (n, seed) in [(0, 6), (1, 7), (500, 8), (3000, 9), (whole, 10)] {
        let text = pattern(n, seed);
        here.write_at(0, &text).unwrap();
        let lent = to.pd.alloc_mr(8, Access::REMOTE_READ | Access::REMOTE_INVALIDATE).unwrap();
        for op in [SendOp::Send, SendOp::SendInv(lent.rkey()), SendOp::WriteImm { addr, rkey, imm: 3 }] {
            clear(there);
            to.post_recv(2, &[Sge::of(there, 0, whole as u32)]);
            from.post(1, op, &[Sge::of(here, 0, n as u32)]);
            let wc = to.next(simulation);
            assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (2, WcStatus::Success, n), "{op:?}");
            assert_eq!(wc.opcode == WcOpcode::RecvRdmaWithImm, matches!(op, SendOp::WriteImm { .. }));
            assert_eq!(wc.invalidated_rkey != 0, matches!(op, SendOp::SendInv(_)));
            assert!(content(there)[..n] == text, "{op:?} of {n} octets");
            assert_eq!(from.next(simulation).status, WcStatus::Success);
        }
    }
}

/// MPA-19, 27, 32, 54: markers in one direction, in both directions, or in none. Every operation has the same
/// effect in all cases.
#[test]
fn operations_with_markers_in_either_direction() {
    for asks in [&[][..], &[0], &[1], &[0, 1]] {
        for rtr in [RtrChoice::Off, RtrChoice::Send] {
            let exceptions = asks.iter().map(|device| (*device, MARKERS)).collect();
            let mut simulation = Simulation::new(&Options { exceptions, rtr, ..options() }).unwrap();
            let mut server = End::new(&simulation.device(0));
            let mut client = End::new(&simulation.device(1));
            let _listener = server.events.listen(PORT, 1).unwrap();
            client.connection = Some(client.events.connect(&client.qp, address(0), &strict()).unwrap());
            let CmEvent::ConnectRequest(request) = server.event(&mut simulation) else {
                panic!("no request")
            };
            server.connection = Some(request.accept(&server.qp, &strict()).unwrap());
            for (device, end) in [&server, &client].into_iter().enumerate() {
                let CmEvent::Established { terms, .. } = end.event(&mut simulation) else {
                    panic!("refused")
                };
                let expected = (asks.contains(&device), asks.contains(&(1 - device)));
                assert_eq!((terms.rx_markers, terms.tx_markers), expected, "device {device}");
            }
            let len = 70_000;
            let all = Access::all() - Access::ZERO_BASED;
            let [there, here] = [&server, &client].map(|end| end.pd.alloc_mr(len, all).unwrap());
            // The client begins, because the server must not send before it (MPA-70).
            for (from, to, here, there) in
                [(&client, &server, &here, &there), (&server, &client, &there, &here)]
            {
                operations(&mut simulation, (from, here), (to, there));
            }
            // A Terminate passes too.
            client.post(3, SendOp::Write { addr: 0, rkey: 5 }, &[Sge::of(&here, 0, 1)]);
            assert_eq!(server.end(&mut simulation), DisconnectReason::TerminateSent);
            assert_eq!(client.end(&mut simulation), DisconnectReason::TerminateReceived);
            let info = client.qp.terminate().unwrap();
            assert_eq!((info.layer, info.etype, info.code), (1, 1, 0));
        }
    }
}

/// ERR-2, MPA-79, 80, 83: if a marker points to a wrong offset in an FPDU whose CRC is good, the RNIC sends a Terminate
/// 20 03, then a FIN.
#[test]
fn a_wrong_marker_is_answered_by_a_terminate() {
    let (mut simulation, end, raw) = with_raw(&Options { markers: true, ..options() });
    let (conn, skip) = open(&mut simulation, &end, &raw, &Offer::default());
    end.post_recv(1, &[]);
    // 24 octets have been sent, so the next marker is 488 octets away, in an FPDU of 496.
    let ulpdu = [&[0x41, 0x43][..], &[0; 4], &[0; 4], &[0, 0, 0, 1], &[0; 4], &vec![0; 472]].concat();
    let mut octets = [&490u16.to_be_bytes()[..], &ulpdu].concat();
    octets.splice(488..488, [0, 0, 1, 0xEC]);
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &octets));
    octets.extend(crc.to_le_bytes());
    raw.borrow_mut().send(conn, &octets);
    assert_eq!(end.end(&mut simulation), DisconnectReason::TerminateSent);
    let info = end.qp.terminate().unwrap();
    assert_eq!((info.layer, info.etype, info.code), (2, 0, 3));
    until(&mut simulation, "FIN", || finished(&raw, conn));
    let stream = raw.borrow().heard(conn)[skip..].to_vec();
    let said = parse(&stream, false, true);
    assert_eq!((said.len(), &said[0].ulpdu[18..22]), (1, &[0x20, 3, 0, 0][..]));
    assert_eq!(end.next(&mut simulation).status, WcStatus::Flushed);
}

/// MPA-30, 33: CRCs are checked as long as the connection lasts, because the device wants them, although the peer does
/// not.
#[test]
fn a_bad_crc_late_in_a_connection() {
    let (mut simulation, end, raw) = with_raw(&options());
    let (conn, _) = open(&mut simulation, &end, &raw, &Offer { crc: false, ..Offer::default() });
    let write = fpdu(&[&[0xC1, 0x40, 0, 0, 0, 1][..], &[0; 8]].concat(), false);
    for _ in 0..200 {
        raw.borrow_mut().send(conn, &write.repeat(100));
        pass(&mut simulation, Duration::from_millis(10));
    }
    assert_eq!(end.qp.state(), QpState::Rts);
    let mut bad = write;
    *bad.last_mut().unwrap() ^= 0x80;
    raw.borrow_mut().send(conn, &bad);
    assert_eq!(end.end(&mut simulation), DisconnectReason::TerminateSent);
    assert_eq!(end.qp.terminate().map(|info| info.code), Some(2));
}

fn pass(simulation: &mut Simulation, time: Duration) {
    let limit = simulation.now() + time;
    simulation.run(limit, || false);
}
