//! The portable kernel: eight tables, eight bytes per step.
//!
//! The source of a CRC, a checksum or a copy may change while it is read, so it is read with volatile loads. These must
//! be aligned, so the bytes before the first aligned word are read one by one. The source of a placement does not
//! change, so [`place`] uses plain loads.

use crate::kernel::{Kernel, Table};
use crate::sum;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

pub(crate) static TABLE: Table =
    Table { kernel: Kernel::Portable, crc, sum: sum_only, copy_crc, copy_crc_sum, place };

/// The generator 0x11EDC6F41, reflected.
pub(crate) const POLY: u32 = 0x82f6_3b78;

/// `TABLES[k][b]`: the register after byte `b` and `k` zero bytes, starting from zero.
static TABLES: [[u32; 256]; 8] = {
    let mut t = [[0u32; 256]; 8];
    let mut b = 0;
    while b < 256 {
        let mut c = b as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ POLY } else { c >> 1 };
            bit += 1;
        }
        t[0][b] = c;
        b += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut b = 0;
        while b < 256 {
            let c = t[k - 1][b];
            t[k][b] = (c >> 8) ^ t[0][(c & 0xff) as usize];
            b += 1;
        }
        k += 1;
    }
    t
};

/// Runs one byte through the CRC register.
#[inline(always)]
fn step8(state: u32, byte: u8) -> u32 {
    (state >> 8) ^ TABLES[0][usize::from(state as u8 ^ byte)]
}

/// Runs one little-endian word through the CRC register.
#[inline(always)]
fn step64(state: u32, word: u64) -> u32 {
    let b = (word ^ u64::from(state)).to_le_bytes();
    TABLES[7][usize::from(b[0])]
        ^ TABLES[6][usize::from(b[1])]
        ^ TABLES[5][usize::from(b[2])]
        ^ TABLES[4][usize::from(b[3])]
        ^ TABLES[3][usize::from(b[4])]
        ^ TABLES[2][usize::from(b[5])]
        ^ TABLES[1][usize::from(b[6])]
        ^ TABLES[0][usize::from(b[7])]
}

/// Reads the source in the single pass that all functions except [`place`] use. Copies if `COPY`. Returns the
/// CRC register if `CRC`, and the accumulated checksum words if `SUM`.
///
/// # Safety
/// `src` must be readable and, if `COPY`, `dst` writable for `len` bytes.
#[inline(always)]
unsafe fn pass<const COPY: bool, const CRC: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    mut state: u32,
) -> (u32, u64) {
    let mut acc = 0u64;
    let head = src.align_offset(8).min(len);
    let byte = |i: usize, state: &mut u32, acc: &mut u64| {
        // SAFETY: i < len at every call.
        unsafe {
            let b = src.add(i).read_volatile();
            if COPY {
                dst.add(i).write(b);
            }
            if CRC {
                *state = step8(*state, b);
            }
            if SUM {
                *acc = sum::add(*acc, u64::from(b) << (8 * (i & 1)));
            }
        }
    };
    let mut i = 0;
    while i < head {
        byte(i, &mut state, &mut acc);
        i += 1;
    }
    // In a word that begins at an odd offset, the bytes count in swapped order. A rotation by one byte does this
    // (modulo 2^16 - 1).
    let turn = 8 * (head as u32 & 1);
    while len - i >= 8 {
        // SAFETY: eight bytes are left, and src + i is aligned since `head`.
        unsafe {
            let word = src.add(i).cast::<u64>().read_volatile();
            if COPY {
                ptr::write_unaligned(dst.add(i).cast(), word);
            }
            let word = u64::from_le(word);
            if CRC {
                state = step64(state, word);
            }
            if SUM {
                acc = sum::add(acc, word.rotate_left(turn));
            }
        }
        i += 8;
    }
    while i < len {
        byte(i, &mut state, &mut acc);
        i += 1;
    }
    (state, acc)
}

/// # Safety
/// `src` must be readable for `len` bytes.
unsafe fn crc(src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise; nothing is written.
    unsafe { pass::<false, true, false>(ptr::null_mut(), src, len, state).0 }
}

/// # Safety
/// `src` must be readable for `len` bytes.
unsafe fn sum_only(src: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise; nothing is written.
    sum::fold(unsafe { pass::<false, false, true>(ptr::null_mut(), src, len, 0).1 })
}

/// # Safety
/// As [`crate::copy_crc`].
unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { pass::<true, true, false>(dst, src, len, state).0 }
}

/// # Safety
/// As [`crate::copy_crc_sum`].
unsafe fn copy_crc_sum(dst: *mut u8, src: *const u8, len: usize, state: u32) -> (u32, u16) {
    // SAFETY: the caller's promise.
    let (state, acc) = unsafe { pass::<true, true, true>(dst, src, len, state) };
    (state, sum::fold(acc))
}

/// Returns the width in bytes of the last store of a placement of `len` bytes that ends at address `end`. The width is
/// the largest power of two, up to eight, that divides `end` and is not greater than `len`.
#[inline(always)]
pub(crate) fn last_store(end: usize, len: usize) -> usize {
    let aligned = 1 << (end | 8).trailing_zeros();
    if aligned <= len { aligned } else { 1 << len.ilog2() }
}

/// Does the last store of a placement, with release ordering. [`last_store`] returns its `width` in bytes.
///
/// # Safety
/// `src` must be readable and `dst` writable for `width` bytes; `dst` must be aligned to `width`, which is 1, 2, 4
/// or 8.
#[inline(always)]
pub(crate) unsafe fn store_last(dst: *mut u8, src: *const u8, width: usize) {
    // SAFETY: the caller's promise; the atomics have the alignment of their width.
    unsafe {
        match width {
            8 => AtomicU64::from_ptr(dst.cast()).store(src.cast::<u64>().read_unaligned(), Ordering::Release),
            4 => AtomicU32::from_ptr(dst.cast()).store(src.cast::<u32>().read_unaligned(), Ordering::Release),
            2 => AtomicU16::from_ptr(dst.cast()).store(src.cast::<u16>().read_unaligned(), Ordering::Release),
            _ => AtomicU8::from_ptr(dst).store(src.read(), Ordering::Release),
        }
    }
}

/// # Safety
/// As [`crate::place`].
unsafe fn place(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: all offsets stay below len; aligned volatile stores keep their order.
    unsafe {
        let width = last_store(dst as usize + len, len);
        let body = len - width;
        let mut i = 0;
        let head = dst.align_offset(8).min(body);
        while i < head {
            dst.add(i).write_volatile(src.add(i).read());
            i += 1;
        }
        while body - i >= 8 {
            dst.add(i).cast::<u64>().write_volatile(src.add(i).cast::<u64>().read_unaligned());
            i += 8;
        }
        while i < body {
            dst.add(i).write_volatile(src.add(i).read());
            i += 1;
        }
        store_last(dst.add(body), src.add(body), width);
    }
}
