use super::*;

fn session() -> Session {
    Session {
        op: Op::Write,
        mode: Mode::Bw,
        size: MAX_SIZE,
        lanes: 100,
        window: MAX_WINDOW,
        slots: 2 * MAX_WINDOW,
        credit: 2 * MAX_WINDOW,
        wait: Wait::Event,
        verify: false,
        beside: Some(Beside { op: Op::Write, streams: Beside::MOST }),
        threads: MAX_THREADS,
        thread: MAX_THREADS - 1,
    }
}

#[test]
fn messages_survive_and_fit_their_room() {
    let target = Target { addr: u64::MAX, rkey: u32::MAX };
    let hello = Hello::Session { version: VERSION, session: session() };
    for hello in [hello, Hello::Lane { index: u32::MAX, target }] {
        let bytes = encode(&hello);
        // The limit of private data in an MPA request: RFC 5044 §7.1.
        assert!(bytes.len() <= 512, "{}", bytes.len());
        assert_eq!(decode::<Hello>(&bytes), Some(hello));
    }
    let done = encode(&Control::Done { messages: u64::MAX });
    assert!(done.len() <= CONTROL_LEN);
    assert_eq!(decode::<Control>(&done), Some(Control::Done { messages: u64::MAX }));
    for noise in [&b""[..], b"\0\0\0\0", b"{}", b"{\"Session\":{}}"] {
        assert_eq!(decode::<Hello>(noise), None);
    }
}

#[test]
fn a_server_refuses_what_it_should_not_try() {
    assert_eq!(session().check(), Ok(()));
    for wrong in [
        Session { size: MAX_SIZE + 1, ..session() },
        Session { lanes: 0, ..session() },
        Session { lanes: MAX_LANES + 1, ..session() },
        Session { window: 0, ..session() },
        Session { slots: 0, ..session() },
        Session { credit: u32::MAX, ..session() },
        Session { lanes: 1000, ..session() },
        Session { threads: 0, thread: 0, ..session() },
        Session { threads: MAX_THREADS + 1, ..session() },
        Session { thread: MAX_THREADS, ..session() },
        Session { beside: Some(Beside { op: Op::Send, streams: 1 }), ..session() },
        Session { beside: Some(Beside { op: Op::Read, streams: Beside::MOST + 1 }), ..session() },
        Session { beside: Some(Beside { op: Op::Read, streams: 0 }), ..session() },
    ] {
        assert!(wrong.check().is_err(), "{wrong:?}");
    }
}

#[test]
fn tags_come_back() {
    for kind in [Kind::Data, Kind::Note, Kind::Control, Kind::Stream] {
        for (lane, number) in [(0, 0), (MAX_LANES - 1, (1 << 40) - 1), (5, 77)] {
            let tag = Tag { kind, lane, number };
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}

#[test]
fn slots_do_not_overlap() {
    let session = Session { size: 100, lanes: 3, slots: 2, ..session() };
    let mut starts: Vec<u64> =
        (0..3).flat_map(|lane| [0, 1].map(|slot| session.offset(lane, slot))).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= session.size));
    assert!(starts[5] + session.size <= session.region_len());
    assert_eq!(session.offset(1, 0), session.offset(1, 2));
    // The slots of the load beside the measured messages follow the measured slots.
    let streams = [session.offset(3, 0), session.offset(4, 0)];
    assert!(starts[5] + session.size <= streams[0] && streams[0] + Beside::SIZE <= streams[1]);
    assert_eq!(session.offset(2 + Beside::MOST, 0) + Beside::SIZE, session.region_len());
}

#[test]
fn a_refusal_fits_into_the_private_data() {
    for reason in ["short", &"long ".repeat(200), &"ü".repeat(400), &"\"".repeat(400), &"\u{1}€".repeat(300)]
    {
        let message = refusal(reason);
        assert!(message.len() <= PRIVATE_DATA, "{} octets", message.len());
        let Some(Answer::Refused(told)) = decode(&message) else { panic!("not a refusal") };
        let longest = told.len() == reason.len() || message.len() > PRIVATE_DATA - 10;
        assert!(reason.starts_with(&told) && longest, "{told}");
    }
}
