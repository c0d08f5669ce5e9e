//! Streams of hostile peers: they make no progress, never end, contain false data, ask for too much, or leave their
//! answers unread.

use crate::HALL;
use crate::common::frames::{ACK, Heard, PSH, Segment, URG};
use crate::host::{By, Kind, Peer, REPLY, REQUEST};
use crate::peer::support::{fpdu, read_header, tagged, untagged};

const fn tcp(name: &'static str, does: fn(&mut Peer)) -> Kind {
    Kind::new(name, By::Tcp).does(does)
}

const fn iwarp(name: &'static str, does: fn(&mut Peer)) -> Kind {
    Kind::new(name, By::Iwarp).does(does)
}

const fn greedy(name: &'static str, does: fn(&mut Peer)) -> Kind {
    iwarp(name, does).crowds()
}

/// Kinds in which the server connects.
pub const LISTENERS: [Kind; 6] = [
    Kind::new("listen-silent", By::Listen),
    Kind::new("listen-drip", By::Listen).does(|p| drip(p, REPLY)).every(200),
    Kind::new("listen-garbage", By::Listen).does(|p| p.say(&b"\r\n".repeat(30_000))),
    Kind::new("listen-closes", By::Listen).does(Peer::finish),
    Kind::new("listen-stops-inside", By::Accept).does(|p| p.say(&long()[..60_000])),
    Kind::new("listen-vanishes", By::Accept).does(Peer::vanish).vanishes(),
];

pub const START_UPS: [Kind; 17] = [
    tcp("idle-connect", |_| {}),
    tcp("idle-connect-many", |_| {}).sources(64),
    tcp("startup-drip", |p| drip(p, REQUEST)).every(200),
    tcp("startup-oversize", |p| {
        p.say(&[&REQUEST[..18], &[0xff; 2], &[0; 60_000]].concat());
    })
    .again(50),
    tcp("startup-garbage", |p| p.say(&b"GET / HTTP/1.1\r\n\r\n".repeat(3000))).again(50),
    tcp("startup-half", |p| {
        p.say(&REQUEST[..10]);
        p.finish();
    }),
    tcp("startup-refused", |p| {
        let mut request = REQUEST.to_vec();
        if p.number % 2 == 0 {
            request[16] |= 0x20
        } else {
            request[17] = 9
        }
        p.say(&request);
    })
    .again(50),
    tcp("request-unheard", |p| {
        p.say(REQUEST);
        p.reset();
    })
    .again(20),
    iwarp("silent", |_| {}),
    iwarp("half-closed", Peer::finish),
    iwarp("churn", Peer::finish).again(5),
    iwarp("churn-echo", |p| p.say(&fpdu(&send(1, 0, true, &[7; 64]))))
        .hears(|p, _| {
            p.acknowledge();
            p.finish();
        })
        .again(5),
    iwarp("churn-reset", Peer::reset).again(5),
    tcp("churn-tcp", Peer::finish).again(5),
    tcp("half-open", Peer::vanish).vanishes(),
    tcp("request-vanishes", |p| {
        p.say(REQUEST);
        p.vanish();
    })
    .vanishes(),
    iwarp("start-up-vanishes", Peer::vanish).vanishes(),
];

pub const STREAMS: [Kind; 23] = [
    iwarp("stop-inside", |p| p.say(&long()[..60_000])),
    iwarp("stop-inside-many", |p| p.say(&long()[..60_000])).sources(64),
    iwarp("dribble", |p| drip(p, &long())).every(1000),
    iwarp("crumbs", |p| drip(p, &long())).every(10),
    iwarp("long-fpdus", |p| {
        let fpdu = fpdu(&write(p.hall.0, p.hall.1, 2000));
        p.say(if p.round % 2 == 0 { &fpdu[..1500] } else { &fpdu[1500..] });
    })
    .every(50),
    iwarp("gap-before", |p| {
        let offset = if p.number % 2 == 0 { 4095 } else { 1000 };
        p.say(&fpdu(&send(1, offset, true, b"x")));
    })
    .hears(no_echo)
    .again(50),
    iwarp("gap-inside", |p| {
        p.say(&fpdu(&send(1, 0, false, &[1; 100])));
        p.say(&fpdu(&send(1, 300, true, &[1; 100])));
    })
    .hears(no_echo)
    .again(50),
    iwarp("bad-crc", |p| {
        let mut fpdu = fpdu(&write(p.hall.0, p.hall.1, 512));
        fpdu[100] ^= 1;
        p.say(&fpdu);
    })
    .again(20),
    iwarp("bad-stag", |p| p.say(&fpdu(&write(p.hall.0 ^ 0x5a00 ^ p.begun << 16, p.hall.1, 512)))).again(20),
    iwarp("out-of-bounds", |p| {
        let end = p.hall.1 + HALL as u64;
        let wrong =
            if p.number % 2 == 0 { write(p.hall.0, end - 8, 16) } else { read(1, 16, p.hall.0, end - 8) };
        p.say(&fpdu(&wrong));
    })
    .again(20),
    iwarp("bad-headers", |p| {
        let wrong = [
            untagged(0x42, 0x43, 0, 1, 0, b"x"),
            untagged(0x41, 0x49, 0, 1, 0, b"x"),
            untagged(0x41, 0x43, 7, 1, 0, b"x"),
            send(77, 0, true, b"x"),
            vec![0x41],
            vec![],
            tagged(0xC1, 0x42, 1, 0, &[0; 64]),
        ];
        p.say(&fpdu(&wrong[p.number as usize % wrong.len()]));
    })
    .again(20),
    iwarp("bad-markers", |p| {
        let fpdu = fpdu(&write(p.hall.0, p.hall.1, 1400));
        p.say(&[&[0xff; 4][..], &fpdu[..508], &[0, 0, 0xee, 0xee], &fpdu[508..]].concat());
    })
    .again(20),
    greedy("many-sends", |p| {
        if p.has_said_all() {
            p.takes = false;
            p.window = 0;
            let first = 1 + p.round * 100;
            let sends: Vec<u8> =
                (first..first + 100).flat_map(|msn| fpdu(&send(msn, 0, true, &[7; 64]))).collect();
            p.say(&sends);
        }
    })
    .every(20),
    iwarp("long-send", |p| {
        let parts = (0..50).flat_map(|n| fpdu(&send(1, n * 1024, false, &[0; 1024])));
        p.say(&parts.collect::<Vec<u8>>());
    })
    .again(20),
    iwarp("tiny-fpdus", |p| {
        if p.has_said_all() {
            p.say(&fpdu(&write(0, 0, 0)).repeat(100));
        }
    })
    .every(20),
    iwarp("cut-by-fin", |p| {
        p.say(&long()[..5000]);
        p.finish();
    })
    .again(20),
    iwarp("cut-by-rst", |p| {
        p.say(&long()[..5000]);
        p.reset();
    })
    .again(20),
    iwarp("terminates", |p| {
        let (layer, kind, code) = (p.number as u8 % 4, p.number as u8 % 3, p.number as u8 % 16);
        let code = [(layer << 4) | kind, code, 0, 0];
        p.say(&fpdu(&untagged(0x41, 0x47, 2, 1, 0, &code)));
    })
    .again(20),
    iwarp("terminates-stays", |p| match p.round {
        0 => p.say(&fpdu(&untagged(0x41, 0x47, 2, 1, 0, &[0; 4]))),
        _ => p.say(&[0; 1000]),
    })
    .every(50),
    iwarp("invalidates", |p| {
        let mut ulpdu = untagged(0x41, 0x44, 0, 1, 0, b"x");
        let stag = if p.number % 2 == 0 { p.hall.0 } else { p.hall.0 ^ 0x100 };
        ulpdu[2..6].copy_from_slice(&stag.to_be_bytes());
        p.say(&fpdu(&ulpdu));
    })
    .hears(no_echo)
    .again(20),
    iwarp("urgent", |p| {
        let octet = long()[p.round as usize % 60_000];
        p.segment(&Segment { urgent: 1, payload: &[octet], ..p.plain(ACK | PSH | URG) });
        p.next = p.next.wrapping_add(1);
    })
    .every(50),
    iwarp("urgent-nowhere", |p| {
        let fpdu = fpdu(&write(0, 0, 0));
        let urgent = [0, 1, 1000, 65_535][p.number as usize % 4];
        p.segment(&Segment { urgent, payload: &fpdu, ..p.plain(ACK | PSH | URG) });
        p.next = p.next.wrapping_add(fpdu.len() as u32);
    })
    .every(20),
    iwarp("reads-beyond-ird", |p| {
        let reads = (1..=200).flat_map(|msn| fpdu(&read(msn, 4096, p.hall.0, p.hall.1)));
        p.say(&reads.collect::<Vec<u8>>());
    })
    .again(20),
];

pub const ANSWERS: [Kind; 7] = [
    greedy("reads-never-taken", |p| {
        p.window = 2048;
        ask(p);
    })
    .hears(|p, _| {
        p.takes = false;
        p.window = 0;
        p.acknowledge();
    }),
    greedy("reads-taken-slowly", |p| match p.round {
        0 => {
            p.window = 1000;
            ask(p);
        }
        _ => {
            p.window = 1000;
            p.takes = true;
            p.acknowledge();
        }
    })
    .hears(|p, _| {
        p.window = 0;
        p.takes = false;
        p.acknowledge();
    })
    .every(100),
    greedy("reads-cut", ask).hears(|p, _| p.reset()).again(20),
    greedy("tiny-mss", |p| {
        p.say(&fpdu(&read(1, 65_536, p.hall.0, p.hall.1)));
    })
    .options(&[2, 4, 0, 88]),
    greedy("mss-one", |p| p.say(&fpdu(&read(1, 4096, p.hall.0, p.hall.1)))).options(&[2, 4, 0, 1]),
    greedy("vanishes", |p| {
        ask(p);
        p.vanish();
    })
    .vanishes(),
    greedy("vanishes-many", |p| {
        ask(p);
        p.vanish();
    })
    .vanishes()
    .sources(8),
];

/// Asks for four Reads of the whole hall.
pub fn ask(p: &mut Peer) {
    let reads = (1..=4).flat_map(|msn| fpdu(&read(msn, HALL as u32, p.hall.0, p.hall.1)));
    p.say(&reads.collect::<Vec<u8>>());
}

/// Sends the next one of these octets.
fn drip(p: &mut Peer, octets: &[u8]) {
    if let Some(octet) = octets.get(p.round as usize) {
        p.say(&[*octet]);
    }
}

/// Checks that the server sends nothing of its buffers.
fn no_echo(p: &mut Peer, heard: &Heard<'_>) {
    let opcode = heard.payload.get(3).map(|octet| octet & 15);
    assert!(!matches!(opcode, Some(3..=6)), "peer {}: an echo of {:02x?}", p.number, heard.payload);
    p.acknowledge();
}

/// Returns an FPDU of 65,024 octets, whose ULPDU has 65,018.
fn long() -> Vec<u8> {
    thread_local! {
        static LONG: Vec<u8> = fpdu(&write(1, 0, 65_004));
    }
    LONG.with(Vec::clone)
}

fn send(msn: u32, offset: u32, last: bool, payload: &[u8]) -> Vec<u8> {
    untagged(if last { 0x41 } else { 0x01 }, 0x43, 0, msn, offset, payload)
}

fn write(stag: u32, to: u64, length: usize) -> Vec<u8> {
    tagged(0xC1, 0x40, stag, to, &vec![0; length])
}

pub fn read(msn: u32, length: u32, stag: u32, to: u64) -> Vec<u8> {
    untagged(0x41, 0x41, 1, msn, 0, &read_header((1, 0), length, (stag, to)))
}
