//! What DPDK gets when it calls these functions.

use super::*;
use crate::buffers::pool::release_segment;
use crate::buffers::references::{attach, is_alone, retain, retain_counted};

/// A mempool, and room for the private data that DPDK keeps behind it.
#[repr(C)]
struct Mempool {
    pool: sys::rte_mempool,
    private: [u64; 8],
}

/// Runs `test` with a pool for `size` objects, which is empty.
fn with_pool(size: u32, test: impl FnOnce(*mut sys::rte_mempool)) {
    // SAFETY: the structures consist of numbers and raw pointers, for which zero is a value.
    let mut made: Mempool = unsafe { std::mem::zeroed() };
    assert_eq!(register(), Ok(()));
    made.pool.size = size;
    made.pool.ops_index = *INDEX.get().expect("registered");
    let pool = (&raw mut made).cast();
    // SAFETY: the pool is made, used by this thread only, and freed.
    unsafe {
        assert_eq!(alloc(pool), 0);
        test(pool);
        free(pool);
    }
}

/// Makes `n` objects, which stay for ever.
fn objects(n: usize) -> Vec<*mut c_void> {
    let object = || {
        // SAFETY: an mbuf consists of numbers and raw pointers, for which zero is a value.
        let m: sys::rte_mbuf = unsafe { std::mem::zeroed() };
        Box::into_raw(Box::new(m)).cast()
    };
    std::iter::repeat_with(object).take(n).collect()
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

/// Makes an mbuf of `pool` in the state in which pools keep mbufs.
///
/// # Safety
/// `pool` outlives the mbuf.
unsafe fn mbuf(pool: *mut sys::rte_mempool) -> NonNull<sys::rte_mbuf> {
    let mut m = NonNull::new(objects(1)[0].cast::<sys::rte_mbuf>()).expect("an mbuf");
    // SAFETY: the mbuf is ours, and so is the pool.
    unsafe {
        honour_marks(pool);
        (m.as_mut().pool, m.as_mut().refcnt, m.as_mut().nb_segs) = (pool, 1, 1);
        m.as_mut().buf_addr = m.as_ptr().add(1).cast();
    }
    m
}

/// While a pool is being made, its objects are memory with any content.
#[test]
fn a_new_pool_takes_objects_whatever_is_in_them() {
    with_pool(1, |pool| {
        let objects = objects(1);
        // SAFETY: the object is ours, and so is the pool.
        unsafe {
            (*objects[0].cast::<sys::rte_mbuf>()).__bindgen_anon_1.packet_type = 1 << 31;
            assert_eq!(enqueue(pool, objects.as_ptr(), 1), 0);
            assert_eq!(count(pool), 1);
        }
    });
}

/// An mbuf comes back to its pool when its last reference ends, whichever of them are counted, and whoever ends them in
/// whatever order. DPDK sees only what is counted.
#[test]
fn an_mbuf_comes_back_when_all_its_references_have_ended() {
    for references in 1..=5 {
        for enders in 0..1_u32 << references {
            with_pool(1, |pool| {
                // SAFETY: the mbuf is ours, and so is the pool.
                unsafe {
                    let m = mbuf(pool);
                    for reference in 1..references {
                        // The first one is for a frame that a driver may write in front of.
                        if reference < 4 {
                            retain(m)
                        } else {
                            retain_counted(m)
                        }
                        assert!(!is_alone(m));
                        assert_eq!(m.as_ref().refcnt, reference);
                    }
                    for reference in 0..references {
                        let case = format!("{references} references, {enders:b}, {reference}");
                        assert_eq!(count(pool), 0, "{case}");
                        assert_eq!(is_alone(m), reference + 1 == references, "{case}");
                        match enders >> reference & 1 {
                            0 => release_segment(m),
                            _ => sys::rte_pktmbuf_free_seg(m.as_ptr()),
                        }
                    }
                    assert_eq!((count(pool), m.as_ref().refcnt), (1, 1));
                    assert!(is_alone(m));
                }
            });
        }
    }
}

/// A frame that waits in a driver's queue stays linked when the payload in its first mbuf ends, and when another frame
/// with the same payload ends afterwards.
#[test]
fn a_frame_stays_linked_when_its_payload_ends() {
    for resent in [false, true] {
        with_pool(3, |pool| {
            // SAFETY: the mbufs are ours, and so is the pool.
            unsafe {
                let [mut first, second, other] = [(); 3].map(|()| mbuf(pool));
                retain(first);
                retain(second);
                (first.as_mut().next, first.as_mut().nb_segs) = (second.as_ptr(), 2);
                if resent {
                    attach(other, first);
                }
                release_segment(first);
                if resent {
                    sys::rte_pktmbuf_free(other.as_ptr());
                }
                assert_eq!((first.as_ref().next, first.as_ref().nb_segs), (second.as_ptr(), 2));
                let others = u32::from(resent);
                assert_eq!(count(pool), others);
                sys::rte_pktmbuf_free(first.as_ptr());
                assert_eq!((count(pool), is_alone(second)), (others + 1, true));
                release_segment(second);
                assert_eq!(count(pool), others + 2);
            }
        });
    }
}
