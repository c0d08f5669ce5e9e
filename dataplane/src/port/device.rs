//! A port's device in EAL, from the wait for its first peer to its removal.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use urnic_config::{MemifRole, PortSpec};

use super::door::Door;
use super::netdev::Netdev;
use super::packet_ring::{self, PacketRing};
use super::recipe::{Made, Offload, Recipe, Started};
use super::{ETHERNET, PortError, PortOptions, in_place, pci, ring, signals, sigpipe, socket, vdev};
use crate::buffers::Lease;
use crate::eal::{self, Eal, Task};
use crate::rx_event::RxEvent;
use crate::{Rss, log};

/// Interval at which a memif client tries to reach its server.
const RETRY: Duration = Duration::from_millis(20);

/// Number of times that the interval doubles while a server refuses the client, because the server has no interface
/// with the client's id, or not yet.
const BACKOFF: u32 = 4;

/// Time until the next attempt after the device of a `vhost` port could not be made, or after a `virtio_user` port
/// could not wait for another peer.
const PLUG_AGAIN: Duration = Duration::from_secs(10);

/// Time that a NIC has to bring its link up when a port is opened.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum State {
    /// Waiting for the first peer; there is no device yet.
    Waiting(Door),
    /// EAL's thread is making the device, and needs the lock of EAL's memory for it. The thread that polls this port
    /// must not wait for that lock, because the thread that holds it may itself wait for the polling thread. For
    /// example, a program may register memory in one of EAL's callbacks, which run under the lock.
    Making(Task<Result<Made, PortError>>),
    /// The device exists.
    Plugged(Made),
    /// There is no device, and no peer can come: a `vhost` port that connects to its peer has none until the peer
    /// listens, and a `virtio_user` port could not listen.
    Absent,
}

#[derive(Debug)]
pub(super) struct Device {
    state: State,
    recipe: Arc<Recipe>,
    link: Option<ring::End>,
    retry_at: Instant,
    /// Number of starts of a memif client since its link was up, or since no process listened.
    starts: u32,
    netdev: Option<Netdev>,
    /// The driver's packet sockets, until the port's queues take them.
    packet_rings: Vec<PacketRing>,
    told_of_queues: bool,
    _listening: Option<socket::Listening>,
}

impl Device {
    /// Makes the device, or starts waiting for its peer. The driver is asked for [`vdev::driver_queues`] queues
    /// each way, which receive into the pools `rx`.
    pub(super) fn open(
        eal: &Arc<Eal>,
        spec: &PortSpec,
        options: &PortOptions,
        rx: Vec<Lease>,
        netdev: Option<Netdev>,
    ) -> Result<Self, PortError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let PortOptions { mtu, trains, node, .. } = *options;
        let frame = usize::from(mtu) + ETHERNET;
        let queues = rx.len() as u16;
        let args = vdev::args(spec, frame, trains, vdev::driver_queues(spec, queues))?;
        let listening = socket::prepare(spec)?;
        let recipe = Recipe {
            name: vdev::name(spec, SERIAL.fetch_add(1, Ordering::Relaxed)),
            args,
            trains,
            mtu,
            spec: spec.clone(),
            rx,
            node,
            eal: Arc::clone(eal),
        };
        let mut device = Self {
            state: State::Absent,
            recipe: Arc::new(recipe),
            link: None,
            retry_at: Instant::now(),
            starts: 0,
            netdev,
            packet_rings: Vec::new(),
            told_of_queues: false,
            _listening: listening,
        };
        log::recent_errors();
        match spec {
            PortSpec::VirtioUser { path, server: true, .. } => {
                let door = Door::open(path).map_err(|e| PortError::SocketPath {
                    port: spec.to_string(),
                    path: path.clone(),
                    reason: e.to_string(),
                })?;
                device.state = State::Waiting(door);
            }
            PortSpec::Ring { name } => {
                let link = ring::End::join(name, queues).map_err(|e| match e {
                    ring::Refusal::Taken => PortError::RingInUse(spec.to_string()),
                    ring::Refusal::Queues(other) => {
                        PortError::RingQueues { port: spec.to_string(), queues, other }
                    }
                    ring::Refusal::Memory => device.recipe.error("making the rings", eal::errno()),
                })?;
                let id = device.recipe.make_ring(&link)?;
                device.link = Some(link);
                device.plugged(id);
                device.start()?;
            }
            PortSpec::Memif { role: MemifRole::Client, .. } => {
                device.plug()?;
                device.start_client();
            }
            PortSpec::Pci { address, .. } => {
                pci::check(spec, address)?;
                let id = device.plug()?;
                device.recipe.carries_mtu(id)?;
                device.start()?;
                device.await_link();
            }
            PortSpec::AfPacket { queue_size, .. } => {
                let before = packet_ring::sockets();
                device.plug()?;
                if let Some(netdev) = &device.netdev {
                    device.packet_rings = netdev.driver_sockets(&before, usize::from(*queue_size) * frame);
                }
                device.start()?;
            }
            // While no peer listens, the driver would look for a peer only once a second. So `join` plugs the device
            // in later.
            PortSpec::Vhost { path, server: false } if !socket::is_served(path) => {}
            PortSpec::Tap { .. } => {
                signals::reserved(|| device.plug())?;
                device.start()?;
            }
            _ => {
                device.plug()?;
                device.start()?;
            }
        }
        Ok(device)
    }

    /// Plugs the device in while the port is being opened. Returns its port id.
    fn plug(&mut self) -> Result<u16, PortError> {
        let id = self.recipe.plug()?;
        self.plugged(id);
        Ok(id)
    }

    fn plugged(&mut self, id: u16) {
        self.state = State::Plugged(Made { id, started: None });
    }

    /// Starts the device that was plugged in.
    fn start(&mut self) -> Result<(), PortError> {
        if let State::Plugged(made) = &mut self.state {
            made.started = Some(self.recipe.start(made.id)?);
        }
        Ok(())
    }

    /// Returns the port id, if there is a device to poll.
    #[inline]
    pub(super) fn polled(&self) -> Option<u16> {
        match &self.state {
            State::Plugged(Made { id, started: Some(_) }) => Some(*id),
            _ => None,
        }
    }

    fn started(&self) -> Option<&Started> {
        match &self.state {
            State::Plugged(made) => made.started.as_ref(),
            _ => None,
        }
    }

    /// Returns the queues of a ring in their order; empty for other devices.
    pub(super) fn ring_queues(&self) -> Vec<ring::Queue> {
        self.link.as_ref().map(ring::End::queues).unwrap_or_default()
    }

    /// Returns whether the driver sends frames of several segments.
    pub(super) fn chains(&self) -> bool {
        self.started().is_none_or(|started| started.chains)
    }

    /// Returns the checksum work of the driver; `None` unless the port is a NIC with offload.
    pub(super) fn nic(&self) -> Option<Offload> {
        self.started()?.nic
    }

    /// Returns the receive event of each queue; empty if the driver cannot signal frames. `None` before the device is
    /// started.
    pub(super) fn rx_events(&self) -> Option<&[Arc<RxEvent>]> {
        self.started().map(|started| &started.rx_events[..])
    }

    /// Returns the peer of a `vhost` device; `None` for other devices, and before the device is started.
    pub(super) fn peer(&self) -> Option<&Arc<in_place::Link>> {
        self.started()?.peer.as_ref()
    }

    /// Returns the number of queues each way.
    pub(super) fn queues(&self) -> u16 {
        self.started().map_or(self.recipe.rx.len() as u16, |started| started.queues)
    }

    /// Returns the hash by which the NIC spreads connections over the queues; `None` if it is unknown.
    pub(super) fn rss(&self) -> Option<Rss> {
        self.started()?.rss
    }

    /// Takes the packet sockets of the `af_packet` driver, one for each queue.
    pub(super) fn take_packet_rings(&mut self) -> Vec<PacketRing> {
        std::mem::take(&mut self.packet_rings)
    }

    /// Returns whether the peer is there; if it is not, takes the next step towards a connection.
    pub(super) fn link_up(&mut self) -> bool {
        if let Some(link) = &self.link {
            return link.is_whole();
        }
        if let Some(netdev) = &self.netdev {
            return netdev.is_running();
        }
        if let State::Making(task) = &self.state {
            let Some(result) = task.outcome() else { return false };
            self.made(result);
        }
        let id = match &mut self.state {
            State::Absent => {
                self.join();
                return false;
            }
            State::Waiting(door) => {
                if door.has_visitor() {
                    self.admit();
                }
                return false;
            }
            State::Making(_) => return false,
            State::Plugged(made) => made.id,
        };
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the device exists; `link` is ours.
        let status = sigpipe::blocked(|| unsafe { sys::rte_eth_link_get_nowait(id, &raw mut link) });
        let up = status == 0 && link.link_status() != 0;
        if up {
            self.starts = 0;
        } else if matches!(self.recipe.spec, PortSpec::Memif { role: MemifRole::Client, .. }) {
            self.start_client();
        }
        up
    }

    /// Returns whether the peer takes frames of several TCP segments, as negotiated when it connected.
    pub(super) fn sends_trains(&self) -> bool {
        let Some(id) = self.polled() else { return false };
        match self.recipe.spec {
            PortSpec::VirtioUser { .. } => {
                let mut info = sys::rte_eth_dev_info::default();
                // SAFETY: the device exists; `info` is ours.
                let status = unsafe { sys::rte_eth_dev_info_get(id, &raw mut info) };
                status == 0 && info.tx_offload_capa & sys::RTE_ETH_TX_OFFLOAD_TCP_TSO != 0
            }
            PortSpec::Vhost { .. } => {
                let mut features = 0;
                // SAFETY: the device exists; `features` is ours.
                let status = unsafe {
                    match sys::rte_eth_vhost_get_vid_from_port_id(id) {
                        // No peer, or it has not yet enabled a queue.
                        vid if vid < 0 => return false,
                        vid => sys::rte_vhost_get_negotiated_features(vid, &raw mut features),
                    }
                };
                // Both features are needed, because such frames may be IPv4 or IPv6.
                const BOTH: u64 = sys::VIRTIO_NET_F_GUEST_TSO4 | sys::VIRTIO_NET_F_GUEST_TSO6;
                status == 0 && features & BOTH == BOTH
            }
            _ => false,
        }
    }

    /// Returns the number of queues of the present peer, at most the number of the driver's queues. `None` if the peer
    /// must have as many queues as we, or if there is no peer.
    pub(super) fn peer_queues(&mut self) -> Option<u16> {
        let id = self.polled().filter(|_| matches!(self.recipe.spec, PortSpec::Vhost { .. }))?;
        // SAFETY: the device exists. If the peer leaves between the two calls, the second one refuses `vid`.
        let vrings = unsafe {
            match sys::rte_eth_vhost_get_vid_from_port_id(id) {
                vid if vid < 0 => return None,
                vid => sys::rte_vhost_get_vring_num(vid),
            }
        };
        // One vring for each direction.
        let queues = vrings / 2;
        let most = self.started()?.driver_queues;
        if queues > most && !std::mem::replace(&mut self.told_of_queues, true) {
            tracing::warn!(
                "{}: the peer has {queues} queues, but this end polls only {most}, so frames of the peer's other \
                 engines are lost: set engine.engines to the same number at both ends",
                self.recipe.spec
            );
        }
        Some(queues.min(most)).filter(|queues| *queues > 0)
    }

    /// Makes EAL's thread run `job`.
    fn begin(&mut self, job: impl FnOnce(&Recipe) -> Result<Made, PortError> + Send + 'static) {
        let recipe = Arc::clone(&self.recipe);
        self.state = State::Making(recipe.eal.begin({
            let recipe = Arc::clone(&recipe);
            move || job(&recipe)
        }));
    }

    /// Takes the device that EAL's thread has made. If that failed, waits for another peer.
    fn made(&mut self, result: Result<Made, PortError>) {
        self.retry_at = Instant::now() + RETRY * (1 << self.starts);
        let error = match result {
            Ok(made) => {
                self.state = State::Plugged(made);
                return;
            }
            Err(error) => error,
        };
        self.state = State::Absent;
        let spec = &self.recipe.spec;
        if matches!(spec, PortSpec::Vhost { .. }) {
            tracing::warn!("{error}; trying again in {} s", PLUG_AGAIN.as_secs());
            self.retry_at = Instant::now() + PLUG_AGAIN;
            return;
        }
        tracing::warn!("{error}; waiting for another peer");
        self.open_door();
    }

    /// Waits for the peer of a `virtio_user` port that listens. If that is not possible now, `join` tries again.
    fn open_door(&mut self) {
        let spec = &self.recipe.spec;
        let Some(path) = spec.path() else { return };
        let opened = socket::prepare(spec)
            .map_err(|e| e.to_string())
            .and_then(|_| Door::open(path).map_err(|e| format!("{spec}: {e}")));
        match opened {
            Ok(door) => self.state = State::Waiting(door),
            Err(why) => {
                tracing::warn!("{why}; trying again in {} s", PLUG_AGAIN.as_secs());
                self.retry_at = Instant::now() + PLUG_AGAIN;
            }
        }
    }

    /// Makes the device, and hands the peer that waits at the [`Door`] over to the driver.
    fn admit(&mut self) {
        if let State::Waiting(door) = std::mem::replace(&mut self.state, State::Absent) {
            self.begin(|recipe| {
                let made = door.hand_over(|| recipe.make());
                if made.is_err() {
                    recipe.close_left(); // not earlier: the door had sockets at the path too
                }
                made
            });
        }
    }

    /// Makes the device of a `vhost` port once a peer listens, because the driver then connects at once. Lets a
    /// `virtio_user` port listen again.
    fn join(&mut self) {
        if Instant::now() < self.retry_at {
            return;
        }
        match &self.recipe.spec {
            PortSpec::Vhost { path, server: false } if socket::is_served(path) => self.begin(Recipe::make),
            PortSpec::VirtioUser { server: true, .. } => self.open_door(),
            _ => {}
        }
    }

    /// (Re)starts a memif client, at most once in [`RETRY`]. A memif client connects only when it is started.
    fn start_client(&mut self) {
        if Instant::now() < self.retry_at {
            return;
        }
        self.retry_at = Instant::now() + RETRY;
        if !self.recipe.spec.path().is_some_and(socket::is_served) {
            self.starts = 0;
            return;
        }
        self.starts = (self.starts + 1).min(BACKOFF);
        if let State::Plugged(Made { id, started }) = &self.state {
            let (id, was_started) = (*id, started.is_some());
            self.begin(move |recipe| Ok(recipe.start_again(id, was_started)));
        }
    }

    /// Waits for a NIC to bring its link up. Frames that are sent before the link is up, such as the probes for an
    /// address conflict, would be lost.
    fn await_link(&mut self) {
        let began = Instant::now();
        while !self.link_up() {
            if began.elapsed() > LINK_PATIENCE {
                tracing::warn!(
                    "{}: there is no link; is the cable in, and the other end up?",
                    self.recipe.spec
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let made = match std::mem::replace(&mut self.state, State::Absent) {
            State::Plugged(made) => Some(made),
            State::Making(task) => task.wait().ok(),
            State::Waiting(_) | State::Absent => None,
        };
        if let Some(made) = made {
            self.recipe.remove(made.id);
        }
    }
}
