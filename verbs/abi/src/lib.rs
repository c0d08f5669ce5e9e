//! The C ABI of libibverbs and librdmacm: programs compiled against these run on urnic.
//!
//! Every `ibv_*` and `rdma_*` function here is a thin layer over the Rust API of crate `urnic`: it checks its
//! arguments, translates structures and errors, and keeps the counts that C programs rely on (events to be
//! acknowledged, objects that use each other). Functions that the device does not support fail with an errno;
//! `docs/run.md` lists them.
//!
//! * `ffi`: the structures, laid out as in C.
//! * `ibv`: devices, memory, queues, completions.
//! * `cm`: connections.
//! * `call`: the border between C and Rust: no panic gets out, and errors become errno.
//! * `live`: the objects that exist, so that none is destroyed twice.
//! * `rnic`: the process's one device, opened on first use.
//!
//! # Safety
//! Every `extern "C"` function here requires of its caller what its manual page requires: pointers have the types
//! that the page names, and the objects live and are not destroyed meanwhile. Null pointers are errors, not undefined
//! behaviour; numbers are checked.
//!
//! # Cancellation
//! Cancellation (`pthread_cancel`) is disabled while a call is at work, because it would unwind through Rust. A
//! function in which a waiting thread may be cancelled holds nothing while it blocks, and calls only `extern "C"`
//! functions that are not inlined. The reason for the latter: a function through which a panic may pass has unwind
//! tables for the panic, and a cancellation that meets such tables aborts the process.

mod call;
mod cm;
mod ffi;
mod gids;
mod ibv;
mod inbox;
mod ledger;
mod live;
mod log;
mod rnic;
