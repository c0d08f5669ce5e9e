//! Checks the path of the socket through which two processes set a link up.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockname, socket};
use std::os::fd::{AsRawFd, RawFd};
use urnic_config::{MemifRole, PortSpec};

use super::PortError;

/// The memif sockets that this process listens on, with the number of interfaces that share each socket.
static MEMIF: Mutex<Option<HashMap<PathBuf, usize>>> = Mutex::new(None);

/// One of the interfaces that [`MEMIF`] counts.
#[derive(Debug)]
pub(super) struct Listening(PathBuf);

impl Drop for Listening {
    fn drop(&mut self) {
        let mut paths = MEMIF.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = paths.get_or_insert_default();
        if let Some(interfaces) = paths.get_mut(&self.0) {
            *interfaces -= 1;
            if *interfaces == 0 {
                paths.remove(&self.0);
            }
        }
    }
}

/// Frees the path for a port that is going to listen on it: removes a socket on which no process listens. For a port
/// that cannot wait for its peer, checks that the peer listens. Counts a `memif` server in [`MEMIF`] until the result
/// is dropped; `None` for all other ports.
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
            if !paths.contains_key(path) {
                free(path, spec)?;
            }
            *paths.entry(path.clone()).or_default() += 1;
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

/// Closes the sockets of this process that are bound to `path`, and those that were accepted there. If a peer leaves
/// while the driver of a `virtio_user` port sets the device up, the driver (DPDK 22.11) leaves these sockets open. A
/// port could then never listen on the path again, and peers would wait in vain for the socket that listens.
pub(super) fn close_all(path: &Path) {
    let names = fs::read_dir("/proc/self/fd").into_iter().flatten().map_while(Result::ok);
    let fds: Vec<RawFd> = names.filter_map(|name| name.file_name().to_str()?.parse().ok()).collect();
    for fd in fds {
        if getsockname::<UnixAddr>(fd).is_ok_and(|address| address.path() == Some(path)) {
            let _ = nix::unistd::close(fd);
        }
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

#[cfg(test)]
mod tests;
