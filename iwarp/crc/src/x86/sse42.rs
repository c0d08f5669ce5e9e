//! The CRC32 instruction, in three streams.
//!
//! The instruction takes eight bytes, with a latency of three cycles and a throughput of one per cycle. So three
//! independent streams run three times as fast as one. Streams A, B and C cover consecutive parts of the data, `n`
//! words each. Two carry-less multiplications join their registers.

use super::{load16, load32, load64};
use crate::kernel::{Kernel, Table};
use crate::poly::{mul, x_to};
use crate::portable::{last_store, store_last};
use crate::sum;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ptr;

pub(crate) static TABLE: Table =
    Table { kernel: Kernel::Sse42, crc, sum: sum_only, copy_crc, copy_crc_sum, place };

/// Maximum number of 8-byte words in each stream of one round.
pub(super) const WORDS_MAX: usize = 128;
/// Shortest data, in bytes, for which three streams are faster than one.
pub(super) const THREE_MIN: usize = 144;

/// `SHIFT[n]` moves a register past `n` zero words. Multiplying the register by `SHIFT[n]` and running the product
/// through the CRC32 instruction has the same effect as running `n` zero words through the instruction. The product of
/// two reflected values has an additional factor of x, and the instruction multiplies by x^32, so the value is
/// x^(64 n - 33).
pub(super) static SHIFT: [u32; 2 * WORDS_MAX + 1] = {
    let mut table = [0; 2 * WORDS_MAX + 1];
    let word = x_to(64);
    table[1] = x_to(31);
    let mut n = 2;
    while n < table.len() {
        table[n] = mul(table[n - 1], word);
        n += 1;
    }
    table
};

/// Returns the product of a register and a constant, as a word for the CRC32 instruction.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn product(state: u64, constant: u32) -> u64 {
    let a = _mm_cvtsi64_si128(state as i64);
    let b = _mm_cvtsi64_si128(i64::from(constant));
    _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(a, b)) as u64
}

/// Reads one word of a pass. Copies it if `COPY`, and adds it to `acc` if `SUM`.
///
/// # Safety
/// `src` must be readable and, if `COPY`, `dst` writable for eight bytes.
#[inline(always)]
pub(super) unsafe fn word<const COPY: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    acc: &mut u64,
) -> u64 {
    // SAFETY: the caller's promise. Memory that is copied is read exactly once, because it may change meanwhile. Other
    // memory is read by an ordinary load: if it changes meanwhile, the result has no meaning.
    unsafe {
        let word = if COPY { load64(src) } else { ptr::read_unaligned(src.cast::<u64>()) };
        if COPY {
            ptr::write_unaligned(dst.cast(), word);
        }
        if SUM {
            *acc = sum::add(*acc, word);
        }
        word
    }
}

/// Handles short data, in one stream. Copies if `COPY`. Returns the CRC register if `CRC`, and the checksum words
/// added to `acc` if `SUM`.
///
/// # Safety
/// `src` must be readable and, if `COPY`, `dst` writable for `len` bytes.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn one_stream<const COPY: bool, const CRC: bool, const SUM: bool>(
    mut dst: *mut u8,
    mut src: *const u8,
    mut len: usize,
    state: u32,
    mut acc: u64,
) -> (u32, u64) {
    let mut state = u64::from(state);
    // SAFETY: every access stays within the `len` bytes that are left at `src` and `dst`.
    unsafe {
        while len >= 8 {
            let v = word::<COPY, SUM>(dst, src, &mut acc);
            if CRC {
                state = _mm_crc32_u64(state, v);
            }
            src = src.add(8);
            dst = dst.wrapping_add(8);
            len -= 8;
        }
        let mut state = state as u32;
        if len & 4 != 0 {
            let v = load32(src);
            if COPY {
                ptr::write_unaligned(dst.cast(), v);
            }
            if CRC {
                state = _mm_crc32_u32(state, v);
            }
            if SUM {
                acc = sum::add(acc, u64::from(v));
            }
            src = src.add(4);
            dst = dst.wrapping_add(4);
        }
        if len & 2 != 0 {
            let v = load16(src);
            if COPY {
                ptr::write_unaligned(dst.cast(), v);
            }
            if CRC {
                state = _mm_crc32_u16(state, v);
            }
            if SUM {
                acc = sum::add(acc, u64::from(v));
            }
            src = src.add(2);
            dst = dst.wrapping_add(2);
        }
        if len & 1 != 0 {
            let v = src.read_volatile();
            if COPY {
                dst.write(v);
            }
            if CRC {
                state = _mm_crc32_u8(state, v);
            }
            if SUM {
                acc = sum::add(acc, u64::from(v));
            }
        }
        (state, acc)
    }
}

/// Handles long data, in three streams while enough is left. Not inlined, so that short data does not pay for its
/// stack frame.
///
/// # Safety
/// As [`one_stream`].
#[inline(never)]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn three_streams<const COPY: bool, const CRC: bool, const SUM: bool>(
    mut dst: *mut u8,
    mut src: *const u8,
    mut len: usize,
    state: u32,
) -> (u32, u64) {
    let mut state = u64::from(state);
    let [mut acc_a, mut acc_b, mut acc_c] = [0; 3];
    // SAFETY: every access stays within the `len` bytes that are left at `src` and `dst`.
    unsafe {
        while len >= THREE_MIN {
            let n = (len / 24).min(WORDS_MAX);
            let (mut a, mut b, mut c) = (state, 0, 0);
            let (src_b, dst_b) = (src.add(8 * n), dst.wrapping_add(8 * n));
            let (src_c, dst_c) = (src_b.add(8 * n), dst_b.wrapping_add(8 * n));
            let mut words = |at: usize| {
                [
                    word::<COPY, SUM>(dst.wrapping_add(at), src.add(at), &mut acc_a),
                    word::<COPY, SUM>(dst_b.wrapping_add(at), src_b.add(at), &mut acc_b),
                    word::<COPY, SUM>(dst_c.wrapping_add(at), src_c.add(at), &mut acc_c),
                ]
            };
            for at in (0..8 * (n - 1)).step_by(8) {
                let v = words(at);
                if CRC {
                    a = _mm_crc32_u64(a, v[0]);
                    b = _mm_crc32_u64(b, v[1]);
                    c = _mm_crc32_u64(c, v[2]);
                }
            }
            let v = words(8 * (n - 1));
            if CRC {
                a = _mm_crc32_u64(a, v[0]);
                b = _mm_crc32_u64(b, v[1]);
                state = _mm_crc32_u64(c, v[2] ^ product(a, SHIFT[2 * n]) ^ product(b, SHIFT[n]));
            }
            src = src.add(24 * n);
            dst = dst.wrapping_add(24 * n);
            len -= 24 * n;
        }
        let acc = sum::add(acc_a, sum::add(acc_b, acc_c));
        one_stream::<COPY, CRC, SUM>(dst, src, len, state as u32, acc)
    }
}

/// Handles data of any length.
///
/// # Safety
/// As [`one_stream`].
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn pass<const COPY: bool, const CRC: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    state: u32,
) -> (u32, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match len < THREE_MIN {
            true => one_stream::<COPY, CRC, SUM>(dst, src, len, state, 0),
            false => three_streams::<COPY, CRC, SUM>(dst, src, len, state),
        }
    }
}

/// # Safety
/// `src` must be readable for `len` bytes; the processor has the features of this kernel.
unsafe fn crc(src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise; the table is used only where the features exist; nothing is written.
    unsafe { pass::<false, true, false>(ptr::null_mut(), src, len, state).0 }
}

/// # Safety
/// As [`crate::copy_crc`]; the processor has the features of this kernel.
unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    unsafe { pass::<true, true, false>(dst, src, len, state).0 }
}

/// # Safety
/// As [`crate::copy_crc_sum`]; the processor has the features of this kernel.
unsafe fn copy_crc_sum(dst: *mut u8, src: *const u8, len: usize, state: u32) -> (u32, u16) {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    let (state, acc) = unsafe { pass::<true, true, true>(dst, src, len, state) };
    (state, sum::fold(acc))
}

/// # Safety
/// `src` must be readable for `len` bytes; the processor has the features of this kernel.
pub(super) unsafe fn sum_only(src: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise; the table is used only where the features exist; nothing is written.
    sum::fold(unsafe { pass::<false, false, true>(ptr::null_mut(), src, len, 0).1 })
}

/// # Safety
/// As [`crate::place`]; the processor has the features of this kernel.
pub(super) unsafe fn place(mut dst: *mut u8, mut src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let width = last_store(dst as usize + len, len);
    let mut body = len - width;
    // SAFETY: the caller's promise; every access stays within the `body` bytes left, then within the last `width`.
    unsafe {
        while body >= 16 {
            let v = _mm_loadu_si128(src.cast());
            asm!("movdqu xmmword ptr [{}], {}", in(reg) dst, in(xmm_reg) v, options(nostack, preserves_flags));
            src = src.add(16);
            dst = dst.add(16);
            body -= 16;
        }
        place_rest(dst, src, body);
        store_last(dst.add(body), src.add(body), width);
    }
}

/// Places fewer than sixteen bytes, in ascending order.
///
/// # Safety
/// As [`crate::place`].
#[inline(always)]
pub(super) unsafe fn place_rest(mut dst: *mut u8, mut src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the steps of 8, 4, 2 and 1 bytes that are taken add up to `len`.
    unsafe {
        if len & 8 != 0 {
            let v = ptr::read_unaligned(src.cast::<u64>());
            asm!("mov qword ptr [{}], {}", in(reg) dst, in(reg) v, options(nostack, preserves_flags));
            (dst, src) = (dst.add(8), src.add(8));
        }
        if len & 4 != 0 {
            let v = ptr::read_unaligned(src.cast::<u32>());
            asm!("mov dword ptr [{}], {:e}", in(reg) dst, in(reg) v, options(nostack, preserves_flags));
            (dst, src) = (dst.add(4), src.add(4));
        }
        if len & 2 != 0 {
            let v = ptr::read_unaligned(src.cast::<u16>());
            asm!("mov word ptr [{}], {:x}", in(reg) dst, in(reg) v, options(nostack, preserves_flags));
            (dst, src) = (dst.add(2), src.add(2));
        }
        if len & 1 != 0 {
            dst.write_volatile(src.read());
        }
    }
}
