use super::*;
use crate::Frame;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{EthernetFrame, Ipv4Packet, TcpPacket, TcpRepr};

fn fields(options: &[u8]) -> TcpFields<'_> {
    TcpFields {
        dst_mac: [2, 0, 0, 0, 0, 2],
        key: Key::new(0x0a00_0002, 7471, 50_000),
        seq: Seq(0xfedc_ba98),
        ack: Seq(0x8765_4321),
        flags: flag::ACK | flag::PSH,
        ecn: 0,
        window: 0xfff0,
        options,
    }
}

/// Returns the headers of one segment.
fn write(header: &mut HeaderTemplate, t: &TcpFields<'_>, len: usize, sum: Option<u16>) -> Vec<u8> {
    let common = header.begin(t);
    header.finish(&common, t.own(), len, sum).to_vec()
}

/// smoltcp parses the headers that we write: checksums, ports, numbers, window and options agree.
#[test]
fn smoltcp_reads_our_headers() {
    let mut header = HeaderTemplate::new([2, 0, 0, 0, 0, 1], None, 0x0a00_0001);
    for len in [0usize, 1, 2, 99, 1448] {
        let data: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
        let mut options = Options::new();
        put_timestamps(&mut options, Timestamps { value: 7, echo: 8 });
        let codepoint = (len % 4) as u8;
        if len == 0 {
            put_sack(&mut options, &[Block::new(Seq(1), Seq(2)), Block::new(Seq(5), Seq(9))]);
        }
        let fields = TcpFields { ecn: codepoint, ..fields(&options) };
        let mut frame = write(&mut header, &fields, len, Some(sum::sum(&data)));
        frame.extend_from_slice(&data);
        let ethernet = EthernetFrame::new_checked(&frame[..]).unwrap();
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!(ip.verify_checksum() && ip.dont_frag());
        let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
        let (src, dst) = (ip.src_addr().into(), ip.dst_addr().into());
        let repr = TcpRepr::parse(&tcp, &src, &dst, &ChecksumCapabilities::default()).unwrap();
        assert_eq!((repr.src_port, repr.dst_port), (50_000, 7471));
        assert_eq!(repr.seq_number.0 as u32, 0xfedc_ba98);
        assert_eq!(repr.ack_number.unwrap().0 as u32, 0x8765_4321);
        assert_eq!(repr.window_len, 0xfff0);
        assert_eq!(repr.payload, data);
        assert_eq!(repr.timestamp.map(|t| (t.tsval, t.tsecr)), Some((7, 8)));
        if len == 0 {
            assert_eq!(repr.sack_ranges[..2], [Some((1, 2)), Some((5, 9))]);
        }
        // Our own parser reads it as well.
        let parsed = parse_ipv4(&frame, ETHERNET).unwrap();
        let mut s = Segment { ecn: parsed.ecn, ..Segment::default() };
        parse_tcp(&frame, &parsed.payload, |n| parsed.pseudo_sum(n), &mut s).unwrap();
        assert_eq!((s.seq, s.ack, s.window), (Seq(0xfedc_ba98), Seq(0x8765_4321), 0xfff0));
        assert_eq!(frame.bytes()[s.payload.clone()], data[..]);
        assert_eq!((s.timestamps, s.ecn), (Some(Timestamps { value: 7, echo: 8 }), codepoint));
    }
}

/// With offload, the field holds the sum of the pseudo-header, which the port completes.
#[test]
fn offloaded_checksum_can_be_completed() {
    let mut header = HeaderTemplate::new([2, 0, 0, 0, 0, 1], None, 0x0a00_0001);
    let data = [9u8; 33];
    let whole = write(&mut header, &fields(&[]), 33, Some(sum::sum(&data)));
    let mut partial = write(&mut header, &fields(&[]), 33, None);
    let rest = sum::combine(sum::sum(&partial[34..54]), 20, sum::sum(&data));
    partial[50..52].copy_from_slice(&(!rest).to_be_bytes());
    assert_eq!(partial, whole);
}

#[test]
fn options_of_a_syn() {
    let syn = SynOptions { mss: Some(1460), window_scale: Some(7), sack_permitted: true, ecn: false };
    let mut options = Options::new();
    put_syn(&mut options, syn, Some(Timestamps { value: 1, echo: 0 }));
    assert_eq!(options.len() % 4, 0);
    let mut s = Segment::default();
    parse_options(&options, &mut s);
    assert_eq!(s.syn, syn);
    assert_eq!(s.timestamps, Some(Timestamps { value: 1, echo: 0 }));
}

/// Unknown options are skipped. An option with a malformed length ends the list, so nothing after it is read
/// (RFC 9293 §3.1, MUST-6, MUST-7).
#[test]
fn odd_options() {
    for (bytes, mss) in [
        (&[2u8, 4, 5, 180, 0, 9, 9, 9][..], Some(1460)),
        (&[1, 1, 2, 4, 5, 180], Some(1460)),
        (&[200, 6, 1, 2, 3, 4, 2, 4, 5, 180], Some(1460)),
        (&[2, 3, 5], None),
        (&[2, 4, 5], None),
        (&[2], None),
        (&[2, 0, 5, 180], None),
        (&[99, 1, 2, 4, 5, 180], None),
        (&[0, 2, 4, 5, 180], None),
    ] {
        let mut s = Segment::default();
        parse_options(bytes, &mut s);
        assert_eq!(s.syn.mss, mss, "{bytes:?}");
    }
    let mut s = Segment::default();
    parse_options(&[3, 3, 200, 5, 9, 1, 1, 1, 1, 1, 1, 1], &mut s);
    assert_eq!(s.syn.window_scale, Some(14), "RFC 7323 §2.3");
    assert!(s.sack.is_empty());
}
