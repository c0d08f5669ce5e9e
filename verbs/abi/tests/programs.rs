//! Runs C programs (`c/`), compiled against the headers of rdma-core: both ends of every connection are in one
//! process, on the device's own address. Most run under AddressSanitizer, with leak detection, and some under
//! valgrind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Time limit of a program, in seconds; generous, because the machine may be busy.
const PATIENCE: u32 = 300;

/// Programs that run on the kernel's sockets. The others have a DPDK port without a peer.
const ON_KERNEL: [&str; 1] = ["convert"];

/// Leaks to ignore: memory that DPDK keeps until the process ends.
const KEPT: &str = "leak:urnic_dataplane\nleak:librte_\n";

/// Leaks to ignore with valgrind: also memory that the dynamic linker keeps for libraries that are loaded late.
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

/// Returns the folder of the libraries. They are built here because they are not dependencies of this test.
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
    /// By valgrind, which follows cancelled threads, and checks the reads of the libraries.
    Memcheck,
    /// By valgrind, without leak detection, because a forked child has the memory of threads that do not exist in it.
    Touches,
    /// By nothing. AddressSanitizer reports false errors if threads are cancelled, because these leave their
    /// stacks behind.
    No,
}

/// Compiles and runs a program.
fn run(name: &str, arguments: &[&str], watched: Watched) -> Output {
    run_for(name, arguments, watched, PATIENCE, None)
}

/// Compiles and runs a program, with another time limit and with a log.
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
        // valgrind runs one thread at a time: without fairness, a spinning thread may block the engine's for minutes.
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
    // Whole stacks, because these distinguish leaks.
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

/// Compiles and runs a program, which must succeed. Returns its output.
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

/// Calls every exported function, with right and wrong arguments: `calls.c` prints their names.
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

/// Client and server are in one process and on one address.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_a_process_talks_to_itself() {
    succeeds("hairpin", &[], Watched::Asan);
}

/// Reads into up to 32 elements, by `ibv_post_send` and `ibv_wr_set_sge_list`.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_reads_into_lists() {
    succeeds("reads", &[], Watched::Asan);
}

/// Lists of work requests are posted up to the one that is refused, and inline payload is copied.
#[test]
#[ignore = "needs the headers of rdma-core, packages libibverbs-dev and librdmacm-dev"]
fn needs_verbs_h_lists_are_posted_up_to_the_refused_request() {
    succeeds("lists", &[], Watched::Asan);
}

/// `rnr_retry_count` of `rdma_connect` and `rdma_accept` takes effect.
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
    // Without leak detection: in a child of a process with several threads it would wait for ever.
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
        ("lists", &[]),
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

/// Indices of the numbers that a stage of the soak prints.
const HEAP: usize = 0;
const RESIDENT: usize = 1;
const DESCRIPTORS: usize = 2;
const CONNECTIONS: usize = 3;
const OPERATIONS: usize = 4;
/// The maximum number of addresses in TIME-WAIT.
const MOST_WAITING: u64 = 16_384;

/// Runs connections, registrations, queues and operations for some seconds: the resources of the process must not
/// grow, and all data sent must arrive.
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
    // Tables reach their sizes after a while: at least 1,024 numbers of destroyed objects of each kind wait before
    // they are reused.
    let (early, late) = (&stages[1], &stages[5]);
    let connections = |from: usize, to: usize| stages[to][CONNECTIONS] - stages[from][CONNECTIONS];
    assert!(connections(1, 5) > 0 && late[OPERATIONS] > late[CONNECTIONS], "nothing happened: {printed}");
    // A connection's addresses wait for a minute (TIME-WAIT); the busiest stage determines how many may wait at a
    // time.
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

/// Runs for half an hour, or for `URNIC_SOAK` seconds.
#[test]
#[ignore = "long"]
fn long_soak() {
    soak(std::env::var("URNIC_SOAK").ok().and_then(|s| s.parse().ok()).unwrap_or(1800));
}
