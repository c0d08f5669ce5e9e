//! Keeps peers from burdening the engine with too many connections. Each kind of connection has a room with a
//! maximum number of seats: connections in start-up, requests that the program has not answered, connections
//! that ended in start-up but have not closed, and connections that have lost their queue pair but have not
//! closed. Even if all rooms are full and all queue pairs are connected, TCP's table has free places, so that
//! newcomers always get in.

use super::crowd::Crowd;
use super::endpoint::{Farewell, Phase, Room};
use super::names::EndpointIndex;
use super::{Core, TEARDOWN_WITHIN};
use crate::drive::transport::Data;
use crate::shared::numbers::MAX_QPS;
use crate::shared::waiting::Waiting;
use std::sync::Arc;
use urnic_tcp::{ConnId, Time};

/// Maximum number of overdue connections of one room that are ended in one pass.
const ENDED_PER_PASS: usize = 16;

/// The rooms of an engine.
pub(super) struct Rooms {
    starting: Crowd<EndpointIndex>,
    closing: Crowd<EndpointIndex>,
    /// Closing connections that were in RDMA mode.
    carried: Crowd<EndpointIndex>,
    /// Requests that the program has not answered, at all listeners.
    pub(super) waiting: Arc<Waiting>,
    /// Endpoints that end once the present burst has been handled, without waiting for a turn among the queue pairs.
    /// They cannot crowd out the queue pairs, because each of them has cost its peer at least one frame.
    parting: Vec<EndpointIndex>,
}

impl Rooms {
    /// Makes the rooms of a transport that has at most `connections` connections. Of 524,288 connections, 4,096 may be
    /// in start-up, 8,192 may wait for the program, and 16,384 that were never in RDMA mode may be closing. The number
    /// of closing connections that were in RDMA mode is limited to a device's maximum number of queue pairs.
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

    /// Returns when the next seat expires or an endpoint ends; `None`: never.
    pub(super) fn next(&self) -> Option<Time> {
        if self.has_ending() {
            return Some(Time::ZERO);
        }
        [&self.starting, &self.closing, &self.carried].into_iter().filter_map(Crowd::next).min()
    }

    pub(super) fn has_ending(&self) -> bool {
        !self.parting.is_empty()
    }

    /// Takes one of the endpoints that end now; `None` if no endpoint ends.
    pub(super) fn next_ending(&mut self) -> Option<EndpointIndex> {
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
    /// Seats an endpoint in `room` until `until`. If the room is full, resets the oldest endpoint of the source that
    /// has most seats there.
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

    /// Puts an endpoint that is over into [`Phase::Closing`]. Its connection has [`TEARDOWN_WITHIN`] to close, or
    /// longer if it [waits for its peer](Self::waits_for_peer).
    pub(super) fn close_endpoint(&mut self, index: EndpointIndex) {
        let Some(endpoint) = self.endpoints.get_mut(index) else { return };
        endpoint.phase = Phase::Closing;
        endpoint.listener = None;
        let room = if endpoint.carried { Room::Carried } else { Room::Closing };
        if endpoint.conn.is_some() {
            self.take_seat(index, room, self.now + TEARDOWN_WITHIN);
        }
    }

    /// Ends the connection of an endpoint that is not in RDMA mode, once the present burst of frames has been handled.
    /// The caller may ask for a FIN only if nothing was sent to the peer.
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

    /// Ends an endpoint that is over, as [`farewell`](Self::farewell) does, once the present burst has been handled.
    pub(super) fn part(&mut self, index: EndpointIndex, farewell: Farewell) {
        if let Some(endpoint) = self.endpoints.get_mut(index) {
            endpoint.set_farewell(farewell);
            self.rooms.parting.push(index);
            self.tend_at = Time::ZERO;
        }
    }

    /// Resets overdue connections: those whose MPA Request is not complete (MPA-75, MPA-76), and those that have not
    /// closed in time, unless they [wait for a slow peer](Self::waits_for_peer).
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
