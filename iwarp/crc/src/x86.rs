//! Kernels for x86-64, and the functions that they share.
//!
//! While an assembler instruction here reads memory, other threads or processes may write that memory; while it writes
//! memory, they may read that memory. The compiler can neither repeat, split nor reorder these instructions, nor turn a
//! loop of them into a call of `memcpy`. Rust's rules about data races do not apply to them.

use std::arch::asm;

pub(crate) mod avx2;
pub(crate) mod sse42;
pub(crate) mod vpclmul;

/// Reads eight bytes, exactly once.
///
/// # Safety
/// `src` must be readable for eight bytes.
#[inline(always)]
unsafe fn load64(src: *const u8) -> u64 {
    let value;
    // SAFETY: reads what the caller promised, touches nothing else.
    unsafe {
        asm!("mov {}, qword ptr [{}]", lateout(reg) value, in(reg) src, options(nostack, preserves_flags, readonly));
    }
    value
}

/// Reads four bytes, exactly once.
///
/// # Safety
/// `src` must be readable for four bytes.
#[inline(always)]
unsafe fn load32(src: *const u8) -> u32 {
    let value;
    // SAFETY: as in `load64`.
    unsafe {
        asm!("mov {:e}, dword ptr [{}]", lateout(reg) value, in(reg) src, options(nostack, preserves_flags, readonly));
    }
    value
}

/// Reads two bytes, exactly once.
///
/// # Safety
/// `src` must be readable for two bytes.
#[inline(always)]
unsafe fn load16(src: *const u8) -> u16 {
    let value: u32;
    // SAFETY: as in `load64`.
    unsafe {
        asm!("movzx {:e}, word ptr [{}]", lateout(reg) value, in(reg) src, options(nostack, preserves_flags, readonly));
    }
    value as u16
}

/// Returns whether the processor and the system can run the SSE4.2 kernel.
pub(crate) fn has_sse42() -> bool {
    is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
}

/// Returns whether the processor and the system can run the AVX2 kernel.
pub(crate) fn has_avx2() -> bool {
    has_sse42() && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq")
}

/// Returns whether the processor and the system can run the VPCLMULQDQ kernel.
pub(crate) fn has_vpclmul() -> bool {
    has_sse42()
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("avx512vnni")
}
