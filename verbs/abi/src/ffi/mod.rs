//! The structures of `infiniband/verbs.h` and `rdma/rdma_cma.h`, laid out as compiled programs expect them.
//! `tests.rs` compares sizes and offsets with a table that a C compiler made.

#![allow(non_camel_case_types, non_upper_case_globals, dead_code)]

mod attr;
mod cm;
mod consts;
mod object;
mod ops;

pub use attr::*;
pub use cm::*;
pub use consts::*;
pub use object::*;
pub use ops::*;

#[cfg(test)]
mod tests;
