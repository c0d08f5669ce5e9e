//! Checks the path of the socket through which two processes set a link up.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::AsRawFd;
use urnic_config::{MemifRole, PortSpec};

use super::PortError;

/// memif sockets that this process listens on: several interfaces may share one socket.
static MEMIF: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);

/// Keeps a socket listed in [`MEMIF`] while the first port that listened on it is open.
#[derive(Debug)]
pub(super) struct Listening(PathBuf);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(paths) = MEMIF.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            paths.remove(&self.0);
        }
    }
}

/// Frees the path for a port that is going to listen on it: removes a socket on which no process listens. For a port
/// that cannot wait for its peer, checks that the peer listens. Returns the entry in [`MEMIF`] for the first `memif`
/// server of this process on a path; `None` for all other ports.
pub(super) fn prepare(spec: &PortSpec) -> Result<Option<Listening>, PortError> {
    match spec {
        PortSpec::VirtioUser { path, server: true, .. } | PortSpec::Vhost { path, server: true } => {
            free(path, spec).map(|()| None)
        }
        // A client connects when its device is plugged in, which fails if no process listens. This check also refuses a
        // device file at the path, which the driver would take for a vhost device of the kernel.
        PortSpec::VirtioUser { path, server: false, .. } if !is_served(path) => {
            Err(PortError::NoPeer { port: spec.to_string(), path: path.clone() })
        }
        PortSpec::Memif { path, role: MemifRole::Server, .. } => {
            let mut paths = MEMIF.lock().unwrap_or_else(PoisonError::into_inner);
            let paths = paths.get_or_insert_default();
            if paths.contains(path) {
                return Ok(None);
            }
            free(path, spec)?;
            paths.insert(path.clone());
            Ok(Some(Listening(path.clone())))
        }
        _ => Ok(None),
    }
}

fn free(path: &Path, spec: &PortSpec) -> Result<(), PortError> {
    let bad = |reason: String| PortError::SocketPath { port: spec.to_string(), path: path.into(), reason };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return if dir.is_dir() {
                Ok(())
            } else {
                Err(bad(format!(
                    "the folder {} does not exist; create it, or choose another path",
                    dir.display()
                )))
            };
        }
        Err(e) => return Err(bad(e.to_string())),
    };
    if !meta.file_type().is_socket() {
        return Err(bad(
            "a file that is not a socket is in the way; remove it, or choose another path".into()
        ));
    }
    match probe(path) {
        // No process listens: the socket of a process that was killed.
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(|e| bad(e.to_string())),
        Err(e @ (Errno::EACCES | Errno::EPERM)) => Err(bad(e.desc().into())),
        _ => Err(PortError::SocketInUse { port: spec.to_string(), path: path.into() }),
    }
}

/// Returns whether a process has the socket open.
pub(super) fn is_served(path: &Path) -> bool {
    probe(path) == Err(Errno::EPROTOTYPE)
}

/// Tries to connect with a type of socket that no driver uses. The error shows whether the socket is in use
/// (EPROTOTYPE), and its owner notices nothing. A connection that ended at once would make a memif server panic.
fn probe(path: &Path) -> Result<(), Errno> {
    let fd = socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)
}
