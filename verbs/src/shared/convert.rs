//! Conversion of the program's sockets into connections: what is handed over, and why a socket cannot be converted.

use std::os::fd::OwnedFd;

use urnic_iwarp::Role;

use super::error::Error;

/// Why a socket cannot become the connection of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotConvertible {
    /// The descriptor is not that of a socket, but for example of a file or a pipe.
    #[error("the descriptor is not a socket")]
    NoSocket,
    /// The socket is a datagram socket, a Unix socket or one of another protocol.
    #[error("it is not a TCP socket over IPv4 or IPv6")]
    NotTcp,
    /// The socket is a listener.
    #[error("it listens: convert a socket that it has accepted")]
    Listening,
    /// The socket has never been connected, its connection is not yet established, or its connection has ended.
    #[error("it is not connected")]
    NotConnected,
    /// This end of the socket has been shut down, so that nothing more can be sent.
    #[error("it has been shut down for sending")]
    ShutDown,
}

/// Why a conversion did not begin, and the socket, unchanged.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct ConvertError {
    #[source]
    error: Error,
    socket: OwnedFd,
}

impl ConvertError {
    /// Makes an error that gives `socket` back.
    pub fn new(error: Error, socket: OwnedFd) -> Self {
        Self { error, socket }
    }

    /// Returns the reason.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the reason and the socket.
    pub fn into_parts(self) -> (Error, OwnedFd) {
        (self.error, self.socket)
    }
}

/// What a program hands over for a conversion.
pub(crate) struct Handover<'a> {
    /// The socket; the engine takes it out when the conversion has begun.
    pub(crate) socket: &'a mut Option<OwnedFd>,
    /// Octets that the program has read from the socket, and that come after the end of the program's own protocol.
    pub(crate) already_read: &'a [u8],
    /// Whether this end or the peer sends the MPA Request.
    pub(crate) role: Role,
}
