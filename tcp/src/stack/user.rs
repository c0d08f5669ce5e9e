//! What the user of a connection calls (RFC 9293 §3.9.1), and asks.

use super::bind::LocalEnd;
use super::*;

impl<B: Buffers> Stack<B> {
    /// Opens a connection to `remote` from any port. `Handler::connected` or `closed` tells how it went.
    ///
    /// # Errors
    /// It cannot even be tried.
    pub fn connect(
        &mut self,
        now: Time,
        remote: impl Into<SocketAddr>,
        tag: u64,
        tx: &mut impl Transmit<B::Payload>,
    ) -> Result<ConnId, ConnectError> {
        self.connect_from(now, None, remote, tag, tx)
    }

    /// As [`connect`](Self::connect), from an address that [`bind`](Self::bind) has reserved, if one is given.
    ///
    /// # Errors
    /// It cannot even be tried. [`ConnectError::Elsewhere`] names the stack of the device that can open it, under the same
    /// name of the address.
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
        let mut connection = Connection::new(birth, &self.net.cfg.tcp, now);
        connection.tag = tag;
        let id = self.adopt(connection);
        self.net.counters.active_opens += 1;
        if let Some(c) = self.connections.get_mut(id.index) {
            c.send_syn(&mut Cx { now, net: &mut self.net, tx, id });
        }
        self.note(now, id.index);
        Ok(id)
    }

    /// Returns the address of ours that packets to `to` come from; `None` if there is no way to it.
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

    /// Gives a connection time limits of its own, or with `None` those of the configuration.
    pub fn set_patience(&mut self, conn: ConnId, patience: Option<Patience>) {
        if let Some(c) = self.get_mut(conn) {
            c.cold.patience = patience.map(Box::new);
            c.timed = true;
            self.schedule(conn.index);
        }
    }

    /// Octets of data that a segment of the connection carries (EMSS); zero for a connection that is gone.
    pub fn mss(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, |c| usize::from(c.mss))
    }

    /// The link takes several segments as one frame, with up to `octets` of payload in all, and its other end can deal
    /// with them (generic segmentation offload); zero if not. Concerns records queued from now on, and those queued.
    pub fn set_gso_max(&mut self, octets: usize) {
        // Headers and options are in the packet's length too.
        const MOST: usize = u16::MAX as usize - 120;
        self.net.gso_max = octets.min(MOST) as u32;
    }

    /// Octets that a record had best have at most: as many as leave in one frame.
    pub fn record_max(&self, conn: ConnId) -> usize {
        self.mss(conn).max(self.net.gso_max as usize)
    }

    /// Octets worth queueing now: what the windows let go at once and a few segments more. Zero: wait for
    /// `Handler::acked`.
    pub fn room(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, |c| c.room(&self.net.cfg.tcp, self.net.gso_max))
    }

    /// Queues one record; `output` sends it. An empty one is accepted and forgotten.
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

    /// Calls `f` with every payload that is queued or in flight, which may put another one with the same octets in its
    /// place.
    pub fn each_payload(&mut self, conn: ConnId, f: impl FnMut(&mut B::Payload)) {
        if let Some(c) = self.get_mut(conn) {
            c.cold.queue.each_payload(f);
        }
    }

    /// The handler can take more of what this connection has received: [`Handler::data`] is called with what waits, and
    /// the window reopens by what is taken. Nothing happens to a connection on which nothing waits.
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

    /// Gives an accepted connection the whole window ([`TcpConfig::wary`](crate::TcpConfig::wary)), of which the peer
    /// hears with the next segment.
    pub fn welcome(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        self.with(now, conn, tx, |c, cx| c.welcome(cx));
    }

    /// Sends what the windows allow.
    pub fn output(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        self.with(now, conn, tx, |c, cx| c.output(cx));
    }

    /// Octets queued and not sent yet.
    pub fn unsent(&self, conn: ConnId) -> u64 {
        self.get(conn).map_or(0, Connection::unsent)
    }

    /// Octets queued or in flight that the peer has not acknowledged.
    pub fn unacked(&self, conn: ConnId) -> u64 {
        self.get(conn).map_or(0, Connection::unacked)
    }

    /// Records queued or in flight that the peer has not acknowledged, each with its buffers.
    pub fn records(&self, conn: ConnId) -> usize {
        self.get(conn).map_or(0, Connection::records)
    }

    /// As [`records`](Self::records), of those at the end of the queue, the newest, whose payload `f` holds of.
    pub fn records_at_end(&self, conn: ConnId, f: impl FnMut(&B::Payload) -> bool) -> usize {
        self.get(conn).map_or(0, |c| c.records_at_end(f))
    }

    /// Since when the peer has acknowledged nothing of what it was sent; `None` if nothing is outstanding.
    pub fn stalled_since(&self, conn: ConnId) -> Option<Time> {
        self.get(conn).map(Connection::stalled_since).filter(|since| *since < Time::MAX)
    }

    /// Sends FIN after what is queued. Data from the peer still arrives; `Handler::closed` follows when both
    /// directions are closed.
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

    /// Ends a connection at once, with a RST. `advance` reports it.
    pub fn abort(&mut self, now: Time, conn: ConnId, tx: &mut impl Transmit<B::Payload>) {
        self.with(now, conn, tx, |c, cx| c.send_reset(cx));
        self.end(conn, CloseReason::Aborted);
    }

    /// The link is (or no longer is) short of receive buffers: no more out-of-order frames are held.
    pub fn set_pressure(&mut self, low: bool) {
        self.net.pressure = low;
    }

    /// The link is about to run out of receive buffers: every connection gives the farther half of its out-of-order frames
    /// back. Their peers have been told that they arrived, and will send them again (RFC 2018 §8). Acknowledged octets
    /// are never dropped.
    pub fn give_back_held(&mut self) {
        for index in self.net.held.holders() {
            let Some(c) = self.connections.get_mut(index) else { continue };
            let before = c.held();
            let dropped = c.drop_farther_half();
            self.net.held.changed(index, before, before - dropped);
            self.net.counters.out_of_order_dropped += dropped as u64;
        }
    }

    /// Our end of a connection.
    pub fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.get(conn).map(|c| self.net.local(c.key))
    }

    /// The other end.
    pub fn peer_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.get(conn).map(|c| self.net.remote(c.key))
    }

    /// A connection's figures.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        self.get(conn).map(|c| c.info(self.net.cfg.tcp.pacing))
    }

    /// All connections, without those half open and in TIME-WAIT.
    pub fn connections(&self) -> impl Iterator<Item = ConnId> {
        self.connections.iter().map(|(i, c)| c.id(i))
    }

    /// What the stack has seen and done.
    pub fn counters(&self) -> &Counters {
        &self.net.counters
    }

    /// Its settings.
    pub fn config(&self) -> &StackConfig {
        &self.net.cfg
    }

    /// How many connections there are, half-open ones, and addresses in TIME-WAIT.
    pub fn census(&self) -> (usize, usize, usize) {
        (self.connections.len(), self.embryos.len(), self.timewaits.len())
    }
}
