//! Explicit congestion notification: echoes the marks of routers, and reduces the window when the peer echoes marks
//! (RFC 3168, RFC 8257).

use super::{Connection, Cx, Recovery};
use crate::buffers::{Buffers, Transmit};
use crate::ecn;
use crate::wire::{Segment, flag};

impl<B: Buffers> Connection<B> {
    /// Updates the echo in our ACKs when a segment with data arrives on a connection with ECN. Call this before RCV.NXT
    /// covers the data, because earlier data may have to be acknowledged with the old echo first.
    pub(super) fn note_marks<T: Transmit<B::Payload>>(&mut self, cx: &mut Cx<'_, T>, s: &Segment) {
        let marked = s.ecn == ecn::CE;
        if !self.cold.exact_echo {
            // RFC 3168 §6.1.3: echo until the sender reports that it has reduced its window.
            if s.has(flag::CWR) {
                self.echo = 0;
            }
            if marked {
                self.echo = flag::ECE;
            }
        } else if marked != (self.echo != 0) {
            // RFC 8257 §3.2: when the marks change, the data before the change is acknowledged at once, with the old
            // echo.
            if self.owes_ack() {
                self.send_ack(cx);
            }
            self.echo = if marked { flag::ECE } else { 0 };
        }
    }

    /// Handles an ACK that echoes a mark. Reduces the window once per window of data (RFC 3168 §6.1.2).
    #[cold]
    pub(super) fn arrive_echo<T>(&mut self, cx: &mut Cx<'_, T>, flight: u32) {
        cx.net.counters.congestion_echoes_in += 1;
        if self.recovery != Recovery::None || self.snd_una.le(self.cold.marks_until) {
            return;
        }
        cx.net.counters.congestion_reductions += 1;
        self.cold.congestion.on_marks(flight);
        self.note_reduction();
    }

    /// Notes that the window was reduced, for any reason. The receiver is told, and marks of data now outstanding no
    /// longer count.
    pub(super) fn note_reduction(&mut self) {
        if self.ect == ecn::ECT0 {
            self.reduced = flag::CWR;
            self.cold.marks_until = self.snd_nxt;
        }
    }
}
