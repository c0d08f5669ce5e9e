//! Checks that a NIC exists on the PCI bus, and that DPDK may drive it.

use std::path::Path;

use urnic_config::PortSpec;

use super::PortError;

/// Kernel drivers that hand a NIC to user space, or share it with DPDK.
const FOR_USER_SPACE: [&str; 5] = ["vfio-pci", "uio_pci_generic", "igb_uio", "mlx5_core", "mlx4_core"];

/// Checks that DPDK may drive the NIC.
pub(super) fn check(spec: &PortSpec, address: &str) -> Result<(), PortError> {
    let unusable = |reason: String| Err(PortError::Interface { port: spec.to_string(), reason });
    let device = Path::new("/sys/bus/pci/devices").join(address);
    if !device.exists() {
        return unusable("there is no such PCI device; `lspci -D` lists them".into());
    }
    let driver = std::fs::read_link(device.join("driver")).ok();
    match driver.as_ref().and_then(|d| d.file_name()).and_then(|d| d.to_str()) {
        Some(driver) if FOR_USER_SPACE.contains(&driver) => Ok(()),
        Some(driver) => unusable(format!(
            "the kernel's driver {driver} has the device; bind the device to vfio-pci or uio_pci_generic first, which \
             takes its network interface away from the kernel"
        )),
        None => unusable("no driver has the device; bind it to vfio-pci or uio_pci_generic first".into()),
    }
}
