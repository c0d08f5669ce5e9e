//! Memory of the application's own, in whole pages.

use urnic::{Access, Mr, Pd};

/// A private mapping; unmapped when dropped, so that whoever touches it later ends the process.
pub struct Pages {
    base: *mut u8,
    len: usize,
}

// SAFETY: a mapping belongs to no thread, and is accessed by raw copies only.
unsafe impl Send for Pages {}

impl Pages {
    /// At least `len` octets, zero.
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

    /// All of it, registered. The caller sees to it that the region goes first.
    pub fn register(&self, pd: &Pd, access: Access) -> Mr {
        // SAFETY: mapped, and nobody has references to it; it stays until the caller drops it, behind the region.
        unsafe { pd.reg_mr(self.base, self.len, access) }.unwrap()
    }

    /// What is there now.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        // SAFETY: both are `len` octets; those copied are initialized.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base, bytes.as_mut_ptr(), self.len);
            bytes.set_len(self.len);
        }
        bytes
    }

    /// From now on whoever touches it ends the process (SIGSEGV), and the addresses stay taken: as after `munmap`, but no
    /// other mapping can come to lie there and hide the touch.
    pub fn take_away(&self) {
        // SAFETY: our own mapping.
        assert_eq!(unsafe { libc::mprotect(self.base.cast(), self.len, libc::PROT_NONE) }, 0);
    }

    /// Writes as the application.
    pub fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: in bounds.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base, bytes.len()) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
