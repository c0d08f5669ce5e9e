//! The application's own memory, in whole pages.

use urnic::{Access, Mr, Pd};

/// A private mapping. It is unmapped when dropped, so that a later access ends the process.
pub struct Pages {
    base: *mut u8,
    len: usize,
}

// SAFETY: a mapping belongs to no thread, and is accessed only by raw copies.
unsafe impl Send for Pages {}

impl Pages {
    /// Maps at least `len` zeroed octets.
    pub fn new(len: usize) -> Pages {
        let len = len.next_multiple_of(4096);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Pages { base: base.cast(), len }
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Registers the whole mapping. The caller must drop the region before the mapping.
    pub fn register(&self, pd: &Pd, access: Access) -> Mr {
        // SAFETY: mapped, without references to it; the caller drops it after the region.
        unsafe { pd.reg_mr(self.base, self.len, access) }.unwrap()
    }

    /// Returns the present content.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: both have `len` octets, and the copied octets are initialized.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base, bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        bytes
    }

    /// Makes every later access to the pages end the process (SIGSEGV), as `munmap` does. The addresses stay in use,
    /// because a new mapping at these addresses would hide an access.
    pub fn take_away(&self) {
        // SAFETY: the mapping is ours.
        assert_eq!(unsafe { libc::mprotect(self.base.cast(), self.len, libc::PROT_NONE) }, 0);
    }

    /// Writes to the start of the mapping, as the application.
    pub fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: within bounds.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, bytes.len()) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
