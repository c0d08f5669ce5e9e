//! Markers (RFC 5044 §4.2, §4.3): four octets at every 512th octet of a direction, from its first octet on. Each
//! marker points back at the start of the FPDU around it.
//!
//! The lengths of FPDUs and markers are multiples of four octets. So a marker falls before ULPDU_Length, after a
//! multiple of four octets of the FPDU, or between the pad and the CRC field, but never inside ULPDU_Length or the CRC
//! field.

/// Octets from the start of one marker to the start of the next.
const EVERY: usize = 512;
/// Octets of a marker: 16 reserved bits and FPDUPTR.
const LEN: usize = 4;
/// FPDU octets between two markers.
const BETWEEN: usize = EVERY - LEN;

/// Positions of the markers in the next FPDU of one direction.
///
/// *Wire* offsets count the octets of the FPDU as they are in the TCP stream, with markers. They begin at the marker
/// before ULPDU_Length if there is one, because that marker belongs to this FPDU (MPA-22). *Plain* offsets count the
/// octets of the FPDU without markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    /// Plain octets before the next marker; `u16::MAX` if the direction has no markers.
    ahead: u16,
}

impl Markers {
    /// A direction without markers.
    pub(crate) const NONE: Markers = Markers { ahead: u16::MAX };
    /// The start of Full Operation. The first marker precedes everything else (MPA-23).
    pub(crate) const START: Markers = Markers { ahead: 0 };

    /// Returns whether the direction has markers.
    #[inline]
    pub(crate) fn any(self) -> bool {
        self != Markers::NONE
    }

    /// Returns the plain octets before the first marker.
    fn ahead(self) -> usize {
        if self.any() { self.ahead.into() } else { usize::MAX }
    }

    /// Returns the number of markers before plain octet `at`.
    fn before(self, at: usize) -> usize {
        at.checked_sub(self.ahead()).map_or(0, |behind| 1 + behind / BETWEEN)
    }

    /// Returns the wire octets of an FPDU of `plain` octets. A marker directly after it belongs to the next FPDU.
    pub fn size(self, plain: usize) -> usize {
        plain + LEN * plain.checked_sub(1).map_or(0, |last| self.before(last))
    }

    /// Returns the wire offset of plain octet `at`.
    pub(crate) fn wire(self, at: usize) -> usize {
        at + LEN * self.before(at)
    }

    /// Returns the plain octets from `at` to the next marker.
    pub(crate) fn run(self, at: usize) -> usize {
        match at.checked_sub(self.ahead()) {
            None => self.ahead() - at,
            Some(behind) => BETWEEN - behind % BETWEEN,
        }
    }

    /// Returns the wire offsets of the markers in an FPDU of `plain` octets.
    pub(crate) fn places(self, plain: usize) -> impl Iterator<Item = usize> {
        (self.ahead()..self.size(plain)).step_by(EVERY)
    }

    /// Returns FPDUPTR of the marker at wire offset `at`: the octets from ULPDU_Length to the marker, including the
    /// markers in between (MPA-21, MPA-24). It is 0 for a marker before ULPDU_Length (MPA-22). FPDUPTR has room for
    /// every FPDU whose ULPDU is at most [`crate::MULPDU_MAX`] octets; for a longer FPDU, it wraps.
    pub(crate) fn pointer(self, at: usize) -> u16 {
        at.saturating_sub(self.wire(0)) as u16
    }

    /// Returns the positions in the FPDU that follows an FPDU of `plain` octets.
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

    /// Turns the FPDU in the first `plain` octets of `out` into its wire form, in place: inserts the markers and
    /// writes the CRC field anew, with a CRC32C if `crc` and with zero otherwise. Does nothing if `out` holds fewer
    /// than [`Markers::size`] octets, or if `plain` is less than the four octets of the CRC field.
    pub fn insert(self, out: &mut [u8], plain: usize, crc: bool) {
        let size = self.size(plain);
        if plain < LEN || out.len() < size {
            return;
        }
        // Moves the octets from the end backwards, so that each octet moves once and overwrites only octets that have
        // moved.
        let mut end = plain;
        for i in (0..(size - plain) / LEN).rev() {
            let (from, at) = (self.ahead() + BETWEEN * i, self.ahead() + EVERY * i);
            out.copy_within(from..end, at + LEN);
            out[at..at + LEN].copy_from_slice(&u32::from(self.pointer(at)).to_be_bytes());
            end = from;
        }
        // RFC 5044 §4.4: the CRC covers all octets before the field, markers included (MPA-36).
        let (covered, field) = out[..size].split_at_mut(size - LEN);
        let crc = if crc { urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, covered)) } else { 0 };
        field.copy_from_slice(&crc.to_le_bytes());
    }
}
