//! ECN codepoints of the IP header (RFC 3168 §5).

pub(crate) const NOT_ECT: u8 = 0;
pub(crate) const ECT0: u8 = 2;
pub(crate) const CE: u8 = 3;
/// The bits of the codepoint.
pub(crate) const MASK: u8 = 3;
