//! Connections that strangers can make, each kind in a room of its own: those in start-up, requests that the program has
//! not answered, and those that are over and have not closed. Together with what the program's queue pairs may have they
//! leave room in TCP's table, so that no kind keeps newcomers out.

use super::crowd::Crowd;
use super::endpoint::{Farewell, Phase, Room};
use super::names::EndpointIndex;
use super::{Core, TEARDOWN_WITHIN};
use crate::drive::transport::Data;
use crate::shared::numbers::MAX_QPS;
use crate::shared::waiting::Waiting;
use std::sync::Arc;
use urnic_tcp::{ConnId, Time};

/// Connections whose time is over, per pass.
const ENDED_PER_PASS: usize = 16;

/// The rooms.
pub(super) struct Rooms {
    starting: Crowd<EndpointIndex>,
    closing: Crowd<EndpointIndex>,
    /// Those that close and had a queue pair.
    carried: Crowd<EndpointIndex>,
    /// Requests that the program has not answered, at all listeners.
    pub(super) waiting: Arc<Waiting>,
    /// Endpoints that end when the burst has been worked off: they need not take turns with queue pairs, because each
    /// has cost a frame.
    parting: Vec<EndpointIndex>,
}

impl Rooms {
    /// The rooms of a stack that has at most `connections`: of 524,288 4,096 in start-up, 8,192 before the program, and
    /// 16,384 that close and never had a queue pair. Those that had one are as many as there are queue pairs.
    pub(super) fn new(connections: u32) -> Self {
        let all = connections as usize;
        Self {
            starting: Crowd::new(all / 128),
            closing: Crowd::new(all / 32),
            carried: Crowd::new((MAX_QPS as usize).min(all / 4)),
            waiting: Waiting::of_device(all / 64),
            parting: Vec::new(),
        }
    }

    /// When the next seat is over, or something parts.
    pub(super) fn next(&self) -> Option<Time> {
        if self.someone_parts() {
            return Some(Time::ZERO);
        }
        [&self.starting, &self.closing, &self.carried].into_iter().filter_map(Crowd::next).min()
    }

    pub(super) fn someone_parts(&self) -> bool {
        !self.parting.is_empty()
    }

    /// One of those that end now.
    pub(super) fn next_parting(&mut self) -> Option<EndpointIndex> {
        self.parting.pop()
    }

    fn crowd(&mut self, room: Room) -> &mut Crowd<EndpointIndex> {
        match room {
            Room::Starting => &mut self.starting,
            Room::Closing => &mut self.closing,
            Room::Carried => &mut self.carried,
        }
    }
}

impl<D: Data> Core<D> {
    /// Seats an endpoint until `until`. If the room is full, the oldest of the source that has most is reset.
    pub(super) fn take_seat(&mut self, index: EndpointIndex, room: Room, until: Time) {
        self.leave_seat(index);
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        let (seat, displaced) = self.rooms.crowd(room).enter(index, endpoint.peer.ip(), until);
        endpoint.seat = Some((room, seat));
        self.tend_at = self.tend_at.min(until);
        if let Some(other) = displaced {
            if let Some(endpoint) = self.endpoints.get_mut(other) {
                endpoint.seat = None;
            }
            self.dismiss(other, Farewell::Reset);
        }
    }

    pub(super) fn leave_seat(&mut self, index: EndpointIndex) {
        if let Some((room, seat)) = self.endpoints.get_mut(index).and_then(|e| e.seat.take()) {
            self.rooms.crowd(room).leave(seat);
        }
    }

    /// An endpoint is over: it has [`TEARDOWN_WITHIN`] to close, or longer if it [`waits`](Self::waits_for_peer).
    pub(super) fn close_endpoint(&mut self, index: EndpointIndex) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        endpoint.phase = Phase::Closing;
        endpoint.listener = None;
        let room = if endpoint.carried { Room::Carried } else { Room::Closing };
        if endpoint.conn.is_some() {
            self.take_seat(index, room, self.now + TEARDOWN_WITHIN);
        }
    }

    /// Ends the connection of a peer that is not in RDMA mode, when the burst has been worked off; by a FIN only where
    /// nothing was said to it.
    pub(super) fn dismiss(&mut self, index: EndpointIndex, farewell: Farewell) {
        match farewell {
            Farewell::Fin => {
                self.close_endpoint(index);
                if let Some(endpoint) = self.endpoints.get_mut(index) {
                    endpoint.phase = Phase::Dismissed;
                }
            }
            Farewell::Reset => {
                self.leave_seat(index);
                if let Some(endpoint) = self.endpoints.get_mut(index) {
                    endpoint.phase = Phase::Closing;
                    endpoint.listener = None;
                }
            }
        }
        self.part(index, farewell);
    }

    /// As [`farewell`](Self::farewell) for an endpoint that is over, when the burst has been worked off.
    pub(super) fn part(&mut self, index: EndpointIndex, farewell: Farewell) {
        if let Some(endpoint) = self.endpoints.get_mut(index) {
            endpoint.bid(farewell);
            self.rooms.parting.push(index);
            self.tend_at = Time::ZERO;
        }
    }

    /// Resets connections whose time is over: the MPA Request is not complete (MPA-75, MPA-76), or the peer does not close,
    /// and `is_slow` does not say why.
    pub(super) fn clear_rooms(&mut self, is_slow: impl Fn(ConnId) -> bool) {
        for room in [Room::Starting, Room::Closing, Room::Carried] {
            for _ in 0..ENDED_PER_PASS {
                let Some(index) = self.rooms.crowd(room).due(self.now) else { break };
                if self.waits_for_peer(index, &is_slow) {
                    self.take_seat(index, room, self.now + TEARDOWN_WITHIN);
                } else {
                    self.dismiss(index, Farewell::Reset);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
