//! The programs of docs/write-a-program.md, in Rust and in C. Each runs with itself and with the other as its peer.

mod stock;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stock::{Node, alone, pair, urnic};

const WORDS: &str = "good-morning";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

/// Builds an example of the crate `urnic`, and returns its path. Under `urnic run`, the example reads its
/// settings from the environment.
fn rust(example: &str) -> PathBuf {
    let profile = urnic().parent().expect("a folder");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "urnic", "--example", example, "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success());
    profile.join("examples").join(example)
}

fn c(folder: &Path) -> PathBuf {
    let program = folder.join("greet");
    let mut build = Command::new("cc");
    build.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    build.arg(root().join("verbs/abi/examples/greet.c")).args(["-lrdmacm", "-libverbs"]);
    assert!(build.status().expect("cc runs").success());
    program
}

/// Checks that the server prints the words that the client sent.
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
    let program = rust("greet");
    greets(&program, &program);
}

/// The programs exchange lines of text first, then use RDMA on the same connection. They use the kernel's sockets,
/// because only these can be converted.
#[test]
fn by_text_and_then_by_rdma() {
    let upgrade = || {
        let mut program = Command::new(rust("upgrade"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_"))
        {
            program.env_remove(name);
        }
        program
    };
    let mut server = upgrade();
    server.args(["serve", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = server.spawn().expect("the example runs");
    let mut said = BufReader::new(server.stderr.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    let at = line.trim().strip_prefix("listening at ").expect("where it listens");
    let client = upgrade().args(["say", at, WORDS]).output().expect("the example runs");
    let server = server.wait_with_output().expect("an end");
    let text = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!((text(&client).as_str(), text(&server)), ("said\n", format!("{WORDS}\n")), "{client:?}");
    assert!(client.status.success() && server.status.success());
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
    let (c, rust) = (c(folder.path()), rust("greet"));
    greets(&c, &rust);
    greets(&rust, &c);
}
