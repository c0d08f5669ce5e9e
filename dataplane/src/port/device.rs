//! The device of a port in EAL: plugged in, configured, started, and taken out again.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use urnic_config::{MemifRole, PortSpec};

use super::door::Door;
use super::netdev::Netdev;
use super::{ETHERNET, PortError, packet_ring, pci, ring, signals, sigpipe, socket, vdev};
use crate::eal::{self, Eal};
use crate::rx_event::RxEvent;
use crate::{Capabilities, Pool, RxChecksum, TxChecksum, log};

/// How often a memif client tries to reach its server.
const RETRY: Duration = Duration::from_millis(20);

/// How long a device that could not be made is left alone.
const PLUG_AGAIN: Duration = Duration::from_secs(10);

/// How long a NIC may take to make its link when a port is opened.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an IP packet that any Ethernet carries.
const ETHERNET_MTU: u16 = 1500;

#[derive(Debug)]
enum State {
    /// Waits for the first peer; there is no device yet.
    Waiting(Door),
    /// The device exists. Whether it is started: a memif client cannot be before its server is there.
    Plugged { started: bool },
    /// There is no device; a `vhost` port has none until its peer listens.
    Absent,
}

/// What the driver of a NIC does about checksums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offload {
    pub tx: TxChecksum,
    pub rx: RxChecksum,
    /// Its name.
    pub driver: &'static CStr,
}

/// Segments that the longest chain has: headers, and the pieces of payload that TCP puts into a segment.
const LONGEST_CHAIN: u16 = 9;

#[derive(Debug)]
pub(super) struct Device {
    state: State,
    id: u16,
    name: CString,
    args: CString,
    /// Whether the peer may send frames of several TCP segments.
    trains: bool,
    /// Largest IP packet in bytes.
    mtu: u16,
    spec: PortSpec,
    /// The mempool that the driver receives into.
    rx: *mut sys::rte_mempool,
    link: Option<ring::End>,
    retry_at: Instant,
    /// The driver sends frames of several segments.
    chains: bool,
    nic: Option<Offload>,
    /// What tells of frames while it is armed.
    rx_event: Option<Arc<RxEvent>>,
    armed: bool,
    netdev: Option<Netdev>,
    eal: Arc<Eal>,
    _listening: Option<socket::Listening>,
}

impl Device {
    /// Makes the device, or the place where its peer will be awaited. The owner keeps `rx` until this is dropped.
    pub(super) fn open(
        eal: &Arc<Eal>,
        spec: &PortSpec,
        mtu: u16,
        rx: &Pool,
        netdev: Option<Netdev>,
        trains: bool,
    ) -> Result<Self, PortError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let frame = usize::from(mtu) + ETHERNET;
        let args = vdev::args(spec, frame, trains)?;
        let listening = socket::prepare(spec)?;
        let mut device = Self {
            state: State::Absent,
            id: 0,
            name: vdev::name(spec, SERIAL.fetch_add(1, Ordering::Relaxed)),
            args,
            trains,
            mtu,
            spec: spec.clone(),
            rx: rx.as_ptr(),
            link: None,
            retry_at: Instant::now(),
            chains: true,
            nic: None,
            rx_event: None,
            armed: false,
            netdev,
            eal: Arc::clone(eal),
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
                let link = ring::End::join(name).ok_or_else(|| PortError::RingInUse(spec.to_string()))?;
                device.link = Some(link);
                device.make_ring()?;
                device.start()?;
            }
            PortSpec::Memif { role: MemifRole::Client, .. } => {
                device.plug()?;
                device.start_client();
            }
            PortSpec::Pci { address, .. } => {
                pci::check(spec, address)?;
                device.plug()?;
                device.carries_mtu()?;
                device.start()?;
                device.await_link();
            }
            PortSpec::AfPacket { queue_size, .. } => {
                let before = packet_ring::sockets();
                device.plug()?;
                if let Some(netdev) = &mut device.netdev {
                    netdev.adopt(before, usize::from(*queue_size) * frame);
                }
                device.start()?;
            }
            // Where nobody listens yet, the driver would look for its peer once a second.
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

    /// The port id, if there is a device to poll.
    #[inline]
    pub(super) fn polled(&self) -> Option<u16> {
        matches!(self.state, State::Plugged { started: true }).then_some(self.id)
    }

    /// Whether frames come from the other device's pool.
    #[inline]
    pub(super) fn is_ring(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the driver sends frames of several segments.
    pub(super) fn chains(&self) -> bool {
        self.chains
    }

    /// What a NIC does about checksums, if any of it is left to it.
    pub(super) fn nic(&self) -> Option<Offload> {
        self.nic
    }

    /// See [`super::Port::arm`].
    pub(super) fn arm(&mut self) -> Option<Arc<RxEvent>> {
        let id = self.polled()?;
        let event = self.rx_event.clone()?;
        // SAFETY: no pointers are passed; the device is started and has a queue 0, which only its owner polls.
        if unsafe { sys::rte_eth_dev_rx_intr_enable(id, 0) } != 0 {
            return None;
        }
        // What the driver has written for the peer to see comes before our next look at what the peer has written.
        fence(Ordering::SeqCst);
        self.armed = true;
        Some(event)
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// The driver need not tell of frames: somebody looks for them.
    #[cold]
    pub(super) fn disarm(&mut self) {
        self.armed = false;
        if let Some(id) = self.polled() {
            // SAFETY: as for arming.
            unsafe { sys::rte_eth_dev_rx_intr_disable(id, 0) };
        }
    }

    /// Frames that the kernel had for the driver and dropped.
    pub(super) fn kernel_drops(&self) -> u64 {
        self.netdev.as_ref().map_or(0, Netdev::drops)
    }

    /// The device's own Ethernet address.
    pub(super) fn mac(&self) -> Option<[u8; 6]> {
        let id = self.polled()?;
        let mut address = sys::rte_ether_addr::default();
        // SAFETY: the device exists; an Ethernet address is six bytes.
        unsafe {
            let status = sys::rte_eth_macaddr_get(id, &raw mut address);
            let mac = (&raw const address).cast::<[u8; 6]>().read_unaligned();
            (status == 0 && mac != [0; 6]).then_some(mac)
        }
    }

    /// Whether the peer is there; furthers a connection that is not.
    pub(super) fn link_up(&mut self) -> bool {
        if let Some(link) = &self.link {
            return link.is_whole();
        }
        if let Some(netdev) = &self.netdev {
            netdev.kick();
            return netdev.is_running();
        }
        match &mut self.state {
            State::Absent => {
                if !self.join() {
                    return false;
                }
            }
            State::Waiting(door) => {
                if !door.has_visitor() || !self.admit() {
                    return false;
                }
            }
            State::Plugged { .. } => {}
        }
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the device exists; `link` is ours.
        let status = sigpipe::blocked(|| unsafe { sys::rte_eth_link_get_nowait(self.id, &raw mut link) });
        let up = status == 0 && link.link_status() != 0;
        if !up && matches!(self.spec, PortSpec::Memif { role: MemifRole::Client, .. }) {
            self.start_client();
        }
        up
    }

    /// Whether the peer takes frames of several TCP segments, as was agreed when it came.
    pub(super) fn sends_trains(&self) -> bool {
        let Some(id) = self.polled() else { return false };
        match self.spec {
            PortSpec::VirtioUser { .. } => {
                let mut info = sys::rte_eth_dev_info::default();
                // SAFETY: the device exists; `info` is ours.
                let status = unsafe { sys::rte_eth_dev_info_get(id, &raw mut info) };
                status == 0 && info.tx_offload_capa & sys::RTE_ETH_TX_OFFLOAD_TCP_TSO != 0
            }
            PortSpec::Vhost { .. } => {
                let mut features = 0;
                // SAFETY: the device exists; `features` is ours. Without a peer the number is refused.
                let status = unsafe {
                    let vid = sys::rte_eth_vhost_get_vid_from_port_id(id);
                    sys::rte_vhost_get_negotiated_features(vid, &raw mut features)
                };
                // Of both families: trains are sent in either.
                const BOTH: u64 = sys::VIRTIO_NET_F_GUEST_TSO4 | sys::VIRTIO_NET_F_GUEST_TSO6;
                status == 0 && features & BOTH == BOTH
            }
            _ => false,
        }
    }

    /// Lets the driver take over from the door. Whether it did.
    fn admit(&mut self) -> bool {
        let State::Waiting(door) = std::mem::replace(&mut self.state, State::Absent) else { return false };
        let result = door.hand_over(|| self.plug()).and_then(|()| self.start());
        let Err(e) = result else { return true };
        tracing::warn!("{e}; waiting for another peer");
        self.unplug();
        if let Some(path) = self.spec.path()
            && socket::prepare(&self.spec).is_ok()
            && let Ok(door) = Door::open(path)
        {
            self.state = State::Waiting(door);
        }
        false
    }

    /// Makes the device of a `vhost` port once somebody listens for it: the driver connects at once. Whether there is one.
    fn join(&mut self) -> bool {
        let PortSpec::Vhost { path, server: false } = &self.spec else { return false };
        if Instant::now() < self.retry_at || !socket::is_served(path) {
            return false;
        }
        self.retry_at = Instant::now() + RETRY;
        let Err(e) = self.plug().and_then(|()| self.start()) else { return true };
        tracing::warn!("{e}; trying again in {} s", PLUG_AGAIN.as_secs());
        self.retry_at = Instant::now() + PLUG_AGAIN;
        self.unplug();
        false
    }

    /// (Re)starts a memif client, which connects only then, now and again.
    fn start_client(&mut self) {
        if Instant::now() < self.retry_at {
            return;
        }
        self.retry_at = Instant::now() + RETRY;
        if !self.spec.path().is_some_and(socket::is_served) {
            return;
        }
        let id = self.id;
        if let State::Plugged { started: started @ true } = &mut self.state {
            *started = false;
            // SAFETY: the device exists; only we poll it.
            self.eal.control(|| unsafe { sys::rte_eth_dev_stop(id) });
        }
        // Until the server listens, this fails.
        log::quietly(|| {
            if let Err(e) = self.start() {
                tracing::debug!("{e}");
            }
        });
    }

    fn error(&self, step: &'static str, errno: i32) -> PortError {
        PortError::Dpdk {
            port: self.spec.to_string(),
            step,
            reason: eal::strerror(errno),
            log: log::recent_errors(),
        }
    }

    /// Plugs the virtual device in.
    fn plug(&mut self) -> Result<(), PortError> {
        let (bus, name, args) = (vdev::bus(&self.spec), &self.name, &self.args);
        let mut id = 0;
        let status = self.eal.control(|| {
            // SAFETY: EAL runs; NUL-terminated strings, and a place of ours.
            unsafe {
                // A NIC that EAL was started for is there already.
                if sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) == 0 {
                    return 0;
                }
                match sys::rte_eal_hotplug_add(bus.as_ptr(), name.as_ptr(), args.as_ptr()) {
                    0 => sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id),
                    error => error,
                }
            }
        });
        if status != 0 {
            return Err(self.error("plugging the device in", status));
        }
        self.id = id;
        self.state = State::Plugged { started: false };
        Ok(())
    }

    /// Waits for the link of a NIC, which takes it a while to make: what is sent before, such as the probes for an
    /// address conflict, is lost.
    fn await_link(&mut self) {
        let began = Instant::now();
        while !self.link_up() {
            if began.elapsed() > LINK_PATIENCE {
                tracing::warn!("{}: there is no link; is the cable in, and the other end up?", self.spec);
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks the driver whether the NIC carries packets of our MTU.
    fn carries_mtu(&self) -> Result<(), PortError> {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the device exists; `info` is ours.
        let status = unsafe { sys::rte_eth_dev_info_get(self.id, &raw mut info) };
        if status != 0 {
            return Err(self.error("reading the device's properties", status));
        }
        // Drivers that do not say leave zero.
        if info.max_mtu != 0 && self.mtu > info.max_mtu {
            return Err(PortError::Mtu { port: self.spec.to_string(), mtu: self.mtu, carries: info.max_mtu });
        }
        Ok(())
    }

    /// Makes a device of the rings of an in-process link.
    fn make_ring(&mut self) -> Result<(), PortError> {
        let Some(link) = &self.link else { return Ok(()) };
        let name = &self.name;
        match self.eal.control(|| u16::try_from(link.make_device(name)).map_err(|_| eal::errno())) {
            Ok(id) => {
                self.id = id;
                self.state = State::Plugged { started: false };
                Ok(())
            }
            Err(errno) => Err(self.error("making the ring device", errno)),
        }
    }

    /// Configures one queue each way and starts the device.
    fn start(&mut self) -> Result<(), PortError> {
        let id = self.id;
        let queue = vdev::queue_size(&self.spec);
        let pool = self.rx as usize;
        let watched = self.is_watched();
        // Of the drivers for links in user space, only these can.
        let interrupts = matches!(self.spec, PortSpec::VirtioUser { .. } | PortSpec::Vhost { .. });
        // Other ports send and receive single segments.
        let trains = self.trains && matches!(self.spec, PortSpec::VirtioUser { .. });
        let caps = Capabilities::of(&self.spec);
        // The kernel's interfaces are made promiscuous by us, for as long as the port is open.
        let filters = matches!(self.spec, PortSpec::Pci { .. } | PortSpec::Vdev { .. });
        // A NIC discards frames beyond the MTU that it is told of; drivers of virtual devices mostly refuse to be told.
        let jumbo =
            if matches!(self.spec, PortSpec::Pci { .. }) && self.mtu > ETHERNET_MTU { self.mtu } else { 0 };
        let start = move || {
            let ok = |step: &'static str, status: i32| if status == 0 { Ok(()) } else { Err((step, status)) };
            let mut info = sys::rte_eth_dev_info::default();
            let mut conf = sys::rte_eth_conf::default();
            // SAFETY: the device exists and is ours; all pointers are to live locals, which DPDK copies, and to the
            // mempool, which outlives the device.
            unsafe {
                ok("reading the device's properties", sys::rte_eth_dev_info_get(id, &raw mut info))?;
                if caps.rx_checksum != RxChecksum::Software {
                    conf.rxmode.offloads = sys::RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
                }
                if trains {
                    conf.rxmode.offloads |= sys::RTE_ETH_RX_OFFLOAD_TCP_LRO;
                    conf.txmode.offloads = sys::RTE_ETH_TX_OFFLOAD_TCP_TSO;
                }
                conf.rxmode.offloads &= info.rx_offload_capa;
                conf.rxmode.mtu = jumbo.into();
                conf.intr_conf.set_lsc(u32::from(watched));
                conf.intr_conf.set_rxq(u32::from(interrupts));
                if caps.tx_checksum != TxChecksum::Software {
                    conf.txmode.offloads |= sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
                }
                conf.txmode.offloads |= sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
                conf.txmode.offloads &= info.tx_offload_capa;
                ok("configuring the device", sys::rte_eth_dev_configure(id, 1, 1, &raw const conf))?;
                let (mut rxd, mut txd) = (queue, queue);
                ok(
                    "sizing the queues",
                    sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rxd, &raw mut txd),
                )?;
                let (any, pool) = (u32::MAX, pool as *mut sys::rte_mempool);
                ok(
                    "setting up the receive queue",
                    sys::rte_eth_rx_queue_setup(id, 0, rxd, any, ptr::null(), pool),
                )?;
                ok("setting up the send queue", sys::rte_eth_tx_queue_setup(id, 0, txd, any, ptr::null()))?;
                ok("starting the device", sys::rte_eth_dev_start(id))?;
                if filters {
                    sys::rte_eth_promiscuous_enable(id);
                }
            }
            // Drivers that do not say how many segments a frame may have leave zero.
            let most = info.tx_desc_lim.nb_mtu_seg_max;
            let chains = conf.txmode.offloads & sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS != 0
                && (most == 0 || most >= LONGEST_CHAIN);
            let fills = conf.txmode.offloads & sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM != 0;
            let checks = conf.rxmode.offloads & sys::RTE_ETH_RX_OFFLOAD_TCP_CKSUM != 0;
            let driver = match info.driver_name.is_null() {
                true => c"",
                // SAFETY: a driver's name is a string that lives as long as its library, which stays loaded.
                false => unsafe { CStr::from_ptr(info.driver_name) },
            };
            let nic = Offload {
                tx: if fills { caps.tx_checksum } else { TxChecksum::Software },
                rx: if checks { caps.rx_checksum } else { RxChecksum::Software },
                driver,
            };
            Ok((chains, nic))
        };
        let result = if watched {
            Eal::on_interrupt_thread(start).unwrap_or(Err(("setting an alarm", -libc::ENOMEM)))
        } else {
            self.eal.control(start)
        };
        let (chains, nic) = result.map_err(|(step, status)| self.error(step, status))?;
        // The drivers of memory links chain whatever they say, and were tested.
        self.chains = chains || self.spec.is_memory_link();
        self.nic = matches!(self.spec, PortSpec::Pci { offload: true, .. }).then_some(nic);
        self.state = State::Plugged { started: true };
        self.armed = false;
        self.rx_event = if interrupts { rx_event(id).map(Arc::new) } else { None };
        Ok(())
    }

    /// Whether DPDK's interrupt thread follows the connection to the peer. Without it, `virtio_user` would register
    /// its interrupt handler when its first peer goes, and close without taking it back.
    fn is_watched(&self) -> bool {
        matches!(self.spec, PortSpec::VirtioUser { .. })
    }

    /// Stops the device and takes it out of EAL.
    fn unplug(&mut self) {
        let State::Plugged { .. } = std::mem::replace(&mut self.state, State::Absent) else { return };
        let (id, bus, name) = (self.id, vdev::bus(&self.spec), &self.name);
        let watched = self.is_watched();
        if watched && !close_between_interrupts(id) {
            tracing::warn!(
                "{}: its connection changes too often to be closed; left to the end of the process",
                self.spec
            );
            return;
        }
        // SAFETY: the device exists and is ours; nobody polls it any more.
        let status = self.eal.control(|| unsafe {
            if !watched {
                sys::rte_eth_dev_stop(id);
                sys::rte_eth_dev_close(id);
            }
            sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr())
        });
        if status != 0 {
            tracing::debug!("removing {name:?}: {}", eal::strerror(status));
        }
    }
}

/// Stops and closes a device whose driver moves its interrupt handler from socket to socket, by an alarm, whenever the
/// peer comes or goes: on the thread that runs all this, and while no such move is pending. That is when the link has
/// not changed between two alarms.
fn close_between_interrupts(id: u16) -> bool {
    const TRIES: usize = 100;
    let link_status = move || {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the device exists; `link` is ours. For a watched device this only reads what the handler noted.
        unsafe { sys::rte_eth_link_get_nowait(id, &raw mut link) };
        link.link_status()
    };
    let Some(mut before) = Eal::on_interrupt_thread(link_status) else { return false };
    for _ in 0..TRIES {
        let step = Eal::on_interrupt_thread(move || {
            let now = link_status();
            if now == before {
                // SAFETY: the device exists; its owner has stopped polling it and waits for us.
                unsafe {
                    sys::rte_eth_dev_stop(id);
                    sys::rte_eth_dev_close(id);
                }
            }
            now
        });
        match step {
            None => return false,
            Some(now) if now == before => return true,
            Some(now) => before = now,
        }
    }
    false
}

impl Drop for Device {
    fn drop(&mut self) {
        self.unplug();
    }
}

/// What tells of frames at the receive queue of a started device; none if its driver has no interrupts.
fn rx_event(id: u16) -> Option<RxEvent> {
    // SAFETY: no pointers are passed; a port that does not exist is refused.
    let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(id, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the driver keeps it open as long as the device is started, and that is longer than this call.
    RxEvent::new(unsafe { BorrowedFd::borrow_raw(fd) })
        .inspect_err(|e| tracing::warn!("frames that arrive while nobody polls will wait: {e}"))
        .ok()
}
