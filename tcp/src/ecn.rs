//! ECN codepoints of the IP header (RFC 3168 §5).

pub(crate) const NOT_ECT: u8 = 0;
pub(crate) const ECT0: u8 = 2;
pub(crate) const CE: u8 = 3;
/// Value of `Connection::ect`, no codepoint: data must not be sent as ECT, but the peer's marks are echoed (RFC 3168
/// §6.1.1).
pub(crate) const ECHO_ONLY: u8 = 1 << 2;
/// The bits of the codepoint.
pub(crate) const MASK: u8 = 3;
