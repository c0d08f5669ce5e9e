use super::kernel::Table;
use super::*;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// Returns the kernels that this processor can run.
fn kernels() -> Vec<&'static Table> {
    Kernel::ALL.iter().filter_map(|k| k.table()).collect()
}

fn random_bytes(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.u8(..)).collect()
}

fn rng() -> fastrand::Rng {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::Rng::with_seed(seed)
}

/// Returns the register after `data`, as the crc32c crate computes it.
fn oracle_crc(state: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!state, data)
}

/// Returns the checksum as RFC 1071 §4.1 defines it.
fn oracle_sum(data: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in data.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// RFC 3720 B.4 and the usual check string (CRC e3069283), with each kernel.
#[test]
fn known_answers() {
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    let cases: [(&[u8], [u8; 4]); 5] = [
        (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
        (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
        (&up, [0x4e, 0x79, 0xdd, 0x46]),
        (&down, [0x5c, 0xdb, 0x3f, 0x11]),
        (b"123456789", [0x83, 0x92, 0x06, 0xe3]),
    ];
    for (data, wire) in cases {
        assert_eq!(finish(crc32c(INIT, data)).to_le_bytes(), wire, "{data:02x?}");
        for kernel in kernels() {
            // SAFETY: the slice is readable for its length.
            let state = unsafe { (kernel.crc)(data.as_ptr(), data.len(), INIT) };
            assert_eq!(finish(state).to_le_bytes(), wire, "{:?} {data:02x?}", kernel.kernel);
        }
    }
}

/// Runs one copying function from `src` into the middle of a guarded buffer. Checks that the function wrote the data
/// and nothing else.
fn guarded<R>(buffer: &mut [u8], at: usize, src: &[u8], f: impl FnOnce(*mut u8, *const u8, usize) -> R) -> R {
    const GUARD: u8 = 0xa5;
    let end = at + src.len();
    buffer[..end + 64].fill(GUARD);
    let result = f(buffer[at..].as_mut_ptr(), src.as_ptr(), src.len());
    assert!(buffer[at..end] == *src, "copy of {} bytes to {at}", src.len());
    assert!(buffer[..at].iter().chain(&buffer[end..end + 64]).all(|b| *b == GUARD), "outside {at}..{end}");
    result
}

/// Checks all copying functions of a kernel on `src`. The copies go to offset `at` of `buffer`.
fn check(kernel: &Table, state: u32, src: &[u8], expected: (u32, u16), buffer: &mut [u8], at: usize) {
    let name = kernel.kernel;
    // SAFETY: `guarded` hands out ranges of slices; they do not overlap.
    let crc = guarded(buffer, at, src, |d, s, n| unsafe { (kernel.copy_crc)(d, s, n, state) });
    assert_eq!(crc, expected.0, "{name:?}: copy_crc of {} to {at}", src.len());
    // SAFETY: as above.
    let both = guarded(buffer, at, src, |d, s, n| unsafe { (kernel.copy_crc_sum)(d, s, n, state) });
    assert_eq!(both, expected, "{name:?}: copy_crc_sum of {} to {at}", src.len());
    // SAFETY: as above.
    guarded(buffer, at, src, |d, s, n| unsafe { (kernel.place)(d, s, n) });
}

fn check_reading(kernel: &Table, state: u32, src: &[u8], expected: (u32, u16)) {
    // SAFETY: the slice is readable for its length.
    let (crc, sum) =
        unsafe { ((kernel.crc)(src.as_ptr(), src.len(), state), (kernel.sum)(src.as_ptr(), src.len())) };
    assert_eq!((crc, sum), expected, "{:?}: crc and sum of {}", kernel.kernel, src.len());
}

#[repr(align(64))]
struct Aligned([u8; 1024]);

/// Every length up to 256, read from every alignment and copied to every alignment within a cache line. The CRCs are
/// compared with the crc32c crate, the sums with the definition of RFC 1071.
#[test]
fn every_short_length_and_alignment() {
    let mut rng = rng();
    let mut source = Aligned([0; 1024]);
    rng.fill(&mut source.0);
    let mut buffer = Aligned([0; 1024]);
    for len in 0..=256 {
        for from in 0..64 {
            let src = &source.0[from..from + len];
            let state = rng.u32(..);
            let expected = (oracle_crc(state, src), oracle_sum(src));
            for kernel in kernels() {
                check_reading(kernel, state, src, expected);
                // Only a quarter of the targets, to save time. Which quarter depends on `from` and `len`.
                for to in (0..64).filter(|to| (to + from + len) % 4 == 0) {
                    check(kernel, state, src, expected, &mut buffer.0, 64 + to);
                }
            }
        }
    }
}

/// Every length around the shortest that kernels handle in rounds, so that a round ends with every remainder.
#[test]
fn every_length_of_a_round() {
    let mut rng = rng();
    let source = random_bytes(&mut rng, 1600);
    let mut buffer = vec![0; 2048];
    for len in 1000..1500 {
        let src = &source[len % 64..][..len];
        let state = rng.u32(..);
        let expected = (oracle_crc(state, src), oracle_sum(src));
        for kernel in kernels() {
            check_reading(kernel, state, src, expected);
            check(kernel, state, src, expected, &mut buffer, rng.usize(..64));
        }
    }
}

#[test]
fn random_long_data() {
    let mut rng = rng();
    let source = random_bytes(&mut rng, 300_000);
    let mut buffer = vec![0; source.len() + 256];
    for round in 0..400 {
        let longest = if round < 300 { 10_000 } else { source.len() - 64 };
        let len = rng.usize(257..longest);
        let from = rng.usize(..64);
        let src = &source[from..from + len];
        let state = rng.u32(..);
        let expected = (oracle_crc(state, src), oracle_sum(src));
        for kernel in kernels() {
            check_reading(kernel, state, src, expected);
            check(kernel, state, src, expected, &mut buffer, rng.usize(..64));
        }
    }
}

/// So many bytes 0xff that any sum overflows, unless the kernel prevents that. The data is longer than the parts into
/// which kernels cut it. One byte near the end differs from the others.
#[test]
fn huge_data() {
    let mut source = vec![0xff; (1 << 26) + 1000];
    source[1 << 26] = 0x12;
    let mut buffer = vec![0; source.len() + 64];
    for cut in [0, 1, 900] {
        let src = &source[cut..];
        let expected = (oracle_crc(INIT, src), oracle_sum(src));
        for kernel in kernels().into_iter().filter(|k| k.kernel != Kernel::Portable) {
            check_reading(kernel, INIT, src, expected);
            // SAFETY: the buffer is as long as the source.
            let both = unsafe { (kernel.copy_crc_sum)(buffer.as_mut_ptr(), src.as_ptr(), src.len(), INIT) };
            assert_eq!(both, expected, "{:?} {}", kernel.kernel, src.len());
            assert!(buffer[..src.len()] == *src);
        }
    }
}

/// Zero and 0xffff are both zero in one's complement. All kernels agree: only data of all zeros gives zero.
#[test]
fn the_two_zeros() {
    for kernel in kernels() {
        for len in [0, 2, 64, 200, 500, 1460] {
            let mut data = vec![0; len];
            // SAFETY: the vector is readable for its length.
            let sum = |d: &[u8]| unsafe { (kernel.sum)(d.as_ptr(), d.len()) };
            assert_eq!(sum(&data), 0, "{:?} {len}", kernel.kernel);
            data.fill(0xff);
            assert_eq!(sum(&data), if len == 0 { 0 } else { 0xffff }, "{:?} {len}", kernel.kernel);
        }
    }
}

proptest::proptest! {
    /// The register may be carried over and sums may be combined at any split.
    #[test]
    fn splits(data: Vec<u8>, at: proptest::sample::Index) {
        let at = at.index(data.len() + 1);
        let (a, b) = data.split_at(at);
        proptest::prop_assert_eq!(crc32c(crc32c(INIT, a), b), crc32c(INIT, &data));
        proptest::prop_assert_eq!(combine(sum(a), a.len(), sum(b)), sum(&data));
    }
}

#[test]
fn forced_kernels_are_used() {
    for kernel in Kernel::ALL {
        assert_eq!(force_kernel(kernel), kernel.available());
        if kernel.available() {
            // The kernel stays forced, because no other test forces a kernel.
            assert_eq!(super::kernel(), kernel);
            assert_eq!(finish(crc32c(INIT, b"123456789")), 0xe306_9283);
        }
    }
    assert!(Kernel::Portable.available());
}

/// Tells the other thread to end, by its drop. A failed assertion of the test drops it too, so that the test does not
/// hang.
struct AtEnd<'a>(&'a AtomicUsize);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Release);
    }
}

/// The CRC and the sum cover exactly the stored bytes, although the source changes all the time.
#[test]
fn a_changing_source_is_read_once() {
    let source: Vec<AtomicU8> = (0..12_288).map(|_| AtomicU8::new(0)).collect();
    let stop = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = fastrand::Rng::with_seed(1);
            while stop.load(Ordering::Relaxed) == 0 {
                for byte in &source[rng.usize(..12_000)..] {
                    byte.store(rng.u8(..), Ordering::Relaxed);
                }
            }
        });
        let _end = AtEnd(&stop);
        let mut buffer = vec![0u8; 12_288];
        for kernel in kernels() {
            for round in 0..4000 {
                let len = [8, 28, 60, 120, 200, 600, 1460, 12_000][round % 8];
                let from = source[round % 64].as_ptr();
                // SAFETY: both are long enough; the source may change, as the contract allows.
                let (state, sum) = unsafe { (kernel.copy_crc_sum)(buffer.as_mut_ptr(), from, len, INIT) };
                assert_eq!(state, oracle_crc(INIT, &buffer[..len]), "{:?} {len}", kernel.kernel);
                assert_eq!(sum, oracle_sum(&buffer[..len]), "{:?} {len}", kernel.kernel);
            }
        }
    });
}

/// A reader that sees a byte of a placement sees all bytes before it, and an aligned word at the end of the
/// placement changes at once.
#[test]
fn placements_ascend() {
    const SIZE: usize = 2048;
    let target: Vec<AtomicU64> = (0..SIZE / 8).map(|_| AtomicU64::new(0)).collect();
    let byte = |i: usize| {
        // SAFETY: an atomic byte within the vector of atomics, on which only atomic accesses and placements act.
        unsafe { AtomicU8::from_ptr(target.as_ptr().cast_mut().cast::<u8>().add(i)) }
    };
    let mut rng = rng();
    for kernel in kernels() {
        // In each round, the writer places `len` bytes of the value `round as u8 | 1`, which is not zero, at `at`. The
        // reader waits for one of them, then for the last.
        let rounds: Vec<(usize, usize, usize)> = (0..300)
            .map(|_| {
                let len = if rng.bool() { rng.usize(1..=64) } else { rng.usize(1..=1500) };
                (rng.usize(..SIZE - len), len, rng.usize(..len))
            })
            .collect();
        let turn = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for (round, &(at, len, _)) in rounds.iter().enumerate() {
                    loop {
                        match turn.load(Ordering::Acquire) {
                            usize::MAX => return,
                            now if now == round + 1 => break,
                            _ => thread::yield_now(),
                        }
                    }
                    let value = vec![round as u8 | 1; len];
                    // SAFETY: `at + len` is within the target.
                    unsafe { (kernel.place)(byte(at).as_ptr(), value.as_ptr(), len) };
                }
            });
            let _end = AtEnd(&turn);
            for (round, &(at, len, watched)) in rounds.iter().enumerate() {
                let new = round as u8 | 1;
                for i in 0..SIZE {
                    byte(i).store(0, Ordering::Relaxed);
                }
                turn.store(round + 1, Ordering::Release);
                // The aligned word at the end of the placement, if it lies wholly within the placement.
                let end = at + len;
                let word = (end % 8 == 0 && len >= 8).then(|| &target[end / 8 - 1]);
                let whole = u64::from_ne_bytes([new; 8]);
                let mut spins = 0u32;
                let mut wait_for = |i: usize| {
                    while byte(i).load(Ordering::Acquire) != new {
                        let seen = word.map_or(0, |w| w.load(Ordering::Acquire));
                        assert!(seen == 0 || seen == whole, "{:?}: torn word {seen:x}", kernel.kernel);
                        spins += 1;
                        if spins.is_multiple_of(256) {
                            thread::yield_now();
                        }
                    }
                };
                wait_for(at + watched);
                for i in at..=at + watched {
                    assert_eq!(byte(i).load(Ordering::Acquire), new, "{:?} {at}+{len} {i}", kernel.kernel);
                }
                wait_for(end - 1);
            }
        });
    }
}

/// All stores ascend, including the last one. This test moves data a little towards the start, in place. That works
/// only with ascending stores, because any other order would overwrite bytes that are still to be read.
#[test]
fn placements_ascend_in_place() {
    let mut rng = rng();
    let original = random_bytes(&mut rng, 2200);
    for kernel in kernels() {
        for round in 0..20_000 {
            let len = if round % 2 == 0 { rng.usize(1..=80) } else { rng.usize(1..=2000) };
            let (to, by) = (rng.usize(..64), rng.usize(1..=len.min(128)));
            let mut moved = original.clone();
            let base = moved.as_mut_ptr();
            // SAFETY: both ranges are within the vector. They overlap. The contract of `place` excludes this, but the
            // kernels permit it, because they use raw pointers only.
            unsafe { (kernel.place)(base.add(to), base.add(to + by), len) };
            let same = moved[to..to + len] == original[to + by..to + by + len];
            assert!(same, "{:?}: {len} bytes to {to} from {by} behind", kernel.kernel);
        }
    }
}

/// The last store of a placement is aligned and no longer than the placement. It has the maximum width that meets both
/// conditions, up to 8 bytes.
#[test]
fn the_last_store() {
    for end in 64..128usize {
        for len in 1..=64 {
            let width = portable::last_store(end, len);
            assert!([1, 2, 4, 8].contains(&width) && width <= len && end % width == 0, "{end} {len} {width}");
            let double = 2 * width;
            assert!(width == 8 || double > len || end % double != 0, "{end} {len}: {double} would do");
        }
    }
}
