//! Waits for the first peer of a `virtio_user` port.
//!
//! In server mode, the driver blocks in `accept` when its device is plugged in, but opening a port must not block. So
//! at first we listen on the path ourselves. When a peer has connected, the driver takes over: it binds the path
//! anew, and we close our connection. The peer reconnects at once when it loses a connection, and so arrives at the
//! driver.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nix::sys::socket::{MsgFlags, recv};
use std::os::fd::AsRawFd;

/// How long the driver may wait for a peer that was connected a moment ago; a vhost port retries every second.
const PATIENCE: Duration = Duration::from_secs(3);

/// A listening socket at which the port waits. Removes its path when dropped.
#[derive(Debug)]
pub(super) struct Door {
    listener: UnixListener,
    visitor: Option<UnixStream>,
    path: PathBuf,
}

impl Door {
    /// Listens on `path`, which must be free.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, visitor: None, path: path.to_owned() })
    }

    /// Returns whether the peer that the previous call accepted is still connected. If not, accepts the next peer, if
    /// one waits, and returns `false`.
    pub(super) fn has_visitor(&mut self) -> bool {
        if let Some(visitor) = &self.visitor {
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            if recv(visitor.as_raw_fd(), &mut [0], flags) == Err(nix::errno::Errno::EAGAIN) {
                return true;
            }
        }
        self.visitor = self.listener.accept().ok().map(|(visitor, _)| visitor);
        false
    }

    /// Hands our peer over to the driver. Runs `plug`, in which the driver binds the path and waits for a peer.
    /// Meanwhile, closes our connection, so that our peer reconnects, now to the driver.
    pub(super) fn hand_over<T>(self, plug: impl FnOnce() -> T) -> T {
        let path = self.path.clone();
        let _ = fs::remove_file(&path);
        let (done, finished) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !path.exists() {
                    if finished.recv_timeout(Duration::from_micros(100)) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
                // Gives the driver time to listen after its bind. A peer that still comes too early is refused and
                // retries.
                let _ = finished.recv_timeout(Duration::from_millis(1));
                drop(self.into_connection());
                while finished.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                    // The peer is gone, and perhaps no other comes. This connection ends the driver's wait.
                    drop(UnixStream::connect(&path));
                }
            });
            let result = plug();
            drop(done);
            result
        })
    }

    /// Closes the listener, and returns our connection. Does not remove the path, which the driver uses by now.
    fn into_connection(mut self) -> Option<UnixStream> {
        self.path = PathBuf::new();
        self.visitor.take()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty()
            && let Err(e) = fs::remove_file(&self.path)
            && e.kind() != ErrorKind::NotFound
        {
            tracing::debug!("removing {}: {e}", self.path.display());
        }
    }
}
