//! Suggestions for misspelt words ("did you mean ...?").

/// Returns the candidate closest to `word`, if one is close enough.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer word is not a misspelt key, and the distance would take long to compute.
    if word.len() > 64 {
        return None;
    }
    candidates
        .map(|c| (distance(word, c), c))
        .filter(|(d, c)| *d <= 1 + c.len() / 5)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Returns a remedy for an unknown word: the closest candidate, or all of them.
pub(crate) fn remedy<'a>(
    word: &str,
    candidates: impl Iterator<Item = &'a str> + Clone,
    intro: &str,
) -> String {
    match nearest(word, candidates.clone()) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("{intro} {}", candidates.collect::<Vec<_>>().join(", ")),
    }
}

/// Returns the edit distance of two words: insertions, deletions and replacements of a character, and exchanges of
/// neighbours; `-` counts as `_`.
fn distance(a: &str, b: &str) -> usize {
    let letters = |s: &str| -> Vec<char> { s.replace('-', "_").chars().collect() };
    let (a, b) = (letters(a), letters(b));
    // `edits[i][j]`: distance between the first `i` characters of `a` and the first `j` of `b`.
    let mut edits = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            edits[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = edits[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let best = replaced.min(edits[i - 1][j] + 1).min(edits[i][j - 1] + 1);
                let exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if exchanged { best.min(edits[i - 2][j - 2] + 1) } else { best }
            };
        }
    }
    edits[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "", 0),
            ("", "abc", 3),
            ("mtu", "mtu", 0),
            ("mut", "mtu", 1),
            ("kitten", "sitting", 3),
            ("rto-min", "rto_min", 0),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }

    #[test]
    fn only_what_is_close_is_suggested() {
        let keys = ["mtu", "mac", "port", "recv_window"];
        assert_eq!(nearest("mtuu", keys.into_iter()), Some("mtu"));
        assert_eq!(nearest("recv_windwo", keys.into_iter()), Some("recv_window"));
        assert_eq!(nearest("banana", keys.into_iter()), None);
        assert_eq!(nearest(&"m".repeat(100_000), keys.into_iter()), None);
    }
}
