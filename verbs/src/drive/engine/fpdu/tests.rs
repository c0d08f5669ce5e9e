use super::*;

/// MPA-15, MPA-35, RFC 5044 §4.1: what follows the header of a whole message: payload, a pad of zeros to a multiple of
/// four, and the CRC over all before it, or zeros. The octets that were in the buffer do not matter.
#[test]
fn the_rest_of_a_whole_message() {
    let memory: Vec<u8> = (0..100).map(|i| 2 * i + 1).collect();
    for front in [16, 20, 48] {
        for len in (0..=9).chain([100]) {
            let octets = &memory[..len];
            let sources = [Source::Octets(octets), Source::Memory(octets.as_ptr(), len as u32)];
            for (source, has_crc, wants_sum) in sources
                .into_iter()
                .flat_map(|source| [false, true].map(|has_crc| (source, has_crc)))
                .flat_map(|(source, has_crc)| [false, true].map(|wants_sum| (source, has_crc, wants_sum)))
            {
                let header: Vec<u8> = (0..front).map(|i| 200 - i).collect();
                let mut expected = [&header, octets].concat();
                expected.resize(expected.len().next_multiple_of(4), 0);
                let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &expected));
                expected.extend(if has_crc { crc.to_le_bytes() } else { [0; 4] });
                let mut out = vec![0xEE; expected.len()];
                out[..header.len()].copy_from_slice(&header);
                // SAFETY: `memory` outlives the call.
                let sum = unsafe { source.complete(&mut out, header.len(), has_crc, wants_sum) };
                assert_eq!(out, expected, "{front} + {len} octets, CRC: {has_crc}");
                assert_eq!(
                    sum,
                    if wants_sum { urnic_crc::sum(&expected) } else { 0 },
                    "{front} + {len} octets"
                );
            }
        }
    }
}
