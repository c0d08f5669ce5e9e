//! What peers do that the standards do not say, and what the engine does about it. Everything that only exists because
//! some implementation is as it is has its place here, or in `iwarp/src/peers.rs` if it is about octets on the wire.
//!
//! `scripts/interop-siw` runs all of it against the kernel's siw; file names are those of Linux 6.1.

use super::alarms::Alarm;
use super::names::EndpointIndex;
use super::qp::{Message, Origin};
use super::{Core, Endpoint, Phase};
use crate::drive::transport::Data;
use std::time::Duration;
use urnic_iwarp::{Op, STAG_OF_NOTHING};

/// Linux siw, responder: it sends its MPA Reply before it installs the callback that reads the socket (siw_cm.c,
/// siw_accept). An FPDU that arrives in between stays unread until something more arrives; a bare ACK does not count.
/// Seen in a quarter to three quarters of tries in an emulated guest. Nothing tells a siw from other peers by then, so
/// an initiator whose first FPDU has not been answered by data for this long sends one zero-length Write behind it. To
/// other peers that is a message without effect.
pub(super) const NUDGE_AFTER: Duration = Duration::from_millis(2);

/// How many such Writes there are at most, each after twice the time of the one before: a second in all. A guest that is
/// busy elsewhere can be interrupted between Reply and callback for longer than the first takes: one in some hundred
/// connections to an emulated guest hung with a single nudge.
const NUDGES: u8 = 9;

// Linux siw, initiator: it drops a connection on which octets follow the MPA Reply before its first FPDU was sent
// (siw_cm.c, siw_proc_mpareply). The standard has responders wait for that FPDU anyway (MPA-70), and so does ours,
// in `urnic_iwarp::Stream::may_send`; nothing of it is a special case here.

impl<D: Data> Core<D> {
    /// Sends one zero-length Write if the peer has not answered, between messages. See [`NUDGE_AFTER`].
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
            return; // more is being sent anyway
        }
        let Some(stream) = &mut qp.stream else { return };
        if let Ok(outgoing) = stream.begin(Op::Write { stag: STAG_OF_NOTHING, to: 0 }, 0) {
            qp.tx.message = Some(Message { outgoing, origin: Origin::None });
            self.schedule(index);
        }
    }
}
