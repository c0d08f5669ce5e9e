//! The libraries have exactly the symbols of `symbols.txt`: one that is missing would run another library's code on our
//! objects.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// What the shim has besides: to show the device's address to programs, to end connections when they end, to leave sockets
/// of DPDK's alone, and to find functions for the drop-in libraries.
const INTERPOSED: [&str; 7] =
    ["getifaddrs", "freeifaddrs", "getaddrinfo", "_exit", "_Exit", "socket", "urnic_find"];
/// What the engine has for the shim.
const INTERNAL: [&str; 2] = ["urnic_before_exit", "urnic_control_thread"];

/// The folder that cargo puts libraries into.
fn built(package: &str, library: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", package, "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
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

/// The public functions of the libraries that are installed here, as far as there are some.
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
