//! Forked children of a process that runs EAL. It has a process of its own, because EAL starts once in a process.

use urnic_dataplane::{Arena, Eal, EalConfig, EalError, Hugepages};

/// A forked child has no EAL. It can drop memory that it has inherited, although only the parent has the thread that
/// frees such memory.
#[test]
fn a_forked_child_may_drop_memory_of_its_parent() {
    let config = EalConfig { memory_mb: 32, hugepages: Hugepages::Off, ..EalConfig::default() };
    let eal = Eal::start(&config).expect("EAL");
    let free = eal.heap().1;
    let block = Arena::new(&eal).alloc(1 << 20, 64).expect("a block");
    assert!(eal.heap().1 < free);
    // SAFETY: the child starts no thread, takes no lock that another thread may hold, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no signal handler is set. A child that hangs is killed, which the parent sees.
        unsafe { libc::alarm(30) };
        let refused = matches!(Eal::start(&config), Err(EalError::Forked));
        drop(block);
        // SAFETY: ends the child without running anything that belongs to the parent.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child forked above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
    drop(block);
    assert_eq!(eal.heap().1, free, "the parent frees its block");
}
