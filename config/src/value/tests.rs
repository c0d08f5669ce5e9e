use super::*;
use crate::Progress;

fn text(t: &str) -> Value {
    Value::Text(t.to_string())
}

fn string(t: &str) -> Value {
    Value::Str(t.to_string())
}

#[test]
fn booleans() {
    assert_eq!(Value::Bool(true).boolean(), Ok(true));
    for (t, b) in [("true", true), ("yes", true), ("on", true), ("1", true), ("off", false), ("0", false)] {
        assert_eq!(text(t).boolean(), Ok(b), "{t}");
    }
    assert_eq!(text("maybe").boolean().unwrap_err(), "\"maybe\" is not true or false");
    assert_eq!(string("true").boolean().unwrap_err(), "the string \"true\" is not true or false");
    assert_eq!(Value::Int(1).boolean().unwrap_err(), "the number 1 is not true or false");
}

#[test]
fn numbers() {
    assert_eq!(Value::Int(7).number(1..=9u8), Ok(7));
    assert_eq!(text("9").number(1..=9u8), Ok(9));
    assert_eq!(Value::Int(0).number(1..=9u8).unwrap_err(), "0 is outside 1 to 9");
    assert_eq!(Value::Int(-1).number(0..=9u8).unwrap_err(), "-1 is outside 0 to 9");
    assert_eq!(text("300").number(0..=u8::MAX).unwrap_err(), "300 is outside 0 to 255");
    assert_eq!(
        text("99999999999999999999").number(1..=9u8).unwrap_err(),
        "99999999999999999999 is outside 1 to 9"
    );
    assert_eq!(text("1.5").number(1..=9u8).unwrap_err(), "\"1.5\" is not a whole number");
    assert_eq!(string("5").number(1..=9u8).unwrap_err(), "the string \"5\" is not a whole number");
    assert_eq!(Value::Bool(true).number(1..=9u8).unwrap_err(), "the boolean true is not a whole number");
}

#[test]
fn sizes_and_times() {
    assert_eq!(Value::Int(4096).bytes(1..=1u32 << 20), Ok(4096));
    assert_eq!(string("4KiB").bytes(1..=1u32 << 20), Ok(4096));
    assert_eq!(string("4GiB").bytes(1..=1u32 << 20).unwrap_err(), "4GiB is outside 1 to 1048576");
    assert_eq!(string("many").bytes(1..=9u32).unwrap_err(), "the string \"many\" is not a number of bytes");
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    assert_eq!(string("5ms").duration(range.clone()), Ok(Duration::from_millis(5)));
    assert_eq!(text("61s").duration(range.clone()).unwrap_err(), "\"61s\" is outside 1ms to 60s");
    assert_eq!(Value::Int(5).duration(range).unwrap_err(), "the number 5 is not a time with a unit");
}

#[test]
fn words() {
    assert_eq!(text("inline").choice(), Ok(Progress::Inline));
    assert_eq!(
        string("Inline").choice::<Progress>().unwrap_err(),
        "the string \"Inline\" is not one of inline, dedicated, adaptive"
    );
    assert!(text("off").is_off() && Value::Bool(false).is_off() && !Value::Bool(true).is_off());
    assert!(string("auto").is_auto() && !Value::Int(0).is_auto());
}

#[test]
fn cores() {
    assert_eq!(text("").cores(), Ok(vec![]));
    assert_eq!(text("3").cores(), Ok(vec![3]));
    assert_eq!(text("4,0-2").cores(), Ok(vec![4, 0, 1, 2]));
    assert_eq!(Value::Int(2).cores(), Ok(vec![2]));
    assert_eq!(Value::List(vec![Value::Int(1), Value::Int(0)]).cores(), Ok(vec![1, 0]));
    assert_eq!(Value::List(vec![]).cores(), Ok(vec![]));
    assert_eq!(text("1,1").cores().unwrap_err(), "a core is listed twice");
    // What follows a surplus of cores is not read, so that a long list does not fill the memory.
    assert_eq!(text("0-1023,0,a").cores().unwrap_err(), "a core is listed twice");
    assert_eq!(text("0-1023").cores().map(|cores| cores.len()), Ok(1024));
    assert_eq!(text("0,1024").cores().unwrap_err(), "1024 is outside 0 to 1023");
    assert_eq!(text("3-1").cores().unwrap_err(), "the range 3-1 is empty");
    assert_eq!(text("a").cores().unwrap_err(), "\"a\" is not a whole number");
    assert_eq!(Value::Bool(true).cores().unwrap_err(), "the boolean true is not a list of core numbers");
}

#[test]
fn addresses() {
    let cidrs = |v: Value| v.list::<crate::Cidr>("an address with a prefix length");
    let (v4, v6) = ("10.0.0.1/24".parse().unwrap(), "fd00::1/64".parse().unwrap());
    assert_eq!(cidrs(text("10.0.0.1/24")).unwrap(), [v4]);
    assert_eq!(cidrs(text("10.0.0.1/24,fd00::1/64")).unwrap(), [v4, v6]);
    assert_eq!(cidrs(Value::List(vec![string("10.0.0.1/24"), string("fd00::1/64")])).unwrap(), [v4, v6]);
    assert_eq!(cidrs(Value::Int(10)).unwrap_err(), "the number 10 is not an address with a prefix length");
    assert_eq!(text("fd00::1,10.0.0.1").ips().unwrap().len(), 2);
    assert_eq!(string("host").ips().unwrap_err(), "\"host\" is not an IP address");
}
