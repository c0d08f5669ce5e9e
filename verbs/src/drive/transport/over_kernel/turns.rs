//! Turns: connections and listeners that the kernel has reported as ready get a turn each, in which their events are
//! handled.

use std::io;
use std::sync::Arc;

use urnic_tcp::{BindId, CloseReason, ConnId, Time};

use super::poll::Ready;
use super::socket::{Accepted, Read};
use super::stream::{Received, reason};
use super::{ACCEPTS, BULK, OverKernel, REST, SHARE, Token};
use crate::drive::transport::Events;

impl OverKernel {
    /// Asks the kernel which sockets are ready, and puts them into the ready list. Returns false if the kernel
    /// reports none.
    pub(super) fn look(&mut self) -> bool {
        let waiting = self.ready.len();
        let (mut newcomers, mut overtaken) = (0, false);
        let mut heard = self.ask(&mut newcomers, &mut overtaken);
        if overtaken {
            heard |= self.ask(&mut newcomers, &mut overtaken);
        }
        // A new socket is writable, so the kernel reports it at once, maybe before its data has arrived. Data may
        // therefore be reported in another order than that in which the connections came in. Newcomers are sorted here,
        // so that the programs on both sides number their connections in the same order.
        if newcomers > 1 {
            let streams = &self.streams;
            let order = |token: &Token| match *token {
                Token::Stream(conn) => {
                    let stream = streams.find(conn.into()).and_then(|index| streams.get(index));
                    stream.and_then(|stream| stream.newcomer)
                }
                Token::Place(_) => None,
            };
            self.ready.make_contiguous()[waiting..].sort_by_key(order);
        }
        heard
    }

    /// Asks the kernel once. Returns false if the kernel reports nothing.
    ///
    /// A newcomer is an accepted connection from which no data was read yet. Adds the number of newcomers with data to
    /// `newcomers`. Sets `overtaken` if the kernel reports a newcomer without data before a newcomer with data: the
    /// data of the former may have arrived since, so that the caller must ask again to find the right order.
    fn ask(&mut self, newcomers: &mut usize, overtaken: &mut bool) -> bool {
        let (streams, places, ready) = (&mut self.streams, &mut self.places, &mut self.ready);
        let mut silent = false;
        self.poll.look(|Ready { token, readable, writable, ended }| {
            let token = Token::unpack(token);
            let listed = match token {
                Token::Stream(conn) => {
                    let Some(index) = streams.find(conn.into()) else { return };
                    let Some(stream) = streams.get_mut(index) else { return };
                    stream.readable |= readable;
                    stream.ends |= ended;
                    // That a socket is writable matters only to a connection that waits for this.
                    let lacked = writable && (stream.blocked || stream.connecting);
                    stream.blocked &= !writable;
                    let matters = lacked || (stream.readable && !stream.stopped);
                    if stream.newcomer.is_some() {
                        *newcomers += usize::from(matters);
                        *overtaken |= matters && silent;
                        silent |= !matters;
                    }
                    if !matters {
                        return;
                    }
                    &mut stream.listed
                }
                Token::Place(bound) => {
                    let Some(index) = places.find(bound.into()) else { return };
                    let Some(place) = places.get_mut(index) else { return };
                    &mut place.listed
                }
            };
            if !std::mem::replace(listed, true) {
                ready.push_back(token);
            }
        })
    }

    /// Runs the turn of a connection. Returns true if the turn had anything to do.
    pub(super) fn serve(&mut self, now: Time, conn: ConnId, events: &mut impl Events<Received>) -> bool {
        let Some(stream) = self.stream_mut(conn) else { return false };
        stream.listed = false;
        if stream.connecting {
            return self.arrived(conn, events);
        }
        let waits = !stream.queue.is_empty();
        if waits && !stream.blocked {
            self.put_out(now, conn);
            // This is reported even if the kernel has taken no octets, because there may be room now.
            self.tell_taken(conn, events);
        }
        let read = self.stream(conn).is_some_and(|stream| stream.readable && !stream.stopped);
        waits | (read && self.read(conn, events))
    }

    /// Handles the outcome of an attempt to open a connection.
    fn arrived(&mut self, conn: ConnId, events: &mut impl Events<Received>) -> bool {
        let Some(stream) = self.stream_mut(conn) else { return false };
        if let Some(error) = stream.socket.error() {
            let why = reason(&error);
            if let Some(stream) = self.remove(conn) {
                events.closed(conn, stream.tag, why);
            }
            return true;
        }
        stream.connecting = false;
        stream.blocked = false;
        stream.measure();
        let tag = stream.tag;
        self.counters.connected += 1;
        self.warm(conn, 0);
        events.connected(conn, tag);
        true
    }

    /// Notes that a read of a connection returned this many octets. If they are fewer than [`BULK`], makes the
    /// connection the first of the hot ones; otherwise, it is no longer hot.
    #[inline]
    pub(super) fn warm(&mut self, conn: ConnId, octets: usize) {
        let bulk = octets >= BULK;
        if !bulk && self.hot.first() == Some(&conn) {
            return;
        }
        self.hot.retain(|other| *other != conn);
        if bulk {
            return;
        }
        if self.hot.is_full() {
            self.hot.pop();
        }
        self.hot.insert(0, conn);
    }

    /// Reads octets that have arrived, at most as many as a turn allows, and passes them to the engine. Returns true
    /// if data or an end had arrived.
    #[inline]
    pub(super) fn read(&mut self, conn: ConnId, events: &mut impl Events<Received>) -> bool {
        // If the engine holds data that was read before, it holds the buffer, and a new buffer is needed.
        if Arc::get_mut(&mut self.buffer).is_none() {
            self.buffer = vec![0; self.buffer.len()].into();
        }
        let Some(index) = self.streams.find(conn.into()) else { return false };
        let (Some(stream), Some(buffer)) = (self.streams.get_mut(index), Arc::get_mut(&mut self.buffer))
        else {
            return false;
        };
        let most = if self.ready.is_empty() { buffer.len() } else { buffer.len().min(SHARE) };
        let outcome = stream.socket.receive(&mut buffer[..most]);
        match outcome {
            Ok(Read::Octets(n)) => {
                stream.newcomer = None;
                if n >= BULK && !std::mem::replace(&mut stream.wide, true) {
                    stream.socket.open_window();
                }
                // After a short read, the kernel reports when more data arrives.
                stream.readable = stream.ends || n == most;
                let (tag, more) = (stream.tag, stream.readable);
                self.counters.reads += 1;
                self.counters.octets_in += n as u64;
                self.warm(conn, n);
                if let Some(rest) = events.data(conn, tag, Received::new(&self.buffer, n)) {
                    let rest = rest.copied();
                    if let Some(stream) = self.stream_mut(conn) {
                        (stream.stopped, stream.waiting) = (true, Some(rest));
                    }
                } else if more {
                    self.list(conn);
                }
                true
            }
            Ok(Read::Nothing) => {
                stream.readable = false;
                if let Some(why) = stream.failure {
                    self.lost(conn, why, events);
                }
                false
            }
            Ok(Read::End) => {
                self.tell_taken(conn, events);
                self.heard_end(conn, events);
                true
            }
            Err(error) => {
                let why = stream.failure;
                self.lost(conn, why.unwrap_or_else(|| reason(&error)), events);
                true
            }
        }
    }

    /// Reports to the engine the octets that the kernel has taken. This must precede the report of the peer's FIN:
    /// otherwise requests that the peer already has, and in answer to which it closes the connection, would be flushed.
    pub(super) fn tell_taken(&mut self, conn: ConnId, events: &mut impl Events<Received>) {
        if let Some(stream) = self.stream_mut(conn) {
            let (tag, octets) = (stream.tag, std::mem::take(&mut stream.untold));
            events.acked(conn, tag, octets);
        }
    }

    /// Removes a connection that has ended, after all arrived data was read, and tells the engine.
    #[cold]
    fn lost(&mut self, conn: ConnId, why: CloseReason, events: &mut impl Events<Received>) {
        if let Some(stream) = self.remove(conn) {
            events.closed(conn, stream.tag, why);
        }
    }

    /// Handles the end of the peer's half.
    #[cold]
    fn heard_end(&mut self, conn: ConnId, events: &mut impl Events<Received>) {
        let Some(stream) = self.stream_mut(conn) else { return };
        stream.readable = false;
        if let Some(why) = stream.failure {
            return self.lost(conn, why, events);
        }
        let (tag, shut) = (stream.tag, stream.shut);
        if !std::mem::replace(&mut stream.heard_end, true) {
            events.finished(conn, tag);
        }
        if shut {
            self.lost(conn, CloseReason::Graceful, events);
        }
    }

    /// Runs the turn of a listener: accepts connections that have come in.
    pub(super) fn admit(&mut self, now: Time, bound: BindId, events: &mut impl Events<Received>) -> bool {
        let Some(place) = self.place_mut(bound) else { return false };
        place.listed = false;
        for _ in 0..ACCEPTS {
            let Some(place) = self.place_mut(bound) else { return true };
            let accepted = match place.door.socket.accept() {
                Ok(Accepted::Connection(socket, peer)) => self.add(socket, peer).map(|conn| (conn, peer)),
                Ok(Accepted::Gone) => continue,
                Ok(Accepted::Nothing) => {
                    place.complained = false;
                    return true;
                }
                Err(error) => Err(error),
            };
            match accepted {
                Ok((conn, peer)) => {
                    self.counters.accepted += 1;
                    let tag = events.incoming(bound, conn, peer);
                    let patience = self.patience;
                    let accepted = self.counters.accepted;
                    if let Some(stream) = self.stream_mut(conn) {
                        stream.tag = tag;
                        stream.newcomer = Some(accepted);
                        stream.measure();
                        let _ = stream.socket.set_keepalive(patience.keepalive);
                    }
                }
                Err(error) => {
                    self.rest(now, bound, &error);
                    return true;
                }
            }
        }
        if let Some(place) = self.place_mut(bound)
            && !std::mem::replace(&mut place.listed, true)
        {
            self.ready.push_back(Token::Place(bound));
        }
        true
    }

    /// Hands queued data to the kernel, even if the kernel cannot send it soon: all of it, or as much as the system's
    /// limit allows ([`take_much`](super::socket::Socket::take_much)). The kernel continues to send this data after
    /// the sockets are closed, as long as the peers are alive.
    #[cold]
    pub(super) fn leave_to_kernel(&mut self) {
        let all: Vec<u32> = self.streams.iter().map(|(index, _)| index).collect();
        for index in all {
            if let Some(stream) = self.streams.get_mut(index)
                && !stream.queue.is_empty()
                && stream.failure.is_none()
            {
                stream.socket.take_much(stream.queue.octets());
                stream.blocked = false;
                stream.output(&mut self.pieces, &mut self.spare);
            }
        }
    }

    /// Makes a listener rest, because it cannot accept connections now.
    #[cold]
    fn rest(&mut self, now: Time, bound: BindId, error: &io::Error) {
        if let Some(place) = self.place_mut(bound) {
            // Warns only once until all waiting connections were accepted, because the shortage may last for hours.
            if !std::mem::replace(&mut place.complained, true) {
                let remedy = match error.raw_os_error() {
                    Some(libc::EMFILE) => {
                        "; this process has no file descriptor left: close connections, or raise the limit (ulimit -n)"
                    }
                    Some(libc::ENFILE) => {
                        "; the system has no file descriptor left: raise its limit (sysctl fs.file-max)"
                    }
                    Some(libc::ENOSPC) => {
                        "; the user has too many sockets for epoll: raise the limit (sysctl \
                         fs.epoll.max_user_watches)"
                    }
                    _ => "",
                };
                tracing::warn!(
                    "cannot accept connections to {}, so they wait: {error}{remedy}",
                    place.door.address
                );
            }
            place.listed = true;
            self.resting.push(bound);
            self.wake_at = self.wake_at.min(now + REST);
        }
    }
}
