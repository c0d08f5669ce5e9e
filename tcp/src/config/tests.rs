use super::*;

#[test]
fn own_addresses_count_the_one_that_the_mac_makes() {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let made = "fe80::ff:fe00:7";
    for (given, autoconf, own) in [
        (&["10.0.0.1"][..], false, &["10.0.0.1"][..]),
        (&["10.0.0.1", "fd00::1"], false, &["10.0.0.1", "fd00::1", made]),
        (&["fd00::1", "fe80::1"], false, &["fd00::1", "fe80::1"]),
        (&["fd00::1", "fe80::1"], true, &["fd00::1", "fe80::1", made]),
        (&[made], true, &[made]),
        (&[], true, &[made]),
    ] {
        let address = |text: &&str| Address { ip: ip(text), prefix_len: 64 };
        let cfg = StackConfig {
            addresses: given.iter().map(address).collect(),
            autoconf,
            ..StackConfig::new([2, 0, 0, 0, 0, 7], [0; 4], 0, 0)
        };
        assert_eq!(
            cfg.own_addresses(),
            own.iter().map(|t| ip(t)).collect::<Vec<_>>(),
            "{given:?} {autoconf}"
        );
    }
}
