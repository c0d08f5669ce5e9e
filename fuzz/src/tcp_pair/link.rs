//! Frames in flight, and what may happen to them.

use urnic_tcp::sum;

/// The maximum number of frames in one direction. Further frames are dropped, as a router drops them.
const MOST: usize = 256;

struct InFlight {
    frame: Vec<u8>,
    /// Whether the frame is damaged already: a second wrong bit could make its checksum right again.
    damaged: bool,
}

/// One direction.
pub struct Link {
    frames: Vec<InFlight>,
    /// The largest packet that passes, in bytes.
    pub mtu: usize,
    /// Whether an ICMP error reports packets that are too large; otherwise they are only dropped.
    pub tells: bool,
}

/// Returns the version of IP if the frame carries TCP, else `None`.
pub fn tcp_over(frame: &[u8]) -> Option<u8> {
    match (frame.get(12..14)?, frame.get(23)?, frame.get(20)?) {
        ([8, 0], 6, _) => Some(4),
        ([0x86, 0xdd], _, 6) => Some(6),
        _ => None,
    }
}

impl Link {
    pub fn new() -> Self {
        Link { frames: Vec::new(), mtu: usize::MAX, tells: true }
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Takes a frame; returns an ICMP error for the sender if the frame is too large.
    pub fn push(&mut self, frame: Vec<u8>) -> Option<Vec<u8>> {
        if frame.len() > self.mtu.saturating_add(14) {
            return if self.tells { too_big(&frame, self.mtu) } else { None };
        }
        if self.frames.len() < MOST {
            self.frames.push(InFlight { frame, damaged: false });
        }
        None
    }

    /// Returns the next frame to arrive.
    pub fn first(&self) -> Option<&[u8]> {
        self.frames.first().map(|f| &f.frame[..])
    }

    pub fn pop(&mut self) -> Option<Vec<u8>> {
        if self.frames.is_empty() { None } else { Some(self.frames.remove(0).frame) }
    }

    pub fn lose(&mut self, n: usize) {
        if n < self.frames.len() {
            self.frames.remove(n);
        }
    }

    pub fn lose_all(&mut self) {
        self.frames.clear();
    }

    pub fn move_to(&mut self, n: usize, to: usize) {
        if n < self.frames.len() {
            let f = self.frames.remove(n);
            self.frames.insert(to.min(self.frames.len()), f);
        }
    }

    pub fn duplicate(&mut self, n: usize, to: usize) {
        if let Some(f) = self.frames.get(n)
            && self.frames.len() < MOST
        {
            let copy = InFlight { frame: f.frame.clone(), damaged: f.damaged };
            self.frames.insert(to.min(self.frames.len()), copy);
        }
    }

    /// Flips one bit of a TCP packet. Ethernet and ARP have no checksum here.
    pub fn damage(&mut self, n: usize, bit: usize) {
        let Some(f) = self.frames.get_mut(n) else { return };
        if tcp_over(&f.frame).is_some() && !f.damaged {
            f.damaged = true;
            let bit = bit % ((f.frame.len() - 14) * 8);
            f.frame[14 + bit / 8] ^= 1 << (bit % 8);
        }
    }

    /// Marks a packet as a congested router does, if the packet may be marked (RFC 3168 §5).
    pub fn mark(&mut self, n: usize) {
        let Some(f) = self.frames.get_mut(n).filter(|f| !f.damaged) else { return };
        match tcp_over(&f.frame) {
            Some(4) if f.frame[15] & 3 != 0 => {
                f.frame[15] |= 3;
                f.frame[24..26].fill(0);
                let checksum = sum::checksum(sum::sum(&f.frame[14..34]));
                f.frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            }
            Some(6) if f.frame[15] & 0x30 != 0 => f.frame[15] |= 0x30,
            _ => {}
        }
    }
}

/// Makes the ICMP error for a frame that is too large for a router. The error goes from the other end's address to the
/// sender.
pub fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let [m0, m1] = (mtu.min(0xffff) as u16).to_be_bytes();
    let mut reply = [frame.get(6..12)?, frame.get(..6)?, frame.get(12..14)?].concat();
    let quoted = frame.get(14..)?;
    if tcp_over(frame)? == 4 {
        let mut message = vec![3, 4, 0, 0, 0, 0, m0, m1];
        message.extend(quoted.iter().take(48));
        let checksum = sum::checksum(sum::sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let mut ip = vec![0x45, 0, 0, (20 + message.len()) as u8, 0, 0, 0, 0, 64, 1, 0, 0];
        ip.extend(&quoted[16..20]);
        ip.extend(&quoted[12..16]);
        let checksum = sum::checksum(sum::sum(&ip));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        reply.extend(ip);
        reply.extend(message);
    } else {
        let mut message = vec![2, 0, 0, 0, 0, 0, m0, m1];
        message.extend(quoted.iter().take(80));
        let addresses = [&quoted[24..40], &quoted[8..24]].concat();
        let pseudo = [&addresses[..], &[0, 0, 0, message.len() as u8, 0, 0, 0, 58]].concat();
        let checksum = !sum::add(sum::sum(&pseudo), sum::sum(&message));
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        reply.extend([0x60, 0, 0, 0, 0, message.len() as u8, 58, 64]);
        reply.extend(addresses);
        reply.extend(message);
    }
    Some(reply)
}
