//! rdma-core's own Python tests under `urnic run`, compared with docs/pyverbs.md in both directions.

mod stock;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use stock::{Node, alone};

/// Folder of the tests in Debian's package python3-pyverbs.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// The version of rdma-core that the document describes.
const VERSION: &str = "44.";

/// The outcome of each test, by name.
type Outcomes = BTreeMap<String, String>;

/// Parses the document: headings that end in `: COUNT OUTCOME`, and lists of tests in backticks below them.
fn documented() -> Outcomes {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pyverbs.md");
    let document = std::fs::read_to_string(document).expect("docs/pyverbs.md");
    let mut outcomes = Outcomes::new();
    for section in document.split("\n## ").skip(1) {
        let (heading, text) = section.split_once('\n').expect("a section");
        let mut words = heading.rsplit(' ');
        let outcome = words.next().expect("an outcome");
        let count: usize = words.next().and_then(|n| n.parse().ok()).expect("how many tests");
        let before = outcomes.len();
        for item in text.split("\n* ").skip(1) {
            let mut names = item.split('`').skip(1).step_by(2);
            let class = names.next().expect("a class");
            outcomes.extend(names.map(|name| (format!("tests.{class}.{name}"), outcome.to_owned())));
        }
        assert_eq!(outcomes.len() - before, count, "{heading}");
    }
    outcomes
}

/// Makes a copy of the tests that Python can read.
fn unpack(to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(TESTS).arg(to).status().expect("cp runs");
    assert!(copied.success());
    let unpacked = Command::new("gunzip").arg("-rf").arg(to).status().expect("gunzip runs");
    assert!(unpacked.success());
}

#[test]
#[ignore = "needs the package python3-pyverbs"]
fn needs_pyverbs_rdma_cores_tests() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let tests = folder.path().join("tests");
    unpack(&tests);
    let node = Node {
        ip: "10.4.4.1".into(),
        port: format!("vhost:{}/link.sock", folder.path().display()),
        ..Node::default()
    };
    let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs/run.py");
    let printed = node.succeeds(&format!("/usr/bin/python3 {} {}", runner.display(), tests.display()));
    let mut outcomes = Outcomes::new();
    let mut wrong = Vec::new();
    let expected = documented();
    for line in printed.lines() {
        let mut fields = line.split('\t');
        let (Some(outcome), Some(name), Some(why)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        outcomes.insert(name.to_owned(), outcome.to_owned());
        if expected.get(name).is_none_or(|expected| expected != outcome) {
            let expected = expected.get(name).map_or("not listed", String::as_str);
            wrong.push(format!("{name}: {outcome}, expected: {expected}. {why}"));
        }
    }
    let package = Command::new("dpkg-query").args(["-W", "-f=${Version}", "python3-pyverbs"]).output();
    if package.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).starts_with(VERSION)) {
        let missing = expected.keys().filter(|name| !outcomes.contains_key(*name));
        wrong.extend(missing.map(|name| format!("{name}: not run")));
    } else {
        // Another version of rdma-core has other tests. The tests that both versions have must have the documented
        // outcome.
        wrong.retain(|line| !line.contains("not listed"));
    }
    assert!(wrong.is_empty(), "{}\n{printed}", wrong.join("\n"));
    assert!(outcomes.values().any(|outcome| outcome == "ok"), "{printed}");
}
