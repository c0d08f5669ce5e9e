//! Behaviour of peers that the standards do not describe, and how the engine copes with it. Everything that exists
//! only because of a particular implementation belongs here, or in `iwarp/src/peers.rs` if it concerns octets on
//! the wire.
//!
//! `scripts/interop-siw` tests the engine against the kernel's siw. The names of kernel files in this module are
//! those of Linux 6.1.

use super::alarms::Alarm;
use super::names::EndpointIndex;
use super::qp::{Message, Origin};
use super::{Core, Endpoint, Phase};
use crate::drive::transport::Data;
use std::time::Duration;
use urnic_iwarp::{Op, STAG_OF_NOTHING};

/// Time that an initiator waits for data of the peer after its own first FPDU. Then it sends a zero-length Write.
///
/// The Write is for Linux siw. As responder, siw sends its MPA Reply before it installs the callback that reads the
/// socket (siw_cm.c, siw_accept). An FPDU that arrives in between stays unread until more data arrives; a bare ACK is
/// not enough. This happened in 25 to 75 % of all tries with an emulated guest. The engine cannot recognise a siw that
/// has sent only its Reply, so it sends the Write to any peer. Other peers ignore it.
pub(super) const NUDGE_AFTER: Duration = Duration::from_millis(2);

/// Maximum number of times that [`Alarm::Nudge`] rings for a connection. Each time, a zero-length Write is
/// sent, unless data of the peer has arrived or another message is under way. The wait doubles before each
/// further time; all waits together take one second. A busy guest may spend more than the first wait between
/// Reply and callback: with only one Write, about one in a hundred connections to an emulated guest hung.
const NUDGES: u8 = 9;

// Linux siw, as initiator, drops a connection on which octets follow the MPA Reply before it has sent its first
// FPDU (siw_cm.c, siw_proc_mpareply). The standard makes responders wait for that FPDU anyway (MPA-70).
// `urnic_iwarp::Stream` implements this in `may_send`, so no special case is needed here.

impl<D: Data> Core<D> {
    /// Handles [`Alarm::Nudge`]. If no data of the peer has arrived, sets the next alarm, and sends a
    /// zero-length Write unless another message is under way. See [`NUDGE_AFTER`].
    pub(super) fn nudge(&mut self, index: EndpointIndex) {
        let Some(Endpoint { heard: false, phase: Phase::Open { qp }, nudges, .. }) =
            self.endpoints.get_mut(index)
        else {
            return;
        };
        let qp = *qp;
        *nudges += 1;
        if *nudges < NUDGES {
            let again = NUDGE_AFTER * (1 << *nudges);
            self.set_alarm(index, self.now + again, Alarm::Nudge);
        }
        let Some(qp) = self.qps.get_mut(qp) else { return };
        if qp.tx.message.is_some() || qp.tx.terminate.is_some() {
            return; // other data is being sent anyway
        }
        let Some(stream) = &mut qp.stream else { return };
        if let Ok(outgoing) = stream.begin(Op::Write { stag: STAG_OF_NOTHING, to: 0 }, 0) {
            qp.tx.message = Some(Box::new(Message { outgoing, origin: Origin::None }));
            self.schedule(index);
        }
    }
}
