//! The choice of a kernel: a table of functions, chosen at the first call and kept.

use crate::kernel::{Kernel, Table};
use crate::portable;
#[cfg(target_arch = "x86_64")]
use crate::x86;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

impl Kernel {
    /// Returns whether this processor can run the kernel.
    pub fn available(self) -> bool {
        self.table().is_some()
    }

    pub(crate) fn table(self) -> Option<&'static Table> {
        match self {
            Kernel::Portable => Some(&portable::TABLE),
            #[cfg(target_arch = "x86_64")]
            Kernel::Sse42 => x86::has_sse42().then_some(&x86::sse42::TABLE),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => x86::has_avx2().then_some(&x86::avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Kernel::Vpclmul => x86::has_vpclmul().then_some(&x86::vpclmul::TABLE),
            #[cfg(not(target_arch = "x86_64"))]
            Kernel::Sse42 | Kernel::Avx2 | Kernel::Vpclmul => None,
        }
    }
}

static ACTIVE: AtomicPtr<Table> = AtomicPtr::new(ptr::from_ref(&FIRST_CALL).cast_mut());

#[inline(always)]
pub(crate) fn table() -> &'static Table {
    // SAFETY: ACTIVE only ever points to immutable statics. This is also why no ordering is needed.
    unsafe { &*ACTIVE.load(Ordering::Relaxed) }
}

/// Returns the kernel in use.
pub fn kernel() -> Kernel {
    match ptr::eq(table(), &FIRST_CALL) {
        true => choose().kernel,
        false => table().kernel,
    }
}

/// Uses `kernel` from now on in the whole process, for tests and measurements. Returns `false`, and changes nothing,
/// if this processor cannot run it.
pub fn force_kernel(kernel: Kernel) -> bool {
    kernel.table().map(activate).is_some()
}

fn activate(table: &'static Table) {
    ACTIVE.store(ptr::from_ref(table).cast_mut(), Ordering::Relaxed);
}

/// Chooses the best kernel and keeps it, unless [`force_kernel`] came first.
#[cold]
fn choose() -> &'static Table {
    let best = Kernel::ALL.iter().rev().find_map(|k| k.table()).unwrap_or(&portable::TABLE);
    let first = ptr::from_ref(&FIRST_CALL).cast_mut();
    let best_ptr = ptr::from_ref(best).cast_mut();
    match ACTIVE.compare_exchange(first, best_ptr, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => best,
        // SAFETY: as in `table`.
        Err(other) => unsafe { &*other },
    }
}

/// The table before the first call: its functions choose a kernel and then do the work.
static FIRST_CALL: Table = Table {
    kernel: Kernel::Portable,
    // SAFETY: the chosen kernel's function has the same contract as this one, and the caller keeps it.
    crc: |src, len, state| unsafe { (choose().crc)(src, len, state) },
    // SAFETY: the chosen kernel's function has the same contract as this one, and the caller keeps it.
    sum: |src, len| unsafe { (choose().sum)(src, len) },
    // SAFETY: the chosen kernel's function has the same contract as this one, and the caller keeps it.
    copy_crc: |dst, src, len, state| unsafe { (choose().copy_crc)(dst, src, len, state) },
    // SAFETY: the chosen kernel's function has the same contract as this one, and the caller keeps it.
    copy_crc_sum: |dst, src, len, state| unsafe { (choose().copy_crc_sum)(dst, src, len, state) },
    // SAFETY: the chosen kernel's function has the same contract as this one, and the caller keeps it.
    place: |dst, src, len| unsafe { (choose().place)(dst, src, len) },
};
