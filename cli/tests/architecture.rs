//! Checks of the architecture: which crates may use each other, where `unsafe` is allowed, how long files may be, and
//! whether the pages about it name what exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, PackageId};

/// The arrows of docs/architecture.md: each crate, and the crates of ours that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("urnic-config", &[]),
    ("urnic-tcp", &[]),
    ("urnic-sim", &[]),
    ("urnic-crc", &[]),
    ("urnic-iwarp", &["urnic-crc"]),
    ("dpdk-sys", &[]),
    ("urnic-dataplane", &["dpdk-sys", "urnic-config", "urnic-crc"]),
    ("urnic", &["urnic-config", "urnic-tcp", "urnic-sim", "urnic-iwarp", "urnic-crc", "urnic-dataplane"]),
    ("urnic-abi", &["urnic", "urnic-config"]),
    ("urnic-shim", &[]),
    ("urnic-bench", &["urnic", "urnic-dataplane", "urnic-config", "urnic-sim"]),
    ("urnic-cli", &["urnic", "urnic-dataplane", "urnic-bench", "urnic-config"]),
];

/// Further crates for test code: the impairment model drives both ends of the protocol crates, and tests connect the
/// engine's TCP with the kernel's through the relay.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("urnic-tcp", &["urnic-sim"]),
    ("urnic-iwarp", &["urnic-sim"]),
    ("urnic", &["urnic-sim"]),
    ("urnic-cli", &["urnic-tcp", "urnic-crc"]),
];

/// Floors inside a crate, from the top: a module may use modules of its own floor and of lower floors.
const FLOORS: &[(&str, &[&str])] = &[("verbs", &["api", "drive", "shared"])];

/// Crates that consist of safe Rust only.
const SAFE: &[&str] = &["config", "tcp", "tcp/sim", "iwarp"];

/// The pages in docs about the architecture.
const PAGES: &[&str] =
    &["architecture.md", "datapath.md", "engines.md", "memory.md", "ports.md", "c-interface.md"];

const MAX_LINES: usize = 800;

fn metadata() -> Metadata {
    // Without the filter, cargo would fetch crates that only other platforms need.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(["--filter-platform".to_owned(), platform])
        .exec()
        .expect("cargo metadata")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

fn allowed(table: &[(&str, &'static [&'static str])], package: &str) -> &'static [&'static str] {
    table.iter().find(|(name, _)| *name == package).map_or(&[], |(_, uses)| *uses)
}

#[test]
fn crates_use_only_those_below_them() {
    let metadata = metadata();
    let ours: BTreeSet<&str> = metadata.workspace_packages().iter().map(|p| p.name.as_str()).collect();
    let known: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).collect();
    assert_eq!(ours, known, "ARROWS names every crate of the workspace");

    for package in metadata.workspace_packages() {
        for dependency in package.dependencies.iter().filter(|d| ours.contains(d.name.as_str())) {
            let name = package.name.as_str();
            let uses = dependency.name.as_str();
            let lawful = allowed(ARROWS, name).contains(&uses)
                || (dependency.kind == DependencyKind::Development
                    && allowed(TEST_ARROWS, name).contains(&uses));
            assert!(lawful, "{name} must not use {uses} ({:?})", dependency.kind);
        }
    }
}

/// Developers without DPDK can work on the protocols.
#[test]
fn protocol_crates_build_without_dpdk() {
    let metadata = metadata();
    let resolve = metadata.resolve.as_ref().expect("a resolved graph");
    let edges: BTreeMap<&PackageId, Vec<&PackageId>> =
        resolve.nodes.iter().map(|n| (&n.id, n.dependencies.iter().collect())).collect();
    let name = |id: &PackageId| metadata[id].name.to_string();

    for start in ["urnic-tcp", "urnic-sim", "urnic-iwarp", "urnic-crc", "urnic-config"] {
        let first = metadata.workspace_packages().into_iter().find(|p| p.name == start).expect("a member");
        let mut seen = BTreeSet::new();
        let mut open = vec![&first.id];
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                open.extend(edges.get(id).into_iter().flatten());
            }
        }
        assert!(!seen.iter().any(|id| name(id) == "dpdk-sys"), "{start} depends on DPDK");
    }
}

/// Returns the modules directly below the crate's root that `source` names. Ignores tests at the end of the source, and
/// links in documentation.
fn modules_named(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: Vec<_> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let word = |text: &str| -> String {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let mut named = BTreeSet::new();
    for rest in code.join("\n").split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            named.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && !c.is_whitespace() => {
                    named.insert(word(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    named
}

#[test]
fn floors_use_only_those_below_them() {
    for (krate, floors) in FLOORS {
        let src = root().join(krate).join("src");
        for path in sources().iter().filter(|path| path.starts_with(&src)) {
            let inside = path.strip_prefix(&src).expect("a prefix");
            let tests = inside
                .iter()
                .any(|part| ["tests", "tests.rs", "models.rs", "fake.rs"].map(AsRef::as_ref).contains(&part));
            if tests || inside == Path::new("lib.rs") {
                continue;
            }
            let at = floors.iter().position(|floor| inside.starts_with(floor));
            let at = at.unwrap_or_else(|| panic!("{} is on no floor", path.display()));
            let named = modules_named(&fs::read_to_string(path).expect("a source"));
            let upper = floors[..at].iter().find(|floor| named.contains(**floor));
            assert!(upper.is_none(), "{} must not use {upper:?}", path.display());
            assert!(
                named.iter().all(|name| floors.contains(&name.as_str())),
                "{} must name floors, not what the root re-exports: {named:?}",
                path.display()
            );
        }
    }
    let named = modules_named(
        "/// [`a`](crate::b::C)\nuse crate::drive::{port, shard};\n#[cfg(test)]\nmod tests {\nuse crate::api;\n}",
    );
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["drive"]);
    let named = modules_named("use crate::{\n    a::{b, c},\n    self_made as d, E,\n};\ncrate::f();");
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["E", "a", "f", "self_made"]);
}

/// Crates whose modules must not depend on each other in a circle.
const CRATES: &[&str] =
    &["config", "tcp", "tcp/sim", "iwarp", "iwarp/crc", "dataplane", "verbs", "verbs/abi", "bench", "cli"];

/// Returns a path from `from` to itself, if there is one.
fn cycle<'a>(arrows: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> Option<Vec<&'a str>> {
    let mut ways = vec![vec![from]];
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop() {
        for next in arrows.get(*way.last().expect("a start")).into_iter().flatten() {
            if next == from {
                return Some(way);
            }
            if seen.insert(next) {
                ways.push([&way[..], &[next.as_str()]].concat());
            }
        }
    }
    None
}

#[test]
fn modules_use_each_other_one_way() {
    for krate in CRATES {
        let src = root().join(krate).join("src");
        let mut arrows = BTreeMap::<String, BTreeSet<String>>::new();
        for path in sources().iter().filter(|path| path.starts_with(&src)) {
            let inside = path.strip_prefix(&src).expect("a prefix");
            let first = Path::new(inside.iter().next().expect("a name")).with_extension("");
            let is_test = inside.iter().any(|part| ["tests", "tests.rs"].map(AsRef::as_ref).contains(&part));
            if !is_test {
                let named = modules_named(&fs::read_to_string(path).expect("a source"));
                arrows.entry(first.display().to_string()).or_default().extend(named);
            }
        }
        let modules: BTreeSet<String> = arrows.keys().cloned().collect();
        for (module, named) in &mut arrows {
            named.retain(|name| modules.contains(name) && name != module);
        }
        for module in &modules {
            let found = cycle(&arrows, module);
            assert!(found.is_none(), "modules of {krate} use each other in a circle: {found:?}");
        }
    }
    let arrows = [("a", "b"), ("b", "c"), ("c", "b")].map(|(a, b)| (a.to_owned(), [b.to_owned()].into()));
    let arrows = arrows.into_iter().collect();
    assert_eq!((cycle(&arrows, "a"), cycle(&arrows, "b")), (None, Some(vec!["b", "c"])));
}

/// Checks the rows `| step | `function`, ... | file |` of docs/datapath.md.
#[test]
fn the_ways_name_what_is_there() {
    let text = fs::read_to_string(root().join("docs/datapath.md")).expect("the document");
    for (title, least) in [("The way of a packet\n", 15), ("The way of a work request\n", 12)] {
        let section = text.split("\n## ").find(|section| section.starts_with(title)).expect(title);
        let mut rows = 0;
        for row in section.lines().filter(|line| line.starts_with("| ") && line.ends_with(".rs |")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [_, functions, file] = cells[..] else { panic!("a row with another form: {row}") };
            let source =
                fs::read_to_string(root().join(file)).unwrap_or_else(|_| panic!("{file} is not there"));
            for name in functions.split(',').map(|name| name.trim().trim_matches('`')) {
                let is_there =
                    source.contains(&format!("fn {name}(")) || source.contains(&format!("fn {name}<"));
                assert!(is_there, "{file} has no function {name}");
            }
            rows += 1;
        }
        assert!(rows >= least, "{rows} rows of: {title}");
    }
}

/// Checks that docs/architecture.md leads to the pages of [`PAGES`], and that each path `folder/file.rs` there exists.
#[test]
fn pages_name_files_that_exist() {
    let page = |name: &str| {
        let path = root().join("docs").join(name);
        fs::read_to_string(path).unwrap_or_else(|_| panic!("docs/{name} is not there"))
    };
    let overview = page("architecture.md");
    for name in PAGES {
        let row = format!("| [{name}]({name}) |");
        assert!(overview.contains(&row) || *name == "architecture.md", "no row leads to docs/{name}");
        let text = page(name);
        // Every second piece is between backticks.
        let quoted = text.split('`').skip(1).step_by(2);
        let paths: Vec<&str> = quoted.filter(|s| s.contains('/') && s.ends_with(".rs")).collect();
        assert!(paths.len() > 1, "docs/{name} names only the files {paths:?}");
        for path in paths {
            assert!(root().join(path).is_file(), "docs/{name} names {path}, which is not there");
        }
    }
}

#[test]
fn safe_crates_forbid_unsafe_code() {
    for krate in SAFE {
        let lib = fs::read_to_string(root().join(krate).join("src/lib.rs")).expect("lib.rs");
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{krate} must forbid unsafe code");
    }
}

/// Returns all source files of ours, without build output.
fn sources() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    assert!(found.len() > 10, "sources are where this test looks for them");
    found
}

#[test]
fn files_stay_readable() {
    for path in sources() {
        let lines = fs::read_to_string(&path).expect("a source").lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines; split it by idea", path.display());
    }
}

/// Returns the line numbers (from 1) of `unsafe` blocks and impls that no SAFETY comment precedes.
///
/// A comment counts if it stands between the start of the statement and the block. It may stand on the same line, or on
/// a line above, but not above a line that is blank or that ends a statement or block.
fn unexplained(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let code = |line: &str| line.split("//").next().unwrap_or("").trim_end().to_owned();
    let opens = |line: &str| {
        let code = code(line);
        code.contains("unsafe {") || code.trim_start().starts_with("unsafe impl") || code.ends_with("unsafe")
    };
    let explained = |at: usize| {
        if lines[at].contains("SAFETY:") {
            return true;
        }
        for line in lines[..at].iter().rev() {
            if line.contains("SAFETY:") {
                return true;
            }
            let code = code(line);
            let comment = line.trim_start().starts_with("//");
            if !comment && (code.is_empty() || code.ends_with([';', '}'])) {
                return false;
            }
        }
        false
    };
    (0..lines.len()).filter(|&at| opens(lines[at]) && !explained(at)).map(|at| at + 1).collect()
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    for path in sources() {
        let found = unexplained(&fs::read_to_string(&path).expect("a source"));
        // This file quotes the keyword in strings.
        if !path.ends_with("cli/tests/architecture.rs") {
            assert!(found.is_empty(), "{}: unsafe without a SAFETY line at {found:?}", path.display());
        }
    }
}

/// Returns the line numbers (from 1) of unsafe functions whose documentation does not state what callers must ensure.
/// Skips functions that C calls, because the documentation of the C interface states it, and functions of trait
/// implementations, because the trait's documentation states it.
fn unconditional(source: &str) -> Vec<usize> {
    let lines: Vec<&str> = source.lines().collect();
    let declares = |line: &str| {
        let line = line.trim_start();
        let code = line.strip_prefix("pub").map_or(line, |l| l.trim_start_matches(|c| c != ' ').trim_start());
        code.starts_with("unsafe fn ")
    };
    let says = |at: usize| {
        let above = lines[..at].iter().rev().map(|l| l.trim_start());
        above.take_while(|l| l.starts_with("///") || l.starts_with("#[")).any(|l| l.contains("# Safety"))
    };
    let of_a_trait = |at: usize| {
        let block = lines[..at].iter().rev().find(|l| l.starts_with("impl") || l.starts_with("unsafe impl"));
        lines[at].starts_with(' ') && block.is_some_and(|l| l.contains(" for "))
    };
    let silent = |at: &usize| declares(lines[*at]) && !says(*at) && !of_a_trait(*at);
    (0..lines.len()).filter(silent).map(|at| at + 1).collect()
}

#[test]
fn every_unsafe_function_says_what_it_asks() {
    for path in sources().iter().filter(|p| !p.iter().any(|part| part == "tests")) {
        let found = unconditional(&fs::read_to_string(path).expect("a source"));
        assert!(found.is_empty(), "{}: unsafe fn without # Safety at {found:?}", path.display());
    }
    assert_eq!(unconditional("/// A.\npub(super) unsafe fn a() {}\n"), [2]);
    assert!(unconditional("/// # Safety\n/// B.\n#[inline]\nunsafe fn a() {}\n").is_empty());
    assert!(unconditional("impl A for B {\n    unsafe fn a() {}\n}\n").is_empty());
    assert_eq!(unconditional("impl B {\n    unsafe fn a() {}\n}\n"), [2]);
}

#[test]
fn an_unexplained_unsafe_block_is_found() {
    assert_eq!(unexplained("let a = 1;\nlet b = unsafe { f() };\n"), [2]);
    assert_eq!(unexplained("// SAFETY: old\nlet a = 1;\n\nunsafe impl Send for A {}\n"), [4]);
    assert!(unexplained("// SAFETY: f has no preconditions\nlet b = unsafe { f() };\n").is_empty());
    assert!(
        unexplained("// SAFETY: ok,\n// really\nlet b = g(\n    1,\n    unsafe { f() },\n);\n").is_empty()
    );
}
