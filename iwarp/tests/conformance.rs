//! Checks docs/conformance.md against the code. Every requirement has a row. Every row names a place that
//! implements the requirement, and a test that exists and cites it. Some rows name a document instead of the
//! test, or say why no test can prove the requirement.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Number of requirements of each kind. Their numbers run from 1 without gaps.
const COUNTS: [(&str, u32); 6] =
    [("MPA", 92), ("MPAE", 40), ("DDP", 66), ("RDMAP", 87), ("RDMAPX", 31), ("SEC", 39)];
/// Rows of the error table. Their numbers have gaps.
const ERRORS: usize = 40;
/// Precedes the reason for which a requirement has no test.
const UNTESTABLE: &str = "not testable: ";
/// Precedes the file and the words that document a requirement on people. Documentation does not count as a proof.
const DOCUMENTATION: &str = "documentation: ";

struct Row {
    id: String,
    level: String,
    implemented: Vec<String>,
    proven: Vec<String>,
    /// The row gives a reason for which there is no test.
    excused: bool,
    /// File and words that document a requirement on people; `None` for a requirement on the code.
    documented: Option<(String, String)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the texts between backquotes.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("docs/conformance.md")).expect("docs/conformance.md");
    let mut rows = Vec::new();
    for line in text.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| id ")) {
        let line = line.replace("\\|", "/");
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let &[id, level, statement, implemented, proven] = &cells[..] else {
            panic!("not a row of five cells: {line}")
        };
        assert!(!statement.is_empty(), "{id}: no statement");
        let documented = proven.strip_prefix(DOCUMENTATION).map(|place| {
            let (file, words) = place.split_once("`, \"").expect("`file`, \"words\"");
            (file.trim_matches('`').to_owned(), words.trim_matches('"').to_owned())
        });
        rows.push(Row {
            id: id.into(),
            level: level.into(),
            implemented: quoted(implemented),
            proven: if documented.is_some() { Vec::new() } else { quoted(proven) },
            excused: proven.starts_with(UNTESTABLE) && proven.len() > UNTESTABLE.len() + 10,
            documented,
        });
    }
    rows
}

/// Returns the test function `name` in `text`, from the attributes and comments before it to the end of its body;
/// `None` if there is no such test.
fn test_function<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let at = text.find(&format!("fn {name}("))?;
    let line = text[..at].rfind('\n').map_or(0, |n| n + 1);
    let indent = text[line..at].len() - text[line..at].trim_start().len();
    // The head: the lines directly above that are attributes or comments.
    let mut start = line;
    while start > 0 {
        let before = text[..start - 1].rfind('\n').map_or(0, |n| n + 1);
        let head = text[before..start].trim();
        if !(head.starts_with("//") || head.starts_with("#[") || head.ends_with(")]")) {
            break;
        }
        start = before;
    }
    let close = format!("\n{}}}", &text[line..line + indent]);
    let end = text[at..].find(&close).map_or(text.len(), |n| at + n);
    let whole = &text[start..end];
    whole.contains("#[test]").then_some(whole)
}

/// Returns whether `text` names `id`, alone or within a list such as `MPA-12, 13` or a range such as `MPA-12..15`. An
/// id with a letter, such as `ERR-48b`, must stand alone.
fn cites(text: &str, id: &str) -> bool {
    let (kind, number) = id.rsplit_once('-').expect("an id");
    let Ok(number) = number.parse::<u32>() else {
        return text
            .match_indices(id)
            .any(|(at, _)| !text[at + id.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()));
    };
    let prefix = format!("{kind}-");
    text.match_indices(&prefix).any(|(at, _)| {
        let alone = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        let list: String = text[at + prefix.len()..]
            .chars()
            .take_while(|c| c.is_ascii_digit() || ", .".contains(*c))
            .collect();
        // `ERR-48b` is not `ERR-48`.
        let next = text[at + prefix.len() + list.len()..].chars().next();
        let lettered =
            list.ends_with(|c: char| c.is_ascii_digit()) && next.is_some_and(|c| c.is_ascii_lowercase());
        let list = if lettered { list.trim_end_matches(|c: char| c.is_ascii_digit()) } else { &list };
        alone
            && list.split(',').any(|part| match part.trim().trim_end_matches('.').split_once("..") {
                Some((a, b)) => matches!((a.parse(), b.parse()), (Ok(a), Ok(b)) if (a..=b).contains(&number)),
                None => part.trim().trim_end_matches('.').parse() == Ok(number),
            })
    })
}

#[test]
fn every_requirement_has_a_row() {
    let rows = rows();
    let mut seen = BTreeMap::new();
    for row in &rows {
        *seen.entry(row.id.clone()).or_insert(0) += 1;
    }
    for (kind, count) in COUNTS {
        for id in (1..=count).map(|n| format!("{kind}-{n}")) {
            assert_eq!(seen.get(&id), Some(&1), "rows for {id}");
        }
    }
    let errors = rows.iter().filter(|r| r.id.starts_with("ERR-")).count();
    assert_eq!(errors, ERRORS, "rows for errors");
    assert_eq!(rows.len(), errors + COUNTS.iter().map(|c| c.1 as usize).sum::<usize>());
}

#[test]
fn every_row_names_code_and_a_test_that_cites_it() {
    let mut files = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in rows() {
        if row.implemented.is_empty() {
            wrong.push(format!("{}: no place that implements it", row.id));
        }
        for path in row.implemented.iter().filter(|path| !root().join(path).exists()) {
            wrong.push(format!("{}: {path} does not exist", row.id));
        }
        if row.proven.is_empty() && !row.excused && row.documented.is_none() {
            wrong.push(format!("{}: no test", row.id));
        }
        if let Some((file, words)) = &row.documented {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            if words.is_empty() || !text.contains(words) {
                wrong.push(format!("{}: {file} does not say {words:?}", row.id));
            }
        }
        for test in &row.proven {
            let Some((path, name)) = test.split_once("::") else {
                wrong.push(format!("{}: {test} is not file::test", row.id));
                continue;
            };
            let text = files
                .entry(path.to_owned())
                .or_insert_with(|| std::fs::read_to_string(root().join(path)).unwrap_or_default());
            match test_function(text, name) {
                None => wrong.push(format!("{}: no test {test}", row.id)),
                Some(body) if !cites(body, &row.id) => {
                    wrong.push(format!("{}: {test} does not cite it", row.id));
                }
                Some(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} flaws of docs/conformance.md:\n{}", wrong.len(), wrong.join("\n"));
}

/// Tests cover nearly all SHOULD requirements, and every MUST and MUST NOT requirement that a test can reach.
#[test]
fn what_is_not_tested_is_little() {
    let rows = rows();
    let excused = |levels: &[&str]| -> Vec<&str> {
        let of_level = rows.iter().filter(|r| levels.contains(&r.level.as_str()));
        of_level.filter(|r| r.proven.is_empty() && r.documented.is_none()).map(|r| r.id.as_str()).collect()
    };
    let should = rows.iter().filter(|r| r.level.starts_with("SHOULD")).count();
    let should_excused = excused(&["SHOULD", "SHOULD NOT"]);
    assert!(should_excused.len() * 20 <= should, "{should_excused:?} of {should} SHOULD");
    let must: Vec<&str> = excused(&["MUST", "MUST NOT"]);
    let reachable: Vec<&&str> = must.iter().filter(|id| !OUT_OF_REACH.contains(id)).collect();
    assert!(reachable.is_empty(), "MUST without a test: {reachable:?}");
    let documented = rows.iter().filter(|r| r.documented.is_some()).map(|r| r.id.as_str());
    assert_eq!(documented.collect::<Vec<_>>(), FOR_PEOPLE);
}

/// Requirements on IPsec and on the loading of firmware. No test in this repository can prove them.
const OUT_OF_REACH: &[&str] = &["MPA-85", "MPA-86", "SEC-13", "SEC-23", "SEC-24", "SEC-33"];

/// Requirements on administrators and programs, which can only be documented.
const FOR_PEOPLE: &[&str] = &["MPA-31", "SEC-32", "SEC-36"];

/// SEC-35: both the RNIC (SEC-1..12) and the privileged resource manager (SEC-14..22) exist, and tests prove each
/// part.
#[test]
fn both_parts_of_rfc_5042_are_there() {
    let rows = rows();
    let unproven = |n: &u32| !rows.iter().any(|r| r.id == format!("SEC-{n}") && !r.proven.is_empty());
    let missing: Vec<u32> = (1..=22).filter(|n| *n != 13).filter(unproven).collect();
    assert!(missing.is_empty(), "SEC {missing:?}");
    let text = std::fs::read_to_string(root().join("docs/security.md")).expect("docs/security.md");
    assert!(text.contains("| privileged resource manager |"), "nobody plays the resource manager");
}

#[test]
fn citations_are_found() {
    for text in ["MPA-12", "(MPA-11, 12)", "MPA-10..12.", "SEC-12, MPA-12:"] {
        assert!(cites(text, "MPA-12"), "{text}");
    }
    assert!(cites("ERR-48, ERR-48b.", "ERR-48") && cites("ERR-48, ERR-48b.", "ERR-48b"));
    assert!(!cites("ERR-48b", "ERR-48") && !cites("ERR-47, 48b", "ERR-48") && !cites("ERR-48", "ERR-48b"));
    assert!(!cites("ERR-48bc", "ERR-48b"));
    for text in ["MPA-120", "XMPA-12", "MPA-1, 2", "MPA 12", "MPAE-12"] {
        assert!(!cites(text, "MPA-12"), "{text}");
    }
}
