use super::*;

/// Returns a frame with a segment of `len` octets, and two octets of padding after the packet.
fn frame(protocol: u8, len: usize) -> Vec<u8> {
    let mut f = vec![0x5a; ETHERNET + 20 + len + 2];
    f[12..14].copy_from_slice(&[0x08, 0x00]);
    let total = (20 + len) as u16;
    f[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f[16..18].copy_from_slice(&total.to_be_bytes());
    f
}

/// Returns whether the receiver's check succeeds: the sum of the segment and the pseudo-header is all ones.
fn is_right(f: &[u8], len: usize) -> bool {
    let all = sum(&f[26..34]) + u64::from(f[23]) + len as u64 + sum(&f[34..34 + len]);
    fold(all) == 0xffff
}

#[test]
fn fills_tcp_and_udp() {
    for (protocol, field) in [(TCP, 16), (UDP, 6)] {
        for len in [20, 21, 60, 1461] {
            let mut f = frame(protocol, len);
            let before = f.clone();
            assert!(!is_right(&f, len));
            fill_checksum(&mut f);
            assert!(is_right(&f, len), "{protocol} {len}");
            let changed: Vec<usize> = (0..f.len()).filter(|&i| f[i] != before[i]).collect();
            assert!(changed.iter().all(|&i| (34 + field..36 + field).contains(&i)), "{changed:?}");
            let filled = f.clone();
            fill_checksum(&mut f);
            assert_eq!(f, filled, "a right one stays");
        }
    }
}

/// The checksum equals one computed by hand as RFC 1071 describes, so it is right, not only self-consistent.
#[test]
fn agrees_with_a_known_packet() {
    let mut f = frame(UDP, 8);
    f[34..42].copy_from_slice(&[0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0]);
    fill_checksum(&mut f);
    // 0a00 + 0001 + 0a00 + 0002 + 0011 + 0008 + 1234 + 5678 + 0008 = 7cd0
    assert_eq!(f[40..42], (!0x7cd0u16).to_be_bytes());
}

#[test]
fn leaves_everything_else_alone() {
    let unchanged = |mut f: Vec<u8>, what: &str| {
        let before = f.clone();
        fill_checksum(&mut f);
        assert_eq!(f, before, "{what}");
    };
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut f = frame(TCP, 40);
        change(&mut f);
        f
    };
    unchanged(changed(|f| f[12] = 0x86), "another EtherType");
    unchanged(changed(|f| f[14] = 0x65), "another version");
    unchanged(changed(|f| f[14] = 0x44), "a header too short");
    unchanged(changed(|f| f[14] = 0x4f), "options where the segment should be");
    unchanged(changed(|f| f[20] = 0x20), "the first fragment");
    unchanged(changed(|f| f[21] = 0x01), "another fragment");
    unchanged(changed(|f| f[23] = 1), "ICMP");
    unchanged(changed(|f| f[16] = 0xff), "longer than the frame");
    for n in 0..ETHERNET + 20 + 18 {
        unchanged(changed(|_| ())[..n].to_vec(), "cut short");
    }
}

/// IPv6, and either family behind a VLAN tag.
#[test]
fn fills_ipv6_and_tagged_frames() {
    let mut v6 = vec![0x5a; ETHERNET + 40 + 77];
    v6[12..14].copy_from_slice(&[0x86, 0xdd]);
    v6[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 77, TCP, 64]);
    let mut tagged = v6.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    for (mut f, ip) in [(v6, 14), (tagged, 18)] {
        fill_checksum(&mut f);
        let all = sum(&f[ip + 8..ip + 40]) + u64::from(TCP) + 77 + sum(&f[ip + 40..]);
        assert_eq!(fold(all), 0xffff);
    }
    let mut v4 = frame(TCP, 60);
    let mut tagged = v4.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    fill_checksum(&mut v4);
    fill_checksum(&mut tagged);
    assert_eq!((&v4[14..], &v4[..12]), (&tagged[18..], &tagged[..12]));
    // Extension headers are left alone.
    let mut extended = vec![0; ETHERNET + 48];
    extended[12..14].copy_from_slice(&[0x86, 0xdd]);
    extended[14..22].copy_from_slice(&[0x60, 0, 0, 0, 0, 8, 0, 64]);
    let before = extended.clone();
    fill_checksum(&mut extended);
    assert_eq!(extended, before);
}
