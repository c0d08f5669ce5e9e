//! From a configuration to an engine.

#[cfg(feature = "dpdk")]
mod dpdk;

use crate::shared::error::{Error, Result};
use urnic_config::{Choice, CrcKernel};

#[cfg(feature = "dpdk")]
pub(crate) use dpdk::open;

/// Says that there is nothing to open.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn open(
    _config: &urnic_config::Config,
    _doorbells: std::sync::Arc<crate::shared::doorbell::Doorbells>,
) -> Result<(Box<dyn crate::drive::shard::EngineOps>, std::sync::Arc<dyn crate::shared::memory::Allocate>)> {
    Err(Error::Open(
        "this urnic was built without DPDK and has no ports: build it with the feature dpdk".to_owned(),
    ))
}

/// Which CRC kernel the process uses from now on.
pub(crate) fn choose_kernel(wanted: CrcKernel) -> Result<()> {
    let kernel = match wanted {
        CrcKernel::Auto => return Ok(()),
        CrcKernel::Portable => urnic_crc::Kernel::Portable,
        CrcKernel::Sse42 => urnic_crc::Kernel::Sse42,
        CrcKernel::Vpclmul => urnic_crc::Kernel::Vpclmul,
    };
    if urnic_crc::force_kernel(kernel) {
        Ok(())
    } else {
        Err(Error::Open(format!(
            "this processor cannot run the CRC kernel {:?}: use \"auto\"",
            wanted.word()
        )))
    }
}

/// A number that nobody can guess.
pub(crate) fn secret() -> Result<u64> {
    let mut seed = [0u8; 8];
    // SAFETY: the buffer is as long as we say.
    let n = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if n == seed.len() as isize {
        Ok(u64::from_ne_bytes(seed))
    } else {
        Err(Error::last_os("random numbers from the kernel"))
    }
}
