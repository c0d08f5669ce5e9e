use clap::Parser;

use super::*;
use crate::args::Cli;

#[track_caller]
fn needs(line: &str) -> bool {
    let cli = Cli::try_parse_from(line.split_whitespace()).expect("a line that is understood");
    needs_ports(&cli.command).expect("settings without a mistake")
}

/// Only commands that use a port need the build with ports.
#[test]
fn ports_decide() {
    let with = [
        "urnic info --port ring:x",
        "urnic perf pair --port memif",
        "urnic perf pair --port virtio_user",
        "urnic perf server --port vhost:/tmp/x --ip 10.0.0.1/24",
        "urnic perf client 10.0.0.1 --port virtio_user:/tmp/x --ip 10.0.0.2/24",
        "urnic perf floor",
        "urnic rping -s --port af_packet:eth0 --ip 10.0.0.1/24",
        "urnic relay vhost:/tmp/a vhost:/tmp/b",
    ];
    let without = [
        "urnic info",
        "urnic info --port kernel:127.0.0.1",
        "urnic info --connections --port ring:x",
        "urnic perf pair",
        "urnic perf pair --port kernel",
        "urnic perf server",
        "urnic perf client 127.0.0.1 --port kernel",
        "urnic perf table",
        "urnic rping -c -a 127.0.0.1",
        "urnic run --port ring:x --ip 10.0.0.1/24 -- true",
    ];
    for line in with {
        assert!(needs(line), "{line}");
    }
    for line in without {
        assert!(!needs(line), "{line}");
    }
}

/// The message names the release, a library, and the package.
#[test]
fn what_is_missing_is_said() {
    let list = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibrte_eal.so.23 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\
                \tlibrte_mbuf.so.23 => not found\n";
    assert_eq!(missing(list), ["librte_eal.so.23", "librte_mbuf.so.23"]);
    let said = lacks("librte_eal.so.23", 1);
    for part in ["DPDK 22.11", "(librte_eal.so.23 and 1 more)", "librte-meta-all", "--port kernel"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(release("librte_eal.so.25").as_deref(), Some("24.11"));
    assert_eq!(release("libnuma.so.1"), None);
}
