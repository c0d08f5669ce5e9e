//! The build of the command without DPDK. Beside it is a stand-in for the build with DPDK, which prints its arguments.
#![cfg(not(feature = "dpdk"))]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The C source of the stand-in, which prints its arguments and exits with a distinctive status.
const OTHER: &str = "#include <stdio.h>\nint main(int n, char **words) {\n\
    for (int i = 0; i < n; i++) printf(\"%s \", words[i]);\n\
    return 42;\n}\n";
const RING: [&str; 4] = ["--port", "ring:x", "--ip", "10.0.0.1/24"];

fn compile(folder: &Path, file: &str, code: &str, options: &[&str]) {
    let source = folder.join("source.c");
    fs::write(&source, code).expect("a file");
    fs::create_dir_all(folder.join(file).parent().expect("a folder")).expect("a folder");
    let mut compile = Command::new("cc");
    compile.current_dir(folder).args(["-Wl,--no-as-needed", "-o", file, "source.c"]).args(options);
    let output = compile.output().expect("cc runs");
    assert!(output.status.success(), "{file}: {}", text(&output));
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the command of the installation in `root`, in an environment without urnic's settings.
fn urnic(root: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(root.join("bin/urnic"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.arg0("urnic").args(args).stdin(Stdio::null()).output().expect("urnic runs")
}

/// Makes an installation without the build with DPDK; its libraries are empty files.
fn install() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let bin = root.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    // By another process, because children that other tests start would inherit our file, and keep it busy.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_urnic")).arg(bin.join("urnic")).status();
    assert!(copied.expect("cp runs").success());
    for file in ["liburnic.so", "liburnic_verbs.so", "drop-in/libibverbs.so.1", "drop-in/librdmacm.so.1"] {
        let file = root.path().join("lib/urnic").join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, "").expect("a file");
    }
    root
}

#[track_caller]
fn refuses(root: &Path, args: &[&str], parts: &[&str]) {
    let output = urnic(root, args);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?}: {part:?} is not in {said:?}");
    }
}

#[test]
fn it_becomes_the_build_with_dpdk_for_ports_only() {
    let root = install();
    let root = root.path();
    compile(root, "lib/urnic/dpdk/urnic", OTHER, &[]);
    for args in [
        &["perf", "pair", "--port", "memif", "--size", "8"][..],
        &["perf", "floor"],
        &["relay", "vhost:/tmp/a", "vhost:/tmp/b"],
        &["info", RING[0], RING[1], RING[2], RING[3]],
    ] {
        let output = urnic(root, args);
        assert_eq!(output.status.code(), Some(42), "{args:?}: {}", text(&output));
        assert_eq!(text(&output).trim_end(), format!("urnic {}", args.join(" ")));
    }
    let own = urnic(root, &["info"]);
    assert!(own.status.success() && text(&own).contains("with DPDK for ports"), "{}", text(&own));
    // The command checks the settings before it looks for the other build.
    assert_eq!(urnic(root, &["info", "--port", "ring:x", "--mtu", "1"]).status.code(), Some(2));
}

#[test]
fn it_says_what_the_build_with_dpdk_lacks() {
    let root = install();
    let root = root.path();
    let (pair, relay) = (["perf", "pair", "--port", "memif"], ["relay", "vhost:/tmp/a", "vhost:/tmp/b"]);
    refuses(root, &pair, &["the build of urnic with DPDK", "not installed beside this one"]);
    compile(root, "librte_none.so.23", "", &["-shared", "-Wl,-soname,librte_none.so.23"]);
    compile(root, "lib/urnic/dpdk/urnic", OTHER, &["librte_none.so.23"]);
    compile(root, "lib/urnic/dpdk/liburnic_verbs.so", "", &["-shared"]);
    fs::remove_file(root.join("librte_none.so.23")).expect("it was there");
    let parts = ["DPDK 22.11", "(librte_none.so.23)", "apt install librte-meta-all", "--port kernel"];
    refuses(root, &pair, &parts);
    refuses(root, &relay, &parts);
    // `urnic run` reports the missing library before it starts the program. (A program that had started would report it
    // too.)
    let run = [&["run"][..], &RING, &["--", "echo", "started"]].concat();
    refuses(root, &run, &parts);
    assert!(!text(&urnic(root, &run)).contains("started"));
    let own = urnic(root, &["info"]);
    assert!(own.status.success() && text(&own).contains("librte_none.so.23"), "{}", text(&own));
}
