//! Packet scripts: every file under `tests/scripts` that ends in `.pkt` is a test of its own.
//!
//! `cargo test -p urnic-tcp --test pkt close/` runs the scripts whose names contain `close/`. The language is
//! described in `docs/packet-scripts.md`.

mod command;
mod language;
mod packet;
mod run;
mod script;
mod settings;
mod translate;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use translate::Wire;

/// Collects the scripts under a folder, with their names.
fn scripts(folder: &Path, prefix: &str, out: &mut Vec<(String, PathBuf)>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            scripts(&path, &format!("{prefix}{name}/"), out);
        } else if let Some(stem) = name.strip_suffix(".pkt") {
            out.push((format!("{prefix}{stem}"), path));
        }
    }
}

/// Runs one script. An error is the text to print.
fn run(path: &Path, wire: Wire) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    run::run(&text, wire).map_err(|(fault, trace)| {
        let line = text.lines().nth(fault.line - 1).unwrap_or("").trim();
        let mut out = format!("{}:{}: {line}\n{}", path.display(), fault.line, fault.text);
        let last = &trace[trace.len().saturating_sub(10)..];
        if !last.is_empty() {
            out.push_str("\nwhat was sent last:\n    ");
            out.push_str(&last.join("\n    "));
        }
        out
    })
}

/// Handles the command line of `cargo test`, as far as it is useful here.
fn main() -> ExitCode {
    let mut filters = Vec::new();
    let (mut list, mut exact, mut ignored, mut skip) = (false, false, false, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(a) = args.next() {
        match a.as_str() {
            "--list" => list = true,
            "--exact" => exact = true,
            "--ignored" => ignored = true,
            "--skip" => skip.extend(args.next()),
            "--test-threads" | "--format" | "--color" | "-Z" => drop(args.next()),
            flag if flag.starts_with('-') => {}
            name => filters.push(name.to_string()),
        }
    }
    let mut found = Vec::new();
    scripts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"), "", &mut found);
    found.sort();
    let named = |f: &String, name: &str| if exact { name == f } else { name.contains(f.as_str()) };
    let wanted = |name: &str| {
        !ignored
            && (filters.is_empty() || filters.iter().any(|f| named(f, name)))
            && !skip.iter().any(|f| named(f, name))
    };
    type Case = (String, Box<dyn Fn() -> Result<(), String> + std::panic::UnwindSafe>);
    let cases = language::CASES
        .iter()
        .map(|c| -> Case { (format!("language/{}", c.name), Box::new(move || language::check(c))) });
    // All scripts also run over IPv6, except those about ARP and those that name their family.
    let of_both = |path: &Path| {
        !path.components().any(|c| c.as_os_str() == "arp")
            && !std::fs::read_to_string(path)
                .is_ok_and(|text| text.contains("family=") || text.contains("ip=6"))
    };
    let in_v6: Vec<_> = found.iter().filter(|(_, path)| of_both(path)).cloned().collect();
    let case = |prefix: &str, v6| {
        let prefix = prefix.to_owned();
        move |(name, path): (String, PathBuf)| -> Case {
            let wire = Wire { v6, vlan: None };
            (format!("{prefix}{name}"), Box::new(move || run(&path, wire)))
        }
    };
    let scripts = found.into_iter().map(case("", false)).chain(in_v6.into_iter().map(case("v6/", true)));
    let (cases, others): (Vec<Case>, Vec<Case>) = cases.chain(scripts).partition(|(name, _)| wanted(name));
    if list {
        cases.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", cases.len());
    let (mut passed, mut failures) = (0, Vec::new());
    for (name, case) in cases {
        let result = std::panic::catch_unwind(case).unwrap_or_else(|_| Err("it panicked; see above".into()));
        println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
        match result {
            Ok(()) => passed += 1,
            Err(why) => failures.push((name, why)),
        }
    }
    for (name, why) in &failures {
        println!("\n---- {name} ----\n{why}");
    }
    println!(
        "\ntest result: {}. {passed} passed; {} failed; 0 ignored; 0 measured; {} filtered out\n",
        if failures.is_empty() { "ok" } else { "FAILED" },
        failures.len(),
        others.len()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}
