//! Lets the vhost library's thread wait while a port is closed.
//!
//! When a peer is gone, the library's thread connects to the next one, through a socket that gets the number of the old
//! one. If the port is closed at that time, the library (DPDK 22.11) can take one for the other: it frees the new
//! connection and the port, but goes on watching the connection, and its thread uses freed memory. So a port is closed
//! while the thread is busy elsewhere, with a message that we send to it as a peer of our own.

use std::ffi::{CString, c_void};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, mem, ptr};

use dpdk_sys as sys;
use tempfile::TempDir;

/// How long the thread may take until it waits. It handles a message in microseconds, unless a hostile peer of another
/// port keeps it waiting for the rest of one.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the thread waits at most. A port is closed in milliseconds. But if another device of EAL has its peer in
/// this process, what is done with the memory of EAL may need an answer of this thread.
const LIMIT: Duration = Duration::from_secs(5);

/// What the library's thread does with our message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// It ignores the message.
    Free,
    /// It shall wait.
    Asked,
    /// It waits.
    Waits,
}

static THREAD: Mutex<Thread> = Mutex::new(Thread::Free);
static CHANGED: Condvar = Condvar::new();

fn thread() -> MutexGuard<'static, Thread> {
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A peer for whose message the library's thread waits until this is dropped.
#[derive(Debug)]
pub(super) struct Pause {
    path: CString,
    stream: UnixStream,
    _dir: TempDir,
}

impl Pause {
    /// Returns when the library's thread waits. Call this on EAL's private thread, and only when a `vhost` port exists.
    ///
    /// # Errors
    /// There is no place for a socket, the library refuses it, or its thread does not come.
    pub(super) fn begin() -> io::Result<Self> {
        let mut pause = Self::connect()?;
        *thread() = Thread::Asked;
        pause.speak()?;
        let now = CHANGED.wait_timeout_while(thread(), PATIENCE, |now| *now == Thread::Asked);
        let (mut now, _) = now.unwrap_or_else(PoisonError::into_inner);
        if *now == Thread::Waits {
            drop(now);
            return Ok(pause);
        }
        *now = Thread::Free;
        drop(now);
        // The thread is somewhere else, where our connection may be taken for another one, so it must stay.
        mem::forget(pause);
        Err(io::Error::new(io::ErrorKind::TimedOut, "the vhost library's thread is held up"))
    }

    /// Lets the library connect to us.
    fn connect() -> io::Result<Self> {
        const CLIENT: u64 = 1 << 0;
        const NO_RECONNECT: u64 = 1 << 1;
        static OPS: Functions<sys::rte_vhost_device_ops> = Functions(sys::rte_vhost_device_ops {
            new_device: None,
            destroy_device: None,
            vring_state_changed: None,
            features_changed: None,
            new_connection: Some(hook),
            destroy_connection: None,
            guest_notified: None,
            reserved: [ptr::null_mut()],
        });
        let (dir, path, listener) = listen(&env::temp_dir()).or_else(|_| listen(Path::new("/dev/shm")))?;
        let path = CString::new(path.into_os_string().into_vec())?;
        let refused = |step| io::Error::other(format!("the vhost library refuses to {step} a socket"));
        // SAFETY: the path is a string; the functions live for ever.
        unsafe {
            if sys::rte_vhost_driver_register(path.as_ptr(), CLIENT | NO_RECONNECT) != 0 {
                return Err(refused("make"));
            }
            if sys::rte_vhost_driver_callback_register(path.as_ptr(), &raw const OPS.0) != 0
                || sys::rte_vhost_driver_start(path.as_ptr()) != 0
            {
                sys::rte_vhost_driver_unregister(path.as_ptr());
                return Err(refused("connect"));
            }
        }
        // The library has connected, so this does not wait. If it fails, the library's thread sees the connection end,
        // and the library keeps the socket: to unregister it now could meet the thread at its work.
        let (stream, _) = listener.accept()?;
        Ok(Self { path, stream, _dir: dir })
    }

    /// Sends a message: code, flags (the protocol's version), and the length of the payload (vhost-user protocol). No
    /// message has this code.
    fn speak(&mut self) -> io::Result<()> {
        self.stream.write_all([0, 1, 0].map(u32::to_ne_bytes).as_flattened())
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        *thread() = Thread::Free;
        CHANGED.notify_all();
        // SAFETY: the path is a string. This waits until the thread has handled the message, if it has begun to.
        unsafe { sys::rte_vhost_driver_unregister(self.path.as_ptr()) };
    }
}

/// Listens in a new directory at `place`. Fails also if the path is too long for a socket.
fn listen(place: &Path) -> io::Result<(TempDir, PathBuf, UnixListener)> {
    let dir = tempfile::tempdir_in(place)?;
    let path = dir.path().join("pause.sock");
    let listener = UnixListener::bind(&path)?;
    Ok((dir, path, listener))
}

/// A table of functions that the library calls.
struct Functions<T>(T);
// SAFETY: the tables in use here hold only function pointers, and a reserved null pointer.
unsafe impl<T> Sync for Functions<T> {}

/// Has `wait` called before each message of the peer `vid`.
unsafe extern "C" fn hook(vid: i32) -> i32 {
    static HOOKS: Functions<sys::rte_vhost_user_extern_ops> =
        Functions(sys::rte_vhost_user_extern_ops { pre_msg_handle: Some(wait), post_msg_handle: None });
    // SAFETY: the functions live for ever.
    unsafe { sys::rte_vhost_extern_callback_register(vid, &raw const HOOKS.0, ptr::null_mut()) }
}

/// Called on the library's thread when our message has come.
unsafe extern "C" fn wait(_: i32, _: *mut c_void) -> sys::rte_vhost_msg_result {
    let mut now = thread();
    if *now == Thread::Asked {
        *now = Thread::Waits;
        CHANGED.notify_all();
        drop(CHANGED.wait_timeout_while(now, LIMIT, |now| *now == Thread::Waits));
    }
    sys::rte_vhost_msg_result_RTE_VHOST_MSG_RESULT_OK
}
