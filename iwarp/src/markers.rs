//! Markers (RFC 5044 §4.2, §4.3): four octets at every 512th octet of a direction, from its first one on, that point
//! back at the FPDU around them.
//!
//! FPDUs and markers are multiples of four octets, so a marker falls before ULPDU_Length, behind 4k octets of the FPDU,
//! or between pad and CRC field, and never inside a field of two or four octets at the end.

/// From one marker to the next.
const EVERY: usize = 512;
/// Octets of a marker: 16 reserved bits and FPDUPTR.
const LEN: usize = 4;
/// Octets of FPDUs between two markers.
const BETWEEN: usize = EVERY - LEN;

/// Where the markers fall in the next FPDU of one direction.
///
/// *Wire* offsets below count the octets as they are in the TCP stream, the marker in front of ULPDU_Length included if
/// there is one: it belongs to this FPDU (MPA-22). *Plain* offsets count those of the FPDU alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Plain octets in front of the next marker.
    ahead: u16,
}

impl Markers {
    /// A direction without markers.
    pub(crate) const NONE: Markers = Markers { ahead: u16::MAX };
    /// The start of Full Operation: the first marker is in front of everything (MPA-23).
    pub(crate) const START: Markers = Markers { ahead: 0 };

    /// Whether there are any.
    #[inline]
    pub(crate) fn any(self) -> bool {
        self != Markers::NONE
    }

    /// Plain octets in front of the first marker.
    fn ahead(self) -> usize {
        if self.any() { self.ahead.into() } else { usize::MAX }
    }

    /// Markers in front of plain octet `at`.
    fn before(self, at: usize) -> usize {
        at.checked_sub(self.ahead()).map_or(0, |behind| 1 + behind / BETWEEN)
    }

    /// Octets on the wire of an FPDU of `plain` octets. A marker right behind it belongs to the next one.
    pub fn size(self, plain: usize) -> usize {
        plain + LEN * plain.checked_sub(1).map_or(0, |last| self.before(last))
    }

    /// Wire offset of plain octet `at`.
    pub(crate) fn wire(self, at: usize) -> usize {
        at + LEN * self.before(at)
    }

    /// Plain octets from `at` to the next marker.
    pub(crate) fn run(self, at: usize) -> usize {
        match at.checked_sub(self.ahead()) {
            None => self.ahead() - at,
            Some(behind) => BETWEEN - behind % BETWEEN,
        }
    }

    /// Wire offsets of the markers of an FPDU of `plain` octets.
    pub(crate) fn places(self, plain: usize) -> impl Iterator<Item = usize> {
        (self.ahead()..self.size(plain)).step_by(EVERY)
    }

    /// FPDUPTR of the marker at wire offset `at`: the octets from ULPDU_Length to it, those of markers in between
    /// counted too (MPA-21, MPA-24); 0 in front of ULPDU_Length (MPA-22). It has room for every FPDU of at most
    /// [`crate::MULPDU_MAX`]; for longer ones it wraps.
    pub(crate) fn pointer(self, at: usize) -> u16 {
        at.saturating_sub(self.wire(0)) as u16
    }

    /// Those of the FPDU that follows one of `plain` octets.
    pub(crate) fn after(self, plain: usize) -> Markers {
        if !self.any() {
            return self;
        }
        let ahead = match plain.checked_sub(self.ahead()) {
            None => self.ahead() - plain,
            Some(behind) => (BETWEEN - behind % BETWEEN) % BETWEEN,
        };
        Markers { ahead: ahead as u16 }
    }

    /// Makes the wire form of the FPDU in the first `plain` octets of `out`, in place: markers, and behind them the CRC
    /// field again, with a CRC32C if `crc` says so. `out` holds [`Markers::size`] octets, or nothing happens.
    pub fn insert(self, out: &mut [u8], plain: usize, crc: bool) {
        let size = self.size(plain);
        if plain < LEN || out.len() < size {
            return;
        }
        // From the end on, so that every octet is moved once, to where nothing is wanted any more.
        let mut end = plain;
        for i in (0..(size - plain) / LEN).rev() {
            let (from, at) = (self.ahead() + BETWEEN * i, self.ahead() + EVERY * i);
            out.copy_within(from..end, at + LEN);
            out[at..at + LEN].copy_from_slice(&u32::from(self.pointer(at)).to_be_bytes());
            end = from;
        }
        // RFC 5044 §4.4: all octets before the field, markers included (MPA-36).
        let (covered, field) = out[..size].split_at_mut(size - LEN);
        let crc = if crc { urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, covered)) } else { 0 };
        field.copy_from_slice(&crc.to_le_bytes());
    }
}
