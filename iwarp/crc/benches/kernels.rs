//! Time per call of each kernel, in the cache, for the lengths that occur: an 8-byte Write (24 bytes under the CRC,
//! of which 8 are payload), small messages, one MTU, one jumbo MTU. Run with
//! `cargo bench -p urnic-crc`.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, black_box};
use std::time::Duration;
use urnic_crc::{INIT, Kernel};

const LENGTHS: [usize; 11] = [8, 16, 24, 64, 100, 128, 160, 256, 512, 1460, 8940];

fn group<'a>(c: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .sample_size(10);
    group
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    let src: Vec<u8> = (0..16384).map(|i| i as u8).collect();
    let mut dst = vec![0u8; 16384];
    for kernel in Kernel::ALL {
        if !urnic_crc::force_kernel(kernel) {
            continue;
        }
        let id = |len: usize| BenchmarkId::new(kernel.name(), len);
        let mut g = group(&mut c, "crc32c");
        for len in LENGTHS {
            g.throughput(Throughput::Bytes(len as u64));
            g.bench_function(id(len), |b| b.iter(|| urnic_crc::crc32c(INIT, black_box(&src[2..2 + len]))));
        }
        g.finish();
        let mut g = group(&mut c, "sum");
        for len in LENGTHS {
            g.throughput(Throughput::Bytes(len as u64));
            g.bench_function(id(len), |b| b.iter(|| urnic_crc::sum(black_box(&src[2..2 + len]))));
        }
        g.finish();
        let mut g = group(&mut c, "copy_crc_sum");
        for len in LENGTHS {
            g.throughput(Throughput::Bytes(len as u64));
            let (d, s) = (dst[6..].as_mut_ptr(), src[2..].as_ptr());
            // SAFETY: both buffers are longer than any length, and apart.
            g.bench_function(id(len), |b| {
                b.iter(|| unsafe { urnic_crc::copy_crc_sum(black_box(d), black_box(s), len, INIT) })
            });
        }
        g.finish();
        let mut g = group(&mut c, "copy_crc");
        for len in LENGTHS {
            g.throughput(Throughput::Bytes(len as u64));
            let (d, s) = (dst[6..].as_mut_ptr(), src[2..].as_ptr());
            // SAFETY: both buffers are longer than any length, and apart.
            g.bench_function(id(len), |b| {
                b.iter(|| unsafe { urnic_crc::copy_crc(black_box(d), black_box(s), len, INIT) })
            });
        }
        g.finish();
        let mut g = group(&mut c, "place");
        for len in LENGTHS {
            g.throughput(Throughput::Bytes(len as u64));
            let (d, s) = (dst[8..].as_mut_ptr(), src[2..].as_ptr());
            // SAFETY: both buffers are longer than any length, and apart.
            g.bench_function(id(len), |b| {
                b.iter(|| unsafe { urnic_crc::place(black_box(d), black_box(s), len) })
            });
        }
        g.finish();
    }
    c.final_summary();
}
