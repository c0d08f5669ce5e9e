//! Octets into a stream in Full Operation whose peer sends markers: raw, or as ULPDUs inside valid FPDUs with valid
//! markers. The test body and its checks are shared with the tests of `iwarp`.

pub use crate::iwarp_stream::seeds;
pub use crate::iwarp_support::fuzz::marker_stream as run;
