use super::*;

#[test]
fn info_is_big_endian() {
    let info = Info { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314, size: 0x2122_2324 };
    let bytes = info.encode();
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24]);
    assert_eq!(Info::decode(&bytes), info);
}

fn made(number: u64, size: usize) -> Vec<u8> {
    let mut buffer = Vec::new();
    ping(number, size, &mut buffer);
    buffer
}

/// The texts that rping's client prints with `-v`.
#[test]
fn pings_are_those_of_rping() {
    assert_eq!(made(0, 64), *b"rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\0");
    assert_eq!(made(1, 26), *b"rdma-ping-1: BCDEFGHIJKLM\0");
    assert_eq!(made(57, 20), *b"rdma-ping-57: zABCD\0");
    assert_eq!(made(58, 20), *b"rdma-ping-58: ABCDE\0");
    assert_eq!(made(2_000_000_000, PING_SIZES.0 as usize).len(), PING_SIZES.0 as usize);
}

#[test]
fn text_ends_at_the_first_zero() {
    assert_eq!(text(b"abc\0def\0"), b"abc");
    assert_eq!(text(b"abc"), b"abc");
    assert_eq!(text(b""), b"");
}
