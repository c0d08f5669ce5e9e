//! Stores inputs as files, and reads those that once failed.

use std::fs;
use std::path::{Path, PathBuf};

fn folder(kind: &str, target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(kind).join(target)
}

/// Writes the seeds and the regressions to the folder in which libFuzzer looks for its corpus.
pub fn write(target: &str, seeds: &[Vec<u8>]) {
    let to = folder("corpus", target);
    fs::create_dir_all(&to).expect("the corpus folder can be made");
    let inputs = seeds.iter().cloned().chain(regressions(target));
    for (i, input) in inputs.enumerate() {
        fs::write(to.join(format!("seed-{i:03}")), input).expect("the corpus can be written");
    }
}

/// Returns inputs that once failed.
pub fn regressions(target: &str) -> Vec<Vec<u8>> {
    let Ok(files) = fs::read_dir(folder("regressions", target)) else { return Vec::new() };
    let mut paths: Vec<_> = files.flatten().map(|f| f.path()).collect();
    paths.sort();
    paths.iter().flat_map(fs::read).collect()
}
