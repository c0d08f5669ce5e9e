//! Carry-less multiplication of 32-byte vectors, interleaved with the CRC32 instruction.
//!
//! Processors without AVX-512 multiply at most 32 bytes at a time. Zen 3 starts such a multiplication every second
//! cycle, and a vector needs two of them, so folding alone handles eight bytes per cycle: no more than the CRC32
//! instruction alone. The two use different execution ports. So each round folds the first part of its data with four
//! running vectors, and takes the rest with the CRC32 instruction in three streams, A, B and C, as the SSE4.2 kernel
//! does. A step of the loop takes four vectors and four words of each stream. What the streams have left after it is
//! taken while the running vectors are added. Three carry-less multiplications join the four registers.
//!
//! All copies are made by 32-byte vectors, because scalar stores would be the limit. The words of a copied stream come
//! out of the vector, because memory that is copied must be read exactly once.
//!
//! The checksum adds words of 32 bits in lanes of 64. Short data goes to the SSE4.2 kernel.

use super::sse42::{self, SHIFT, THREE_MIN, WORDS_MAX, one_stream, place_rest, product, three_streams, word};
use super::vpclmul::fold_by;
use crate::kernel::{Kernel, Table};
use crate::portable::{last_store, store_last};
use crate::sum;
use std::arch::asm;
use std::arch::x86_64::*;
use std::ptr;

pub(crate) static TABLE: Table =
    Table { kernel: Kernel::Avx2, crc, sum: sum_only, copy_crc, copy_crc_sum, place };

/// Shortest data, in bytes, for which a round is faster than the SSE4.2 kernel.
const ROUND_MIN: usize = 1024;
/// Bytes that a step takes: four vectors, and four words of each stream.
const STEP: usize = 4 * 32 + 3 * 32;
/// Maximum number of words in each stream of one round: `SHIFT` must have an entry for three times as many.
const STREAM_MAX: usize = 2 * WORDS_MAX / 3;
/// Maximum number of 64-byte steps between two calls of [`Sums::fold`]. A step adds less than 2^33 to a lane.
const SUM_STEPS: usize = 1 << 24;
/// Shortest sum and placement, in bytes, for which vectors are faster than the SSE4.2 kernel.
const VECTOR_MIN: usize = 128;
/// Shortest placement, in bytes, whose stores are aligned.
const ALIGN_MIN: usize = 256;

/// Multipliers that move 16 bytes by four vectors, by one vector and by half a vector.
static FOLD: [[u64; 2]; 3] = [fold_by(1024), fold_by(256), fold_by(128)];

#[inline]
#[target_feature(enable = "sse2")]
fn multiplier([first, last]: [u64; 2]) -> __m128i {
    _mm_set_epi64x(last as i64, first as i64)
}

/// Returns `v`, moved by the multiplier `k`, plus `next`.
#[inline]
#[target_feature(enable = "avx2,vpclmulqdq")]
fn fold_onto(v: __m256i, k: __m256i, next: __m256i) -> __m256i {
    let (lo, hi) = (_mm256_clmulepi64_epi128::<0x00>(v, k), _mm256_clmulepi64_epi128::<0x11>(v, k));
    _mm256_xor_si256(_mm256_xor_si256(lo, next), hi)
}

/// Returns the register after running vectors that follow each other, starting from zero.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
fn register([a, b, c, d]: [__m256i; 4]) -> u64 {
    let by_one = _mm256_broadcastsi128_si256(multiplier(FOLD[1]));
    let v = fold_onto(fold_onto(fold_onto(a, by_one, b), by_one, c), by_one, d);
    let (first, last) = (_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let k = multiplier(FOLD[2]);
    let (lo, hi) = (_mm_clmulepi64_si128::<0x00>(first, k), _mm_clmulepi64_si128::<0x11>(first, k));
    let last = _mm_xor_si128(_mm_xor_si128(lo, hi), last);
    let register = _mm_crc32_u64(0, _mm_cvtsi128_si64(last) as u64);
    _mm_crc32_u64(register, _mm_extract_epi64::<1>(last) as u64)
}

/// The running checksum of vectors: each lane adds little-endian words of 32 bits.
#[derive(Clone, Copy)]
struct Sums(__m256i);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Sums {
        Sums(_mm256_setzero_si256())
    }

    /// Returns `v` with the low half of each lane added to the high one.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn halves(v: __m256i) -> __m256i {
        _mm256_add_epi64(_mm256_and_si256(v, _mm256_set1_epi64x(0xffff_ffff)), _mm256_srli_epi64::<32>(v))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, v: __m256i) {
        self.0 = _mm256_add_epi64(self.0, Sums::halves(v));
    }

    /// Makes room in the lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn fold(&mut self) {
        self.0 = Sums::halves(self.0);
    }

    /// Returns the sum as little-endian words.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(self) -> u64 {
        let v = Sums::halves(self.0);
        let v = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
        _mm_cvtsi128_si64(v) as u64 + _mm_extract_epi64::<1>(v) as u64
    }
}

/// Reads a vector. Copies it if `COPY`, and adds it to `sums` if `SUM`.
///
/// # Safety
/// `src` must be readable and, if `COPY`, `dst` writable for 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn vector<const COPY: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    sums: &mut Sums,
) -> __m256i {
    // SAFETY: the caller's promise. Memory that is copied is read exactly once, because it may change meanwhile. Other
    // memory is read by an ordinary load: if it changes meanwhile, the result has no meaning.
    unsafe {
        let v;
        if COPY {
            asm!("vmovdqu {}, ymmword ptr [{}]", lateout(ymm_reg) v, in(reg) src,
                options(nostack, preserves_flags, readonly));
            _mm256_storeu_si256(dst.cast(), v);
        } else {
            v = _mm256_loadu_si256(src.cast());
        }
        if SUM {
            sums.add(v);
        }
        v
    }
}

/// Streams A, B and C of a round: where each is read and copied to, the offset of the next word, and the registers.
struct Streams {
    dst: [*mut u8; 3],
    src: [*const u8; 3],
    at: usize,
    state: [u64; 3],
}

impl Streams {
    /// Takes four words of each stream.
    ///
    /// # Safety
    /// As [`vector`], in each stream.
    #[inline]
    #[target_feature(enable = "sse4.2,avx2")]
    unsafe fn four<const COPY: bool, const SUM: bool>(&mut self, sums: &mut Sums) {
        if !COPY {
            for _ in 0..4 {
                // SAFETY: the caller's promise. Only copying passes add a checksum.
                unsafe { self.one::<COPY, false>(&mut 0) };
            }
            return;
        }
        let mut words = [[0; 4]; 3];
        for (s, words) in words.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let v = unsafe {
                vector::<COPY, SUM>(self.dst[s].wrapping_add(self.at), self.src[s].add(self.at), sums)
            };
            let (a, b) = (_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let first = [_mm_cvtsi128_si64(a), _mm_cvtsi128_si64(b)];
            let last = [_mm_extract_epi64::<1>(a), _mm_extract_epi64::<1>(b)];
            *words = [first[0] as u64, last[0] as u64, first[1] as u64, last[1] as u64];
        }
        // In turn, so that the three streams run side by side.
        for i in 0..4 {
            for (state, words) in self.state.iter_mut().zip(&words) {
                *state = _mm_crc32_u64(*state, words[i]);
            }
        }
        self.at += 32;
    }

    /// Takes one word of each stream.
    ///
    /// # Safety
    /// `src` must be readable and, if `COPY`, `dst` writable for eight bytes, in each stream.
    #[inline]
    #[target_feature(enable = "sse4.2")]
    unsafe fn one<const COPY: bool, const SUM: bool>(&mut self, acc: &mut u64) {
        for s in 0..3 {
            // SAFETY: the caller's promise.
            unsafe {
                let v = word::<COPY, SUM>(self.dst[s].wrapping_add(self.at), self.src[s].add(self.at), acc);
                self.state[s] = _mm_crc32_u64(self.state[s], v);
            }
        }
        self.at += 8;
    }
}

/// Handles long data, in rounds while enough is left. Copies if `COPY`. Returns the CRC register, and the sum of the
/// checksum words if `SUM`. Not inlined, so that short data does not pay for its stack frame.
///
/// # Safety
/// `src` must be readable and, if `COPY`, `dst` writable for `len` bytes.
#[inline(never)]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
unsafe fn rounds<const COPY: bool, const SUM: bool>(
    mut dst: *mut u8,
    mut src: *const u8,
    mut len: usize,
    mut state: u32,
) -> (u32, u64) {
    let (mut sums, mut acc) = (Sums::new(), 0);
    let by_four = _mm256_broadcastsi128_si256(multiplier(FOLD[0]));
    // SAFETY: a round takes 128 bytes for each of its steps and then 24 bytes for each of the `n` words of a stream:
    // not more than `len`. A stream has at least four words for each step.
    unsafe {
        while len >= ROUND_MIN {
            let steps = (len / STEP).min(STREAM_MAX / 4);
            let n = ((len - 128 * steps) / 24).min(STREAM_MAX);
            let (from, to) = (src, dst);
            (src, dst) = (src.add(128 * steps), dst.wrapping_add(128 * steps));
            let mut streams = Streams {
                src: [src, src.add(8 * n), src.add(16 * n)],
                dst: [dst, dst.wrapping_add(8 * n), dst.wrapping_add(16 * n)],
                at: 0,
                state: [0; 3],
            };

            let mut running = [_mm256_setzero_si256(); 4];
            for (i, v) in running.iter_mut().enumerate() {
                *v = vector::<COPY, SUM>(to.wrapping_add(32 * i), from.add(32 * i), &mut sums);
            }
            // The register is added to the first four bytes.
            let register_before = _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32));
            running[0] = _mm256_xor_si256(running[0], register_before);
            for step in 1..steps {
                let (from, to) = (from.add(128 * step), to.wrapping_add(128 * step));
                for (i, v) in running.iter_mut().enumerate() {
                    let next = vector::<COPY, SUM>(to.wrapping_add(32 * i), from.add(32 * i), &mut sums);
                    *v = fold_onto(*v, by_four, next);
                }
                streams.four::<COPY, SUM>(&mut sums);
            }
            let folded = register(running);
            let left = n - 4 * (steps - 1);
            for _ in 0..left / 4 {
                streams.four::<COPY, SUM>(&mut sums);
            }
            for _ in 0..left % 4 {
                streams.one::<COPY, SUM>(&mut acc);
            }

            let [a, b, c] = streams.state;
            let joined = product(folded, SHIFT[3 * n]) ^ product(a, SHIFT[2 * n]) ^ product(b, SHIFT[n]);
            state = (c ^ _mm_crc32_u64(0, joined)) as u32;
            if SUM {
                sums.fold();
            }
            (src, dst) = (src.add(24 * n), dst.wrapping_add(24 * n));
            len -= 128 * steps + 24 * n;
        }
        let (state, rest) = sse42::pass::<COPY, true, SUM>(dst, src, len, state);
        (state, if SUM { sum::add(sum::add(acc, sums.total()), rest) } else { 0 })
    }
}

/// Handles data of any length.
///
/// # Safety
/// As [`rounds`].
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2,vpclmulqdq")]
unsafe fn pass<const COPY: bool, const SUM: bool>(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    state: u32,
) -> (u32, u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            // One comparison for the shortest data.
            0..THREE_MIN => one_stream::<COPY, true, SUM>(dst, src, len, state, 0),
            THREE_MIN..ROUND_MIN => three_streams::<COPY, true, SUM>(dst, src, len, state),
            _ => rounds::<COPY, SUM>(dst, src, len, state),
        }
    }
}

/// # Safety
/// `src` must be readable for `len` bytes; the processor has the features of this kernel.
unsafe fn crc(src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise; the table is used only where the features exist; nothing is written.
    unsafe { pass::<false, false>(ptr::null_mut(), src, len, state).0 }
}

/// # Safety
/// As [`crate::copy_crc`]; the processor has the features of this kernel.
unsafe fn copy_crc(dst: *mut u8, src: *const u8, len: usize, state: u32) -> u32 {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    unsafe { pass::<true, false>(dst, src, len, state).0 }
}

/// # Safety
/// As [`crate::copy_crc_sum`]; the processor has the features of this kernel.
unsafe fn copy_crc_sum(dst: *mut u8, src: *const u8, len: usize, state: u32) -> (u32, u16) {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    let (state, acc) = unsafe { pass::<true, true>(dst, src, len, state) };
    (state, sum::fold(acc))
}

/// # Safety
/// `src` must be readable for `len` bytes; the processor has the features of this kernel.
unsafe fn sum_only(src: *const u8, len: usize) -> u16 {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    unsafe {
        match len < VECTOR_MIN {
            true => sse42::sum_only(src, len),
            false => sum_vectors(src, len),
        }
    }
}

/// # Safety
/// `src` must be readable for `len` bytes.
#[inline]
#[target_feature(enable = "sse4.2,avx2")]
unsafe fn sum_vectors(mut src: *const u8, mut len: usize) -> u16 {
    let mut sums = [Sums::new(); 2];
    // SAFETY: every access stays within the `len` bytes left; nothing is written.
    unsafe {
        while len >= 64 {
            for _ in 0..(len / 64).min(SUM_STEPS) {
                vector::<false, true>(ptr::null_mut(), src, &mut sums[0]);
                vector::<false, true>(ptr::null_mut(), src.add(32), &mut sums[1]);
                (src, len) = (src.add(64), len - 64);
            }
            sums.iter_mut().for_each(|s| s.fold());
        }
        let acc = sums[0].total() + sums[1].total();
        sum::fold(one_stream::<false, false, true>(ptr::null_mut(), src, len, 0, acc).1)
    }
}

/// # Safety
/// As [`crate::place`]; the processor has the features of this kernel.
unsafe fn place(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the table is used only where the features exist.
    unsafe {
        match len < VECTOR_MIN {
            true => sse42::place(dst, src, len),
            false => place_vectors(dst, src, len),
        }
    }
}

/// Places fewer than 32 bytes, in ascending order.
///
/// # Safety
/// As [`crate::place`].
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn place_some(mut dst: *mut u8, mut src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the steps that are taken add up to `len`.
    unsafe {
        if len & 16 != 0 {
            let v = _mm_loadu_si128(src.cast());
            asm!("vmovdqu xmmword ptr [{}], {}", in(reg) dst, in(xmm_reg) v, options(nostack, preserves_flags));
            (dst, src) = (dst.add(16), src.add(16));
        }
        place_rest(dst, src, len & 15);
    }
}

/// # Safety
/// As [`crate::place`]. `len` must not be zero.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn place_vectors(mut dst: *mut u8, mut src: *const u8, len: usize) {
    let width = last_store(dst as usize + len, len);
    let mut body = len - width;
    // SAFETY: the caller's promise; every access stays within the `body` bytes left, then within the last `width`.
    unsafe {
        if body >= ALIGN_MIN {
            // Full stores that do not cross cache lines.
            let head = dst.align_offset(32);
            place_some(dst, src, head);
            (dst, src, body) = (dst.add(head), src.add(head), body - head);
        }
        while body >= 32 {
            let v = _mm256_loadu_si256(src.cast());
            asm!("vmovdqu ymmword ptr [{}], {}", in(reg) dst, in(ymm_reg) v, options(nostack, preserves_flags));
            (dst, src, body) = (dst.add(32), src.add(32), body - 32);
        }
        place_some(dst, src, body);
        store_last(dst.add(body), src.add(body), width);
    }
}
