use super::*;

#[test]
fn addresses_of_both_families_with_and_without_ports() {
    for (host, address) in [
        ("10.0.0.1", "10.0.0.1:7000"),
        ("10.0.0.1:8", "10.0.0.1:8"),
        ("fd00::1", "[fd00::1]:7000"),
        ("[fd00::1]:8", "[fd00::1]:8"),
        ("fe80::1%nowhere", "[fe80::1]:7000"),
        ("[fe80::1%nowhere]:8", "[fe80::1]:8"),
        ("fe80::1%1", "[fe80::1%1]:7000"),
        ("[fe80::1%lo]:8", "[fe80::1%1]:8"),
        ("fd00::1%1", "[fd00::1]:7000"),
    ] {
        let found = resolve(host, 7000).ok();
        assert_eq!(found, Some(address.parse().expect("an address")), "{host}");
    }
    assert!(resolve("fd00::g", 7000).is_err());
}
