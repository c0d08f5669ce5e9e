//! What other implementations put on the wire that the standards do not say, with the evidence. Whatever in this crate
//! exists only because some peer is as it is has its place here; what the engine does about peers' behaviour in time is
//! in `verbs/src/drive/engine/peers.rs`.

use crate::Terminate;

/// The STag of messages without payload, whose STag means nothing and must not be looked at (RFC 5040 §5.1).
///
/// Chelsio's adapters refuse 0 even so: their driver for Linux names 1 in the zero-length Read of its own RTR (cxgb4,
/// `build_rtr_msg`), and siw names 1, too (siw_qp.c, `siw_qp_mpa_rts`).
pub const STAG_OF_NOTHING: u32 = 1;

/// Error type 3 of layer 2, with the codes of MPA errors.
///
/// The registry has these errors under type 0 (RFC 6580 §3.3). Intel's drivers for Linux (irdma and i40iw, the tables
/// `LAYER_MPA`, `DDP_LLP`) and Chelsio's (cxgb4, the same two names) send type 3: 23 02 for a CRC error, 23 03 for a
/// marker that disagrees. It is understood, and never sent.
pub(crate) const ETYPE_OF_MPA_ERRORS: u8 = 3;

/// Whether the control word of a Terminate is that of Linux siw: layer and error type change places, and so do the bits of
/// HdrCt with those opposite.
///
/// siw declares the word as bit-fields of the host (iwarp.h, `struct iwarp_terminate`: `layer:4, etype:4, ecode:8,
/// flag_m:1, flag_d:1, flag_r:1`), which a little-endian one puts into the low bits first. On the wire of an x86 guest a
/// bad DDP version gave 21 06 00 where the standard has 12 06. The form is recognised where it cannot be meant otherwise:
/// where the standard's reading is no error that `known` knows, or its HdrCt has reserved bits only, those of siw.
pub(crate) fn terminate_is_siws(types: u8, hdrct: u8, known: impl Fn(u8, u8) -> bool) -> bool {
    let (high, low) = (types >> 4, types & 0x0F);
    known(low, high) && (!known(high, low) || (1..=7).contains(&hdrct))
}

/// The Terminate of siw that [`terminate_is_siws`] cannot tell: for an unexpected opcode, and for a wrong RDMAP version, it
/// sends no header, and its 20 06 00 is the standard's word for too low an IRD.
///
/// The standard's errors of the enhanced start-up come from the side that connected, as its first message (RFC 6581 §8).
/// Anywhere else they are siw's remote operation errors, as its answer to an Atomic shows (siw_qp_rx.c,
/// `siw_get_hdr`; siw_qp.c, `siw_send_terminate`).
pub(crate) fn terminate_after_startup(t: Terminate) -> Terminate {
    match t {
        Terminate { layer: 2, etype: 0, code: 5..=7, ddp: None, .. } => Terminate { layer: 0, etype: 2, ..t },
        _ => t,
    }
}
