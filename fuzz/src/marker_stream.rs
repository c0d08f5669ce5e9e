//! Octets into a stream in Full Operation whose peer puts markers into it: raw, or as ULPDUs inside good FPDUs with good
//! markers. The body and what it demands are shared with the tests of `iwarp`.

pub use crate::iwarp_stream::seeds;
pub use crate::iwarp_support::fuzz::marker_stream as run;
