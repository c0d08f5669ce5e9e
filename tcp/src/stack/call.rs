//! The context of one call from outside, and the effects of the call on connections.

use super::*;
use crate::sabotage::{Rule, broken};

/// A call of the stack that is in progress. A connection gets the part that concerns it, a [`Cx`].
pub(super) struct Call<'a, B: Buffers, H, T> {
    pub stack: &'a mut Stack<B>,
    pub now: Time,
    /// Receiver of events and data.
    pub handler: &'a mut H,
    /// Receiver of frames to send.
    pub tx: &'a mut T,
}

impl<B: Buffers, H: Handler<B::Frame>, T: Transmit<B::Payload>> Call<'_, B, H, T> {
    /// Calls into the connection at `index`, then keeps or closes it, as the result of `f` says.
    #[inline]
    pub fn with(&mut self, index: u32, f: impl FnOnce(&mut Connection<B>, &mut Cx<'_, T>, &mut H) -> Fate) {
        let Some(c) = self.stack.connections.get_mut(index) else { return };
        let id = c.id(index);
        let mut cx = Cx { now: self.now, net: &mut self.stack.net, tx: self.tx, id };
        match f(c, &mut cx, self.handler) {
            Fate::Keep => self.stack.note(self.now, id.index),
            Fate::Closed(reason) => self.close(id, reason),
            Fate::TimeWait => self.close_and_wait(id),
        }
    }

    /// Closes a connection and leaves no entry in TIME-WAIT.
    #[cold]
    fn close(&mut self, id: ConnId, reason: CloseReason) {
        if let Some(tag) = self.stack.remove(id.index) {
            self.handler.closed(id, tag, reason);
        }
    }

    /// Closes a connection whose addresses must go into TIME-WAIT.
    #[cold]
    fn close_and_wait(&mut self, id: ConnId) {
        let stack = &mut *self.stack;
        let Some(c) = stack.take_out(id.index) else { return };
        // A chosen port stays claimed until TIME-WAIT ends. A reserved one is released now, because a new connection
        // from it may end TIME-WAIT early (`choose_end`).
        if c.cold.port == PortFrom::Binding {
            stack.ports.release(c.key.local_port(), stack.net.remote(c.key));
        }
        stack.begin_timewait(c.time_wait(self.now, &stack.net));
        self.handler.closed(id, c.tag, CloseReason::Graceful);
    }

    /// Hands a frame to other stacks of the device, unless this stack got the frame from one of them.
    #[cold]
    pub fn hand_over(&mut self, to: Elsewhere, frame: &B::Frame) {
        let counters = &mut self.stack.net.counters;
        match to {
            _ if self.stack.taking_over => {
                counters.strays += u64::from(to != Elsewhere::Others);
                return;
            }
            Elsewhere::Stack(_) => counters.handed_over += 1,
            Elsewhere::Others => counters.shared += 1,
        }
        self.handler.hand_over(to, frame);
    }

    /// Passes a message of a neighbour or router to all other stacks of the device.
    pub fn tell_others(&mut self, frame: &B::Frame) {
        if !self.stack.net.cfg.steering.is_alone() && !broken(Rule::NeighboursReachAll) {
            self.hand_over(Elsewhere::Others, frame);
        }
    }

    /// Returns whether another stack speaks for the host. If so, hands the frame to that stack.
    pub fn leaves_to_speaker(&mut self, frame: &B::Frame) -> bool {
        let leaves = !self.stack.net.cfg.steering.speaks();
        if leaves {
            self.hand_over(Elsewhere::Stack(0), frame);
        }
        leaves
    }

    /// Runs the timers that are due.
    pub fn run_timers(&mut self) {
        while let Some(index) = self.stack.wheel.poll(self.now) {
            self.with(index, |c, cx, _| {
                c.armed = Time::MAX;
                if c.deadline(cx.net) <= cx.now { c.on_timer(cx) } else { Fate::Keep }
            });
        }
        self.run_passive_timers();
        self.stack.net.arp.advance_claim(self.now);
        while let Some(resolved) = self.stack.net.arp.advance(self.now) {
            if let Some(resolved) = resolved {
                self.wake_waiters(resolved);
            }
        }
        self.run_inet6_timers();
    }

    /// Wakes the connections that waited for a neighbour. If the neighbour is absent, a connection that is being opened
    /// ends, and an open one keeps trying.
    pub fn wake_waiters(&mut self, resolved: Resolved) {
        let (Resolved::Found(n) | Resolved::Absent(n)) = resolved;
        let found = matches!(resolved, Resolved::Found(_));
        let net = &mut self.stack.net;
        net.counters.arp_failures += u64::from(!found);
        for id in net.take_waiters(n) {
            self.wake(id, found);
        }
    }

    fn wake(&mut self, id: ConnId, found: bool) {
        if self.stack.get(id).is_none() {
            return;
        }
        self.with(id.index, |c, _, _| {
            c.waits_for_neighbour = false;
            if found {
                c.flags.set(Flags::OUTPUT);
            } else if c.state == State::SynSent {
                return Fate::Closed(CloseReason::Unreachable);
            } else {
                c.cold.soft_error = true; // RFC 1122 §4.2.3.9: a connection that is open goes on trying
            }
            Fate::Keep
        });
    }
}
