/// A frame that travels over a [`Link`](crate::Link): an Ethernet frame without FCS.
pub trait Frame: Sized {
    /// Returns the number of octets of the frame.
    fn len(&self) -> usize;

    /// Returns an independent copy, for duplication; `None` if there is no memory for one.
    fn copy(&self) -> Option<Self>;

    /// Returns the octets, for corruption, swaps and ECN marking. They must not be shared with other frames.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// Returns whether the frame has no octets.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Frame for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn copy(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Frame for Box<[u8]> {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn copy(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Sets Congestion Experienced in an ECN-capable IPv4 frame (RFC 3168 §5), and corrects its header checksum. Returns
/// `false`, and changes nothing, for any other frame.
pub(crate) fn mark_congestion(frame: &mut [u8]) -> bool {
    const ETHERNET: usize = 14;
    let Some((ethernet, ip)) = frame.split_at_mut_checked(ETHERNET) else { return false };
    if ethernet[12..] != [0x08, 0x00] || ip.len() < 20 || ip[0] >> 4 != 4 || ip[1] & 3 == 0 {
        return false;
    }
    // RFC 1624 equation 3, for the one word that changes.
    let old = u16::from_be_bytes([ip[0], ip[1]]);
    ip[1] |= 3;
    let new = u16::from_be_bytes([ip[0], ip[1]]);
    let checksum = u16::from_be_bytes([ip[10], ip[11]]);
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    true
}
