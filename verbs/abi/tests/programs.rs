//! C programs (`c/`), compiled against the headers of rdma-core: both ends of every connection are in the one process, on
//! the device's own address. Most run under AddressSanitizer, leaks included, and some under valgrind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How long a program may take, in seconds. A bound, not a measurement: the machine may be busy.
const PATIENCE: u32 = 300;

/// Programs on the kernel's sockets. The others have a port of DPDK's, at whose other end is nobody.
const ON_KERNEL: [&str; 1] = ["convert"];

/// What DPDK keeps until the process ends.
const KEPT: &str = "leak:urnic_dataplane\nleak:librte_\n";

/// The same for valgrind, and what the dynamic linker keeps of libraries that are loaded late.
const KEPT_TOO: &str = "{
  dataplane
  Memcheck:Leak
  ...
  fun:*urnic_dataplane*
}
{
  DPDK
  Memcheck:Leak
  ...
  obj:*/librte_*
}
{
  dlopen
  Memcheck:Leak
  ...
  fun:_dl_open
}
";

/// The folder of the libraries, which are built here: they are no dependencies of this test.
fn libraries() -> &'static Path {
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

#[derive(Clone, Copy, PartialEq)]
enum Watched {
    /// By AddressSanitizer.
    Asan,
    /// By valgrind, which knows what cancelled threads do, and sees the reads of the libraries.
    Memcheck,
    /// By valgrind, but not for leaks: a forked child has the memory of threads that it has not.
    Touches,
    /// AddressSanitizer does not know what the program does: threads that are cancelled leave their stacks behind.
    No,
}

/// Compiles and runs a program.
fn run(name: &str, arguments: &[&str], watched: Watched) -> Output {
    run_for(name, arguments, watched, PATIENCE, None)
}

/// The same with another bound, and with a log.
fn run_for(name: &str, arguments: &[&str], watched: Watched, patience: u32, log: Option<&str>) -> Output {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    if watched == Watched::Asan {
        compile.args(["-fsanitize=address", "-fno-omit-frame-pointer"]);
    }
    compile.arg("-I").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    compile.arg(sources.join(name).with_extension("c")).arg("-L").arg(libraries());
    compile.args(["-l:liburnic.so", "-lpthread", "-ldl"]);
    compile.arg(format!("-Wl,-rpath,{}", libraries().display()));
    assert!(compile.status().expect("cc runs").success(), "{name} is compiled");

    let kept = folder.path().join("kept");
    std::fs::write(&kept, if watched == Watched::Memcheck { KEPT_TOO } else { KEPT }).expect("a file");
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &patience.to_string()]);
    if matches!(watched, Watched::Memcheck | Watched::Touches) {
        // One thread runs at a time there: without fairness one that spins may keep the engine's away for minutes.
        command.args(["valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=9", "--num-callers=40"]);
    }
    if watched == Watched::Memcheck {
        command.args(["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
        command.arg(format!("--suppressions={}", kept.display()));
    }
    command.arg(&program).args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.env("URNIC_MEMORY_HUGEPAGES", "off");
    if !ON_KERNEL.contains(&name) {
        command.env("URNIC_IP", "10.4.9.1/24");
        command.env("URNIC_PORT", format!("vhost:{}/nobody.sock", folder.path().display()));
    }
    // Leaks are told apart by whole stacks.
    command.env("ASAN_OPTIONS", "fast_unwind_on_malloc=0");
    command.env("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", kept.display()));
    if let Some(log) = log {
        command.env("URNIC_LOG", log);
    }
    command.output().expect("timeout runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The same; it has to reach its end. Answers what it printed.
fn succeeds(name: &str, arguments: &[&str], watched: Watched) -> String {
    let output = run(name, arguments, watched);
    let printed = text(&output);
    assert!(
        output.status.success() && printed.lines().any(|l| l == "done"),
        "{name} {arguments:?}: {}: {printed}",
        output.status
    );
    printed
}

/// Every function that is exported is called, with right and wrong arguments: `calls.c` prints their names.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_every_function_is_called() {
    let printed = succeeds("calls", &["1"], Watched::Asan);
    let called: BTreeSet<&str> = printed.lines().filter_map(|line| line.strip_prefix("called ")).collect();
    let exported: BTreeSet<&str> = include_str!("../symbols.txt").lines().collect();
    assert_eq!(called, exported);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_several_threads_call_every_function() {
    succeeds("calls", &["4"], Watched::Asan);
}

/// Client and server in one process, on one address, and two contexts.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_a_process_talks_to_itself() {
    succeeds("hairpin", &[], Watched::Asan);
}

/// One Read into up to 32 elements, by `ibv_post_send` and `ibv_wr_set_sge_list`.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_reads_into_lists() {
    succeeds("reads", &[], Watched::Asan);
}

/// `rnr_retry_count` of `rdma_connect` and `rdma_accept` is obeyed.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_sends_wait_for_receives() {
    succeeds("unready", &[], Watched::Asan);
}

/// The functions of `include/urnic.h`.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_sockets_become_connections() {
    let printed = succeeds("convert", &[], Watched::Asan);
    assert!(printed.contains("it listens: convert a socket that it has accepted"), "{printed}");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_threads_are_cancelled() {
    succeeds("survive", &["cancel"], Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_objects_go_while_others_wait_for_them() {
    succeeds("survive", &["destroy"], Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_forked_children() {
    succeeds("survive", &["fork-before"], Watched::Asan);
    // Leaks are not looked for in a child of several threads: that would wait for ever.
    let printed = succeeds("survive", &["fork-after"], Watched::No);
    assert_eq!(printed.matches("parent").count(), 1, "the child is told why, once: {printed}");
}

#[test]
#[ignore = "needs valgrind, and the headers of rdma-core"]
fn needs_memcheck_no_program_touches_what_it_must_not() {
    for (name, arguments) in [
        ("hairpin", &[] as &[&str]),
        ("reads", &[]),
        ("unready", &[]),
        ("calls", &["1"]),
        ("convert", &[]),
        ("survive", &["cancel"]),
    ] {
        succeeds(name, arguments, Watched::Memcheck);
    }
}

#[test]
#[ignore = "long, and needs valgrind and the headers of rdma-core"]
fn long_memcheck() {
    for (name, arguments) in [
        ("calls", &["4"] as &[&str]),
        ("survive", &["destroy"]),
        ("survive", &["fork-before"]),
        ("survive", &["silent"]),
        ("soak", &["20", "1"]),
    ] {
        succeeds(name, arguments, Watched::Memcheck);
    }
    succeeds("survive", &["fork-after"], Watched::Touches);
}

/// Standard error is a pipe without a reader, everything is logged, and SIGPIPE is ignored.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_nobody_reads_the_log() {
    succeeds("survive", &["silent"], Watched::No);
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_plug_ins_load_and_unload_the_libraries() {
    for library in ["liburnic.so", "liburnic_verbs.so"] {
        let library = libraries().join(library);
        succeeds("plugin", &[library.to_str().expect("a path"), "20"], Watched::No);
    }
}

/// What a stage of the soak tells.
const HEAP: usize = 0;
const RESIDENT: usize = 1;
const DESCRIPTORS: usize = 2;
const CONNECTIONS: usize = 3;
const OPERATIONS: usize = 4;
/// Addresses that are in TIME-WAIT at most.
const MOST_WAITING: u64 = 16_384;

/// Connections, registrations, queues and operations for some seconds: what the process holds does not grow, and what left
/// has arrived.
fn soak(seconds: u32) {
    let seed = std::env::var("URNIC_SEED").unwrap_or_else(|_| std::process::id().to_string());
    let log = Some("warn,urnic::drive::shard::linger=debug");
    let output = run_for("soak", &[&seconds.to_string(), &seed], Watched::No, PATIENCE + 2 * seconds, log);
    let printed = text(&output);
    assert!(output.status.success(), "seed {seed}: {printed}");
    let stages: Vec<Vec<u64>> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("held "))
        .map(|line| line.split_whitespace().map(|n| n.parse().expect("a number")).collect())
        .collect();
    assert!(stages.len() == 6 && stages.iter().all(|s| s.len() == 5), "{printed}");
    // Tables have their sizes after a while: the numbers of objects that are gone rest, 1,024 of a kind at least.
    let (early, late) = (&stages[1], &stages[5]);
    let connections = |from: usize, to: usize| stages[to][CONNECTIONS] - stages[from][CONNECTIONS];
    assert!(connections(1, 5) > 0 && late[OPERATIONS] > late[CONNECTIONS], "nothing happened: {printed}");
    // The addresses of a connection wait for a minute (TIME-WAIT); the busiest stage tells how many may do so at a time.
    let busiest =
        (1..6).map(|stage| connections(stage - 1, stage)).max().unwrap_or(0).max(stages[0][CONNECTIONS]);
    let waiting = (busiest * 60_u64.div_ceil(u64::from(seconds.div_ceil(6)))).min(MOST_WAITING);
    let room = 256 * waiting + 128 * 1024;
    assert!(late[HEAP] < early[HEAP] + room, "the heap grows, seed {seed}: {printed}");
    assert!(late[RESIDENT] < early[RESIDENT] + room / 1024 + 2048, "memory grows, seed {seed}: {printed}");
    assert!(late[DESCRIPTORS] <= early[DESCRIPTORS], "descriptors grow, seed {seed}: {printed}");
    let counter = |name: &str| -> Option<u64> {
        let (_, rest) = printed.split_once(&format!("{name} "))?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    assert!(counter("tcp_segments_in").is_some(), "{printed}");
    assert_eq!(counter("tcp_segments_in"), counter("tcp_segments_out"), "{printed}");
    for bad in ["malformed", "tcp_bad_checksum", "arp_conflicts"] {
        assert_eq!(counter(bad), None, "{printed}");
    }
    println!("{printed}");
}

#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_soak() {
    soak(15);
}

/// Half an hour, or as many seconds as `URNIC_SOAK` says.
#[test]
#[ignore = "long"]
fn long_soak() {
    soak(std::env::var("URNIC_SOAK").ok().and_then(|s| s.parse().ok()).unwrap_or(1800));
}
