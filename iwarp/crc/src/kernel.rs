//! The kernels and their functions.

/// An implementation of this crate's functions. All implementations give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Tables; runs on every processor.
    Portable,
    /// The CRC32 instruction of SSE4.2 in three interleaved streams, joined by PCLMULQDQ.
    Sse42,
    /// Carry-less multiplication of 32-byte vectors (AVX2 with VPCLMULQDQ), interleaved with the CRC32 instruction.
    Avx2,
    /// Carry-less multiplication of 64-byte vectors (AVX-512 with VPCLMULQDQ).
    Vpclmul,
}

impl Kernel {
    /// All kernels, the slowest first.
    pub const ALL: [Kernel; 4] = [Kernel::Portable, Kernel::Sse42, Kernel::Avx2, Kernel::Vpclmul];

    /// Returns the name of the kernel, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Portable => "portable",
            Kernel::Sse42 => "sse4.2",
            Kernel::Avx2 => "avx2",
            Kernel::Vpclmul => "vpclmul",
        }
    }
}

/// The functions of a kernel. Their contracts are those of the public functions.
pub(crate) struct Table {
    pub kernel: Kernel,
    pub crc: unsafe fn(*const u8, usize, u32) -> u32,
    pub sum: unsafe fn(*const u8, usize) -> u16,
    pub copy_crc: unsafe fn(*mut u8, *const u8, usize, u32) -> u32,
    pub copy_crc_sum: unsafe fn(*mut u8, *const u8, usize, u32) -> (u32, u16),
    pub place: unsafe fn(*mut u8, *const u8, usize),
}
