use super::*;

/// RFC 3720 B.4 and the usual check string (register value e3069283).
#[test]
fn known_answers() {
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    let cases: [(&[u8], [u8; 4]); 5] = [
        (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&up, [0x4e, 0x79, 0xdd, 0x46]),
        (&down, [0x5c, 0xdb, 0x3f, 0x11]),
        (b"123456789", [0x83, 0x92, 0x06, 0xe3]),
    ];
    for (data, wire) in cases {
        assert_eq!(finish(crc32c(INIT, data)).to_le_bytes(), wire, "{data:02x?}");
    }
}
