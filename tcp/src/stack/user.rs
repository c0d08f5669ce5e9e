//! Calls of the user of a connection (RFC 9293 §3.9.1).

use super::bind::LocalEnd;
use super::*;

impl<B: Buffers> Stack<B> {
    /// Opens a connection to `remote` from any port. `Handler::connected` or `closed` reports the result.
    ///
    /// # Errors
    /// The open cannot be attempted.
    pub fn connect(
        &mut self,
        now: Time,
        remote: impl Into<SocketAddr>,
        tag: u64,
        tx: &mut impl Transmit<B::Payload>,
    ) -> Result<ConnId, ConnectError> {
        self.connect_from(now, None, remote, tag, tx)
    }

    /// Like [`connect`](Self::connect), but from an address that [`bind`](Self::bind) has reserved, if one is given.
    ///
    /// # Errors
    /// The open cannot be attempted. [`ConnectError::Elsewhere`] names the stack of the device that can open the
    /// connection. The reservation has the same id there.
    pub fn connect_from(
        &mut self,
        now: Time,
        from: Option<BindId>,
        remote: impl Into<SocketAddr>,
        tag: u64,
        tx: &mut impl Transmit<B::Payload>,
    ) -> Result<ConnId, ConnectError> {
        let remote = remote.into();
        let ip = remote.ip().to_canonical();
        let no_host = match ip {
            IpAddr::V4(ip) => ip.octets()[0] == 0 || ip.is_multicast() || ip.is_broadcast(),
            IpAddr::V6(ip) => is_no_host(ip),
        };
        if remote.port() == 0 || no_host {
            return Err(ConnectError::Address(remote));
        }
        let remote = SocketAddr::new(ip, remote.port());
        if self.connections.len() >= self.net.cfg.tcp.max_connections as usize {
            return Err(ConnectError::TooMany);
        }
        let hop = self.net.next_hop(ip, now).ok_or(ConnectError::Unreachable(ip))?;
        let LocalEnd { key, port, above } = self.choose_end(from, remote)?;
        let neighbour = if self.table.get(key).is_some() { None } else { self.net.hold(hop, now) };
        let Some(neighbour) = neighbour else {
            self.ports.release(key.local_port(), remote);
            return Err(ConnectError::TooMany);
        };
        let iss = self.net.initial_sequence(key, now);
        let birth = Birth {
            key,
            iss: above.map_or(iss, |above| iss.max(above)),
            ts_offset: self.net.timestamp_offset(key),
            neighbour,
            port,
        };
        let mut connection = Connection::new(birth, &self.net.cfg.tcp, &mut self.colds, now);
        connection.tag = tag;
        let id = self.adopt(connection);
        self.net.counters.active_opens += 1;
        if let Some(c) = self.connections.get_mut(id.index) {
            c.send_syn(&mut Cx { now, net: &mut self.net, tx, id });
        }
        self.note(now, id.index);
        Ok(id)
    }

    /// Returns our address for packets to `to`; `None` if there is no route.
    pub fn source_for(&self, now: Time, to: IpAddr) -> Option<IpAddr> {
        let to = to.to_canonical();
        match to {
            IpAddr::V4(ip) if ip == self.net.ip => Some(to),
            IpAddr::V4(_) => self.net.next_hop(to, now).map(|_| self.net.ip.into()),
            IpAddr::V6(ip) if self.net.inet6.is_own(ip) => Some(to),
            IpAddr::V6(ip) => {
                self.net.next_hop(to, now)?;
                self.net.inet6.source_for(ip).map(IpAddr::V6)
            }
        }
    }

    /// Sets time limits for one connection. `None`: the limits of the configuration apply.
    pub fn set_patience(&mut self, conn: ConnId, patience: Option<Patience>) {
        if let Some(c) = self.get_mut(conn) {
            c.cold.patience = patience.map(Box::new);
            c.settle_timed();
            self.schedule(conn.index);
        }
    }

    /// Returns the data octets that a segment of the connection carries (EMSS); zero if the connection is gone.
    pub fn mss(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, |c| usize::from(c.mss))
    }

    /// Enables generic segmentation offload: the link takes several segments as one frame, with up to `octets` of
    /// payload in all. The caller must know that the link splits such frames, or that its other end takes them whole.
    /// Zero disables it. Applies to all records, including those already queued.
    pub fn set_gso_max(&mut self, octets: usize) {
        // The 16-bit length of a packet also counts the IP and TCP headers and their options: at most 60 octets each.
        const MOST: usize = u16::MAX as usize - 120;
        self.net.gso_max = octets.min(MOST) as u32;
    }

    /// Returns the recommended maximum record size, in octets: the octets that leave in one frame.
    pub fn record_max(&self, conn: ConnId) -> usize {
        self.mss(conn).max(self.net.gso_max as usize)
    }

    /// Returns how many octets are worth queueing now: what the windows allow at once, and a few segments more. Zero:
    /// wait for `Handler::acked`.
    pub fn room(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, |c| c.room(&self.net.cfg.tcp, self.net.gso_max))
    }

    /// Queues one record; `output` sends it. An empty record is accepted and dropped.
    ///
    /// # Errors
    /// The connection is closed for sending, or the queue is full.
    pub fn send(&mut self, conn: ConnId, payload: B::Payload) -> Result<(), SendError> {
        let cfg = &self.net.cfg.tcp;
        let c = self.connections.get_mut(conn.index);
        let c = c.filter(|c| c.generation == conn.generation && c.may_send()).ok_or(SendError::Closed)?;
        let len = u32::try_from(payload.len()).map_err(|_| SendError::Full)?;
        if len > 0 && !c.queue(payload, len, cfg) {
            return Err(SendError::Full);
        }
        Ok(())
    }

    /// Calls `f` with every payload that is queued or in flight. `f` may replace it with another one that has the
    /// same octets.
    pub fn each_payload(&mut self, conn: ConnId, f: impl FnMut(&mut B::Payload)) {
        if let Some(c) = self.get_mut(conn) {
            c.cold.queue.each_payload(f);
        }
    }

    /// Resumes delivery, because the handler can take more of the data received on this connection. Calls
    /// [`Handler::data`] with the waiting data, and reopens the window by what the handler takes. Does nothing if no
    /// data waits.
    pub fn resume(
        &mut self,
        now: Time,
        conn: ConnId,
        h: &mut impl Handler<B::Frame>,
        tx: &mut impl Transmit<B::Payload>,
    ) {
        if self.get(conn).is_some() {
            Call { stack: self, now, handler: h, tx }.with(conn.index, |c, cx, h| c.resume(cx, h));
        }
    }

    /// Opens the window of an accepted connection fully ([`TcpConfig::wary`](crate::TcpConfig::wary)). The next
    /// segment tells the peer.
    pub fn welcome(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        self.with(now, conn, tx, |c, cx| c.welcome(cx));
    }

    /// Sends what the windows allow.
    pub fn output(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        self.with(now, conn, tx, |c, cx| c.output(cx));
    }

    /// Returns the octets that are queued and not sent yet.
    pub fn unsent(&self, conn: ConnId) -> u64 {
        self.get(conn).map_or(0, Connection::unsent)
    }

    /// Returns the octets, queued or in flight, that the peer has not acknowledged.
    pub fn unacked(&self, conn: ConnId) -> u64 {
        self.get(conn).map_or(0, Connection::unacked)
    }

    /// Returns the number of records, queued or in flight, that the peer has not acknowledged. Each of these records
    /// keeps its buffers.
    pub fn records(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, Connection::records)
    }

    /// Like [`records`](Self::records), but counts only the newest records, from the end of the queue on, for which
    /// `f` returns true.
    pub fn records_at_end(&self, conn: ConnId, f: impl FnMut(&B::Payload) -> bool) -> usize {
        self.get(conn).map_or(0, |c| c.records_at_end(f))
    }

    /// Returns since when a SYN or data has been outstanding, or has waited for the neighbour's address,
    /// without progress; `None` if none has.
    pub fn stalled_since(&self, conn: ConnId) -> Option<Time> {
        self.get(conn).map(Connection::stalled_since).filter(|since| *since < Time::MAX)
    }

    /// Sends FIN after the queued data. Data from the peer still arrives. `Handler::closed` follows when both
    /// directions are closed. A connection in SYN-SENT ends at once, as [`CloseReason::Aborted`].
    pub fn close(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        let Some(c) = self.get_mut(conn) else { return };
        if c.state == State::SynSent {
            self.end(conn, CloseReason::Aborted);
            return;
        }
        self.with(now, conn, tx, |c, cx| {
            if !c.flags.has(Flags::CLOSE) {
                c.close(cx.net);
            }
            c.output(cx);
        });
    }

    /// Ends a connection at once. Sends a RST, except in SYN-SENT, without room, or if the neighbour's address
    /// is unknown. `advance` reports the end.
    pub fn abort(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        self.with(now, conn, tx, |c, cx| c.send_reset(cx));
        self.end(conn, CloseReason::Aborted);
    }

    /// Sets whether the link is short of receive buffers. While it is, a connection holds no more frames: an
    /// out-of-order frame takes the place of one farther from the gap or is dropped, and in-order data that the handler
    /// does not take is dropped.
    pub fn set_pressure(&mut self, low: bool) {
        self.net.pressure = low;
    }

    /// Frees receive buffers when the link is about to run out of them. Every connection drops the farther half of
    /// its out-of-order frames. The peers have SACKs for these frames, but send them again when no ACK covers them
    /// (RFC 2018 §8). Octets that were acknowledged cumulatively are never dropped.
    pub fn give_back_held(&mut self) {
        for index in self.net.held.holders() {
            let Some(c) = self.connections.get_mut(index) else { continue };
            let before = c.held();
            let dropped = c.drop_farther_half();
            self.net.held.changed(index, before, before - dropped);
            self.net.counters.out_of_order_dropped += dropped as u64;
        }
    }

    /// Returns our address of a connection; `None` if it is gone.
    pub fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.get(conn).map(|c| self.net.local(c.key))
    }

    /// Returns the peer's address of a connection; `None` if it is gone.
    pub fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.get(conn).map(|c| self.net.remote(c.key))
    }

    /// Returns the figures of a connection; `None` if it is gone.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        self.get(conn).map(|c| c.info(self.net.cfg.tcp.pacing))
    }

    /// Returns all connections, except half-open ones and those in TIME-WAIT.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> {
        self.connections.iter().map(|(i, c)| c.id(i))
    }

    /// Returns the counters of the stack.
    pub fn counters(&self) -> &Counters {
        &self.net.counters
    }

    /// Returns the settings of the stack.
    pub fn config(&self) -> &StackConfig {
        &self.net.cfg
    }

    /// Returns the number of connections, of half-open connections, and of addresses in TIME-WAIT.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.connections.len(), self.embryos.len(), self.timewaits.len())
    }
}
