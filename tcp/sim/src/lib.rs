//! Virtual clock and the one impairment model of urnic.
