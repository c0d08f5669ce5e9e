//! Terminate headers of other implementations (RDMAP-16).

use urnic_iwarp::*;

fn decode(octets: &[u8]) -> Terminate {
    Terminate::decode(octets).unwrap()
}

/// Reserved bits and octets after the header are ignored. Headers that are cut short are refused.
/// RDMAP-16.
#[test]
fn lenient_but_exact() {
    assert_eq!(decode(&[0x20, 0x02, 0x1F, 0xFF]), Terminate::CRC);
    assert_eq!(decode(&[0x20, 0x02, 0, 0, 0, 0, 0, 0, 0, 0]), Terminate::CRC);
    for short in [&[][..], &[0x20, 2, 0], &[0x11, 0, 0x80, 0, 1], &[0x11, 0, 0xC0, 0, 0, 30]] {
        assert_eq!(Terminate::decode(short), None);
    }
    let mut untagged = vec![0x12, 2, 0xE0, 0, 0, 46, 0x41];
    untagged.resize(4 + 2 + 18 + 28, 0);
    assert!(decode(&untagged).rdma.is_some());
    untagged.pop();
    assert_eq!(Terminate::decode(&untagged), None);
    // A length without a header, and a header without a valid length.
    assert_eq!(decode(&[0x12, 2, 0x80, 0, 0, 46]).segment_len, Some(46));
    let mut no_length = vec![0x11, 0, 0x40, 0, 9, 9, 0xC1];
    no_length.resize(4 + 2 + 14, 0);
    let t = decode(&no_length);
    assert!(t.segment_len.is_none() && t.ddp.is_some());
}

/// The control word of Linux siw, in host order on x86, as seen on the wire.
#[test]
fn swapped_control_word_of_siw() {
    let t = decode(&[0x21, 0x06, 0, 0]);
    assert_eq!((t.layer, t.etype, t.code), (1, 2, 6));
    let mut tagged = vec![0x11, 0x00, 0x03, 0, 0, 30, 0xC1];
    tagged.resize(4 + 2 + 14, 0);
    let t = decode(&tagged);
    assert_eq!((t.layer, t.etype, t.segment_len), (1, 1, Some(30)));
    assert!(t.ddp.is_some());
}

/// siw's answer to a Send with Invalidate of a foreign STag announces a Read Request header that is missing.
#[test]
fn missing_header_of_siw() {
    let mut octets = vec![0x10, 0x09, 0x07, 0, 0, 26, 0x41];
    octets.resize(4 + 2 + 18, 0);
    let t = decode(&octets);
    assert_eq!((t.layer, t.etype, t.code, t.rdma), (0, 1, 9, None));
    assert!(t.ddp.is_some());
}

/// A code of the enhanced start-up that arrives after the start-up is a remote operation error of siw. All other codes
/// keep their meaning.
#[test]
fn unexpected_opcode_of_siw() {
    let octets = [0x20, 0x06, 0, 0];
    assert_eq!(decode(&octets), Terminate::INSUFFICIENT_IRD);
    let t = decode(&octets).after_startup();
    assert_eq!((t.layer, t.etype, t.code), (0, 2, 6));
    for other in
        [Terminate::CRC, Terminate::MARKER, Terminate::LOCAL_CATASTROPHIC, Terminate::STREAM_CATASTROPHIC]
    {
        assert_eq!(other.after_startup(), other);
    }
}

/// Codes that no registry lists, and MPA errors under the type that some adapters use, still have a text.
#[test]
fn words_for_any_code() {
    assert_eq!(decode(&[0x5F, 0xEE, 0, 0]).to_string(), "unknown layer unknown error (5f ee)");
    assert_eq!(decode(&[0x23, 0x02, 0, 0]).to_string(), "MPA CRC error (23 02)");
}

/// Every code of the registries (RFC 6580) has its own words within its layer and type. So do the codes of MPA's type 3
/// that some peers send. All codes of RDMAP's type 0 have the same words. Any other code is an unknown error.
#[test]
fn words_for_every_registered_code() {
    type Codes = &'static [(u8, &'static str)];
    let registered: &[(u8, u8, Codes)] = &[
        (
            0,
            1,
            &[
                (0x00, "invalid STag"),
                (0x01, "base or bounds"),
                (0x02, "access rights"),
                (0x03, "not associated"),
                (0x04, "TO wrap"),
                (0x09, "cannot be invalidated"),
                (0xFF, "unspecified"),
            ],
        ),
        (
            0,
            2,
            &[
                (0x05, "RDMAP version"),
                (0x06, "unexpected opcode"),
                (0x07, "localized to the stream"),
                (0x08, "global"),
                (0x09, "cannot be invalidated"),
                (0xFF, "unspecified"),
            ],
        ),
        (1, 0, &[(0x00, "local catastrophic")]),
        (
            1,
            1,
            &[
                (0x00, "invalid STag"),
                (0x01, "base or bounds"),
                (0x02, "not associated"),
                (0x03, "TO wrap"),
                (0x04, "DDP version"),
            ],
        ),
        (
            1,
            2,
            &[
                (0x01, "queue number"),
                (0x02, "no buffer"),
                (0x03, "MSN range"),
                (0x04, "message offset"),
                (0x05, "too long"),
                (0x06, "DDP version"),
            ],
        ),
        (
            2,
            0,
            &[
                (0x01, "TCP connection"),
                (0x02, "CRC"),
                (0x03, "marker"),
                (0x04, "Request or Reply"),
                (0x05, "local catastrophic"),
                (0x06, "IRD"),
                (0x07, "RTR"),
            ],
        ),
        // Not registered, but some peers send them (see peers.rs).
        (2, 3, &[(0x02, "CRC"), (0x03, "marker")]),
    ];
    for layer in 0..=2 {
        for etype in 0..=3 {
            for code in 0..=255 {
                let t = Terminate { layer, etype, code, segment_len: None, ddp: None, rdma: None };
                let codes = registered.iter().find(|(l, e, _)| (*l, *e) == (layer, etype)).map(|r| r.2);
                let known = codes.and_then(|codes| codes.iter().find(|(c, _)| *c == code));
                let words = match known {
                    Some((_, words)) => words,
                    // The code means nothing here.
                    None if (layer, etype) == (0, 0) => "local catastrophic",
                    None => "unknown error",
                };
                assert!(t.to_string().contains(words), "{t}: {words}");
            }
        }
    }
}
