use std::fs;

use super::*;

/// Loads a file and variables.
fn loaded(file: &str, env: &[(&str, &str)]) -> Config {
    let place = tempfile::NamedTempFile::new().unwrap();
    fs::write(&place, file).unwrap();
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    load(&Sources { file: Some(place.path().to_path_buf()), env, ..Sources::default() }).unwrap()
}

/// The connecting side sends an RTR by itself, unless the settings choose otherwise in any source, or allow only
/// revision 1 of MPA, which has none (MPAE-1).
#[test]
fn an_rtr_is_the_default_where_it_is_possible() {
    for (file, env, rtr) in [
        ("", None, RtrChoice::Any),
        ("", Some(("URNIC_MPA_RTR", "off")), RtrChoice::Off),
        ("[mpa]\nrtr = \"off\"", None, RtrChoice::Off),
        ("[mpa]\nrtr = \"off\"", Some(("URNIC_MPA_RTR", "send")), RtrChoice::Send),
        ("[mpa]\nrtr = \"read\"", None, RtrChoice::Read),
        ("[mpa]\nrev = 1", None, RtrChoice::Off),
        ("", Some(("URNIC_MPA_REV", "1")), RtrChoice::Off),
        ("[mpa]\nrev = 1", Some(("URNIC_MPA_REV", "2")), RtrChoice::Any),
    ] {
        assert_eq!(loaded(file, env.as_slice()).mpa.rtr, rtr, "{file} {env:?}");
    }
    // The documented file does not set the key.
    assert_eq!(loaded(include_str!("../../../../docs/urnic.toml"), &[]).mpa.rtr, RtrChoice::Any);
}
