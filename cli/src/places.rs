//! Where what belongs to this command lies.

use std::path::{Path, PathBuf};

/// The folder of the build with DPDK, below that of the libraries.
pub const DPDK: &str = "dpdk";

/// Where the libraries of a command may be: beside it, or where packages put libraries.
pub fn places(command: &Path) -> [PathBuf; 3] {
    let beside = command.parent().unwrap_or(Path::new("."));
    let beside = match beside.ends_with(DPDK) && cfg!(feature = "dpdk") {
        true => beside.join(".."),
        false => beside.to_path_buf(),
    };
    [beside.clone(), beside.join("../lib/urnic"), beside.join("../lib")]
}
