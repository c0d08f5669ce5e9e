//! An engine without a network, for tests of the code around it. All posted work completes. A Send arrives at the
//! queue pair at the other end of the connection if a receive is posted there.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use urnic_config::{Cidr, Progress};
use urnic_iwarp::Role;
use urnic_iwarp::startup::{Negotiated, PeerParams};
use urnic_tcp::{BindId, Bound};

use crate::api::device::{Device, World};
use crate::drive::shard::{Deed, EngineAttr, EngineOps, Occasion, Shards, Ties, Undriven, Way};
use crate::drive::wakeup::Wakeup;
use crate::shared::cm::{
    CmEvent, ConnParam, ConnRequest, ConnectFailure, DisconnectReason, EventQueue, RequestId, Terms,
};
use crate::shared::connection::ConnectionAttr;
use crate::shared::doorbell::Doorbells;
use crate::shared::engines::{Commons, EngineNumber};
use crate::shared::error::{Error, Result};
use crate::shared::events::AsyncEvent;
use crate::shared::memory::{MrTable, PageAllocator};
use crate::shared::numbers::MAX_QPS;
use crate::shared::qp::{QpConnection, QpShared, QpState, Receives};
use crate::shared::queue::WrNumber;
use crate::shared::waiting::Waiting;
use crate::shared::wc::{Wc, WcFlags, WcOpcode, WcStatus};
use crate::shared::wr::SendFlags;

/// The address of all peers.
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// State of the engine that a test observes, and settings by which the test controls the engine.
#[derive(Default)]
pub(crate) struct Knobs {
    pub(crate) passes: AtomicU64,
    /// Number of passes that may hold requests back ([`Occasion::Poll`]).
    pub(crate) polls: AtomicU64,
    /// Number of posts that came with a look at the engine ([`EngineOps::kick`]).
    pub(crate) kicks: AtomicU32,
    /// Number of passes that began while another pass ran; must stay 0.
    pub(crate) overlaps: AtomicU32,
    inside: AtomicBool,
    /// Number of coming passes that find work although nothing was posted, as if frames had arrived.
    pub(crate) arrivals: AtomicU32,
    /// Number of passes after shutdown until everything is drained.
    pub(crate) undrained: AtomicU32,
    /// The source of wakeups that `arm` returns; unset: `arm` returns `None`.
    pub(crate) wakeup: OnceLock<Arc<dyn Wakeup>>,
    /// Number of calls of `arm` that returned the source.
    pub(crate) armed: AtomicU32,
    pub(crate) shut_down: AtomicBool,
    /// Number of completions that found their completion queue full.
    pub(crate) overflows: AtomicU32,
    /// Number of rejected requests.
    pub(crate) rejected: AtomicU32,
}

struct FakeQp {
    shared: Arc<QpShared>,
    sends: WrNumber,
    receives: WrNumber,
    peer: Option<u32>,
    events: Option<Arc<EventQueue>>,
}

pub(crate) struct FakeEngine {
    knobs: Arc<Knobs>,
    doorbells: Arc<Doorbells>,
    commons: Arc<Commons>,
    table: Arc<MrTable>,
    qps: HashMap<u32, FakeQp>,
    ready: VecDeque<u32>,
    listeners: HashMap<BindId, Arc<EventQueue>>,
    requests: HashMap<RequestId, (u32, Vec<u8>)>,
    ports: HashMap<u16, BindId>,
    next: u64,
    /// Functions to call in the next pass. The times set for them do not count, because this engine has no clock.
    later: Vec<Deed>,
}

/// Makes a device on a fake engine.
pub(crate) fn device(progress: Progress) -> (Device, Arc<Knobs>) {
    let knobs = Arc::new(Knobs::default());
    (device_of(vec![FakeEngine::undriven(&knobs)], progress), knobs)
}

/// Makes a device whose second engine shares no reserved address with the first.
pub(crate) fn device_without_shared_addresses() -> Device {
    let knobs = Arc::new(Knobs::default());
    device_of(vec![FakeEngine::undriven(&knobs), FakeEngine::undriven(&knobs)], Progress::Inline)
}

fn device_of(engines: Vec<Undriven>, progress: Progress) -> Device {
    let mut engines = engines.into_iter();
    let first = engines.next().expect("an engine");
    let ties = first.engine.ties();
    let shards = Shards::new(first, engines, progress, &[]).unwrap();
    Device::new(shards, ties, Arc::new(PageAllocator), &World::Host)
}

impl FakeEngine {
    fn undriven(knobs: &Arc<Knobs>) -> Undriven {
        let doorbells = Arc::new(Doorbells::new(MAX_QPS as usize));
        let engine = Box::new(FakeEngine::new(knobs.clone(), doorbells.clone()));
        Undriven { engine, doorbells, node: None }
    }

    pub(crate) fn new(knobs: Arc<Knobs>, doorbells: Arc<Doorbells>) -> Self {
        let commons = Commons::new().unwrap();
        Self {
            knobs,
            doorbells,
            table: commons.table(7),
            commons,
            qps: HashMap::new(),
            ready: VecDeque::new(),
            listeners: HashMap::new(),
            requests: HashMap::new(),
            ports: HashMap::new(),
            next: 0,
            later: Vec::new(),
        }
    }

    fn serve(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let shared = qp.shared.clone();
        let status = match shared.state() {
            QpState::Idle => return,
            QpState::Error => WcStatus::Flushed,
            _ => WcStatus::Success,
        };
        let mut arrivals = Vec::new();
        while let Some(view) = shared.send.peek(qp.sends) {
            let entry = *view.entry;
            let opcode = view.completes_as();
            if opcode == WcOpcode::Send {
                arrivals.push((entry.length, entry.flags.contains(SendFlags::SOLICITED)));
            }
            let wc = Wc { wr_id: entry.wr_id, status, opcode, byte_len: entry.length, qpn, ..Wc::default() };
            if shared.signal_all || status != WcStatus::Success || entry.flags.contains(SendFlags::SIGNALED) {
                self.knobs.overflows.fetch_add(
                    shared.send_cq.push(EngineNumber::FIRST, wc).is_err().into(),
                    Ordering::Relaxed,
                );
            }
            shared.send.release(qp.sends);
            qp.sends = qp.sends.next();
        }
        if status == WcStatus::Flushed {
            let Receives::Own(recv) = &shared.recv else { return };
            while let Some(view) = recv.peek(qp.receives) {
                let wc = Wc { wr_id: view.wr_id, status, opcode: WcOpcode::Recv, qpn, ..Wc::default() };
                self.knobs.overflows.fetch_add(
                    shared.recv_cq.push(EngineNumber::FIRST, wc).is_err().into(),
                    Ordering::Relaxed,
                );
                recv.release(qp.receives);
                qp.receives = qp.receives.next();
            }
        }
        let Some(peer) = qp.peer.and_then(|peer| self.qps.get_mut(&peer)) else { return };
        let Receives::Own(recv) = &peer.shared.recv else { return };
        for (byte_len, solicited) in arrivals {
            let Some(view) = recv.peek(peer.receives) else { continue };
            let flags = if solicited { WcFlags::SOLICITED } else { WcFlags::empty() };
            let wc = Wc {
                wr_id: view.wr_id,
                opcode: WcOpcode::Recv,
                byte_len,
                qpn: peer.shared.qpn,
                flags,
                ..Wc::default()
            };
            let _ = peer.shared.recv_cq.push(EngineNumber::FIRST, wc);
            recv.release(peer.receives);
            peer.receives = peer.receives.next();
        }
    }
}

impl EngineOps for FakeEngine {
    fn arm(&mut self) -> Option<Arc<dyn Wakeup>> {
        let event = self.knobs.wakeup.get()?;
        self.knobs.armed.fetch_add(1, Ordering::SeqCst);
        Some(event.clone())
    }

    fn kick(&mut self, _qpn: u32) -> bool {
        self.knobs.kicks.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn pass(&mut self, occasion: Occasion) -> bool {
        if occasion == Occasion::Poll {
            self.knobs.polls.fetch_add(1, Ordering::SeqCst);
        }
        if self.knobs.inside.swap(true, Ordering::SeqCst) {
            self.knobs.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let mut worked = false;
        self.later.drain(..).for_each(|deed| deed());
        let mut again = Vec::new();
        while let Some(qpn) = self.doorbells.pop() {
            worked = true;
            if let Some(qp) = self.qps.get(&qpn) {
                again.extend(qp.shared.send.answer().then_some(qpn));
                self.ready.push_back(qpn);
            }
        }
        again.into_iter().for_each(|qpn| self.doorbells.ring(qpn));
        while let Some(qpn) = self.ready.pop_front() {
            self.serve(qpn);
        }
        let less = |n: u32| n.checked_sub(1);
        worked |= self.knobs.arrivals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if self.knobs.shut_down.load(Ordering::SeqCst) {
            let _ = self.knobs.undrained.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
        self.knobs.passes.fetch_add(1, Ordering::SeqCst);
        self.knobs.inside.store(false, Ordering::SeqCst);
        worked
    }

    fn next_deadline(&mut self) -> Option<Duration> {
        None
    }

    fn ties(&self) -> Ties {
        let knobs = self.knobs.clone();
        let clock = Arc::new(move || knobs.passes.load(Ordering::SeqCst));
        Ties { commons: self.commons.clone(), table: self.table.clone(), clock }
    }

    fn after(&mut self, _time: Duration, deed: Deed) {
        self.later.push(deed);
    }

    fn take_back(&mut self, _range: &std::ops::Range<usize>) {}

    fn attach_qp(&mut self, shared: Arc<QpShared>) -> Result<()> {
        let qpn = shared.qpn;
        let qp = FakeQp {
            shared,
            sends: WrNumber::default(),
            receives: WrNumber::default(),
            peer: None,
            events: None,
        };
        assert!(self.qps.insert(qpn, qp).is_none());
        Ok(())
    }

    fn detach_qp(&mut self, qpn: u32) {
        let _ = self.disconnect(qpn);
        assert!(self.qps.remove(&qpn).is_some());
    }

    fn modify_to_error(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get(&qpn) {
            qp.shared.set_state(QpState::Error);
        }
        self.serve(qpn);
    }

    fn modify_to_idle(&mut self, qpn: u32) -> Result<()> {
        if let Some(qp) = self.qps.get(&qpn) {
            qp.shared.set_state(QpState::Idle);
        }
        Ok(())
    }

    fn drain(&mut self, qpn: u32) -> Result<()> {
        self.disconnect(qpn)
    }

    fn connection(&mut self, _qpn: u32) -> Result<Option<QpConnection>> {
        Ok(None)
    }

    fn bind(&mut self, address: SocketAddr, _v6only: bool) -> Result<Bound> {
        let port = address.port();
        if self.ports.contains_key(&port) {
            return Err(Error::PortInUse(port));
        }
        self.next += 1;
        let id = BindId::new(self.next as u32, 1);
        self.ports.insert(port, id);
        Ok(Bound { id, address })
    }

    fn unbind(&mut self, id: BindId) {
        self.ports.retain(|_, other| *other != id);
        self.listeners.remove(&id);
    }

    fn listen(
        &mut self,
        at: BindId,
        _backlog: u32,
        _places: Arc<Waiting>,
        events: Arc<EventQueue>,
    ) -> Result<()> {
        self.listeners.insert(at, events);
        Ok(())
    }

    fn connect(
        &mut self,
        qpn: u32,
        Way { to, .. }: Way,
        param: &ConnParam,
        events: Arc<EventQueue>,
    ) -> Result<()> {
        let listener = self.ports.get(&to.port()).and_then(|id| self.listeners.get(id));
        let Some(listener) = listener else {
            events.push(PEER, CmEvent::ConnectError { qpn, reason: ConnectFailure::Refused });
            return Ok(());
        };
        self.qps.get_mut(&qpn).ok_or(Error::UnknownQp(qpn))?.events = Some(events);
        self.next += 1;
        let id = RequestId { engine: EngineNumber::FIRST, endpoint: self.next };
        self.requests.insert(id, (qpn, Vec::new()));
        let request = ConnRequest::new(id, to, param.private_data.clone(), &says(param), None);
        listener.push(PEER, CmEvent::ConnectRequest(request));
        Ok(())
    }

    fn accept(&mut self, request: RequestId, qpn: u32, param: &ConnParam) -> Result<()> {
        let (active, _) = self.requests.remove(&request).ok_or(Error::RequestGone)?;
        let negotiated = Negotiated {
            role: Role::Initiator,
            rev: 2,
            crc: true,
            tx_markers: false,
            rx_markers: false,
            ird: param.ird,
            ord: param.ord,
            rtr: None,
            peer_to_peer: None,
        };
        for (own, peer) in [(qpn, active), (active, qpn)] {
            let qp = self.qps.get_mut(&own).ok_or(Error::UnknownQp(own))?;
            qp.peer = Some(peer);
            qp.shared.set_state(QpState::Rts);
            let event = CmEvent::Established {
                qpn: own,
                peer: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 1),
                private_data: param.private_data.clone(),
                ird: param.ird,
                ord: param.ord,
                terms: Terms::of(&negotiated, &says(param)),
            };
            if let Some(events) = &qp.events {
                events.push(PEER, event);
            }
            self.ready.push_back(own);
        }
        Ok(())
    }

    fn local(&mut self, request: RequestId) -> Result<SocketAddr> {
        self.requests.get(&request).map(|_| (Ipv4Addr::LOCALHOST, 1).into()).ok_or(Error::RequestGone)
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) -> Result<()> {
        let (qpn, _) = self.requests.remove(&request).ok_or(Error::RequestGone)?;
        self.knobs.rejected.fetch_add(1, Ordering::SeqCst);
        if let Some(events) = self.qps.get(&qpn).and_then(|qp| qp.events.as_ref()) {
            let private_data = private_data.to_vec();
            events.push(PEER, CmEvent::Rejected { qpn, private_data, peer_ird: None, peer_ord: None });
        }
        Ok(())
    }

    fn disconnect(&mut self, qpn: u32) -> Result<()> {
        let qp = self.qps.get_mut(&qpn).ok_or(Error::UnknownQp(qpn))?;
        let peer = qp.peer.take().ok_or(Error::NotConnected)?;
        for (qpn, reason) in [(qpn, DisconnectReason::Local), (peer, DisconnectReason::Peer)] {
            if let Some(qp) = self.qps.get_mut(&qpn) {
                qp.peer = None;
                qp.shared.set_state(QpState::Error);
                if let Some(events) = &qp.events {
                    events.push(PEER, CmEvent::Disconnected { qpn, reason });
                }
                self.serve(qpn);
            }
        }
        Ok(())
    }

    fn set_patience(&mut self, _qpn: u32, _patience: Option<urnic_tcp::Patience>) -> Result<()> {
        Ok(())
    }

    fn drained(&self) -> bool {
        self.knobs.undrained.load(Ordering::SeqCst) == 0
    }

    fn shutdown(&mut self) {
        self.knobs.shut_down.store(true, Ordering::SeqCst);
        for qpn in self.qps.keys().copied().collect::<Vec<_>>() {
            let _ = self.disconnect(qpn);
        }
        self.commons.events.raise(AsyncEvent::PortError);
    }

    fn connections(&self) -> Vec<ConnectionAttr> {
        Vec::new()
    }

    fn source_for(&mut self, to: SocketAddr) -> Result<Option<IpAddr>> {
        Ok(Some(to.ip()))
    }

    fn attributes(&self) -> EngineAttr {
        EngineAttr {
            mac: [2, 0, 0, 0, 0, 1],
            addresses: vec![Cidr { address: Ipv4Addr::LOCALHOST.into(), prefix: 8 }],
            mtu: 1500,
            port: "fake".into(),
            link_up: true,
            capabilities: None,
            gso_max: 0,
            ird: 8,
            ord: 8,
            counters: vec![("passes", self.knobs.passes.load(Ordering::SeqCst))],
        }
    }
}

/// Makes the start-up frame of a peer with the values of `param`.
fn says(param: &ConnParam) -> PeerParams {
    PeerParams {
        rev: 2,
        crc: true,
        markers: false,
        enhanced: true,
        ird: Some(param.ird),
        ord: Some(param.ord),
        peer_to_peer: None,
    }
}
