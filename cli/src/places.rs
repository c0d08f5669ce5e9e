//! Folders of the files that belong to this command.

use std::path::{Path, PathBuf};

/// The folder of the build with DPDK, in the folder of the libraries.
pub const DPDK: &str = "dpdk";

/// Returns the folders in which a command's libraries may be: beside it, or where packages put libraries.
pub fn places(command: &Path) -> [PathBuf; 3] {
    let beside = command.parent().unwrap_or(Path::new("."));
    let beside = match beside.ends_with(DPDK) && cfg!(feature = "dpdk") {
        true => beside.join(".."),
        false => beside.to_path_buf(),
    };
    [beside.clone(), beside.join("../lib/urnic"), beside.join("../lib")]
}
