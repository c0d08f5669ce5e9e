//! The C ABI of libibverbs and librdmacm, so that programs compiled against those run on urnic.
//!
//! Every `ibv_*` and `rdma_*` function here is a thin layer over the Rust API of crate `urnic`: it checks what C may
//! pass, translates structures and errors, and keeps the books that C programs rely on (events that wait to be
//! acknowledged, objects that use each other). What the device does not have answers with an errno, listed in
//! `docs/run.md`.
//!
//! * `ffi`: the structures, laid out as C compilers do.
//! * `ibv`: devices, memory, queues, completions.
//! * `cm`: connections.
//! * `call`: how a call crosses the border: no panic gets out, errors become errno.
//! * `live`: the objects that exist, so that none is destroyed twice.
//! * `rnic`: the process's one device, opened on first use.
//!
//! # Safety
//! Every `extern "C"` function here asks of its caller what its manual page does: pointers are of the kind that it
//! names, and to objects that live and are not destroyed meanwhile. Null is an error, not undefined; other numbers are
//! checked.
//!
//! # Cancellation
//! Cancellation (`pthread_cancel`) is held off while a call is at work, because it would unwind through Rust. Functions in
//! which a program may be cancelled as it waits hold nothing while they block and call nothing but `extern "C"` functions
//! that are not inlined: a function from which a panic could pass has tables for that, by which cancellation would
//! abort the process.

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
