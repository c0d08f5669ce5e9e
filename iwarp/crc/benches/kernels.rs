//! Measures the time per call of each kernel with data in the cache, for the lengths that occur: an 8-byte Write (24
//! bytes under the CRC, 8 of them payload), small messages, one MTU, one jumbo MTU. Run with
//! `cargo bench -p urnic-crc`.

use criterion::{BenchmarkId, Criterion, Throughput};
use std::hint::black_box;
use std::time::Duration;
use urnic_crc::{INIT, Kernel};

const LENGTHS: [usize; 11] = [8, 16, 24, 64, 100, 128, 160, 256, 512, 1460, 8940];

/// A function under test. `src` and `dst` are equally long.
type Work = fn(dst: &mut [u8], src: &[u8]);

const FUNCTIONS: [(&str, Work); 5] = [
    ("crc32c", |_, src| {
        black_box(urnic_crc::crc32c(INIT, src));
    }),
    ("sum", |_, src| {
        black_box(urnic_crc::sum(src));
    }),
    ("copy_crc", |dst, src| {
        // SAFETY: `dst` is as long as `src`.
        black_box(unsafe { urnic_crc::copy_crc(dst.as_mut_ptr(), src.as_ptr(), src.len(), INIT) });
    }),
    ("copy_crc_sum", |dst, src| {
        // SAFETY: `dst` is as long as `src`.
        black_box(unsafe { urnic_crc::copy_crc_sum(dst.as_mut_ptr(), src.as_ptr(), src.len(), INIT) });
    }),
    ("place", |dst, src| {
        // SAFETY: `dst` is as long as `src`.
        unsafe { urnic_crc::place(dst.as_mut_ptr(), src.as_ptr(), src.len()) };
    }),
];

fn main() {
    let mut c = Criterion::default().configure_from_args();
    let src: Vec<u8> = (0..16384).map(|i| i as u8).collect();
    let mut dst = vec![0u8; 16384];
    for (name, work) in FUNCTIONS {
        let mut group = c.benchmark_group(name);
        group
            .warm_up_time(Duration::from_millis(50))
            .measurement_time(Duration::from_millis(200))
            .sample_size(10);
        for kernel in Kernel::ALL.into_iter().filter(|k| urnic_crc::force_kernel(*k)) {
            urnic_crc::force_kernel(kernel);
            for len in LENGTHS {
                group.throughput(Throughput::Bytes(len as u64));
                group.bench_function(BenchmarkId::new(kernel.name(), len), |b| {
                    b.iter(|| work(black_box(&mut dst[8..8 + len]), black_box(&src[2..2 + len])));
                });
            }
        }
        group.finish();
    }
    c.final_summary();
}
