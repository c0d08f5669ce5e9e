//! The socket through which two processes set a link up: is its path free?

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

/// memif sockets that this process listens on: several interfaces may share one.
static MEMIF: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);

/// Held while a port listens.
#[derive(Debug)]
pub(super) struct Listening(PathBuf);

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(paths) = MEMIF.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            paths.remove(&self.0);
        }
    }
}

/// Makes the path free for a port that is going to listen on it: removes a socket on which nobody listens.
pub(super) fn prepare(spec: &PortSpec) -> Result<Option<Listening>, PortError> {
    let (path, kind) = match spec {
        PortSpec::VirtioUser { path, server: true, .. } | PortSpec::Vhost { path, server: true } => {
            (path, SockType::Stream)
        }
        PortSpec::Memif { path, role: MemifRole::Server, .. } => (path, SockType::SeqPacket),
        PortSpec::VirtioUser { path, server: false, .. } => {
            // The driver takes a path without a socket for something else altogether.
            return match probe(path, SockType::Stream) {
                Ok(()) => Ok(None),
                Err(_) => Err(PortError::NoPeer { port: spec.to_string(), path: path.clone() }),
            };
        }
        _ => return Ok(None),
    };
    if kind == SockType::SeqPacket {
        let mut paths = MEMIF.lock().unwrap_or_else(PoisonError::into_inner);
        if !paths.get_or_insert_default().insert(path.clone()) {
            return Ok(None);
        }
    }
    let listening = (kind == SockType::SeqPacket).then(|| Listening(path.clone()));
    free(path, kind, spec)?;
    Ok(listening)
}

fn free(path: &Path, kind: SockType, spec: &PortSpec) -> Result<(), PortError> {
    let bad = |reason: String| PortError::SocketPath { port: spec.to_string(), path: path.into(), reason };
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return if dir.is_dir() {
                Ok(())
            } else {
                Err(bad(format!("the directory {} does not exist", dir.display())))
            };
        }
        Err(e) => return Err(bad(e.to_string())),
    };
    if !meta.file_type().is_socket() {
        return Err(bad("a file that is not a socket is in the way".into()));
    }
    match probe(path, kind) {
        // Nobody listens: left behind by a process that was killed.
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(|e| bad(e.to_string())),
        Err(e @ (Errno::EACCES | Errno::EPERM)) => Err(bad(e.desc().into())),
        _ => Err(PortError::SocketInUse { port: spec.to_string(), path: path.into() }),
    }
}

fn probe(path: &Path, kind: SockType) -> Result<(), Errno> {
    let fd = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)
}
