//! Feeds the input to a stream in Full Operation whose peer sends markers: raw, or as ULPDUs inside valid FPDUs with
//! valid markers. The tests of `iwarp` use the same test body and checks.

pub use crate::iwarp_stream::seeds;
pub use crate::iwarp_support::fuzz::marker_stream as run;
