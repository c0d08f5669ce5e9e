//! Typed settings of urnic.
