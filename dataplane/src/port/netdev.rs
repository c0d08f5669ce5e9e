//! The kernel's side of a port on a network interface: whether the interface exists and is usable, whether it has a
//! carrier, and whether it delivers every frame unchanged.
//!
//! DPDK's drivers check little of this, leave the interface promiscuous for good, and log problems instead of
//! reporting them.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use urnic_config::PortSpec;

use super::PortError;
use super::packet_ring::PacketRing;

/// Kind of port and index of each interface that ports of this process use. Two ports of one kind cannot share an
/// interface: two packet sockets of one process would each get some of the frames.
static TAKEN: Mutex<Option<HashSet<(&'static str, i32)>>> = Mutex::new(None);

/// Bits of capabilities, see `capabilities(7)`.
const CAP_NET_ADMIN: u8 = 12;
const CAP_NET_RAW: u8 = 13;
const CAP_SYS_ADMIN: u8 = 21;
const CAP_BPF: u8 = 39;

/// Largest MTU, in bytes, of an interface from which XDP gets every packet. XDP needs a packet to lie in one page,
/// together with the kernel's own data.
const XDP_MTU_MAX: i32 = 3498;

/// A network interface that a port uses; promiscuous while this lives.
#[derive(Debug)]
pub(super) struct Netdev {
    /// A packet socket that receives nothing, but keeps the interface promiscuous while it is open.
    socket: OwnedFd,
    name: String,
    taken: (&'static str, i32),
    /// Queues that a port on the interface can have.
    queues: u16,
}

impl Netdev {
    /// Returns whether a port of this kind uses an existing interface.
    pub(super) fn is_used_by(spec: &PortSpec) -> bool {
        matches!(spec, PortSpec::AfPacket { .. } | PortSpec::AfXdp { .. })
    }

    /// Checks that the port can be opened on its interface with packets of `mtu` bytes, and prepares the interface
    /// for up to `wanted` queues. Returns `None` for ports that use no existing interface.
    pub(super) fn open(spec: &PortSpec, mtu: u16, wanted: u16) -> Result<Option<Self>, PortError> {
        permitted(spec)?;
        let Some(name) = spec.interface().filter(|_| Self::is_used_by(spec)) else { return Ok(None) };
        let port = || spec.to_string();
        let failed = |what: &'static str, e: io::Error| match e.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => PortError::NoPermission { port: port(), needs: needs(spec) },
            _ => PortError::Interface { port: port(), reason: format!("{what}: {e}") },
        };
        let socket = packet_socket().map_err(|e| failed("opening a packet socket", e))?;
        let index = index(&socket, name).map_err(|e| match e.raw_os_error() {
            Some(libc::ENODEV) => PortError::NoInterface { port: port(), known: interfaces() },
            _ => failed("looking the interface up", e),
        })?;
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        if !taken.get_or_insert_default().insert((spec.kind(), index)) {
            return Err(PortError::InterfaceInUse(port()));
        }
        drop(taken);
        let mut netdev = Self { socket, name: name.to_owned(), taken: (spec.kind(), index), queues: wanted };

        let request =
            netdev.ask(libc::SIOCGIFHWADDR).map_err(|e| failed("reading the type of the interface", e))?;
        // SAFETY: the kernel has filled in an address.
        if unsafe { request.ifr_ifru.ifru_hwaddr.sa_family } != libc::ARPHRD_ETHER {
            return Err(PortError::Interface {
                port: port(),
                reason: "the interface is not an Ethernet interface; choose one that is".into(),
            });
        }
        if netdev.flags().map_err(|e| failed("reading the state of the interface", e))? & libc::IFF_UP == 0 {
            return Err(PortError::InterfaceDown { port: port(), interface: name.to_owned() });
        }
        let request =
            netdev.ask(libc::SIOCGIFMTU).map_err(|e| failed("reading the MTU of the interface", e))?;
        // SAFETY: the kernel has filled in the MTU.
        let carries = unsafe { request.ifr_ifru.ifru_mtu };
        if carries < i32::from(mtu) {
            return Err(PortError::InterfaceMtu { port: port(), interface: name.to_owned(), mtu, carries });
        }
        if matches!(spec, PortSpec::AfXdp { .. }) && carries > XDP_MTU_MAX {
            let reason = format!(
                "XDP takes packets of at most {XDP_MTU_MAX} bytes, but the MTU of the interface is {carries}; lower it with \
                 `ip link set {name} mtu {XDP_MTU_MAX}`"
            );
            return Err(PortError::Interface { port: port(), reason });
        }
        netdev.become_promiscuous(index).map_err(|e| failed("making the interface promiscuous", e))?;
        netdev.keep_frames_whole();
        if let PortSpec::AfXdp { queue, .. } = spec {
            netdev.queues = netdev.usable_queues(spec, *queue, wanted)?;
        }
        Ok(Some(netdev))
    }

    /// Returns the number of queues in each direction that a port on the interface can have. It is at most the number
    /// wanted.
    pub(super) fn queues(&self) -> u16 {
        self.queues
    }

    /// Returns whether the interface is up and has a carrier.
    pub(super) fn is_running(&self) -> bool {
        const GET_LINK: u32 = 0x0a;
        // The flags follow the carrier with a delay, so ask for the carrier first.
        match self.ethtool([GET_LINK, 0]) {
            Ok([_, link]) => link != 0,
            Err(_) => self.flags().is_ok_and(|flags| flags & libc::IFF_RUNNING != 0),
        }
    }

    /// Finds the `af_packet` driver's sockets, one for each queue. `before` lists sockets that are not the driver's.
    /// Each socket gets room for `in_flight` bytes of frames in flight.
    pub(super) fn driver_sockets(&self, before: &[RawFd], in_flight: usize) -> Vec<PacketRing> {
        let found = PacketRing::find_all(self.taken.1, before, in_flight);
        if found.is_empty() {
            tracing::debug!("{}: cannot find the driver's packet socket", self.name);
        }
        found
    }

    fn flags(&self) -> io::Result<i32> {
        let request = self.ask(libc::SIOCGIFFLAGS)?;
        // SAFETY: the kernel has filled in the flags.
        Ok(unsafe { request.ifr_ifru.ifru_flags }.into())
    }

    /// Makes a request that fills in an `ifreq`.
    fn ask(&self, what: libc::Ioctl) -> io::Result<libc::ifreq> {
        let mut request = request_for(&self.name);
        ioctl(&self.socket, what, &mut request)?;
        Ok(request)
    }

    fn become_promiscuous(&self, index: i32) -> io::Result<()> {
        // SAFETY: a plain structure of integers.
        let mut membership: libc::packet_mreq = unsafe { mem::zeroed() };
        membership.mr_ifindex = index;
        membership.mr_type = libc::PACKET_MR_PROMISC as u16;
        // SAFETY: the option takes this structure, of the size stated.
        let status = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const membership).cast(),
                mem::size_of_val(&membership) as libc::socklen_t,
            )
        };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Asks the kernel not to merge frames on reception (GRO, LRO), because merged frames do not fit a packet socket.
    fn keep_frames_whole(&self) {
        const GET_GRO: u32 = 0x2b;
        const SET_GRO: u32 = 0x2c;
        const GET_FLAGS: u32 = 0x25;
        const SET_FLAGS: u32 = 0x26;
        const LRO: u32 = 1 << 15;
        for (what, get, set, bit) in [
            ("generic-receive-offload", GET_GRO, SET_GRO, 1),
            ("large-receive-offload", GET_FLAGS, SET_FLAGS, LRO),
        ] {
            let Ok(value) = self.ethtool([get, 0]) else { continue };
            if value[1] & bit == 0 {
                continue;
            }
            let name = &self.name;
            match self.ethtool([set, value[1] & !bit]) {
                Ok(_) => tracing::info!(
                    "{name}: turned {what} off, because merged frames do not fit the port; \
                     `ethtool -K {name} {what} on` turns it on again"
                ),
                Err(e) => tracing::warn!(
                    "{name}: cannot turn {what} off ({e}): merged frames are lost, and retransmissions cost time; run \
                     `ethtool -K {name} {what} off` as root"
                ),
            }
        }
    }

    /// Returns how many queues the driver can use from `queue` on, at most `wanted`. This follows from the kernel's
    /// description of the interface.
    fn usable_queues(&self, spec: &PortSpec, queue: u16, wanted: u16) -> Result<u16, PortError> {
        const GET_CHANNELS: u32 = 0x3c;
        // struct ethtool_channels: command; maximum numbers of rx, tx, other, combined; then the present numbers of
        // these four.
        let Ok(channels) = self.ethtool([GET_CHANNELS, 0, 0, 0, 0, 0, 0, 0, 0]) else { return Ok(1) };
        let queues = channels[5].max(channels[8]).max(1);
        let name = &self.name;
        let Some(ours) = queues.checked_sub(queue.into()).filter(|ours| *ours > 0) else {
            let reason = format!(
                "the interface has {queues} queues, numbered from 0, and none has the number {queue}; choose a \
                 lower number"
            );
            return Err(PortError::Interface { port: spec.to_string(), reason });
        };
        // The driver counts only combined queues, and treats an interface without combined queues as if it had a single
        // queue.
        let most = if channels[4] == 0 { 1 } else { ours };
        let usable = wanted.min(u16::try_from(most).unwrap_or(u16::MAX));
        if queues > u32::from(usable) {
            let which = match usable {
                1 => format!("this port has only queue {queue}"),
                _ => format!("this port has only {usable}, from queue {queue} on"),
            };
            tracing::warn!(
                "{spec}: {name} spreads received frames over {queues} queues, but {which}: run `ethtool -L {name} combined \
                 {usable}`, or steer the device's address to the queues of this port"
            );
        }
        Ok(usable)
    }

    /// Makes an ethtool request whose structure consists of 32-bit words, the command first.
    fn ethtool<const N: usize>(&self, mut words: [u32; N]) -> io::Result<[u32; N]> {
        let mut request = request_for(&self.name);
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        ioctl(&self.socket, libc::SIOCETHTOOL, &mut request)?;
        Ok(words)
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        if let Some(taken) = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            taken.remove(&self.taken);
        }
    }
}

/// Returns the capabilities that a port needs, in words.
fn needs(spec: &PortSpec) -> &'static str {
    match spec {
        PortSpec::AfPacket { .. } => "CAP_NET_RAW",
        PortSpec::AfXdp { .. } => "CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF",
        PortSpec::Tap { .. } => "CAP_NET_ADMIN",
        _ => "more rights",
    }
}

/// Checks that the process has the capabilities without which the port cannot be opened.
fn permitted(spec: &PortSpec) -> Result<(), PortError> {
    let all: &[&[u8]] = match spec {
        PortSpec::AfPacket { .. } => &[&[CAP_NET_RAW]],
        PortSpec::AfXdp { .. } => &[&[CAP_NET_RAW], &[CAP_NET_ADMIN], &[CAP_BPF, CAP_SYS_ADMIN]],
        PortSpec::Tap { .. } => &[&[CAP_NET_ADMIN]],
        _ => return Ok(()),
    };
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let Some(have) = line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok()) else { return Ok(()) };
    if all.iter().all(|any| any.iter().any(|bit| have & (1 << bit) != 0)) {
        return Ok(());
    }
    Err(PortError::NoPermission { port: spec.to_string(), needs: needs(spec) })
}

/// Opens a packet socket that is bound to no protocol and so receives nothing.
fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that has just been opened, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a request about an interface. Cuts a name that is too long, but the configuration has no such names.
fn request_for(name: &str) -> libc::ifreq {
    // SAFETY: integers, and a union of integers and a null pointer that is not followed.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    request
}

fn ioctl(socket: &OwnedFd, what: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the requests used here take an `ifreq`; if it contains a pointer, the data there has the right size.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut *request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn index(socket: &OwnedFd, name: &str) -> io::Result<i32> {
    let mut request = request_for(name);
    ioctl(socket, libc::SIOCGIFINDEX, &mut request)?;
    // SAFETY: the kernel has filled in the index.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex })
}

/// Lists the names of the existing interfaces, for a message.
fn interfaces() -> String {
    let found = nix::net::if_::if_nameindex();
    let name = |name: &std::ffi::CStr| CString::from(name).into_string().unwrap_or_default();
    let names: Vec<_> = found.iter().flat_map(|all| all.iter().map(|i| name(i.name()))).collect();
    names.join(", ")
}
