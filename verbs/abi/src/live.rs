//! The objects that the program has. One that is destroyed twice, or in the place of another, is refused instead of
//! freed again.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::call::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Context,
    Domain,
    ThreadDomain,
    Region,
    Buffer,
    Window,
    Channel,
    Cq,
    Srq,
    Qp,
    Id,
    Event,
    AddrInfo,
}

fn live() -> MutexGuard<'static, HashMap<usize, Kind>> {
    static LIVE: LazyLock<Mutex<HashMap<usize, Kind>>> = LazyLock::new(Mutex::default);
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Under what an object is listed: not under its address, by which leak checkers would take it for one that is in use.
fn key<T>(object: *const T) -> usize {
    !(object as usize)
}

/// An object came to be.
pub fn enter<T>(kind: Kind, object: *mut T) -> *mut T {
    live().insert(key(object), kind);
    object
}

/// EINVAL if there is no such object. Memory that is another object's by now is not told apart.
pub fn check<T>(kind: Kind, object: *const T) -> Result<(), Errno> {
    if live().get(&key(object)) == Some(&kind) { Ok(()) } else { Err(libc::EINVAL) }
}

/// An object goes, and belongs to the caller, unless `stays` says why not; EINVAL if there is no such object. `stays` must
/// not come back here.
pub fn leave<T>(
    kind: Kind,
    object: *mut T,
    stays: impl FnOnce(&T) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut live = live();
    if live.get(&key(object)) != Some(&kind) {
        return Err(libc::EINVAL);
    }
    // SAFETY: listed objects exist, and leave under the lock.
    stays(unsafe { &*object })?;
    live.remove(&key(object));
    Ok(())
}

/// The same for one that nothing keeps.
pub fn take<T>(kind: Kind, object: *mut T) -> Result<(), Errno> {
    leave(kind, object, |_| Ok(()))
}
