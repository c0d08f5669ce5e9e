//! Memory of a device without EAL: private, and on the system's hugepages if there are any.

use std::alloc::Layout;

use super::allocate::{Allocate, Block, PageAllocator, fault_in};
use crate::shared::error::{Error, Result};

/// Allocates on hugepages if enough of them are free, or else on ordinary pages.
pub(crate) struct HugepageAllocator {
    /// Size of a hugepage in bytes; `None`: the system does not support hugepages.
    page: Option<usize>,
    /// Whether hugepages are required, so that ordinary pages are no substitute.
    required: bool,
}

impl HugepageAllocator {
    pub(crate) fn new(required: bool) -> Result<Self> {
        // This looks for hugepages first, because the crate that maps them panics on a system without them.
        let page = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| page_size(&text));
        match page {
            None if required => Err(Error::Open(
                "hugepages are required, and this system's kernel supports none; set memory.hugepages to \"auto\""
                    .to_owned(),
            )),
            page => Ok(Self { page, required }),
        }
    }

    /// Returns whether to use hugepages for a block: if they are required, or if the block is longer than half a
    /// hugepage.
    fn is_worth_it(&self, len: usize) -> bool {
        self.required || self.page.is_some_and(|page| len > page / 2)
    }
}

/// Returns the size of a hugepage in bytes, from `/proc/meminfo`; `None` if it states none.
fn page_size(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let (number, unit) = line.trim().split_once(' ')?;
    let kib: usize = number.parse().ok()?;
    (unit == "kB").then(|| kib.checked_mul(1024)).flatten().filter(|size| size.is_power_of_two())
}

impl Allocate for HugepageAllocator {
    fn allocate(&self, len: usize) -> Result<Box<dyn Block>> {
        match self.page.filter(|_| self.is_worth_it(len)).and_then(|page| HugeBlock::new(len, page)) {
            Some(block) => Ok(Box::new(block)),
            None if self.required => Err(Error::NoMemory(format!(
                "too few hugepages are free for {len} bytes: raise their number (/proc/sys/vm/nr_hugepages)"
            ))),
            None => PageAllocator.allocate(len),
        }
    }
}

/// Memory on hugepages.
struct HugeBlock {
    base: *mut u8,
    layout: Layout,
}

impl HugeBlock {
    /// Allocates a block; `None` if too few hugepages are free, or if Linux is older than 5.14 ([`fault_in`]).
    fn new(len: usize, page: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, page).ok()?;
        // SAFETY: regions have at least one byte.
        let base = unsafe { hugepage_rs::alloc(layout) };
        let block = (!base.is_null()).then_some(Self { base, layout })?;
        // A container's limit takes effect when the pages are first used. The first use is here, where it causes an
        // error instead of a signal.
        fault_in(base, len, true).ok().map(|()| block)
    }
}

// SAFETY: an anonymous mapping belongs to no thread.
unsafe impl Send for HugeBlock {}
// SAFETY: as above; `base` returns only a raw pointer.
unsafe impl Sync for HugeBlock {}

impl Block for HugeBlock {
    fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for HugeBlock {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with that layout; its region was deregistered before.
        unsafe { hugepage_rs::dealloc(self.base, self.layout) };
    }
}

#[cfg(test)]
mod tests;
