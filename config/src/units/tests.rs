use super::*;

#[test]
fn durations() {
    for (text, micros) in [
        ("0s", 0),
        ("150us", 150),
        ("200ms", 200_000),
        ("3 s", 3_000_000),
        ("2m", 120_000_000),
        ("1h", 3_600_000_000),
    ] {
        assert_eq!(duration(text), Some(Duration::from_micros(micros)), "{text}");
    }
    for bad in ["", "5", "ms", "-1s", "1.5s", "1sec", "s5", "99999999999999999999s", "18446744073709551615h"]
    {
        assert_eq!(duration(bad), None, "{bad}");
    }
}

#[test]
fn sizes() {
    for (text, n) in [("0", 0), ("7B", 7), ("64KiB", 65536), ("1 MiB", 1 << 20), ("2GiB", 2 << 30)] {
        assert_eq!(bytes(text), Some(n), "{text}");
    }
    for bad in ["", "1kb", "1MB", "KiB", "-1", "18446744073709551615KiB"] {
        assert_eq!(bytes(bad), None, "{bad}");
    }
}
