//! TCP that no kernel would speak: odd windows, gaps, acknowledgements and options.

use crate::common::frames::{ACK, FIN, PSH, SYN, Segment};
use crate::host::{By, Kind, Peer};
use crate::peer::support::{fpdu, tagged};
use crate::streams::{ask, read};

const fn iwarp(name: &'static str, does: fn(&mut Peer)) -> Kind {
    Kind::new(name, By::Iwarp).does(does).crowds()
}

/// The TCP options for an MSS of 1460 and for SACK.
const SACK: &[u8] = &[2, 4, 5, 0xb4, 4, 2];
const STAMPS: &[u8] = &[2, 4, 5, 0xb4, 1, 1, 8, 10, 0, 16, 0, 0, 0, 0, 0, 0];

pub const STRANGE: [Kind; 16] = [
    iwarp("window-zero", |p| {
        p.window = 0;
        p.takes = false;
        ask(p);
    }),
    iwarp("window-one", |p| {
        p.window = 1;
        ask(p);
    }),
    iwarp("window-shrinks", |p| {
        if p.round == 0 {
            p.takes = false;
            ask(p);
        }
        p.window = [60_000, 1000, 0, 30_000, 1][p.round as usize % 5];
        p.acknowledge();
    })
    .every(20),
    iwarp("holes", |p| {
        for n in 0..10 {
            let number = p.next.wrapping_add(1 + (p.round * 10 + n) * 1000);
            if p.round < 6 {
                p.segment(&Segment { number, payload: &[0; 1000], ..p.plain(ACK | PSH) });
            }
        }
    })
    .options(SACK)
    .every(10),
    iwarp("many-holes", |p| {
        for n in 0..20 {
            let number = p.next.wrapping_add(1 + (p.round % 25 * 20 + n) * 2);
            p.segment(&Segment { number, payload: b"x", ..p.plain(ACK | PSH) });
        }
    })
    .options(SACK)
    .every(10),
    iwarp("overlaps", |p| {
        for (start, octet) in [(400, b'a'), (100, b'b'), (700, b'c'), (300, b'd')] {
            let number = p.next.wrapping_add(start);
            p.segment(&Segment { number, payload: &[octet; 500], ..p.plain(ACK | PSH) });
        }
        p.say(&nothing());
        let number = p.next.wrapping_sub(600);
        p.segment(&Segment { number, payload: &[b'e'; 600], ..p.plain(ACK | PSH) });
    })
    .every(20),
    iwarp("repeats", |p| match p.round {
        0 => p.say(&nothing()),
        _ => {
            for _ in 0..5 {
                let (number, payload) = (p.next.wrapping_sub(20), nothing());
                p.segment(&Segment { number, payload: &payload, ..p.plain(ACK | PSH) });
            }
        }
    })
    .every(20),
    iwarp("sack-strange", |p| {
        only_once(p);
        let at = p.expected;
        let far = 1 << 30;
        for (left, right) in [(0, 0), (3000, 1000), (far, far + 5), (-9000, -1)] {
            blocks(p, (at.wrapping_add_signed(left), at.wrapping_add_signed(right)));
        }
    })
    .options(SACK)
    .hears(|_, _| {})
    .every(20),
    iwarp("sack-reneges", |p| {
        only_once(p);
        let at = p.expected;
        blocks(p, (at.wrapping_add(1448), at.wrapping_add(8 * 1448)));
        p.acknowledge();
        // Acknowledges one more octet in each round, so that every round has octets to renege on.
        p.expected = p.expected.wrapping_add(1);
        p.acknowledge();
    })
    .options(SACK)
    .hears(|_, _| {})
    .every(20),
    iwarp("acks-ahead", |p| {
        if p.round == 0 {
            p.say(&fpdu(&read(1, 65_536, p.hall.0, p.hall.1)));
        }
        for far in [1 << 20, 1 << 30, 0xc000_0000_u32, 5_u32.wrapping_neg()] {
            let acknowledges = p.expected.wrapping_add(far);
            p.segment(&Segment { acknowledges, ..p.plain(ACK) });
        }
    })
    .every(20),
    iwarp("acks-split", |p| {
        p.window = 8192;
        p.say(&fpdu(&read(1, 65_536, p.hall.0, p.hall.1)));
    })
    .hears(|p, heard| {
        for left in (0..heard.payload.len() as u32).rev().step_by(90) {
            p.segment(&Segment { acknowledges: p.expected.wrapping_sub(left), ..p.plain(ACK) });
        }
    }),
    iwarp("acks-repeated", |p| {
        only_once(p);
        for _ in 0..10 {
            p.acknowledge();
        }
    })
    .hears(|_, _| {})
    .every(20),
    iwarp("options-strange", |p| {
        let strange: [&[u8]; 6] =
            [&[2, 4, 5], &[2, 0], &[3, 3, 255], &[8, 10, 0, 0], &[5, 3, 1], &[0xfe, 1, 0x1d, 0x12, 0, 0]];
        p.segment(&Segment { options: strange[p.number as usize % 6], ..p.plain(ACK) });
    })
    .options(&[2, 4, 5, 0xb4, 3, 3, 255, 5, 3, 1, 0x1d, 18])
    .every(50),
    iwarp("timestamps-wild", |p| {
        let leap = [0, 1 << 30, 0xc000_0000_u32, 5][p.round as usize % 4];
        let stamp = (1_u32 << 20).wrapping_add(p.round * 20).wrapping_add(leap);
        p.options = [&[1, 1, 8, 10][..], &stamp.to_be_bytes(), &[0; 4]].concat();
        p.say(&nothing());
    })
    .options(STAMPS)
    .every(20),
    iwarp("syn-again", |p| {
        p.segment(&Segment { number: p.next.wrapping_sub(1), ..p.plain(SYN) });
        p.segment(&Segment { number: p.next.wrapping_add(100), ..p.plain(SYN | ACK) });
        p.segment(&Segment { number: p.next.wrapping_add(5000), ..p.plain(FIN | ACK) });
    })
    .every(20),
    iwarp("no-flags", |p| p.segment(&p.plain(0))).every(20),
];

/// Asks for Reads in the first round, and acknowledges no answers from then on.
fn only_once(p: &mut Peer) {
    if p.round == 0 {
        p.takes = false;
        ask(p);
    }
}

fn blocks(p: &mut Peer, (left, right): (u32, u32)) {
    let options = [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
    p.segment(&Segment { options: &options, ..p.plain(ACK) });
}

/// Returns the FPDU of a zero-length Write: 20 octets.
fn nothing() -> Vec<u8> {
    fpdu(&tagged(0xC1, 0x40, 0, 0, &[]))
}
