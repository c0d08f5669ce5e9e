use super::*;
use proptest::prelude::*;

fn parse(s: &str) -> Result<Impairment, String> {
    s.parse().map_err(|e: ParseError| e.to_string())
}

#[test]
fn every_key() {
    let i = parse(
        "loss=0.01,dup=0.001,reorder=1%,delay=50us,jitter=1.5ms,corrupt=1e-4,swap=0.5,rate=10gbit,queue=100,ecn=65,mark=0.2,\
         burst=1e-3,burst_len=5,limit=10,limit_bytes=64KiB,seed=7",
    );
    let expected = Impairment {
        loss: 0.01,
        burst: 0.001,
        burst_len: 5,
        dup: 0.001,
        reorder: 0.01,
        corrupt: 1e-4,
        swap: 0.5,
        delay: 50_000,
        jitter: 1_500_000,
        rate: Some(10_000_000_000),
        queue: 100,
        ecn: Some(65),
        mark: 0.2,
        limit: 10,
        limit_bytes: 65_536,
        seed: 7,
    };
    assert_eq!(i, Ok(expected));
    assert_eq!(
        parse(" loss = 0.5 , seed=1,"),
        Ok(Impairment { loss: 0.5, seed: 1, ..Impairment::default() })
    );
    assert_eq!(parse(""), Ok(Impairment::default()));
}

#[test]
fn errors_say_what_is_wrong() {
    for (text, message) in [
        ("lost=0.1", "unknown key `lost`; the keys are loss, burst,"),
        ("loss", "`loss` is not of the form key=value"),
        ("loss=2", "`loss=2`: expected a probability from 0 to 1"),
        ("loss=-0.1", "expected a probability"),
        ("dup=NaN", "expected a probability"),
        (
            "delay=50",
            "`delay=50`: expected a time of at most an hour with its unit (ns, us, ms, s), like 50us",
        ),
        ("delay=5days", "expected a time"),
        ("delay=infs", "expected a time"),
        ("rate=0gbit", "expected a rate of at least 1kbit"),
        ("rate=10", "expected a rate"),
        ("queue=0,rate=1gbit", "`queue=0`: expected a number of frames"),
        ("queue=10", "`queue` has no effect without `rate`"),
        ("ecn=10", "`ecn` has no effect without `rate`"),
        ("limit=0", "`limit=0`: expected a number of frames"),
        ("limit_bytes=1TiB", "expected a number of octets from 1 to 16GiB"),
        ("limit_bytes=17179869185", "expected a number of octets"),
        ("limit_bytes=18446744073709551615GiB", "expected a number of octets"),
        ("seed=-1", "expected a whole number"),
        ("loss=0.1,loss=0.2", "`loss` is given twice"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.contains(message), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn written_and_read_again(p in prop::array::uniform7(0.0..=1.0), t in prop::array::uniform2(0u64..3_600_000_000_000), rate in prop::option::of(1000u64..1_000_000_000_000), queue in 1usize..1000, ecn in prop::option::of(1usize..1000), limit in prop::array::uniform2(1usize..1 << 20), seed: u64) {
        let i = Impairment {
            loss: p[0], burst: p[6], burst_len: queue, dup: p[1], reorder: p[2], corrupt: p[3], swap: p[4], mark: p[5], delay: t[0], jitter: t[1],
            rate, queue: if rate.is_some() { queue } else { QUEUE }, ecn: rate.and(ecn),
            limit: limit[0], limit_bytes: limit[1], seed,
        };
        prop_assert_eq!(parse(&i.to_string()), Ok(i));
    }

    #[test]
    fn no_text_panics(s in "[a-z0-9=,.%-]{0,40}") {
        let _ = s.parse::<Impairment>();
    }
}
