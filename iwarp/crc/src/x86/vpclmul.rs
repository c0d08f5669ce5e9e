//! Carry-less multiplication of 64-byte vectors.
//!
//! The data is taken as vectors of 64 bytes that end where the data ends. The first vector holds the remainder of the
//! length, after zeros. The CRC register is added to the first bytes of the data, and the computation starts from a
//! register of zero, so the zeros before the data do not change the CRC. Each vector is folded: multiplied so that it
//! counts at the position of the last vector. All folded vectors are added. The sum is folded in the same way to its
//! last 16 bytes, which go through the CRC32 instruction. Two or three vectors are folded one onto the next, and four
//! to seven independently of each other. Longer data is first reduced to four running vectors: each takes every fourth
//! vector of the data, and is folded onto the next one that it takes.
//!
//! The Internet checksum comes from dot products of the bytes with (1, 0, 1, 0, ...) and (0, 1, 0, 1, ...). They sum
//! the low and the high bytes, on an execution port that the multiplications leave free.

use super::sse42;
use crate::kernel::{Kernel, Table};
use crate::poly::x_to;
use crate::portable::{last_store, store_last};
use crate::sum;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ptr;

pub(crate) static TABLE: Table =
    Table { kernel: Kernel::Vpclmul, crc, sum: sum_only, copy_crc, copy_crc_sum, place };

/// Shortest data, in bytes, for which vectors are faster than the CRC32 instruction. At least 65, so that there is more
/// than one vector.
const VECTOR_MIN: usize = 128;
/// Data is taken in parts of this many bytes, so that no 32-bit lane of the checksum overflows. The last part may be
/// longer by up to [`VECTOR_MIN`]. The number is even, so that each part begins with the high byte of a checksum word.
const PART: usize = 1 << 26;

/// Returns the multipliers that move 16 bytes by `bits`: one for the first eight bytes and one for the last eight. They
/// are reflected 64-bit values; the product of two such values has an additional factor of x.
pub(super) const fn fold_by(bits: u32) -> [u64; 2] {
    [(x_to(bits + 63) as u64) << 32, (x_to(bits - 1) as u64) << 32]
}

/// `FOLD[d]`: multipliers that move by `d` vectors. The first entry is not used.
static FOLD: [[u64; 2]; 7] =
    [[0; 2], fold_by(512), fold_by(1024), fold_by(1536), fold_by(2048), fold_by(2560), fold_by(3072)];

/// Multipliers that move each quarter of a vector to the position of the last one. The last quarter needs no
/// multiplier.
static QUARTERS: [[u64; 2]; 4] = [fold_by(384), fold_by(256), fold_by(128), [0; 2]];

/// Returns the vector multiplied by `k`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(v: __m512i, k: __m512i) -> __m512i {
    _mm512_xor_si512(_mm512_clmulepi64_epi128::<0x00>(v, k), _mm512_clmulepi64_epi128::<0x11>(v, k))
}

/// Returns `v`, moved by the multiplier `k`, plus `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_onto(v: __m512i, k: __m512i, next: __m512i) -> __m512i {
    let (lo, hi) = (_mm512_clmulepi64_epi128::<0x00>(v, k), _mm512_clmulepi64_epi128::<0x11>(v, k));
    _mm512_ternarylogic_epi64::<0x96>(lo, hi, next)
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn multiplier(d: usize) -> __m512i {
    let [first, last] = FOLD[d];
    _mm512_broadcast_i32x4(_mm_set_epi64x(last as i64, first as i64))
}

/// Reads 64 bytes. If `ONCE`, reads each byte exactly once. Otherwise uses an ordinary load: if the bytes change
/// meanwhile, the result has no meaning.
///
/// # Safety
/// `src` must be readable for 64 bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const ONCE: bool>(src: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        if ONCE {
            let v;
            asm!("vmovdqu64 {}, zmmword ptr [{}]", lateout(zmm_reg) v, in(reg) src,
                options(nostack, preserves_flags, readonly));
            v
        } else {
            _mm512_loadu_si512(src.cast())
        }
    }
}

/// Reads the bytes that the mask selects, exactly once. The others are zero.
///
/// # Safety
/// The bytes that the mask selects must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn load_some(src: *const u8, mask: u64) -> __m512i {
    let v;
    // SAFETY: the caller's promise; a masked load touches no other bytes.
    unsafe {
        asm!("vmovdqu8 {} {{{}}} {{z}}, zmmword ptr [{}]", lateout(zmm_reg) v, in(kreg) mask, in(reg) src,
            options(nostack, preserves_flags, readonly));
    }
    v
}

/// The running checksum: sums of the bytes at even and at odd positions. There are two of each, used in turn, because
/// a dot product takes as long as two steps over a vector.
#[derive(Clone, Copy)]
struct Sums {
    even: [__m512i; 2],
    odd: [__m512i; 2],
}

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Sums {
        let zero = [_mm512_setzero_si512(); 2];
        Sums { even: zero, odd: zero }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn add<const TURN: usize>(&mut self, v: __m512i) {
        self.even[TURN] = _mm512_dpbusd_epi32(self.even[TURN], v, _mm512_set1_epi16(0x0001));
        self.odd[TURN] = _mm512_dpbusd_epi32(self.odd[TURN], v, _mm512_set1_epi16(0x0100));
    }

    /// Returns the sum as little-endian words. `begins_odd`: the data began at an odd position.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn total(self, begins_odd: bool) -> u64 {
        let even = _mm512_add_epi32(self.even[0], self.even[1]);
        let odd = _mm512_add_epi32(self.odd[0], self.odd[1]);
        let (low, high) = if begins_odd { (odd, even) } else { (even, odd) };
        // A 64-bit lane holds two sums of less than 2^30: neither the shift nor the additions overflow.
        let wide = |v: __m512i| {
            _mm512_add_epi64(_mm512_srli_epi64::<32>(v), _mm512_and_si512(v, _mm512_set1_epi64(0xffff_ffff)))
        };
        _mm512_reduce_add_epi64(_mm512_add_epi64(wide(low), _mm512_slli_epi64::<8>(wide(high)))) as u64
    }
}

/// State of a pass: where the next bytes are read, copied to and summed.
struct Cursor {
    dst: *mut u8,
    src: *const u8,
    sums: Sums,
}

impl Cursor {
    /// Takes the next vector.
    ///
    /// # Safety
    /// 64 bytes must be left.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    unsafe fn next<const COPY: bool, const SUM: bool, const TURN: usize>(&mut self) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let v = load::<COPY>(self.src);
            if COPY {
                _mm512_storeu_si512(self.dst.cast(), v);
            }
            if SUM {
                self.sums.add::<TURN>(v);
            }
            self.src = self.src.add(64);
            self.dst = self.dst.wrapping_add(64);
            v
        }
    }

    /// Takes the first `len` bytes, 1 to 64, and puts them at the end of a vector after zeros. Returns the vector, and
    /// the mask of the positions of the bytes in it.
    ///
    /// # Safety
    /// `len` bytes must be left.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,avx512vnni")]
    unsafe fn first<const COPY: bool, const SUM: bool>(&mut self, len: usize) -> (__m512i, __mmask64) {
        let (from, to) = (u64::MAX >> (64 - len), u64::MAX << (64 - len));
        // SAFETY: the caller's promise; masked accesses touch no other bytes.
        unsafe {
            let v = load_some(self.src, from);
            if COPY {
                _mm512_mask_storeu_epi8(self.dst.cast(), from, v);
            }
            let v = _mm512_maskz_expand_epi8(to, v);
            if SUM {
                self.sums.add::<0>(v);
            }
            self.src = self.src.add(len);
            self.dst = self.dst.wrapping_add(len);
            (v, to)
        }
    }
}

/// Does one pass over `VECTOR_MIN` to `PART + VECTOR_MIN` bytes. Copies if `COPY`. Returns the CRC register if `CRC`,
/// and the sum of the checksum words if `SUM`.
///
/// # Safety
/// `src` must be readable and, if `COPY`, `dst` writable for `len` bytes.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,avx512vnni,vpclmulqdq")]
unsafe fn vectors<const COPY: bool, const CRC: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    state: u32,
) -> (u32, u64) {
    let mut at = Cursor { dst, src, sums: Sums::new() };
    // Bytes in the first vector, 1 to 64, and the number of full vectors after it: at least one, because `VECTOR_MIN`
    // > 64.
    let first = (len - 1) % 64 + 1;
    let mut left = (len - first) / 64;

    // SAFETY: the data consists of `first` bytes and then 64 for each vector of `left`.
    unsafe {
        let (v0, position) = at.first::<COPY, SUM>(first);
        if !CRC {
            while left >= 2 {
                at.next::<COPY, SUM, 1>();
                at.next::<COPY, SUM, 0>();
                left -= 2;
            }
            if left == 1 {
                at.next::<COPY, SUM, 1>();
            }
            return (state, at.sums.total(len % 2 == 1));
        }

        // The register is added to the first four bytes. If the first vector has fewer, the rest of the register is
        // added to the next vector.
        let low = |v: u32| _mm512_zextsi128_si512(_mm_cvtsi32_si128(v as i32));
        let v0 = _mm512_xor_si512(v0, _mm512_maskz_expand_epi8(position, low(state)));
        let over = low((u64::from(state) >> (8 * first.min(4))) as u32);
        let v1 = _mm512_xor_si512(at.next::<COPY, SUM, 1>(), over);
        left -= 1;

        let folded = if left < 2 {
            let v = fold_onto(v0, multiplier(1), v1);
            if left == 0 { v } else { fold_onto(v, multiplier(1), at.next::<COPY, SUM, 0>()) }
        } else {
            let (mut a, mut b) = (v0, v1);
            let mut c = at.next::<COPY, SUM, 0>();
            let mut d = at.next::<COPY, SUM, 1>();
            left -= 2;
            let by_four = multiplier(4);
            while left >= 4 {
                a = fold_onto(a, by_four, at.next::<COPY, SUM, 0>());
                b = fold_onto(b, by_four, at.next::<COPY, SUM, 1>());
                c = fold_onto(c, by_four, at.next::<COPY, SUM, 0>());
                d = fold_onto(d, by_four, at.next::<COPY, SUM, 1>());
                left -= 4;
            }
            // Returns the sum of the four running vectors, folded to the position `n` vectors after the last of them.
            let four = |n: usize| {
                let ab = fold_onto(a, multiplier(3 + n), fold(b, multiplier(2 + n)));
                let d = if n == 0 { d } else { fold(d, multiplier(n)) };
                _mm512_xor_si512(ab, fold_onto(c, multiplier(1 + n), d))
            };
            match left {
                0 => four(0),
                1 => _mm512_xor_si512(four(1), at.next::<COPY, SUM, 0>()),
                2 => {
                    let e = at.next::<COPY, SUM, 0>();
                    let ef = fold_onto(e, multiplier(1), at.next::<COPY, SUM, 1>());
                    _mm512_xor_si512(four(2), ef)
                }
                _ => {
                    let e = fold(at.next::<COPY, SUM, 0>(), multiplier(2));
                    let f = fold(at.next::<COPY, SUM, 1>(), multiplier(1));
                    let efg = _mm512_ternarylogic_epi64::<0x96>(e, f, at.next::<COPY, SUM, 0>());
                    _mm512_xor_si512(four(3), efg)
                }
            }
        };

        let quarters = fold(folded, _mm512_loadu_si512(QUARTERS.as_ptr().cast()));
        let quarters = _mm512_xor_si512(quarters, _mm512_maskz_mov_epi64(0b1100_0000, folded));
        let halves =
            _mm256_xor_si256(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64::<1>(quarters));
        let last = _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
        let register = _mm_crc32_u64(0, _mm_cvtsi128_si64(last) as u64);
        let register = _mm_crc32_u64(register, _mm_extract_epi64::<1>(last) as u64);
        (register as u32, if SUM { at.sums.total(len % 2 == 1) } else { 0 })
    }
}

/// Handles any length from `VECTOR_MIN` on, in parts. Not inlined, so that short data does not pay for its stack
/// frame.
///
/// # Safety
/// As [`vectors`].
#[inline(never)]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,avx512vnni,vpclmulqdq")]
unsafe fn parts<const COPY: bool, const CRC: bool, const SUM: bool>(
    mut dst: *mut u8,
    mut src: *const u8,
    mut len: usize,
    mut state: u32,
) -> (u32, u64) {
    let mut acc = 0;
    loop {
        let part = if len > PART + VECTOR_MIN { PART } else { len };
        // SAFETY: the caller's promise; each part lies within the data.
        let done = unsafe { vectors::<COPY, CRC, SUM>(dst, src, part, state) };
        (state, acc) = (done.0, sum::add(acc, done.1));
        if part == len {
            return (state, acc);
        }
        // SAFETY: still within the data.
        src = unsafe { src.add(part) };
        (dst, len) = (dst.wrapping_add(part), len - part);
    }
}

/// Handles any length: short data with the CRC32 instruction, longer data with vectors.
///
/// # Safety
/// As [`vectors`].
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,avx512bw,avx512vl,avx512vbmi2,avx512vnni,vpclmulqdq")]
unsafe fn pass<const COPY: bool, const CRC: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    state: u32,
) -> (u32, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match len < VECTOR_MIN {
            true => sse42::one_stream::<COPY, CRC, SUM>(dst, src, len, state, 0),
            false => parts::<COPY, CRC, SUM>(dst, src, len, state),
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
unsafe fn sum_only(src: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise; the table is used only where the features exist; nothing is written.
    sum::fold(unsafe { pass::<false, false, true>(ptr::null_mut(), src, len, 0).1 })
}

/// # Safety
/// As [`crate::place`]; the processor has the features of this kernel.
unsafe fn place(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    unsafe { place_vectors(dst, src, len) }
}

/// Writes the bytes that the mask selects.
///
/// # Safety
/// The bytes that the mask selects must be readable at `src` and writable at `dst`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn place_some(dst: *mut u8, src: *const u8, mask: u64) {
    // SAFETY: the caller's promise; masked accesses touch no other bytes.
    unsafe {
        let v = _mm512_maskz_loadu_epi8(mask, src.cast());
        asm!("vmovdqu8 zmmword ptr [{}] {{{}}}, {}", in(reg) dst, in(kreg) mask, in(zmm_reg) v,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As [`crate::place`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn place_vectors(mut dst: *mut u8, mut src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let width = last_store(dst as usize + len, len);
    let mut body = len - width;
    // SAFETY: the caller's promise; every access stays within the `body` bytes left, then within the last `width`.
    unsafe {
        if body >= 256 {
            // Full stores that do not cross cache lines.
            let head = dst.align_offset(64);
            if head != 0 {
                place_some(dst, src, u64::MAX >> (64 - head));
                (dst, src, body) = (dst.add(head), src.add(head), body - head);
            }
        }
        while body >= 64 {
            let v = _mm512_loadu_si512(src.cast());
            asm!("vmovdqu64 zmmword ptr [{}], {}", in(reg) dst, in(zmm_reg) v, options(nostack, preserves_flags));
            (dst, src, body) = (dst.add(64), src.add(64), body - 64);
        }
        if body != 0 {
            place_some(dst, src, u64::MAX >> (64 - body));
        }
        store_last(dst.add(body), src.add(body), width);
    }
}
