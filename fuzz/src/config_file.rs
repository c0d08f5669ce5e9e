//! The text of a configuration file: it is accepted, or refused with a message that says where and what to do.

use std::path::Path;
use urnic_config::{Config, Origin};

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = Path::new("fuzz.toml");
    let Err(e) = Config::parse(path, text) else { return };
    let lines = text.lines().count().max(1);
    match &e.origin {
        Origin::File { path: named, line } => {
            assert_eq!(named, path);
            // If something is missing at the end of the text, the line may be one past the last.
            assert!(line.is_none_or(|l| (1..=lines + 1).contains(&l)), "line {line:?} of {lines}");
        }
        other => panic!("blames {other:?}"),
    }
    assert!(!e.problem.is_empty() && !e.remedy.is_empty(), "{e:?}");
}

/// Returns files with all sections, valid and invalid ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let whole = r#"
[port]
port = "memif:/p/m.sock,role=server"
mtu = 9000
mac = "02:00:00:00:00:07"
fault = "loss=0.01,seed=7"
[ip]
ip = ["10.0.0.7/8"]
gateway = "10.1.1.1"
[engine]
cores = [1, 0]
progress = "inline"
crc_kernel = "sse4.2"
[tcp]
rto_min = "5ms"
recv_window = 100_000
sack = false
congestion = "reno"
keepalive_idle = "off"
keepalive_interval = "2s"
keepalive_count = 3
[mpa]
rev = 1
crc = false
ord = 7
startup_timeout = "2s"
[memory]
mb = 512
hugepages = "off"
"#;
    let small = [
        "mtu = 9000",
        "[port]\nport = \"vhost:/a.sock,x=1\"",
        "[port]\nmtu = \"big\"",
        "[tcp]\nrto_min = \"1ms\"",
        "[",
        "a.b.c = 1",
    ];
    std::iter::once(whole).chain(small).map(|s| s.as_bytes().to_vec()).collect()
}
