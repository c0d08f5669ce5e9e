//! Blocks of a pcapng file (draft-ietf-opsawg-pcapng), little-endian. One section, one Ethernet interface.

use std::io::{self, Write};

use super::Direction;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// The options of a block, encoded.
struct Options(Vec<u8>);

impl Options {
    fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends an option; a value longer than 65,535 octets is cut.
    fn with(mut self, code: u16, value: &[u8]) -> Self {
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.0.extend(code.to_le_bytes());
        self.0.extend((value.len() as u16).to_le_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 4]);
        self.0
    }
}

/// Writes a block of `pieces`, whose total length is a multiple of four.
fn block(out: &mut impl Write, kind: u32, pieces: &[&[u8]]) -> io::Result<()> {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    let len =
        u32::try_from(len + 12).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?.to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&len)?;
    pieces.iter().try_for_each(|piece| out.write_all(piece))?;
    out.write_all(&len)
}

/// Encodes a time as blocks contain it: the upper half first.
fn halves(time: u64) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((time >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(time as u32).to_le_bytes());
    bytes
}

/// Writes a Section Header Block.
pub(super) fn section(out: &mut impl Write) -> io::Result<()> {
    const BYTE_ORDER: [u8; 4] = 0x1a2b_3c4d_u32.to_le_bytes();
    const VERSION_1_0: [u8; 4] = [1, 0, 0, 0];
    const LENGTH_UNKNOWN: [u8; 8] = [0xff; 8];
    const USER_APPLICATION: u16 = 4;
    let options =
        Options::new().with(USER_APPLICATION, concat!("urnic ", env!("CARGO_PKG_VERSION")).as_bytes());
    block(out, SECTION_HEADER, &[&BYTE_ORDER, &VERSION_1_0, &LENGTH_UNKNOWN, &options.end()])
}

/// Writes an Interface Description Block: Ethernet, frames of any length, time in nanoseconds.
pub(super) fn interface(out: &mut impl Write, name: &str) -> io::Result<()> {
    const LINKTYPE_ETHERNET: [u8; 4] = [1, 0, 0, 0];
    const NO_LIMIT: [u8; 4] = [0; 4];
    const NAME: u16 = 2;
    const TIME_RESOLUTION: u16 = 9;
    let options = Options::new().with(NAME, name.as_bytes()).with(TIME_RESOLUTION, &[9]);
    block(out, INTERFACE_DESCRIPTION, &[&LINKTYPE_ETHERNET, &NO_LIMIT, &options.end()])
}

/// Writes an Enhanced Packet Block. `time` is in nanoseconds since the Unix epoch.
pub(super) fn packet(out: &mut impl Write, time: u64, way: Direction, frame: &[u8]) -> io::Result<()> {
    // epb_flags, 4 octets, then the end of options. The direction is in the lowest two bits.
    let mut options = [2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    options[4] = match way {
        Direction::Inbound => 1,
        Direction::Outbound => 2,
    };
    let len = (frame.len() as u32).to_le_bytes();
    let padding = frame.len().next_multiple_of(4) - frame.len();
    let padding: &[u8] = [0; 3].get(..padding).unwrap_or_default();
    block(out, ENHANCED_PACKET, &[&[0; 4], &halves(time), &len, &len, frame, padding, &options])
}

/// Writes an Interface Statistics Block: the times of the capture's start and of its latest frame (in
/// nanoseconds since the Unix epoch), the number of frames seen, and the number of frames dropped.
pub(super) fn statistics(
    out: &mut impl Write,
    start: u64,
    end: u64,
    seen: u64,
    dropped: u64,
) -> io::Result<()> {
    const START: u16 = 2;
    const END: u16 = 3;
    const RECEIVED: u16 = 4;
    const DROPPED: u16 = 5;
    let options = Options::new()
        .with(START, &halves(start))
        .with(END, &halves(end))
        .with(RECEIVED, &seen.to_le_bytes())
        .with(DROPPED, &dropped.to_le_bytes());
    block(out, INTERFACE_STATISTICS, &[&[0; 4], &halves(end), &options.end()])
}
