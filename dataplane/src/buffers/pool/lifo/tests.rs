//! What DPDK gets when it calls these functions.

use super::*;

/// Runs `test` with a pool for `size` objects, which is empty.
fn with_pool(size: u32, test: impl FnOnce(*mut sys::rte_mempool)) {
    // SAFETY: the structure consists of numbers and raw pointers, for which zero is a value.
    let mut pool: sys::rte_mempool = unsafe { std::mem::zeroed() };
    pool.size = size;
    // SAFETY: the pool is made, used by this thread only, and freed.
    unsafe {
        assert_eq!(alloc(&raw mut pool), 0);
        test(&raw mut pool);
        free(&raw mut pool);
    }
}

/// Returns `n` addresses to tell apart.
fn objects(n: usize) -> Vec<*mut c_void> {
    (1..=n).map(ptr::without_provenance_mut).collect()
}

fn get(pool: *mut sys::rte_mempool, n: usize) -> Option<Vec<*mut c_void>> {
    let mut got = objects(n);
    // SAFETY: a pool of this thread, and room for as many objects.
    let status = unsafe { dequeue(pool, got.as_mut_ptr(), n as u32) };
    (status == 0).then_some(got)
}

#[test]
fn all_objects_come_back() {
    with_pool(8, |pool| {
        let all = objects(8);
        // SAFETY: a pool of this thread, and eight objects.
        assert_eq!(unsafe { enqueue(pool, all.as_ptr(), 8) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { enqueue(pool, all.as_ptr(), 1) }, -libc::ENOBUFS, "the pool is full");
        assert_eq!(get(pool, 3), Some(all[5..].to_vec()));
        assert_eq!(get(pool, 6), None);
        assert_eq!(get(pool, 5), Some(all[..5].to_vec()));
        assert_eq!(get(pool, 1), None);
    });
}

/// A driver that wants fewer objects than it may have at a time gets none, and loses none.
#[test]
fn few_objects_are_refused_for_a_while() {
    with_pool(8, |pool| {
        let all = objects(8);
        // SAFETY: a pool of this thread, and eight objects.
        unsafe {
            assert_eq!(enqueue(pool, all.as_ptr(), 8), 0);
            stack(pool).least.set(4);
        }
        assert_eq!([1, 3].map(|n| get(pool, n)), [None, None]);
        assert_eq!(get(pool, 4), Some(all[4..].to_vec()));
        // SAFETY: a pool of this thread.
        unsafe { stack(pool).least.set(0) };
        assert_eq!(get(pool, 1), Some(all[3..4].to_vec()));
        // SAFETY: as above.
        assert_eq!(unsafe { count(pool) }, 3);
    });
}
