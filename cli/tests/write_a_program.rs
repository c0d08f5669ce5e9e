//! The programs of docs/write-a-program.md: in Rust and in C, each with itself and with the other.

mod stock;

use std::path::{Path, PathBuf};
use std::process::Command;

use stock::{Node, alone, pair, urnic};

const WORDS: &str = "good-morning";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// The Rust program; like every program, it takes the settings that `urnic run` leaves in the environment.
fn rust() -> PathBuf {
    let profile = urnic().parent().expect("a folder");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "urnic", "--example", "greet", "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    profile.join("examples/greet")
}

fn c(folder: &Path) -> PathBuf {
    let program = folder.join("greet");
    let mut build = Command::new("cc");
    build.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    build.arg(root().join("verbs/abi/examples/greet.c")).args(["-lrdmacm", "-libverbs"]);
    assert!(build.status().expect("cc runs").success());
    program
}

/// The server prints what it was told.
fn greets(server: &Path, client: &Path) {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let node = |ip: &str, kind| {
        let port = format!("{kind}:{}/link.sock", folder.path().display());
        Node { ip: ip.into(), port, ..Node::default() }
    };
    let (left, right) = (node("10.4.5.1", "vhost"), node("10.4.5.2", "virtio_user"));
    let (server, client) = pair(
        &left,
        &right,
        &format!("{} serve", server.display()),
        &format!("{} say {} {WORDS}", client.display(), left.ip),
    );
    assert!(client.contains("said"), "{client}");
    assert!(server.lines().any(|line| line == WORDS), "{server}");
}

#[test]
fn in_rust() {
    let program = rust();
    greets(&program, &program);
}

#[test]
#[ignore = "needs the packages libibverbs-dev and librdmacm-dev"]
fn needs_rdma_headers_in_c() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = c(folder.path());
    greets(&program, &program);
}

#[test]
#[ignore = "needs the packages libibverbs-dev and librdmacm-dev"]
fn needs_rdma_headers_in_both() {
    let folder = tempfile::tempdir().expect("a folder");
    let (c, rust) = (c(folder.path()), rust());
    greets(&c, &rust);
    greets(&rust, &c);
}
