//! Reserves this process's addresses on a network interface against other processes of the machine.
//!
//! Two packet sockets on one interface do not receive each other's frames, so probing the network (RFC 5227, RFC 4862
//! §5.4) does not find a process that has the same address there. Each address is therefore reserved by a listening
//! socket, whose name in the abstract namespace contains the address. The kernel keeps these names for each network
//! namespace, gives each name to only one socket, reports which process that socket belongs to, and frees the name when
//! the process ends, however it ends.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, accept4, bind, connect, getsockopt, socket, sockopt,
};

/// Backlog of connections from processes that were refused the address, until [`Held::drain`] removes them.
const VISITORS: i32 = 64;

/// The descriptors of this process's sockets, for its forked children to close; -1 in free places.
static HOLDERS: [AtomicI32; 256] = [const { AtomicI32::new(-1) }; 256];

/// A reserved address.
#[derive(Debug)]
pub(super) struct Held {
    holder: Holder,
}

/// The socket that reserves an address: listed in [`HOLDERS`], unless that is full.
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

/// Why an address cannot be reserved.
#[derive(Debug)]
pub(super) enum HoldError {
    /// Another port has the address; the string describes the process of that port.
    Taken(String),
    /// The kernel refuses.
    System(io::Error),
}

impl Held {
    /// Reserves `address` on the interface with index `index`, in the VLAN `vlan` (`None`: untagged), until the result
    /// is dropped.
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
        // From here on the kernel reports our process id to processes that ask for the address.
        // SAFETY: a system call without pointers.
        Errno::result(unsafe { libc::listen(held.holder.fd(), VISITORS) }).map_err(system)?;
        Ok(held)
    }

    /// Removes the connections of refused processes. With a full backlog, the kernel would not report our process id to
    /// further processes. Removes at most [`VISITORS`], so that a process that connects again and again does not keep
    /// the caller here.
    pub(super) fn drain(&self) {
        for _ in 0..VISITORS {
            let visitor = accept4(self.holder.fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
            let Ok(visitor) = visitor else { return };
            // SAFETY: a descriptor that has just been opened, and has no other owner.
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

/// Closes the descriptor in a place of [`HOLDERS`], once.
fn close(place: &AtomicI32) {
    match place.swap(-1, Ordering::AcqRel) {
        -1 => {}
        // SAFETY: the place owned the descriptor, and only we have taken it from there.
        fd => unsafe {
            libc::close(fd);
        },
    }
}

/// Makes forked children close the sockets of their parent; otherwise the addresses would stay reserved after the
/// parent's end. Programs that a child starts by exec do not inherit the sockets.
fn close_in_children() {
    static HOOK: Once = Once::new();
    extern "C" fn in_child() {
        HOLDERS.iter().for_each(close);
    }
    HOOK.call_once(|| {
        // SAFETY: the function lives as long as the program; it swaps atomics and closes descriptors, which a forked
        // child may do.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Opens a Unix stream socket that does not block.
fn stream() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::Stream, flags, None)
}

/// Returns a description of the process that holds a name.
fn holder_of(name: &UnixAddr) -> String {
    let credentials = stream().and_then(|socket| {
        connect(socket.as_raw_fd(), name)?;
        getsockopt(&socket, sockopt::PeerCredentials)
    });
    match credentials.map(|c| (c.pid(), c.uid())) {
        Ok((pid, _)) if pid == std::process::id() as i32 => "this process".into(),
        // The kernel reports process id 0 for a process that we cannot see.
        Ok((0, uid)) => format!("a process of user {uid} in another container"),
        Ok((pid, uid)) => match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(program) => format!("process {pid} ({}) of user {uid}", printable(program.trim_end())),
            Err(_) => format!("process {pid} of user {uid}"),
        },
        // The holder of the name is about to listen, or to end.
        Err(_) => "another process".into(),
    }
}

/// Replaces control characters: a program chooses its own name, which must not garble a message.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns the index of a network interface; `None` if none has this name.
pub(super) fn index_of(interface: &str) -> Option<i32> {
    nix::net::if_::if_nametoindex(interface).ok().and_then(|index| i32::try_from(index).ok())
}

#[cfg(test)]
mod tests;
