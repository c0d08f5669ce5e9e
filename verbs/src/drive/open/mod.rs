//! Makes the engines of a device from its configuration.

#[cfg(feature = "dpdk")]
mod dpdk;
mod kernel;

use crate::drive::shard::Undriven;
use crate::drive::transport::over_kernel::host;
use crate::shared::error::{Error, Result};
use crate::shared::memory::Allocate;
use std::net::IpAddr;
use std::sync::Arc;
#[cfg(not(feature = "dpdk"))]
use urnic_config::PortSpec;
use urnic_config::{Choice, Config, CrcKernel, Mac};

/// The parts of a device.
pub(crate) struct Opened {
    /// The engine with number 0. The others follow in the order of their numbers.
    pub(crate) first: Undriven,
    pub(crate) others: Vec<Undriven>,
    /// The source of registered memory.
    pub(crate) memory: Arc<dyn Allocate>,
}

/// Makes the engines that `config` describes.
pub(crate) fn open(config: &Config) -> Result<Opened> {
    match &config.port.spec {
        Some(spec) => open_port(config, spec),
        None => kernel::open(config),
    }
}

#[cfg(feature = "dpdk")]
use dpdk::open as open_port;

/// Returns the error that this build does not support ports.
#[cfg(not(feature = "dpdk"))]
fn open_port(_config: &Config, _spec: &PortSpec) -> Result<Opened> {
    Err(Error::Open(
        "this build of urnic has no DPDK, which ports need: build it with the feature dpdk, or leave the \
         port out to use the kernel's sockets"
            .to_owned(),
    ))
}

/// Returns the Ethernet address of a device, without opening it. If the device will use the port's own Ethernet
/// address, which only the open port knows, returns an Ethernet address that is derived from the IP address
/// instead.
pub(crate) fn mac_of(config: &Config) -> [u8; 6] {
    let derived =
        || config.ip.addresses.first().map_or([2, 0, 0, 0, 0, 0], |a| Mac::for_address(a.address).0);
    match &config.port.spec {
        None => host::mac(),
        Some(_) => config.mac().map_or_else(derived, |mac| mac.0),
    }
}

/// Returns the index of the host's interface that carries an address of the device: the interface that has the address
/// if the device uses the kernel's sockets, or the interface that its port uses. `None` if there is no such interface.
pub(crate) fn interface_of(config: &Config, address: IpAddr) -> Option<u32> {
    match &config.port.spec {
        None => host::interface(address),
        Some(port) => nix::net::if_::if_nametoindex(port.interface()?).ok(),
    }
}

/// Returns whether the host's kernel has an address on an interface that is up.
pub(crate) fn has_address(address: IpAddr) -> bool {
    host::interface(address).is_some()
}

/// Selects the CRC implementation that the process uses from now on. [`CrcKernel::Auto`] leaves the present one.
pub(crate) fn choose_kernel(wanted: CrcKernel) -> Result<()> {
    let kernel = match wanted {
        CrcKernel::Auto => return Ok(()),
        CrcKernel::Portable => urnic_crc::Kernel::Portable,
        CrcKernel::Sse42 => urnic_crc::Kernel::Sse42,
        CrcKernel::Avx2 => urnic_crc::Kernel::Avx2,
        CrcKernel::Vpclmul => urnic_crc::Kernel::Vpclmul,
    };
    if urnic_crc::force_kernel(kernel) {
        Ok(())
    } else {
        Err(Error::Open(format!(
            "this processor cannot run the CRC kernel {:?}: choose another, or \"auto\"",
            wanted.word()
        )))
    }
}

/// Returns an unpredictable number.
pub(crate) fn secret() -> Result<u64> {
    let mut seed = [0u8; 8];
    // SAFETY: the buffer has the stated length.
    let n = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if n == seed.len() as isize {
        Ok(u64::from_ne_bytes(seed))
    } else {
        Err(Error::last_os("getting random numbers from the kernel"))
    }
}
