//! Processes for single tests, and the resources that they use.

use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use urnic::Device;

use crate::ends::PATIENCE;

/// Environment variable with the name of the test that a process runs.
const TEST: &str = "URNIC_TEST_ALONE";

/// Runs the body of a test in its own process, and with `namespace` also in its own network namespace. `test` is the
/// path of the test in this binary: its module and its name.
pub fn alone(test: &str, namespace: bool, body: fn()) {
    if std::env::var_os(TEST).is_some_and(|of| of == test) {
        return body();
    }
    let exe = std::env::current_exe().unwrap();
    let mut command = if namespace { Command::new("unshare") } else { Command::new(&exe) };
    if namespace {
        command.arg("--net").arg(&exe);
    }
    command.args(["--exact", test, "--nocapture", "--include-ignored"]).env(TEST, test);
    let output = command.output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Waits for a condition.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited for: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of descriptors of this process, without the descriptor that this function uses to count.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Waits until the device has no connections, and the number of descriptors is `before`.
#[track_caller]
pub fn nothing_left(device: &Device, before: usize) {
    until("no connection is left", || device.connections().unwrap().is_empty());
    until("no descriptor is left", || descriptors() == before);
}

/// Returns the share of a processor that this process uses during `time`, while the test sleeps.
pub fn idles(time: Duration) -> f64 {
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        [usage.user_time(), usage.system_time()]
            .map(|t| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6)
            .iter()
            .sum::<f64>()
    };
    let (start, before) = (Instant::now(), used());
    thread::sleep(time);
    (used() - before) / start.elapsed().as_secs_f64()
}

/// Checks that this process uses at most a tenth of a processor. (A spinning thread would use a whole processor.)
#[track_caller]
pub fn is_idle(time: Duration) {
    let share = idles(time);
    println!("{:.1} % of a processor in {time:?}", share * 100.0);
    assert!(share < 0.1, "{share}");
}

/// Returns the resident memory of this process, in octets.
pub fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages << 12
}

/// Collects the warnings that are logged from now on.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn new() -> Self {
        let log = Self::default();
        let to = log.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(move || to.clone())
            .init();
        log
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
