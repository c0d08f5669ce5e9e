//! Memory of a device that has no EAL: private, and on the system's hugepages where there are some.

use std::alloc::Layout;

use super::allocate::{Allocate, Block, PageAllocator, fault_in};
use crate::shared::error::{Error, Result};

/// Hugepages if there are enough of them, or else ordinary pages.
pub(crate) struct HugepageAllocator {
    /// Octets of a hugepage; `None`: the system has none.
    page: Option<usize>,
    /// Ordinary pages are no substitute.
    required: bool,
}

impl HugepageAllocator {
    pub(crate) fn new(required: bool) -> Result<Self> {
        // The crate that maps them takes a system without for a bug.
        let page = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| page_size(&text));
        match page {
            None if required => {
                Err(Error::Open("this system has no hugepages, and they are required".to_owned()))
            }
            page => Ok(Self { page, required }),
        }
    }

    /// Whether a block is large enough: less than half a hugepage of it would lie idle.
    fn is_worth_it(&self, len: usize) -> bool {
        self.required || self.page.is_some_and(|page| len > page / 2)
    }
}

/// Octets of a hugepage, as `/proc/meminfo` says.
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
                "{len} octets on hugepages, of which too few are free (/proc/sys/vm/nr_hugepages)"
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
    /// None if there are not enough of them.
    fn new(len: usize, page: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, page).ok()?;
        // SAFETY: regions have at least one octet.
        let base = unsafe { hugepage_rs::alloc(layout) };
        let block = (!base.is_null()).then_some(Self { base, layout })?;
        // A limit of a container's shows when the pages are wanted, as an error here instead of a signal later.
        fault_in(base, len, true).ok().map(|()| block)
    }
}

// SAFETY: an anonymous mapping belongs to no thread.
unsafe impl Send for HugeBlock {}
// SAFETY: as above; `base` hands out a raw pointer only.
unsafe impl Sync for HugeBlock {}

impl Block for HugeBlock {
    fn base(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for HugeBlock {
    fn drop(&mut self) {
        // SAFETY: of that layout it was allocated; its region was deregistered before.
        unsafe { hugepage_rs::dealloc(self.base, self.layout) };
    }
}

#[cfg(test)]
mod tests;
