//! Which part of a frame is copied.

use super::*;

/// Returns the start of a frame, and the virtio header of one whose checksum is left to the link.
fn tcp(v6: bool, tag: bool, options: usize) -> (Vec<u8>, [u8; HEADER]) {
    let mut frame = vec![2; 12];
    if tag {
        frame.extend([0x81, 0, 0, 5]);
    }
    frame.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    if v6 {
        frame.extend([0x60, 0, 0, 0, 4, 0, TCP, 64]);
        frame.extend([0xfd; 32]);
    } else {
        frame.extend([0x45, 0, 4, 0, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        frame.extend([10; 8]);
    }
    let mut header = [0; HEADER];
    header[0] = 1;
    header[6..8].copy_from_slice(&(frame.len() as u16).to_le_bytes());
    header[8..10].copy_from_slice(&CHECKSUM.to_le_bytes());
    frame.extend([7; 12]);
    frame.push((((20 + options) / 4) << 4) as u8);
    frame.extend(vec![1; 7 + options]);
    (frame, header)
}

#[test]
fn headers_of_tcp_are_found() {
    for (v6, tag, options) in [(false, false, 0), (false, true, 12), (true, false, 40), (true, true, 40)] {
        let (mut frame, header) = tcp(v6, tag, options);
        let len = frame.len();
        assert!(len + SHORT <= START);
        assert_eq!(headers(&header, &frame), Some(len));
        frame.extend([0; 100]);
        assert_eq!(headers(&header, &frame), Some(len));
        assert_eq!(headers(&header, &frame[..len - 1]), None, "the headers are cut off");
    }
}

/// What the sender says of its checksum must fit TCP, or the frame is checked like any other.
#[test]
fn other_frames_are_copied() {
    let (frame, header) = tcp(false, false, 0);
    for (at, value) in [(0, 0), (0, 2), (6, 33), (7, 1), (8, 6), (9, 1)] {
        let mut other = header;
        other[at] = value;
        assert_eq!(headers(&other, &frame), None, "virtio header, byte {at}: {value}");
    }
    // A fragment, UDP, a short header of TCP, another EtherType.
    for (at, value) in [(20, 0x20), (21, 1), (23, 17), (46, 0x40), (12, 0x09)] {
        let mut other = frame.clone();
        other[at] = value;
        assert_eq!(headers(&header, &other), None, "frame, byte {at}: {value}");
    }
    assert_eq!(headers(&header, &[]), None);
}

#[test]
fn short_pieces_beside_the_headers_are_copied() {
    let octets = vec![0_u8; 4000];
    let piece = |start: usize, end: usize| Piece { at: octets[start..end].as_ptr(), len: end - start };
    let cut = |pieces: &[Piece], n| {
        let mut rest = pieces.iter().copied().collect();
        super::cut(&mut rest, n);
        rest
    };
    let lens = |pieces: &[Piece]| pieces.iter().map(|piece| piece.len).collect::<Vec<_>>();
    // One piece: all payload stays together.
    let one = [piece(0, 3000)];
    assert_eq!((head(&one, 66), lens(&cut(&one, 66))), (66, vec![2934]));
    assert_eq!(cut(&one, 66)[0].at, octets[66..].as_ptr());
    // The headers of an FPDU after those of TCP, then its payload and its CRC.
    let lent = [piece(0, 82), piece(100, 2100), piece(3000, 3004)];
    assert_eq!((head(&lent, 66), lens(&cut(&lent, 82))), (82, vec![2000, 4]));
    // Headers that end with a piece, or go on in the next one.
    assert_eq!((head(&lent, 82), lens(&cut(&lent, 82))), (82, vec![2000, 4]));
    assert_eq!((head(&lent, 90), lens(&cut(&lent, 90))), (90, vec![1992, 4]));
    let long = [piece(0, 66 + SHORT + 1), piece(1000, 2000)];
    assert_eq!(head(&long, 66), 66);
    // IPv4 and TCP with all their options: what follows is copied only as far as it was copied to be looked at.
    let options = ETHERNET + 60 + 60;
    let long = [piece(0, options + SHORT), piece(1000, 2000)];
    assert_eq!(
        (head(&long, options), lens(&cut(&long, START))),
        (START, vec![options + SHORT - START, 1000])
    );
    assert_eq!(lens(&cut(&lent, 2086)), Vec::<usize>::new());
    assert_eq!(lens(&cut(&lent, 0)), [82, 2000, 4]);
}
