//! Checks that the libraries have exactly the symbols of `symbols.txt`: a missing one would run another library's
//! code on our objects.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// Further symbols of the shim: to show the device's address to programs, to end connections when programs end, to
/// leave DPDK's sockets alone, and to find functions for the drop-in libraries.
const INTERPOSED: [&str; 13] = [
    "getifaddrs",
    "freeifaddrs",
    "getaddrinfo",
    "ioctl",
    "if_nametoindex",
    "if_indextoname",
    "if_nameindex",
    "if_freenameindex",
    "_exit",
    "_Exit",
    "daemon",
    "socket",
    "urnic_find",
];
/// Functions of `liburnic_verbs.so` that only `liburnic.so` calls.
const INTERNAL: [&str; 4] = ["urnic_before_exit", "urnic_control_thread", "urnic_link", "urnic_needs_dpdk"];

/// Builds a library, and returns its file.
fn built(package: &str, library: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", package, "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    if cfg!(not(feature = "dpdk")) {
        build.arg("--no-default-features");
    }
    assert!(build.status().expect("cargo runs").success(), "{package} is built");
    profile.join(library)
}

fn exports(library: PathBuf) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output().expect("nm runs");
    assert!(output.status.success(), "{}", library.display());
    let text = String::from_utf8(output.stdout).expect("names");
    text.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

fn expected() -> BTreeSet<String> {
    include_str!("../symbols.txt").lines().map(str::to_owned).collect()
}

#[test]
fn the_interface_is_complete() {
    let mut expected = expected();
    expected.extend(INTERNAL.map(str::to_owned));
    assert_eq!(exports(built("urnic-abi", "liburnic_verbs.so")), expected);
}

#[test]
fn the_preloaded_library_forwards_all_of_it() {
    let interposed = INTERPOSED.map(str::to_owned);
    let expected: BTreeSet<String> = expected().into_iter().chain(interposed).collect();
    assert_eq!(exports(built("urnic-shim", "liburnic.so")), expected);
}

/// The public functions of the libraries that are installed here, if any.
#[test]
fn nothing_that_is_public_elsewhere_is_left_out() {
    let expected = expected();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let Some(path) = folders.iter().map(|f| PathBuf::from(f).join(library)).find(|p| p.exists()) else {
            continue;
        };
        let output =
            Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(path).output();
        let text = String::from_utf8(output.expect("nm runs").stdout).expect("names");
        for symbol in text.lines().filter_map(|line| line.split_whitespace().last()) {
            let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
            let public =
                !version.contains("PRIVATE") && !version.is_empty() && name != version.trim_matches('@');
            let ours = ["ibv_", "_ibv_", "rdma_"].iter().any(|prefix| name.starts_with(prefix));
            assert!(!public || !ours || expected.contains(name), "{library} has {symbol}");
        }
    }
}

/// A call by name goes to the first library in the process that has the name. In a program that is linked to a drop-in
/// library, that is the drop-in library. If the name has several versions there, the call reaches the oldest one, which
/// always fails.
#[test]
fn no_library_reaches_its_own_functions_by_name() {
    for (package, library) in [
        ("urnic-abi", "liburnic_verbs.so"),
        ("urnic-shim", "liburnic.so"),
        ("urnic-shim", "drop-in/libibverbs.so.1"),
        ("urnic-shim", "drop-in/librdmacm.so.1"),
    ] {
        let path = built(package, library);
        let own: BTreeSet<String> =
            exports(path.clone()).iter().map(|name| without_version(name).to_owned()).collect();
        assert!(!own.is_empty(), "{library} exports nothing");
        let output = Command::new("readelf").args(["--relocs", "--wide"]).arg(&path).output();
        let text = String::from_utf8(output.expect("readelf runs").stdout).expect("relocations");
        // Fields: offset, info, type, value, name, addend.
        let named = text.lines().filter_map(|line| line.split_whitespace().nth(4)).map(without_version);
        let named: BTreeSet<&str> = named.collect();
        assert!(named.contains("malloc") || named.contains("urnic_find"), "{library}: {text}");
        let by_name: Vec<&&str> = named.iter().filter(|name| own.contains(**name)).collect();
        assert!(by_name.is_empty(), "{library} reaches {by_name:?} by name");
    }
}

fn without_version(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}
