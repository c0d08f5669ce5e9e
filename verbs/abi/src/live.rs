//! The program's objects. A pointer to an object that was already destroyed, or to an object of another kind, is
//! refused instead of being freed.

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

/// Returns the key of an object. It is not the address, because leak checkers would take a stored address for a
/// reference to the object.
fn key<T>(object: *const T) -> usize {
    !(object as usize)
}

/// Lists a new object.
pub fn enter<T>(kind: Kind, object: *mut T) -> *mut T {
    live().insert(key(object), kind);
    object
}

/// Returns EINVAL if there is no such object. Memory that was reused for a new object of the same kind is not
/// detected.
pub fn check<T>(kind: Kind, object: *const T) -> Result<(), Errno> {
    if live().get(&key(object)) == Some(&kind) { Ok(()) } else { Err(libc::EINVAL) }
}

/// Removes an object from the list and hands it over to the caller. Returns the error of `stays`, if it returns one,
/// or EINVAL if there is no such object. `stays` must not call this module.
pub fn leave<T>(
    kind: Kind,
    object: *mut T,
    stays: impl FnOnce(&T) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut live = live();
    if live.get(&key(object)) != Some(&kind) {
        return Err(libc::EINVAL);
    }
    // SAFETY: listed objects exist, and are removed under the lock.
    stays(unsafe { &*object })?;
    live.remove(&key(object));
    Ok(())
}

/// Removes an object as [`leave`] does, without a condition.
pub fn take<T>(kind: Kind, object: *mut T) -> Result<(), Errno> {
    leave(kind, object, |_| Ok(()))
}
