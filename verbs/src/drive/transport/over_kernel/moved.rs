//! Connections that go from one engine of a device to another, with their sockets.

use std::any::Any;
use std::io;
use std::os::fd::AsFd;

use urnic_tcp::ConnId;

use super::stream::Stream;
use super::{OverKernel, Token};
use crate::shared::error::{Error, Result};

impl OverKernel {
    /// Takes a connection out as it is. The kernel no longer tells this engine of it.
    pub(super) fn send_off(&mut self, conn: ConnId) -> Option<Box<dyn Any + Send>> {
        let stream = self.streams.remove(self.streams.find(conn.into())?)?;
        self.poll.remove(stream.socket.as_fd());
        Some(Box::new(stream))
    }

    /// Takes in what another engine has sent off. The kernel tells of what is there already when it is asked to tell.
    pub(super) fn welcome_in(&mut self, moved: Box<dyn Any + Send>, tag: u64) -> Result<ConnId> {
        let Ok(mut stream) = moved.downcast::<Stream>() else { return Err(Error::RequestGone) };
        // The other engine's lists know nothing of it.
        (stream.tag, stream.listed, stream.watched, stream.newcomer) = (tag, false, false, None);
        let id = self.streams.insert(*stream);
        let conn = id.into();
        let added = match self.streams.get(id.index) {
            Some(stream) => self.poll.add(stream.socket.as_fd(), Token::Stream(conn).pack()),
            None => Err(io::ErrorKind::Other.into()),
        };
        if let Err(source) = added {
            // By a FIN the peer would think that this end does not know its revision of MPA, and try another.
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
