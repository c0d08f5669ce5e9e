//! The process's one device: configured by the environment (`URNIC_*`, which `urnic run` sets), opened on first use,
//! and kept until the process ends.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};

use urnic::{Device, DeviceAttr};
use urnic_config::{Config, Progress, RtrChoice, Sources};

use crate::call::{Errno, complain, errno_of, guarded_anywhere, none_in_child};
use crate::gids::Gids;
use crate::log::{self, refused};

/// The device's name in C.
pub const NAME: &str = "urnic0";
/// The number of the device's only port.
pub const PORT: u8 = 1;

/// An open device.
pub struct Rnic {
    pub device: Device,
    /// The attributes when the device was opened; the link may have changed since.
    pub attributes: DeviceAttr,
    pub config: &'static Config,
    gids: Gids,
}

impl Rnic {
    /// Returns the device's present attributes.
    pub fn now(&self) -> Result<DeviceAttr, Errno> {
        self.device.attributes().map_err(|e| errno_of(&e))
    }

    /// Returns the present table of GIDs: the address at each index; `None` at vacant ones.
    pub fn gids(&self) -> Result<Vec<Option<IpAddr>>, Errno> {
        Ok(self.gids.now(self.now()?.addresses.iter().map(|own| own.address)))
    }

    /// Returns our source address for packets to `to`; ENETUNREACH if there is no route.
    pub fn source_for(&self, to: SocketAddr) -> Result<IpAddr, Errno> {
        let own = self.device.source_for(to).inspect_err(refused).map_err(|e| errno_of(&e))?;
        own.ok_or(libc::ENETUNREACH)
    }

    /// Returns whether an address stands for any address, as the kernel's connection manager sees it
    /// (`cma_any_addr`): the unspecified address, or a loopback address that the device does not have.
    pub fn is_any(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        ip.is_unspecified() || ip.is_loopback() && self.source_beyond_loopback((ip, 0).into()).is_some()
    }

    /// Returns the address of the device that stands for the loopback address `to`, because packets to `to` go
    /// there. `None` if `to` is not a loopback address, if no route leads to it, or if our source address for
    /// packets to it is a loopback address as well.
    pub fn source_beyond_loopback(&self, to: SocketAddr) -> Option<IpAddr> {
        let own = if to.ip().to_canonical().is_loopback() { self.source_for(to).ok() } else { None };
        own.filter(|own| !own.is_loopback())
    }
}

/// Returns the settings, if they describe a device.
pub fn config() -> Option<&'static Config> {
    static CONFIG: OnceLock<Option<Config>> = OnceLock::new();
    CONFIG
        .get_or_init(|| match load(&Sources::process()) {
            Ok(config) => Some(config),
            Err(message) => {
                complain(&message);
                None
            }
        })
        .as_ref()
}

fn load(sources: &Sources) -> Result<Config, String> {
    let (mut config, set) = Config::load_with_origins(sources).map_err(|e| e.to_string())?;
    if config.port.spec.is_some() && !config.ip.is_configured() {
        return Err(
            "no device: the port has no IP address; set URNIC_IP to ADDR/LEN, or start the program by \
             `urnic run --ip ADDR/LEN`"
                .to_owned(),
        );
    }
    // Programs sleep on descriptors, so another thread must drive the engine.
    if config.engine.progress == Progress::Inline {
        config.engine.progress = Progress::Adaptive;
    }
    // Programs for RNICs expect that the accepting side may send first, which requires a ready-to-receive indication
    // from the connecting side. Revision 1 has none (MPAE-1).
    if config.mpa.rev >= 2 && !set.contains_key("mpa.rtr") {
        config.mpa.rtr = RtrChoice::Any;
    }
    Ok(config)
}

/// Checks whether the settings describe a device, without opening it, because programs make channels and identifiers
/// before they fork.
pub fn prospect() -> Result<(), Errno> {
    config().map(|_| ()).ok_or(libc::ENODEV)
}

/// Returns the device, and opens it at the first call.
pub fn rnic() -> Result<&'static Rnic, Errno> {
    static OPEN: Mutex<Option<&'static Rnic>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(rnic) = *open {
        if rnic.device.is_forked() {
            return Err(none_in_child());
        }
        return Ok(rnic);
    }
    let config = config().ok_or(libc::ENODEV)?;
    log::to_stderr();
    let rnic = start(config).map_err(|error| {
        complain(&error.to_string());
        errno_of(&error)
    })?;
    Ok(open.insert(Box::leak(Box::new(rnic))))
}

fn start(config: &'static Config) -> urnic::Result<Rnic> {
    let device = Device::open(config)?;
    let attributes = device.attributes()?;
    Ok(Rnic { device, attributes, config, gids: Gids::default() })
}

/// Closes the connections gracefully, as a kernel does in whatever way a process ends. `liburnic.so` calls this when
/// the program is about to end without running exit handlers. Safe in signal handlers.
#[unsafe(no_mangle)]
extern "C" fn urnic_before_exit() {
    urnic::before_exit();
}

/// Returns whether the caller is the thread in which urnic runs DPDK's control calls. `liburnic.so` asks
/// whenever a thread opens a socket. Safe in signal handlers.
#[unsafe(no_mangle)]
extern "C" fn urnic_control_thread() -> bool {
    urnic::is_control_thread()
}

/// Returns whether the settings ask for a port, but this library is the build without ports: `liburnic.so` then loads
/// the other build. Returns false for broken settings, which opening the device reports.
#[unsafe(no_mangle)]
extern "C" fn urnic_needs_dpdk() -> bool {
    cfg!(not(feature = "dpdk"))
        && Config::load(&Sources::process()).is_ok_and(|config| config.port.spec.is_some())
}

/// Writes the Ethernet address and the MTU of the device without opening it. `liburnic.so` shows them as those
/// of its interface.
///
/// # Safety
/// `mac` and `mtu` are the caller's places for the answers.
#[unsafe(no_mangle)]
unsafe extern "C" fn urnic_link(mac: *mut [u8; 6], mtu: *mut c_int) {
    let _ = guarded_anywhere(|| {
        let config = config().ok_or(libc::ENODEV)?;
        // SAFETY: as the caller promises.
        unsafe {
            mac.write(Device::mac_of(config));
            mtu.write(config.port.mtu.into());
        }
        Ok(())
    });
}

/// Returns the index of the interface that an address of the device is on. If the kernel has no such interface,
/// returns the index of the interface that `liburnic.so` shows for a device with a port, so that programs that
/// look the index up find an interface. On the kernel's sockets, returns 0 in that case, which stands for no
/// interface.
pub fn interface(config: &Config, address: IpAddr) -> u32 {
    const OURS: u32 = 0x7572_6e00;
    let none = if config.port.spec.is_some() { OURS } else { 0 };
    Device::interface_of(config, address).unwrap_or(none)
}

/// Returns the EUI-64 of the Ethernet address, in memory order; RNICs use it as their node's GUID.
pub fn guid(config: &Config) -> [u8; 8] {
    let [a, b, c, d, e, f] = Device::mac_of(config);
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

#[cfg(test)]
mod tests;
