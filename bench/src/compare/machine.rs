//! Describes the machine that the measurements ran on.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::Facts;

/// Returns the first line that a program prints; `None` if the program is missing or fails.
pub fn said(program: &str, args: &str) -> Option<String> {
    let output = Command::new(program).args(args.split_whitespace()).output().ok()?;
    output.status.success().then(|| first_line(&output.stdout))
}

fn first_line(said: &[u8]) -> String {
    String::from_utf8_lossy(said).lines().next().unwrap_or_default().trim().to_owned()
}

/// Returns perftest's version. Its programs exit with status 1 after printing it.
fn perftest() -> Option<String> {
    let output = Command::new("ib_send_lat").arg("--version").output().ok()?;
    first_line(&output.stdout).strip_prefix("Version: ").map(str::to_owned)
}

/// Returns whether there is a program of that name.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns the date and time.
pub fn utc() -> String {
    said("date", "--utc +%Y-%m-%dT%H:%M:%SZ").unwrap_or_else(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{} s after 1970", since.as_secs())
    })
}

/// Returns the jiffies of all cores: busy, and total.
fn jiffies() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = first.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
    let all = fields.iter().sum();
    // The fields of the idle time and of the time waiting for input or output.
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// Returns the load of all cores while this thread sleeps for `time`, in percent.
pub fn busy_percent(time: Duration) -> f64 {
    let before = jiffies();
    thread::sleep(time);
    let after = jiffies();
    let (busy, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    (100.0 * busy as f64 / all.max(1) as f64).round()
}

/// Returns the value of a key in a file of `key: value` lines.
fn field(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns facts about the machine.
pub fn describe() -> Facts {
    let cpuinfo = |key| field("/proc/cpuinfo", key);
    let meminfo = |key| field("/proc/meminfo", key).unwrap_or_default();
    let virtual_machine = cpuinfo("flags").is_some_and(|flags| flags.contains(" hypervisor"));
    Facts::from([
        ("processor", cpuinfo("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned())),
        ("cores allowed", format!("{:?}", urnic_dataplane::allowed_cores())),
        ("virtual machine", if virtual_machine { "yes" } else { "no" }.to_owned()),
        ("memory", meminfo("MemTotal")),
        ("hugepages", format!("{} of {} free", meminfo("HugePages_Free"), meminfo("HugePages_Total"))),
    ])
}

/// Returns the versions of urnic, DPDK, the kernel and the other programs, except those that cannot be found.
pub fn versions(urnic: &Path) -> Facts {
    let urnic = urnic.to_string_lossy();
    let found = [
        ("urnic", said(&urnic, "--version")),
        ("commit", said("git", "describe --always --dirty")),
        ("DPDK", said("pkg-config", "--modversion libdpdk")),
        ("kernel", said("uname", "-sr")),
        ("iperf3", said("iperf3", "--version")),
        ("perftest", perftest()),
        ("libfabric", said("fi_info", "--version")),
        ("sockperf", said("sockperf", "--version")),
    ];
    found.into_iter().filter_map(|(name, version)| Some((name, version?))).collect()
}
