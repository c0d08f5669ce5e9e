//! Paths that carry smaller packets than the links at their ends, and routers that report this limit.

use urnic_tcp::sum;

/// The path between the hosts.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Largest packet that gets through, in octets.
    pub mtu: usize,
    /// Whether the router tells the sender of a packet that it is too large. If not, it drops the packet silently.
    pub tells: bool,
}

impl Path {
    /// A path that carries every packet.
    pub const OPEN: Path = Path { mtu: usize::MAX, tells: true };
}

/// Returns a router's report to the sender of a packet that is too large to forward (RFC 1191 §4, RFC 4443
/// §3.2); `None` if the frame has no IP packet.
pub fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let [m0, m1] = (mtu as u16).to_be_bytes();
    let mut reply = [frame.get(6..12)?, frame.get(..6)?, frame.get(12..14)?].concat();
    let quoted = frame.get(14..)?;
    match (&frame[12..14], quoted.first()? >> 4) {
        ([8, 0], 4) => {
            let mut message = vec![3, 4, 0, 0, 0, 0, m0, m1];
            message.extend(quoted.iter().take(28));
            let checksum = sum::checksum(sum::sum(&message));
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            let mut ip = vec![0x45, 0, 0, (20 + message.len()) as u8, 0, 0, 0, 0, 64, 1, 0, 0];
            ip.extend(quoted.get(16..20)?);
            ip.extend(quoted.get(12..16)?);
            let checksum = sum::checksum(sum::sum(&ip));
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            reply.extend(ip);
            reply.extend(message);
        }
        ([0x86, 0xdd], 6) => {
            let mut message = vec![2, 0, 0, 0, 0, 0, m0, m1];
            message.extend(quoted.iter().take(60));
            let addresses = [quoted.get(24..40)?, quoted.get(8..24)?].concat();
            let pseudo = [&addresses[..], &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]].concat();
            let checksum = !sum::add(sum::sum(&pseudo), sum::sum(&message));
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            reply.extend([0x60, 0, 0, 0, 0, message.len() as u8, 58, 64]);
            reply.extend(addresses);
            reply.extend(message);
        }
        _ => return None,
    }
    Some(reply)
}
