//! The machine's hugepages: how many there are, and how many are free.

use std::ffi::CStr;
use std::fs;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::ftruncate;

/// The kernel's hugepages of the default size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugepageStatus {
    /// Bytes of one page; 0 if the kernel has no hugepages.
    pub page_bytes: u64,
    /// Pages reserved.
    pub total: u64,
    /// Pages that can still be taken.
    pub free: u64,
}

/// Reads `/proc/meminfo`.
pub fn status() -> HugepageStatus {
    parse(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn parse(meminfo: &str) -> HugepageStatus {
    let field = |name: &str| {
        meminfo
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let free = field("HugePages_Free").saturating_sub(field("HugePages_Rsvd"));
    HugepageStatus { page_bytes: field("Hugepagesize") << 10, total: field("HugePages_Total"), free }
}

/// Returns the number of pages of the default size (2 MiB if unknown) that hold `mb` MiB.
pub(crate) fn pages_for(mb: u32) -> u64 {
    let page = match status().page_bytes {
        0 => 2 << 20,
        bytes => bytes,
    };
    (u64::from(mb) << 20).div_ceil(page)
}

/// Tests whether `mb` MiB can be reserved now, in the way in which EAL will reserve them (an unnamed file). Returns the
/// reason if not. EAL itself must not fail at this, because EAL cannot be started a second time.
pub(crate) fn reservable(mb: u32) -> Result<(), String> {
    const NAME: &CStr = c"urnic-hugepage-probe";
    let status = status();
    if status.total == 0 {
        return Err("none are reserved".into());
    }
    let bytes = (pages_for(mb) * status.page_bytes) as usize;
    let fd =
        memfd_create(NAME, MFdFlags::MFD_HUGETLB | MFdFlags::MFD_CLOEXEC).map_err(|e| e.desc().to_owned())?;
    let Some(length) = NonZeroUsize::new(bytes) else { return Ok(()) };
    ftruncate(&fd, bytes as i64).map_err(|e| e.desc().to_owned())?;
    // A shared mapping reserves its pages without touching them.
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped = unsafe {
        mmap(None, length, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED, fd.as_fd(), 0)
    };
    match mapped {
        Ok(at) => {
            // SAFETY: exactly the mapping made above, which nothing refers to.
            let _ = unsafe { munmap(at, bytes) };
            Ok(())
        }
        Err(_) => Err(format!("only {} MiB of them are free", (status.free * status.page_bytes) >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_table() {
        let text = "MemTotal: 1 kB\nHugePages_Total:     600\nHugePages_Free:      500\nHugePages_Rsvd:        4\n\
                    Hugepagesize:       2048 kB\n";
        assert_eq!(parse(text), HugepageStatus { page_bytes: 2 << 20, total: 600, free: 496 });
        assert_eq!(parse(""), HugepageStatus::default());
    }
}
