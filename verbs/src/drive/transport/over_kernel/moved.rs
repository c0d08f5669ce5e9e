//! Connections that move, with their sockets, from one engine of a device to another.

use std::any::Any;
use std::io;
use std::os::fd::AsFd;

use urnic_tcp::ConnId;

use super::stream::Stream;
use super::{OverKernel, Token};
use crate::shared::error::{Error, Result};

impl OverKernel {
    /// Removes a connection without closing it, and returns its stream. The kernel no longer reports its events to
    /// this engine.
    pub(super) fn send_off(&mut self, conn: ConnId) -> Option<Box<dyn Any + Send>> {
        let stream = self.streams.remove(self.streams.find(conn.into())?)?;
        self.poll.remove(stream.socket.as_fd());
        Some(Box::new(stream))
    }

    /// Takes in a connection that another engine has removed. The kernel also reports to this engine what happened
    /// before the move.
    pub(super) fn welcome_in(&mut self, moved: Box<dyn Any + Send>, tag: u64) -> Result<ConnId> {
        let Ok(mut stream) = moved.downcast::<Stream>() else { return Err(Error::RequestGone) };
        // The connection is in none of this engine's lists yet.
        (stream.tag, stream.listed, stream.watched, stream.newcomer) = (tag, false, false, None);
        let id = self.streams.insert(*stream);
        let conn = id.into();
        let added = match self.streams.get(id.index) {
            Some(stream) => self.poll.add(stream.socket.as_fd(), Token::Stream(conn).pack()),
            None => Err(io::ErrorKind::Other.into()),
        };
        if let Err(source) = added {
            // The connection is reset, because after a FIN the peer would conclude that this side does not know the
            // peer's revision of MPA, and would try another revision.
            if let Some(stream) = self.streams.remove(id.index) {
                stream.socket.reset();
            }
            return Err(Error::os("epoll", source));
        }
        if self.stream(conn).is_some_and(|stream| stream.readable) {
            self.list(conn);
        }
        Ok(conn)
    }
}
