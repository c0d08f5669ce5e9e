//! The messages of rping, and the contents of its buffers.

use crate::args::PING_SIZES;

/// Bytes of a request or go-ahead.
pub const INFO_LEN: usize = 16;
/// The largest ping, in bytes.
pub const MAX_SIZE: u32 = PING_SIZES.1;

/// The location of a buffer. On the wire: address, key, size, each big-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    pub addr: u64,
    pub rkey: u32,
    pub size: u32,
}

impl Info {
    pub fn encode(self) -> [u8; INFO_LEN] {
        let mut bytes = [0; INFO_LEN];
        let (addr, rest) = bytes.split_at_mut(8);
        let (rkey, size) = rest.split_at_mut(4);
        addr.copy_from_slice(&self.addr.to_be_bytes());
        rkey.copy_from_slice(&self.rkey.to_be_bytes());
        size.copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; INFO_LEN]) -> Self {
        let &[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            addr: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            rkey: u32::from_be_bytes([i, j, k, l]),
            size: u32::from_be_bytes([m, n, o, p]),
        }
    }
}

/// Makes the text of ping `number` in `buffer`: `rdma-ping-NUMBER: `, then the characters from `A` to `z`, over and
/// over, and a final zero byte. The first of these characters moves on by one with every ping.
pub fn ping(number: u64, size: usize, buffer: &mut Vec<u8>) {
    const SPAN: u64 = (b'z' - b'A' + 1) as u64;
    buffer.clear();
    buffer.extend_from_slice(format!("rdma-ping-{number}: ").as_bytes());
    buffer.truncate(size.saturating_sub(1));
    let rest = size.saturating_sub(1).saturating_sub(buffer.len());
    buffer.extend((0..rest as u64).map(|i| b'A' + ((number % SPAN + i) % SPAN) as u8));
    buffer.push(0);
}

/// Returns the text at the start of a buffer, up to its first zero byte.
pub fn text(buffer: &[u8]) -> &[u8] {
    buffer.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
