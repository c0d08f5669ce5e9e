//! Folders of the files that belong to this command.

use std::path::{Path, PathBuf};

/// Name of the folder that holds the files built with DPDK. It is inside the folder of the libraries.
pub const DPDK: &str = "dpdk";

/// Returns the folders in which a command's libraries may be: its own folder, and those where packages put libraries.
/// If the command is a build with DPDK in a folder named [`DPDK`], the parent of that folder counts as its own.
pub fn places(command: &Path) -> [PathBuf; 3] {
    let beside = command.parent().unwrap_or(Path::new("."));
    let beside = match beside.ends_with(DPDK) && cfg!(feature = "dpdk") {
        true => beside.join(".."),
        false => beside.to_path_buf(),
    };
    [beside.clone(), beside.join("../lib/urnic"), beside.join("../lib")]
}
