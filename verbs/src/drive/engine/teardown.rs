//! How connections end: by a Terminate, a FIN, the loss of the connection, a disconnect, or the queue pair's
//! destruction.

use super::alarms::Alarm;
use super::endpoint::{Farewell, Lingers, Phase};
use super::names::{EndpointIndex, QpIndex, Qpn};
use super::qp::Culprit;
use super::relocate::Whereabouts;
use super::{Core, LINGER_WITHIN, TEARDOWN_WITHIN};
use crate::drive::transport::Data;
use crate::shared::cm::{CmEvent, ConnectFailure, DisconnectReason};
use crate::shared::error::Error;
use crate::shared::events::{AsyncEvent, FaultCause, QpFault};
use crate::shared::qp::{QpState, TerminateInfo};
use crate::shared::wc::WcStatus;
use std::net::SocketAddr;
use urnic_iwarp::{Cause, TaggedOp, Terminate};
use urnic_tcp::{CloseReason, ConnId};

/// The reason why this side makes a queue pair leave the RTS state.
#[derive(Debug)]
pub(super) enum Why {
    /// The stream could not process what the peer sent, because it breaks the protocol or there is no memory for it.
    Fault(Cause),
    /// A work request is invalid; `None`: the memory of an inbound Read or Atomic is no longer available.
    WorkRequest(Option<Culprit>),
    /// A completion found its completion queue full.
    CompletionQueueFull,
    /// The peer's FIN came while requests were unsent or unanswered (ERR-46).
    WorkLeft,
    /// The peer's source had more memory for incomplete FPDUs than any other source, and memory was needed.
    Displaced,
    /// The peer acknowledged nothing for long, its source had most octets outstanding, and memory for records that
    /// are put aside was needed.
    Unacknowledged,
    /// The application requested the end of the connection.
    Requested,
}

impl<D: Data> Core<D> {
    /// Ends the connection in the endpoint's next turn. If the connection does not close within
    /// [`TEARDOWN_WITHIN`], it is reset, unless it [waits for its peer](Self::waits_for_peer).
    pub(super) fn farewell(&mut self, index: EndpointIndex, farewell: Farewell) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        endpoint.set_farewell(farewell);
        let seated = endpoint.seat.is_some();
        self.schedule(index);
        if !seated {
            self.set_alarm(index, self.now + TEARDOWN_WITHIN, Alarm::Teardown);
        }
    }

    /// Handles a fault that this side has found at queue pair `qp`: sends the Terminate, if there is one, then a FIN,
    /// and ends all outstanding work (RDMAP-72, RDMAP-85).
    pub(super) fn fail(&mut self, qp: QpIndex, terminate: Option<Terminate>, why: Why) {
        let Some(core) = self.qps.get_mut(qp) else { return };
        if core.is_over() {
            return;
        }
        let (culprit, open_receive) = match &why {
            Why::WorkRequest(culprit) => (*culprit, WcStatus::Flushed),
            Why::Fault(Cause::MessageTooLong { .. }) => (None, WcStatus::LocalLength),
            Why::Fault(Cause::ReceiveMemory) => (None, WcStatus::LocalProtection),
            // The faulty sink is on this side. The Read or Atomic that named it is the oldest incomplete request.
            Why::Fault(Cause::Tagged { op: TaggedOp::ReadResponse, .. } | Cause::AtomicSink(_)) => (
                Some(Culprit { request: core.tx.done, status: WcStatus::LocalProtection }),
                WcStatus::Flushed,
            ),
            Why::Fault(Cause::CannotInvalidate(_)) => (None, WcStatus::Invalidation),
            _ => (None, WcStatus::Flushed),
        };
        let peer = core.endpoint.and_then(|index| self.endpoints.get(index)).map(|endpoint| endpoint.peer);
        // A Responder that has received no valid FPDU sends nothing (MPA-70, MPA-92).
        let terminate = terminate.filter(|_| core.may_speak());
        let event = fault((core.qpn(), peer), &why, terminate.as_ref(), culprit.is_some(), open_receive);
        // This comes before the flush, because a program that sees a flushed request may ask for the reason at once.
        if let Some(t) = &terminate {
            core.shared.set_terminate(info(t, true));
        }
        let state =
            if terminate.is_some() && core.endpoint.is_some() { QpState::Terminate } else { QpState::Error };
        core.end(state, culprit, open_receive);
        if let Some(event) = event {
            core.shared.events.raise(event);
        }
        let reason = match (&why, &terminate) {
            (Why::Requested, _) => DisconnectReason::Aborted,
            (_, Some(_)) => DisconnectReason::TerminateSent,
            (_, None) => DisconnectReason::Aborted,
        };
        let silent = terminate.is_none();
        core.tx.terminate = terminate.map(Box::new);
        let Some(index) = core.endpoint else { return };
        if core.awaits.stopped {
            self.note_may_continue(index);
        }
        self.announce(index, reason);
        if silent {
            self.farewell(index, Farewell::Fin);
        } else {
            self.set_alarm(index, self.now + TEARDOWN_WITHIN, Alarm::Teardown);
            self.schedule(index);
        }
    }

    /// Handles the peer's Terminate: ends all outstanding work. From now on, only a FIN is sent (ERR-47, RDMAP-85).
    pub(super) fn terminated(&mut self, qp: QpIndex, terminate: Terminate) {
        let Some(core) = self.qps.get_mut(qp) else { return };
        core.complete_sends();
        let status = blame(&terminate);
        let peer = core.endpoint.and_then(|index| self.endpoints.get(index)).map(|endpoint| endpoint.peer);
        // A request that was not begun cannot be what the peer objects to.
        let oldest = core.tx.done;
        let begun = oldest != core.tx.next || core.tx.immediate;
        let culprit = begun.then_some(Culprit { request: oldest, status });
        core.shared.set_terminate(info(&terminate, false));
        core.end(QpState::Terminate, culprit, WcStatus::Flushed);
        if culprit.is_none() {
            core.shared.events.raise(AsyncEvent::QpFatal(QpFault {
                qpn: core.shared.qpn,
                peer,
                cause: FaultCause::Terminated,
                detail: FaultCause::Terminated.to_string(),
                terminate: Some(info(&terminate, false)),
            }));
        }
        let Some(index) = core.endpoint else { return };
        self.announce(index, DisconnectReason::TerminateReceived);
        self.farewell(index, Farewell::Fin);
    }

    /// Handles the peer's FIN: flushes the remaining work and closes this side of the connection too. If work remains,
    /// first sends a Terminate (ERR-46), provided that this side may send already, and that the FIN cuts nothing of the
    /// peer short ([`QpCore::is_cut_short`](super::qp::QpCore::is_cut_short)).
    pub(super) fn peer_finished(&mut self, index: EndpointIndex) {
        match self.endpoints.get(index).map(|e| &e.phase) {
            Some(&Phase::Open { qp }) => {
                if self.fin_waits(index, qp) {
                    return;
                }
                let Some(core) = self.qps.get_mut(qp) else { return };
                // The segment with the FIN has acknowledged data, so requests may be complete.
                core.complete_sends();
                let cut_short = core.is_cut_short();
                if core.has_work_left() && core.may_speak() && !cut_short && !core.is_over() {
                    return self.fail(qp, Some(Terminate::STREAM_CATASTROPHIC), Why::WorkLeft);
                }
                let reason = if cut_short {
                    DisconnectReason::Truncated
                } else if core.tx.closing {
                    DisconnectReason::Local
                } else {
                    DisconnectReason::Peer
                };
                let terminating = core.tx.terminate.is_some();
                if !core.is_over() {
                    core.end(QpState::Error, None, WcStatus::Flushed);
                }
                self.announce(index, reason);
                if !terminating {
                    self.farewell(index, Farewell::Fin);
                }
            }
            Some(&Phase::Requesting { qp, .. }) => {
                if !self.fall_back(index) {
                    self.connect_failed(index, qp, ConnectFailure::Reset);
                }
            }
            Some(&Phase::Expecting { qp, .. }) => self.connect_failed(index, qp, ConnectFailure::Reset),
            Some(Phase::Awaiting { .. } | Phase::Pending { .. }) => self.dismiss(index, Farewell::Fin),
            Some(Phase::Dismissed | Phase::Closing) => self.part(index, Farewell::Fin),
            Some(Phase::Connecting { .. }) | None => {}
        }
    }

    /// Handles the end of the TCP connection, whatever its reason, and removes the endpoint.
    pub(super) fn connection_gone(&mut self, index: EndpointIndex, reason: CloseReason) {
        if let Some((qp, second)) = self.endpoints.get(index).and_then(|e| e.phase.wanted()) {
            self.never_came_up(index, qp, second, reason);
        }
        match self.endpoints.get(index).map(|e| &e.phase) {
            Some(&Phase::Open { qp }) => {
                if let Some(core) = self.qps.get_mut(qp) {
                    let closing = core.tx.closing;
                    core.end(QpState::Error, None, WcStatus::Flushed);
                    core.stream = None;
                    core.endpoint = None;
                    let reason = match reason {
                        CloseReason::Graceful if closing => DisconnectReason::Local,
                        CloseReason::Graceful => DisconnectReason::Peer,
                        CloseReason::TimedOut => DisconnectReason::TimedOut,
                        CloseReason::Unreachable => DisconnectReason::TimedOut,
                        CloseReason::Aborted if closing => DisconnectReason::Aborted,
                        // The transport has ended the connection, because the link is lost.
                        CloseReason::Aborted => DisconnectReason::LinkLost,
                        CloseReason::Reset | CloseReason::Refused => DisconnectReason::Reset,
                    };
                    self.announce(index, reason);
                }
            }
            Some(_) => {}
            None => return,
        }
        self.leave_seat(index);
        self.remove_lender(index);
        self.endpoints.remove(index);
    }

    /// Reports that the TCP connection has ended during a start-up that the application has asked for.
    fn never_came_up(&mut self, index: EndpointIndex, qp: QpIndex, second: bool, reason: CloseReason) {
        let qpn = self.release_qp(qp);
        let reason = match reason {
            // The peer has refused the second try. It is more useful to report why the first try failed: the peer has
            // closed that connection, which counts as a reset.
            CloseReason::Refused if second => ConnectFailure::Reset,
            CloseReason::Refused => ConnectFailure::Refused,
            CloseReason::TimedOut => ConnectFailure::TimedOut,
            // `Aborted` means here that the link is lost. If this side gives up a start-up, the endpoint is in
            // `Phase::Closing` by now.
            CloseReason::Unreachable | CloseReason::Aborted => ConnectFailure::Unreachable,
            CloseReason::Graceful | CloseReason::Reset => ConnectFailure::Reset,
        };
        if let Some(endpoint) = self.endpoints.get(index) {
            endpoint.tell(CmEvent::ConnectError { qpn: qpn.0, reason });
        }
    }

    /// Reports to the application, once, that a connection in RDMA mode is over.
    pub(super) fn announce(&mut self, index: EndpointIndex, reason: DisconnectReason) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        let Phase::Open { qp } = endpoint.phase else { return };
        if !std::mem::replace(&mut endpoint.announced, true)
            && let Some(core) = self.qps.get(qp)
        {
            endpoint.tell(CmEvent::Disconnected { qpn: core.shared.qpn, reason });
        }
    }

    /// Disconnects gracefully: sends all posted requests, then a FIN (DDP-43). Requests that are posted later are
    /// flushed (DDP-60).
    pub(super) fn disconnect_qp(&mut self, qp: QpIndex) {
        let Some(core) = self.qps.get_mut(qp) else { return };
        let Some(index) = core.endpoint else { return };
        if core.tx.closing || core.state() != QpState::Rts {
            return;
        }
        core.tx.closing = true;
        core.tx.too_late = core.first_unposted();
        core.shared.set_state(QpState::Closing);
        self.discard_unready(qp);
        self.schedule(index);
        self.set_alarm(index, self.now + TEARDOWN_WITHIN, Alarm::Teardown);
    }

    /// Disconnects gracefully, and raises an event when the send queue is empty.
    pub(super) fn drain_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        let qp = self.known(qpn)?;
        let core = self.qps.get_mut(qp).ok_or(Error::UnknownQp(qpn.0))?;
        if core.state() != QpState::Rts {
            return Err(Error::QpState { qpn: qpn.0, state: core.state() });
        }
        core.tx.tells_drained = true;
        self.disconnect_qp(qp);
        Ok(())
    }

    /// Moves the queue pair to the error state at once, without waiting for the peer.
    pub(super) fn enter_error(&mut self, qp: QpIndex) {
        if let Some(core) = self.qps.get_mut(qp) {
            core.end(QpState::Error, None, WcStatus::Flushed);
        }
    }

    /// Moves a queue pair from Error to Idle. Its old connection, if it still exists, ends without the queue pair.
    pub(super) fn reuse_qp(&mut self, qpn: Qpn) -> Result<(), Error> {
        let qp = self.known(qpn)?;
        let core = self.qps.get_mut(qp).ok_or(Error::UnknownQp(qpn.0))?;
        match core.state() {
            QpState::Idle => return Ok(()),
            QpState::Error => {}
            state => return Err(Error::QpState { qpn: qpn.0, state }),
        }
        // Access that the last peer was granted must end before the queue pair gets another peer.
        self.table.queue_pair_gone(core.shared.scopes.qp)?;
        let old = core.endpoint.take();
        core.reset();
        if let Some(index) = old {
            self.lose_queue_pair(index, qpn);
            self.schedule(index);
        }
        Ok(())
    }

    /// Removes queue pair `qp`, which the application destroys. No completions follow, but TCP still delivers the
    /// data that it holds.
    pub(super) fn remove_qp(&mut self, qp: QpIndex) {
        let Some(mut core) = self.qps.remove(qp) else { return };
        Self::remove_holder(&mut core, qp, &mut self.stopped);
        self.by_qpn[core.shared.qpn as usize] = Whereabouts::Unknown;
        // This fails only while the process ends. The failure does no harm, because no other queue pair has this scope.
        let _ = self.table.queue_pair_gone(core.shared.scopes.qp);
        let Some(index) = core.endpoint else { return };
        if core.awaits.stopped {
            self.note_may_continue(index);
        }
        if let Some(endpoint) = self.endpoints.get(index) {
            let farewell =
                if matches!(endpoint.phase, Phase::Open { .. }) { Farewell::Fin } else { Farewell::Reset };
            self.lose_queue_pair(index, core.qpn());
            self.farewell(index, farewell);
        }
    }

    /// Separates a connection from its queue pair. The connection continues alone until it ends. The application gets
    /// its last event now, because later events would find no queue pair.
    fn lose_queue_pair(&mut self, index: EndpointIndex, qpn: Qpn) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        let event = match endpoint.phase {
            Phase::Open { .. } if !std::mem::replace(&mut endpoint.announced, true) => {
                Some(CmEvent::Disconnected { qpn: qpn.0, reason: DisconnectReason::Local })
            }
            Phase::Connecting { .. } | Phase::Requesting { .. } | Phase::Expecting { .. } => {
                Some(CmEvent::ConnectError { qpn: qpn.0, reason: ConnectFailure::Aborted })
            }
            _ => None,
        };
        endpoint.carried |= matches!(endpoint.phase, Phase::Open { .. });
        if let Some(event) = event {
            endpoint.tell(event);
        }
        self.close_endpoint(index);
    }

    /// Returns whether a connection that has not closed in time may wait longer. It waits for a slow peer, because a
    /// reset would destroy data of completed requests that the peer has not taken. It does not wait for a silent
    /// peer.
    pub(super) fn waits_for_peer(&mut self, index: EndpointIndex, is_slow: &impl Fn(ConnId) -> bool) -> bool {
        let now = self.now;
        let Some(endpoint) = self.endpoints.get_mut(index) else { return false };
        let Some(conn) = endpoint.conn else { return false };
        if !(endpoint.carried || matches!(endpoint.phase, Phase::Open { .. })) {
            return false;
        }
        let slow = is_slow(conn);
        let Some(lingers) = &mut endpoint.lingers else {
            endpoint.lingers = slow.then(|| Lingers { until: now + LINGER_WITHIN, slow });
            return slow;
        };
        if slow && now >= lingers.until {
            tracing::warn!(
                "{}: the peer did not take all data within {} s after the connection was closed: the rest is dropped",
                endpoint.peer,
                LINGER_WITHIN.as_secs()
            );
            return false;
        }
        std::mem::replace(&mut lingers.slow, slow) || slow
    }

    /// Resets a connection that has not closed in time.
    pub(super) fn teardown_timed_out(&mut self, index: EndpointIndex) {
        if let Some(endpoint) = self.endpoints.get_mut(index) {
            endpoint.farewell = Some(Farewell::Reset);
            self.schedule(index);
        }
    }
}

/// Returns the event for a failure; `None` if the application requested the end of the connection, or if a completion
/// reports the failure. Such a completion is that of the culprit, or that of the receive in hand, whose status is
/// `open_receive`.
fn fault(
    (qpn, peer): (Qpn, Option<SocketAddr>),
    why: &Why,
    terminate: Option<&Terminate>,
    blames_request: bool,
    open_receive: WcStatus,
) -> Option<AsyncEvent> {
    if blames_request || open_receive != WcStatus::Flushed {
        return None;
    }
    let (cause, detail) = match why {
        Why::Requested => return None,
        Why::Fault(cause) => (FaultCause::Peer, cause.to_string()),
        Why::WorkRequest(_) => (FaultCause::ReadSource, FaultCause::ReadSource.to_string()),
        Why::WorkLeft => (FaultCause::WorkLeft, FaultCause::WorkLeft.to_string()),
        Why::Displaced => (FaultCause::Displaced, FaultCause::Displaced.to_string()),
        Why::Unacknowledged => (FaultCause::Unacknowledged, FaultCause::Unacknowledged.to_string()),
        Why::CompletionQueueFull => (FaultCause::CqOverflow, FaultCause::CqOverflow.to_string()),
    };
    let fault = QpFault { qpn: qpn.0, peer, cause, detail, terminate: terminate.map(|t| info(t, true)) };
    // The kind of error follows from the Terminate. Without a Terminate to send, the failure counts as fatal.
    Some(match terminate.map(|t| (t.layer, t.etype)) {
        _ if terminate == Some(&Terminate::STREAM_CATASTROPHIC) => AsyncEvent::QpFatal(fault),
        Some((0 | 1, 1)) => AsyncEvent::QpAccessError(fault),
        Some((0 | 1, 2)) => AsyncEvent::QpRequestError(fault),
        _ => AsyncEvent::QpFatal(fault),
    })
}

/// Returns a Terminate in the form that the application gets.
pub(super) fn info(terminate: &Terminate, sent: bool) -> TerminateInfo {
    TerminateInfo {
        sent,
        layer: terminate.layer,
        etype: terminate.etype,
        code: terminate.code,
        meaning: terminate.meaning(),
    }
}

/// Returns the status with which the oldest incomplete work request completes after the peer's Terminate. This request
/// gets a status of its own, because the Terminate presumably concerns it.
fn blame(terminate: &Terminate) -> WcStatus {
    match (terminate.layer, terminate.etype) {
        (0, 1) => WcStatus::RemoteAccess,
        (0, 2) if matches!(terminate.code, 0x07 | 0x08 | 0xFF) => WcStatus::RemoteOperation,
        (0, 2) => WcStatus::RemoteInvalidRequest,
        (0, _) => WcStatus::RemoteOperation,
        (1, 1) => WcStatus::RemoteAccess,
        (1, _) => WcStatus::RemoteInvalidRequest,
        _ => WcStatus::Fatal,
    }
}
