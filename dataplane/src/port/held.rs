//! Addresses that this process has on a network interface, held against other processes of the machine.
//!
//! Two packet sockets on one interface do not hear each other, so no question to the network (RFC 5227, RFC 4862 §5.4)
//! finds a process that has the same address there. Each address is therefore held by a name: that of a listening
//! socket in the abstract namespace. The kernel keeps those names for each network namespace, gives each to one socket,
//! tells who that belongs to, and takes it back when the process ends, however it ends.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, socket, sockopt,
};

/// Refused opens whose visits may wait until [`Held::drain`] looks for them.
const VISITORS: i32 = 64;

/// The holders of this process, for its forked children; -1 in free places.
static HOLDERS: [AtomicI32; 256] = [const { AtomicI32::new(-1) }; 256];

/// An address that is held.
#[derive(Debug)]
pub(super) struct Held {
    holder: Holder,
}

/// Its socket: known to [`HOLDERS`], unless there are too many.
#[derive(Debug)]
enum Holder {
    Listed(usize),
    Unlisted(OwnedFd),
}

impl Holder {
    fn of(socket: OwnedFd) -> Self {
        let free = |place: &AtomicI32| {
            place.compare_exchange(-1, socket.as_raw_fd(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        match HOLDERS.iter().position(free) {
            Some(place) => {
                let _ = socket.into_raw_fd();
                Holder::Listed(place)
            }
            None => Holder::Unlisted(socket),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            Holder::Listed(place) => HOLDERS[*place].load(Ordering::Acquire),
            Holder::Unlisted(socket) => socket.as_raw_fd(),
        }
    }
}

/// Why an address cannot be held.
#[derive(Debug)]
pub(super) enum HoldError {
    /// Another port holds it; in words, whose that is.
    Taken(String),
    /// The kernel refuses.
    System(io::Error),
}

impl Held {
    /// Holds `address` on the interface with the number `index`, in the VLAN `vlan`, until this is dropped.
    pub(super) fn hold(index: i32, vlan: Option<u16>, address: IpAddr) -> Result<Self, HoldError> {
        let system = |e: Errno| HoldError::System(e.into());
        let name = format!("urnic/interface {index}/vlan {}/{address}", vlan.unwrap_or(0));
        let name = UnixAddr::new_abstract(name.as_bytes()).map_err(system)?;
        close_in_children();
        let held = Self { holder: Holder::of(stream().map_err(system)?) };
        match bind(held.holder.fd(), &name) {
            Err(Errno::EADDRINUSE) => return Err(HoldError::Taken(holder_of(&name))),
            bound => bound.map_err(system)?,
        }
        // From here on the kernel tells our number to processes that ask for the address.
        // SAFETY: a system call without pointers.
        Errno::result(unsafe { libc::listen(held.holder.fd(), VISITORS) }).map_err(system)?;
        Ok(held)
    }

    /// Forgets the visits of refused opens. The kernel would not tell our number to new ones while too many wait.
    pub(super) fn drain(&self) {
        while let Ok(visitor) = accept4(self.holder.fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
            // SAFETY: a descriptor that has just been opened, and is nobody else's.
            drop(unsafe { OwnedFd::from_raw_fd(visitor) });
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Holder::Listed(place) = self.holder {
            close(&HOLDERS[place]);
        }
    }
}

/// Closes what a place names, once.
fn close(place: &AtomicI32) {
    match place.swap(-1, Ordering::AcqRel) {
        -1 => {}
        // SAFETY: the place owned the descriptor, and nobody else has taken it from there.
        fd => unsafe {
            libc::close(fd);
        },
    }
}

/// Makes forked children let go of what their parent holds: it would outlive the parent with them. Those that start
/// another program do so without the sockets.
fn close_in_children() {
    static HOOK: Once = Once::new();
    extern "C" fn in_child() {
        HOLDERS.iter().for_each(close);
    }
    HOOK.call_once(|| {
        // SAFETY: the function is there as long as the program; it swaps words and closes descriptors, which a forked
        // child may do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A socket that does not block.
fn stream() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Who holds a name, in words.
fn holder_of(name: &UnixAddr) -> String {
    let credentials = stream().and_then(|socket| {
        connect(socket.as_raw_fd(), name)?;
        getsockopt(&socket, sockopt::PeerCredentials)
    });
    match credentials.map(|c| (c.pid(), c.uid())) {
        Ok((pid, _)) if pid == std::process::id() as i32 => "this process".into(),
        // The kernel gives no number of a process that we could not see.
        Ok((0, uid)) => format!("a process of user {uid} in another container"),
        Ok((pid, uid)) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(program) => format!("process {pid} ({}) of user {uid}", printable(program.trim_end())),
            Err(_) => format!("process {pid} of user {uid}"),
        },
        // It is about to listen, or to end.
        Err(_) => "another process".into(),
    }
}

/// A program chooses its name freely; a message must not suffer from that.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The number of a network interface, if there is one of this name.
pub(super) fn index_of(interface: &str) -> Option<i32> {
    nix::net::if_::if_nametoindex(interface).ok().and_then(|index| i32::try_from(index).ok())
}

#[cfg(test)]
mod tests;
