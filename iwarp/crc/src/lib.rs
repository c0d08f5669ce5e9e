//! CRC32C, copy and Internet checksum in as few passes over the data as possible.
//!
//! An FPDU that urnic sends is covered by a CRC32C (RFC 5044 §4.4) and by the Internet checksum of TCP (RFC
//! 1071), and is copied into a frame unless the port sends from the program's memory. An FPDU that urnic
//! receives is covered by a CRC and then placed. The functions here do this work with the processor's best
//! kernel ([`Kernel`]), which is chosen once. A call costs one indirect jump and no feature test.
//!
//! The raw-pointer functions exist because the application or a peer may write registered memory at any time, so no
//! Rust reference to it may exist. The functions that copy and compute a CRC read each source byte exactly once. So the
//! CRC covers exactly the bytes that are stored, even if the source changes meanwhile.
//!
//! ```
//! let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, b"123456789"));
//! assert_eq!(crc, 0xe306_9283);
//! ```

mod dispatch;
mod kernel;
mod octets;
#[cfg(target_arch = "x86_64")]
mod poly;
mod portable;
mod sum;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use dispatch::{force_kernel, kernel};
pub use kernel::Kernel;
pub use octets::Octets;
pub use sum::combine;

/// The CRC register before the first byte.
pub const INIT: u32 = 0xffff_ffff;

/// Turns the CRC register into the CRC, which goes onto the wire in little-endian order (RFC 5044 §4.4).
#[inline]
pub const fn finish(state: u32) -> u32 {
    !state
}

/// Runs `data` through the CRC register. Start with [`INIT`] and end with [`finish`]. The data may be split among
/// several calls at any place.
#[inline]
pub fn crc32c(state: u32, data: &[u8]) -> u32 {
    // SAFETY: a slice is readable for its length.
    unsafe { (dispatch::table().crc)(data.as_ptr(), data.len(), state) }
}

/// Returns the one's-complement sum of `data` (RFC 1071) over 16-bit words in network order, folded and not
/// complemented. The first byte is the high byte of a word. An odd last byte counts as if a zero followed it.
#[inline]
pub fn sum(data: &[u8]) -> u16 {
    // SAFETY: a slice is readable for its length.
    unsafe { (dispatch::table().sum)(data.as_ptr(), data.len()) }
}

/// Runs memory that may change meanwhile through the CRC register, like [`crc32c`]. If it changes, the result
/// has no meaning.
///
/// # Safety
/// `src` must be readable for `len` bytes. Other threads or processes may write it meanwhile.
#[inline]
pub unsafe fn crc32c_at(state: u32, src: *const u8, len: usize) -> u32 {
    // SAFETY: the caller's promise is the kernel's.
    unsafe { (dispatch::table().crc)(src, len, state) }
}

/// Returns the [`sum`] of memory that may change meanwhile. If it changes, the result has no meaning.
///
/// # Safety
/// As [`crc32c_at`].
#[inline]
pub unsafe fn sum_at(src: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise is the kernel's.
    unsafe { (dispatch::table().sum)(src, len) }
}

/// Copies `len` bytes and runs them through the CRC register, in one pass.
///
/// The order of the stores is not defined.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and the two ranges must not overlap. Other threads or
/// processes may write `src` meanwhile; none may access `dst`.
#[inline]
pub unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise is the kernel's.
    unsafe { (dispatch::table().copy_crc)(dst, src, len, state) }
}

/// Does the work of [`copy_crc`], and also returns the [`sum`] of the bytes copied.
///
/// # Safety
/// As [`copy_crc`].
#[inline]
pub unsafe fn copy_crc_sum(dst: *mut u8, src: *const u8, len: usize, state: u32) -> (u32, u16) {
    // SAFETY: the caller's promise is the kernel's.
    unsafe { (dispatch::table().copy_crc_sum)(dst, src, len, state) }
}

/// Copies `len` bytes in ascending order. The store that holds the last byte comes last and has release ordering: a
/// reader that sees it (with acquire ordering) sees all the other bytes as well. Programs that spin on the last byte of
/// a buffer rely on this. That last store is the largest naturally aligned word, up to eight bytes, that ends with the
/// last byte, so an aligned eight-byte value is written by a single store.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and the two ranges must not overlap. Other threads or
/// processes may access `dst` meanwhile.
#[inline]
pub unsafe fn place(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise is the kernel's.
    unsafe { (dispatch::table().place)(dst, src, len) }
}

#[cfg(test)]
mod tests;
