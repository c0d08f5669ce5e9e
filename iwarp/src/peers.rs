//! Wire behaviour of other implementations, where the standards do not describe it, with the evidence. All code
//! of this crate for a particular peer is here. The engine's code for peers' behaviour over time is in
//! `verbs/src/drive/engine/peers.rs`.

use crate::Terminate;

/// The STag of messages without payload. It has no meaning there, and a receiver must not look at it (DDP-32,
/// RDMAP-34).
///
/// Chelsio's adapters nevertheless refuse 0. Their Linux driver (cxgb4, `build_rtr_msg`) and siw (siw_qp.c,
/// `siw_qp_mpa_rts`) use 1 in the zero-length Read of their own RTR.
pub const STAG_OF_NOTHING: u32 = 1;

/// Error type 3 of layer 2, which some peers use for MPA errors.
///
/// The registry has these errors under type 0 (RFC 6580 §3.3). The Linux drivers of Intel (irdma and i40iw, the tables
/// `LAYER_MPA`, `DDP_LLP`) and of Chelsio (cxgb4, the same two names) send type 3: 23 02 for a CRC error, 23 03 for a
/// marker error. We understand this type and never send it.
pub(crate) const ETYPE_OF_MPA_ERRORS: u8 = 3;

/// Returns whether the control word of a Terminate has the form that Linux siw sends: layer and error type are
/// exchanged, and the bits of HdrCt are in reverse order.
///
/// siw declares the word as bit-fields of the host (iwarp.h, `struct iwarp_terminate`:
/// `layer:4, etype:4, ecode:8, flag_m:1, flag_d:1, flag_r:1`). A little-endian host puts the first field into the low
/// bits. An x86 guest sent 21 06 00 for a bad DDP version, where the standard has 12 06.
///
/// The form is recognised only if two conditions hold. First, read in siw's form, the word is an error that `known`
/// accepts. Second, read in the standard's form, the word is no such error, or all bits that are set in its HdrCt (at
/// least one) are bits that the standard reserves and siw uses.
pub(crate) fn terminate_is_siws(types: u8, hdrct: u8, known: impl Fn(u8, u8) -> bool) -> bool {
    let (high, low) = (types >> 4, types & 0x0F);
    known(low, high) && (!known(high, low) || (1..=7).contains(&hdrct))
}

/// Corrects a Terminate of siw that [`terminate_is_siws`] cannot recognise. For an unexpected opcode or a wrong RDMAP
/// version, siw sends no header. Its 20 06 00 then equals the standard's error for insufficient IRD.
///
/// The standard's errors of the enhanced start-up come from the side that connected, as its first message (RFC 6581
/// §8). Anywhere else, these codes are siw's remote operation errors, such as its answer to an Atomic (siw_qp_rx.c,
/// `siw_get_hdr`; siw_qp.c, `siw_send_terminate`).
pub(crate) fn terminate_after_startup(t: Terminate) -> Terminate {
    match t {
        Terminate { layer: 2, etype: 0, code: 5..=7, ddp: None, .. } => Terminate { layer: 0, etype: 2, ..t },
        _ => t,
    }
}
