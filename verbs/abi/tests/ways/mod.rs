//! Compiles the C programs of `../c/`, and links them to rdma-core's libraries, as any RDMA program is linked. Runs
//! them with our libraries, in each way of loading these.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How our libraries get into a program, as in `urnic run --libraries`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Preload,
    DropIn,
    Both,
    /// Not preloaded: the program loads them itself.
    Itself,
}

pub const WAYS: [Way; 3] = [Way::Preload, Way::DropIn, Way::Both];

/// The tool that watches a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    No,
    /// AddressSanitizer. Its library must come first in the process.
    Asan,
    /// AddressSanitizer, with its library after preloaded libraries, as with `urnic run` and
    /// `verify_asan_link_order=0`.
    AsanBehind,
    /// AddressSanitizer without leak detection, because forked children have the memory of threads that do not exist
    /// in them.
    AsanNoLeaks,
}

/// Time limit of a program, in seconds; generous, because the machine may be busy.
const PATIENCE: u32 = 300;

/// Leaks to ignore: memory that DPDK keeps until the process ends.
const KEPT: &str = "leak:urnic_dataplane\nleak:librte_\n";

/// Returns the folder of the libraries. They are built here because they are not dependencies of this test.
pub fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = std::env::current_exe().expect("this test");
        let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "urnic-abi", "--package", "urnic-shim", "--target-dir"]);
        build.arg(profile.parent().expect("the target folder"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "the libraries are built");
        profile.to_path_buf()
    })
}

/// The port or sockets under a program's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A DPDK port with these addresses and without a peer.
    Port(&'static str),
    /// The kernel's sockets, with all of the host's addresses.
    Kernel,
    /// Another DPDK port: its specification, with `{}` for a folder of its own, and its addresses.
    Dpdk(&'static str, &'static str),
}

/// The device of programs for which the test names none.
const PORT: On = On::Port("10.4.9.1/24");

/// Compiles a program and runs it in one of the ways of loading.
pub fn run(name: &str, arguments: &[&str], way: Way, watched: Watched) -> Output {
    run_on(PORT, name, arguments, way, watched)
}

/// Compiles a program and runs it on a device that the caller chooses.
pub fn run_on(on: On, name: &str, arguments: &[&str], way: Way, watched: Watched) -> Output {
    run_with(on, name, &[], arguments, way, watched)
}

/// Compiles a program with further options for the compiler, and runs it on a device that the caller chooses.
pub fn run_with(
    on: On,
    name: &str,
    options: &[String],
    arguments: &[&str],
    way: Way,
    watched: Watched,
) -> Output {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    if watched != Watched::No {
        compile.args(["-fsanitize=address", "-fno-omit-frame-pointer"]);
    }
    compile.arg(source).args(options).args(["-Wl,--as-needed", "-lrdmacm", "-libverbs", "-lpthread", "-ldl"]);
    assert!(compile.status().expect("cc runs").success(), "{name} is compiled");

    let kept = folder.path().join("kept");
    std::fs::write(&kept, KEPT).expect("a file");
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &PATIENCE.to_string(), "env"]);
    // Preloads the libraries only into the program, because `timeout` must not load them.
    let mut preload: Vec<PathBuf> = Vec::new();
    if matches!(watched, Watched::Asan | Watched::AsanNoLeaks) {
        preload.push(sanitizer());
    }
    if matches!(way, Way::Preload | Way::Both) {
        preload.push(libraries().join("liburnic.so"));
    }
    if !preload.is_empty() {
        let preload: Vec<String> = preload.iter().map(|path| path.display().to_string()).collect();
        command.arg(format!("LD_PRELOAD={}", preload.join(":")));
    }
    if matches!(way, Way::DropIn | Way::Both) {
        command.arg(format!("LD_LIBRARY_PATH={}", libraries().join("drop-in").display()));
    }
    command.arg(&program).args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    command.env("URNIC_MEMORY_HUGEPAGES", "off");
    let nobody = format!("vhost:{}/nobody.sock", folder.path().display());
    match on {
        On::Kernel => {}
        On::Port(addresses) => {
            command.env("URNIC_IP", addresses).env("URNIC_PORT", nobody);
        }
        On::Dpdk(port, addresses) => {
            command
                .env("URNIC_IP", addresses)
                .env("URNIC_PORT", port.replace("{}", &folder.path().display().to_string()));
        }
    }
    // The sanitizer records whole stacks, because shorter ones do not show which leaks are those of `KEPT`. It makes
    // no signal stacks, because it would free them when a thread ends: in a cancelled thread, the code that frees them
    // would run on what is left of the thread's stack.
    let leaks = u8::from(watched != Watched::AsanNoLeaks);
    let options =
        format!("fast_unwind_on_malloc=0:verify_asan_link_order=0:use_sigaltstack=0:detect_leaks={leaks}");
    command.env("ASAN_OPTIONS", options);
    command.env("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", kept.display()));
    command.output().expect("timeout runs")
}

/// Returns AddressSanitizer's library.
fn sanitizer() -> PathBuf {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output().expect("cc runs");
    PathBuf::from(text(&output).trim())
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a program, which must succeed. Returns its output.
pub fn succeeds(name: &str, arguments: &[&str], way: Way, watched: Watched) -> String {
    succeeds_on(PORT, name, arguments, way, watched)
}

/// Runs a program, which must succeed, on a device that the caller chooses. Returns its output.
pub fn succeeds_on(on: On, name: &str, arguments: &[&str], way: Way, watched: Watched) -> String {
    let output = run_on(on, name, arguments, way, watched);
    let printed = text(&output);
    assert!(
        output.status.success() && printed.lines().any(|l| l == "done"),
        "{name} {arguments:?} {way:?} {watched:?} {on:?}: {}: {printed}",
        output.status
    );
    printed
}
