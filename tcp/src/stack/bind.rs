//! Reserved local addresses, for listeners and for connections that must come from them.

use super::*;
use crate::ipv6::is_link_local;
use crate::listen::{BindError, Bound, ListenError, Listener};
use crate::ports::Scope;
use crate::sabotage::{Rule, broken};
use crate::seq::Seq;

/// Our end of a connection that is about to be opened.
pub(super) struct LocalEnd {
    pub key: Key,
    pub port: PortFrom,
    /// Lower limit of the initial sequence number; `None`: no limit.
    pub above: Option<Seq>,
}

impl<B: Buffers> Stack<B> {
    /// Reserves a port of a local address. An unspecified address stands for all addresses of its family, and `::`
    /// stands for all addresses of both families unless `v6only` (RFC 3493 §5.3). A loopback address stands for all
    /// addresses of one family: that of the address to which [`destination`](Self::destination) leads. Port zero asks
    /// for any free port.
    ///
    /// # Errors
    /// The address is not ours, the port is taken, or no port is free.
    pub fn bind(&mut self, address: SocketAddr, v6only: bool) -> Result<Bound, BindError> {
        let scope = self.scope_of(address.ip(), v6only);
        if let Scope::One(ip) = scope
            && !self.is_ours(ip)
        {
            return Err(BindError::NotOurs(ip));
        }
        let port = self.ports.bind(scope, address.port()).map_err(|e| match e {
            PortError::InUse => BindError::InUse(address.port()),
            PortError::Exhausted => BindError::Exhausted,
        })?;
        let id = self.bindings.insert(Binding { scope, port, ours: true, listener: None });
        Ok(Bound { id: id.into(), address: SocketAddr::new(address.ip(), port) })
    }

    /// Enters a reservation that another stack of the device has made with [`bind`](Self::bind), under the same id.
    /// Only the other stack's [`unbind`](Self::unbind) frees the port. All stacks must get the calls about their
    /// reservations in the same order, so that the ids agree: the reserving stack gets `bind` where the others get this
    /// call, and all of them get [`listen`](Self::listen) and `unbind`.
    ///
    /// # Errors
    /// [`BindError::OutOfStep`]: this stack has seen other calls before and would assign another id.
    pub fn enter_binding(&mut self, bound: Bound, v6only: bool) -> Result<(), BindError> {
        if BindId::from(self.bindings.next_id()) != bound.id {
            return Err(BindError::OutOfStep);
        }
        let scope = self.scope_of(bound.address.ip(), v6only);
        self.bindings.insert(Binding { scope, port: bound.address.port(), ours: false, listener: None });
        Ok(())
    }

    fn scope_of(&self, ip: IpAddr, v6only: bool) -> Scope {
        match self.home(ip) {
            Some(IpAddr::V4(_)) => Scope::V4,
            Some(IpAddr::V6(_)) => Scope::V6,
            None => Scope::of(ip, v6only),
        }
    }

    /// Ends a reservation and its listener. Half-open connections of the listener are dropped. Open connections stay
    /// and keep the port that they were opened from until they end.
    pub fn unbind(&mut self, id: BindId) {
        if self.binding(id).is_none() {
            return;
        }
        let Some(binding) = self.bindings.remove(id.index) else { return };
        if binding.ours {
            self.ports.unbind(binding.scope, binding.port);
        }
        if binding.listener.is_none() {
            return;
        }
        if let Some(listening) = self.listening.get_mut(&binding.port) {
            listening.retain(|other| *other != id);
            if listening.is_empty() {
                self.listening.remove(&binding.port);
            }
        }
        for i in 0..self.embryos.places() {
            if self.embryos.get(i).is_some_and(|e| e.listener == id) {
                self.drop_embryo(i);
            }
        }
    }

    /// Accepts connections to a reserved address, at most `backlog` of them half open at a time. The stacks of a
    /// device share the backlog in equal parts.
    ///
    /// # Errors
    /// The reservation does not exist, or it already has a listener.
    pub fn listen(&mut self, id: BindId, backlog: usize) -> Result<(), ListenError> {
        let backlog = backlog.div_ceil(self.net.cfg.steering.stacks());
        let binding =
            self.binding_mut(id).filter(|b| b.listener.is_none()).ok_or(ListenError::NotReserved)?;
        binding.listener = Some(Listener { backlog: backlog.max(1), half_open: 0 });
        let port = binding.port;
        self.listening.entry(port).or_default().push(id);
        Ok(())
    }

    /// Reserves `port` of all addresses (zero: any free port) and listens there.
    ///
    /// # Errors
    /// The port is taken, or no port is free.
    pub fn listen_on(&mut self, port: u16, backlog: usize) -> Result<BindId, BindError> {
        let bound = self.bind((Ipv6Addr::UNSPECIFIED, port).into(), false)?;
        let listening = self.listen(bound.id, backlog);
        debug_assert!(listening.is_ok(), "a fresh reservation does not listen");
        Ok(bound.id)
    }

    /// Returns the listener at our end of `key`; `None` if there is none. There is at most one, because reservations
    /// do not overlap.
    pub(super) fn listener_at(&self, key: Key) -> Option<BindId> {
        let listening = self.listening.get(&key.local_port())?;
        let local = self.net.local(key).ip();
        let covers = |id: &&BindId| self.bindings.get(id.index).is_some_and(|b| b.scope.covers(local));
        listening.iter().find(covers).copied()
    }

    pub(super) fn listener_mut(&mut self, id: BindId) -> Option<&mut Listener> {
        self.binding_mut(id)?.listener.as_mut()
    }

    /// Chooses our end of a connection to `remote`: the reserved one, or any free port.
    pub(super) fn choose_end(
        &mut self,
        from: Option<BindId>,
        remote: SocketAddr,
    ) -> Result<LocalEnd, ConnectError> {
        let bound = match from {
            Some(id) => Some(self.binding(id).ok_or(ConnectError::NoPort)?),
            None => None,
        };
        let bound = bound.map(|b| (b.scope, b.port));
        let whole = match (remote.ip(), bound) {
            (IpAddr::V4(ip), None | Some((Scope::All | Scope::V4, _))) => ip.to_bits(),
            (IpAddr::V4(ip), Some((Scope::One(own), _))) if own.is_ipv4() => ip.to_bits(),
            (IpAddr::V6(ip), None | Some((Scope::All | Scope::V6, _))) => self.path_to(ip)?,
            (IpAddr::V6(ip), Some((Scope::One(IpAddr::V6(own)), _))) => self.path_from(own, ip)?,
            _ => return Err(ConnectError::Family(remote.ip())),
        };
        let key = |port| Key::new(whole, remote.port(), port);
        let Some((_, port)) = bound else {
            let (net, ports) = (&self.net, &mut self.ports);
            let leads_home = |port| {
                let key = key(port);
                let steering = &net.cfg.steering;
                steering.is_alone()
                    || broken(Rule::PortsLeadHome)
                    || steering.other_owner(net.local(key), remote).is_none()
            };
            let port = ports.connect(remote, &leads_home).map_err(|_| ConnectError::NoPort)?;
            return Ok(LocalEnd { key: key(port), port: PortFrom::Choice, above: None });
        };
        if let Some(owner) = self.other_owner(key(port)) {
            return Err(ConnectError::Elsewhere(owner));
        }
        self.ports.connect_from(port, remote).map_err(|_| ConnectError::InUse(port))?;
        let mut end = LocalEnd { key: key(port), port: PortFrom::Binding, above: None };
        // With an initial sequence number above this limit, the peer cannot confuse new segments with those of the
        // old connection that it may remember. The same rule applies when the peer reopens the connection (RFC 9293
        // §3.6.1).
        if let Some(Place::TimeWait(index)) = self.table.get(end.key).map(Place::unpack) {
            end.above = self.timewaits.get(index).map(TimeWait::next_sequence);
            self.end_timewait(index);
        }
        Ok(end)
    }

    /// Returns the stack of the device that must open a connection to `remote` from a reserved address; `None` if the
    /// reservation does not exist or cannot reach that address.
    pub fn home_of(&self, from: BindId, remote: SocketAddr) -> Option<usize> {
        let binding = self.binding(from)?;
        let ip = remote.ip().to_canonical();
        let local = match (binding.scope, ip) {
            (Scope::One(own), _) => own,
            (_, IpAddr::V4(_)) => self.net.ip.into(),
            (_, IpAddr::V6(ip)) => self.net.inet6.source_for(ip)?.into(),
        };
        let (local, remote) = (SocketAddr::new(local, binding.port), SocketAddr::new(ip, remote.port()));
        (local.is_ipv4() == remote.is_ipv4()).then(|| self.net.cfg.steering.owner(local, remote))
    }

    fn binding(&self, id: BindId) -> Option<&Binding> {
        self.bindings.get(self.bindings.find(id.into())?)
    }

    fn binding_mut(&mut self, id: BindId) -> Option<&mut Binding> {
        self.bindings.get_mut(self.bindings.find(id.into())?)
    }

    /// Returns the destination of a connection to `to`. A loopback address leads to an address of ours, because the
    /// stack has no loopback addresses.
    pub fn destination(&self, to: SocketAddr) -> SocketAddr {
        self.home(to.ip()).map_or(to, |home| SocketAddr::new(home, to.port()))
    }

    /// Returns the address of ours that a loopback address leads to; `None` for any other address. It is our first
    /// address of the same family that is not link-local, else a link-local one of the same family, else our first
    /// address of the other family.
    fn home(&self, ip: IpAddr) -> Option<IpAddr> {
        let ip = ip.to_canonical();
        if !ip.is_loopback() {
            return None;
        }
        let own = self.addresses();
        let rank = |own: &IpAddr| match own {
            _ if own.is_ipv4() != ip.is_ipv4() => 2,
            IpAddr::V6(own) if is_link_local(*own) => 1,
            _ => 0,
        };
        own.iter().map(|own| own.ip).min_by_key(rank)
    }

    /// Returns whether the address is ours, or is about to be.
    fn is_ours(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip == self.net.ip,
            IpAddr::V6(ip) => self.net.inet6.is_own(ip) || self.net.inet6.is_tentative(ip),
        }
    }
}
