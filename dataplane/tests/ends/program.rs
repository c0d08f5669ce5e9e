//! Programs that other users can run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A copy of a program in a place where every user can run it. The home directory in which the program was built may be
/// closed to other users.
pub struct Program {
    _dir: TempDir,
    pub path: PathBuf,
}

impl Program {
    pub fn copy(program: &Path) -> Self {
        let dir = TempDir::new().expect("a directory");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("our directory");
        let path = dir.path().join("program");
        // This process must not copy the file itself: a child that is being started at the same time would inherit the
        // file open for writing, and a file that is open for writing cannot be run.
        let copied = Command::new("cp").args([program, &path]).status();
        assert!(copied.is_ok_and(|status| status.success()), "copying {}", program.display());
        Self { _dir: dir, path }
    }
}
