//! Start-up on a socket that the program has connected. The program may already have exchanged data of its own
//! protocol on it (RFC 5044 §7.1 lets this data negotiate the use of MPA). The MPA Request and Reply follow as on any
//! connection.

use super::alarms::Alarm;
use super::connect::startup_limit;
use super::endpoint::{Farewell, Phase};
use super::names::{self, EndpointIndex, Qpn};
use super::{Clock, Core, Engine};
use crate::drive::transport::{Adopted, Data, Transport};
use crate::shared::cm::{CmEvent, ConnParam, ConnectFailure, EventQueue};
use crate::shared::convert::Handover;
use crate::shared::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use urnic_iwarp::Role;
use urnic_iwarp::startup::{Limits, PeerParams, Responder};

impl<T: Transport, C: Clock> Engine<T, C> {
    /// Takes over the program's socket and begins the start-up. If this fails, the socket is unchanged.
    pub(super) fn start_conversion(
        &mut self,
        qpn: Qpn,
        handover: Handover<'_>,
        param: &ConnParam,
        events: Arc<EventQueue>,
    ) -> Result<(), Error> {
        let qp = self.core.idle_qp(qpn)?;
        let now = self.now();
        let phase = match handover.role {
            Role::Initiator => {
                let mut request = Box::new(self.core.attempt(now, None, param)?);
                request.converted = true;
                Phase::Connecting { qp, request }
            }
            Role::Responder => {
                let limits = Limits { max_rev: self.core.mpa.rev, ..Limits::default() };
                let responder = Box::new(Responder::new(limits));
                Phase::Expecting { qp, responder, answer: Box::new(param.clone()) }
            }
        };
        let Some(socket) = handover.socket.take() else { return Err(Error::NotConnected) };
        // A placeholder: the transport supplies the peer's address later.
        let nobody = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let id = self.core.add_endpoint(None, nobody, events, phase);
        let Adopted { conn, peer } =
            match self.transport.adopt(now, socket, handover.already_read, names::tag(id)) {
                Ok(adopted) => adopted,
                Err(refused) => {
                    self.core.endpoints.remove(id.index);
                    let (error, socket) = refused.into_parts();
                    *handover.socket = Some(socket);
                    return Err(error);
                }
            };
        self.transport.set_patience(conn, param.patience);
        if let Some(endpoint) = self.core.endpoints.get_mut(id.index) {
            (endpoint.conn, endpoint.peer) = (Some(conn), peer);
        }
        if let Some(core) = self.core.qps.get_mut(qp) {
            core.endpoint = Some(id.index);
        }
        // MPA-75, MPA-76: both roles have a time limit.
        self.core.set_alarm(id.index, now + startup_limit(param), Alarm::Startup);
        if handover.role == Role::Initiator {
            self.core.send_request(id.index);
        }
        self.transport.resume(now, conn, &mut self.core);
        Ok(())
    }
}

impl<D: Data> Core<D> {
    /// Returns whether endpoint `index` awaits a Request on a converted socket, and will answer it at once.
    pub(super) fn expecting(&self, index: EndpointIndex) -> bool {
        matches!(self.endpoints.get(index).map(|e| &e.phase), Some(Phase::Expecting { .. }))
    }

    /// Sends the Reply that the application has prepared, after the Request has come on a converted socket.
    pub(super) fn answer(&mut self, index: EndpointIndex, peer: &PeerParams, private_data: Vec<u8>) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        let Phase::Expecting { qp, mut responder, answer } =
            std::mem::replace(&mut endpoint.phase, Phase::Closing)
        else {
            return;
        };
        match responder.accept(&self.reply_offer(&answer)) {
            Ok((reply, negotiated)) => {
                if let Some(endpoint) = self.endpoints.get_mut(index) {
                    endpoint.queue_startup(reply);
                }
                self.open(index, qp, &negotiated, peer, private_data, answer.rnr_retry);
            }
            // The prepared Reply has more private data than an enhanced Reply carries (MPA-65).
            Err(_) => {
                let reply = responder.reject(&[]).unwrap_or_default();
                if let Some(endpoint) = self.endpoints.get_mut(index) {
                    endpoint.queue_startup(reply);
                }
                let qpn = self.release_qp(qp);
                let event = CmEvent::ConnectError { qpn: qpn.0, reason: ConnectFailure::Terms };
                self.end_startup(index, Farewell::Fin, Some(event));
            }
        }
    }
}
