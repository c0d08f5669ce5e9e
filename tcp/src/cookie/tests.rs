use super::*;

fn cookies(secret: &Secret, irs: u32) -> Cookies<'_> {
    let (local, remote) = (([10, 0, 0, 1], 80).into(), ([10, 0, 0, 2], 1234).into());
    Cookies { secret, local, remote, irs: Seq(irs) }
}

#[test]
fn a_cookie_remembers_the_mss() {
    let secret = Secret::new(1);
    let now = Time::from_secs(1000);
    for (mss, remembered) in
        [(0, 216), (216, 216), (535, 216), (536, 536), (1459, 1440), (1460, 1460), (65_535, 8960)]
    {
        let number = cookies(&secret, 7).number(now, mss);
        assert_eq!(cookies(&secret, 7).check(now, number), Some(remembered));
    }
}

#[test]
fn a_cookie_is_of_one_connection_and_one_time() {
    let secret = Secret::new(1);
    let now = Time::from_secs(6400);
    let number = cookies(&secret, 7).number(now, 1460);
    assert_eq!(cookies(&secret, 8).check(now, number), None);
    let other = Secret::new(2);
    assert_eq!(cookies(&other, 7).check(now, number), None);
    let mut elsewhere = cookies(&secret, 7);
    elsewhere.remote.set_port(1235);
    assert_eq!(elsewhere.check(now, number), None);
    for (later, good) in
        [(0, true), (63, true), (64, true), (127, true), (128, false), (192, false), (256, false)]
    {
        let at = now + Duration::from_secs(later);
        assert_eq!(cookies(&secret, 7).check(at, number).is_some(), good, "{later} s later");
    }
}

/// The chance of each guess is 2⁻²⁸, so hardly any of four million guesses is valid.
#[test]
fn guesses_fail() {
    let secret = Secret::new(1);
    let c = cookies(&secret, 7);
    let good = (0..1u32 << 22).filter(|&i| c.check(Time::from_secs(5), Seq(i.wrapping_mul(1021))).is_some());
    assert!(good.count() < 16);
}

#[test]
fn options_come_back_and_clocks_do_not_run_ahead() {
    for clock in [0, 1, 30, 31, 32, 63, 64, 1_000_000, u32::MAX] {
        for window_scale in [None, Some(0), Some(7), Some(14)] {
            for sack_permitted in [false, true] {
                let offered = SynOptions { mss: Some(1460), window_scale, sack_permitted, ecn: false };
                let value = timestamp(clock, &offered);
                assert!(clock.wrapping_sub(value) < 64);
                assert_eq!(options(value, 1460), offered);
            }
        }
    }
}
