//! Plugs a port's device into EAL, configures, starts and removes it.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;

use dpdk_sys as sys;
use urnic_config::PortSpec;

use super::pause::Pause;
use super::{PortError, in_place, ring, rss, socket, vdev};
use crate::buffers::Lease;
use crate::eal::{self, Eal};
use crate::rx_event::RxEvent;
use crate::{Capabilities, Rss, RxChecksum, TxChecksum, log};

/// The MTU that every Ethernet carries, in bytes.
const ETHERNET_MTU: u16 = 1500;

/// Most mbufs in a frame to send: one for the headers, and one for each piece of payload that TCP may put into a
/// segment.
const LONGEST_CHAIN: u16 = 9;

/// The checksum work that a NIC's driver does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offload {
    pub tx: TxChecksum,
    pub rx: RxChecksum,
    /// The driver's name.
    pub driver: &'static CStr,
}

/// What a driver reported when its device was started.
#[derive(Clone, Debug)]
pub(super) struct Started {
    /// Whether the driver sends frames that consist of several mbufs.
    pub chains: bool,
    /// The checksum work of the driver; `None` unless the port is a NIC with offload.
    pub nic: Option<Offload>,
    /// The receive event of each queue, for use while the queue is armed; empty if the driver cannot signal frames.
    pub rx_events: Vec<Arc<RxEvent>>,
    /// Queues of the driver in each direction; more than `queues` if the peer may have more queues than we.
    pub driver_queues: u16,
    /// Queues with handles; fewer than requested if the driver has fewer, or cannot spread frames over them.
    pub queues: u16,
    /// The hash by which the NIC spreads connections over the queues; `None` if it is unknown.
    pub rss: Option<Rss>,
    /// The peer of a `vhost` device; `None` for other devices.
    pub peer: Option<Arc<in_place::Link>>,
}

/// A device in EAL.
#[derive(Debug)]
pub(super) struct Made {
    /// DPDK's port id.
    pub id: u16,
    /// What the driver reported; `None` if the device is not started.
    pub started: Option<Started>,
}

/// The settings and resources from which a device is made.
#[derive(Debug)]
pub(super) struct Recipe {
    pub name: CString,
    pub args: CString,
    /// Whether this end and the peer may send frames of several TCP segments.
    pub trains: bool,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    pub spec: PortSpec,
    /// The mempools that the driver receives into, one for each queue.
    pub rx: Vec<Lease>,
    /// NUMA node whose memory the queues are in; `None`: any.
    pub node: Option<u32>,
    pub eal: Arc<Eal>,
}

impl Recipe {
    /// Plugs the device in and starts it. On failure the device is removed again.
    pub(super) fn make(&self) -> Result<Made, PortError> {
        let id = self.plug()?;
        match self.start(id) {
            Ok(started) => Ok(Made { id, started: Some(started) }),
            Err(e) => {
                self.remove(id);
                Err(e)
            }
        }
    }

    /// Closes the sockets that the driver has left open at the path of a `virtio_user` port, unless the device still
    /// exists. No other socket of this process may be bound to the path.
    pub(super) fn close_left(&self) {
        let PortSpec::VirtioUser { path, .. } = &self.spec else { return };
        let name = &self.name;
        let gone = self.eal.control(|| {
            let mut id = 0;
            // SAFETY: the name is a string, and `id` is ours.
            unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) != 0 }
        });
        if gone {
            socket::close_all(path);
        }
    }

    /// Starts device `id`, a memif client; restarts it if `was_started`. A memif client connects only when it is
    /// started, and its start fails until the server listens.
    pub(super) fn start_again(&self, id: u16, was_started: bool) -> Made {
        if was_started {
            // SAFETY: the device exists; its owner has stopped polling it.
            self.eal.control(|| unsafe { sys::rte_eth_dev_stop(id) });
        }
        let started = log::quietly(|| self.start(id).inspect_err(|e| tracing::debug!("{e}")).ok());
        Made { id, started }
    }

    pub(super) fn error(&self, step: &'static str, errno: i32) -> PortError {
        PortError::Dpdk {
            port: self.spec.to_string(),
            step,
            reason: eal::strerror(errno),
            log: log::recent_errors(),
        }
    }

    /// Plugs the device in. Returns its port id.
    pub(super) fn plug(&self) -> Result<u16, PortError> {
        let (bus, name, args) = (vdev::bus(&self.spec), &self.name, &self.args);
        let mut id = 0;
        let status = self.eal.control(|| {
            // SAFETY: EAL runs; NUL-terminated strings, and a place of ours.
            unsafe {
                // If EAL was started with this NIC, the device exists already.
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
        Ok(id)
    }

    /// Checks that NIC `id` carries packets of our MTU.
    pub(super) fn carries_mtu(&self, id: u16) -> Result<(), PortError> {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the device exists; `info` is ours.
        let status = unsafe { sys::rte_eth_dev_info_get(id, &raw mut info) };
        if status != 0 {
            return Err(self.error("reading the device's properties", status));
        }
        // DPDK presets 65535 for drivers that report no maximum. A zero from a driver is no maximum either.
        if info.max_mtu != 0 && self.mtu > info.max_mtu {
            return Err(PortError::Mtu { port: self.spec.to_string(), mtu: self.mtu, carries: info.max_mtu });
        }
        Ok(())
    }

    /// Makes a device of the rings of an in-process link. Returns its port id.
    pub(super) fn make_ring(&self, link: &ring::End) -> Result<u16, PortError> {
        let name = &self.name;
        self.eal
            .control(|| u16::try_from(link.make_device(name)).map_err(|_| eal::errno()))
            .map_err(|errno| self.error("making the ring device", errno))
    }

    /// Configures the queues and starts device `id`.
    pub(super) fn start(&self, id: u16) -> Result<Started, PortError> {
        let queue = vdev::queue_size(&self.spec);
        let pools: Vec<usize> = self.rx.iter().map(|pool| pool.as_ptr() as usize).collect();
        let driver_queues = vdev::driver_queues(&self.spec, pools.len() as u16);
        let spreads = matches!(self.spec, PortSpec::Pci { .. });
        let watched = self.is_watched();
        const ANY: u32 = u32::MAX;
        let node = self.node.unwrap_or(ANY);
        // Before the device is configured, because the peer may connect at once then.
        let peer = matches!(self.spec, PortSpec::Vhost { .. }).then(|| in_place::Link::follow(id));
        // Only these drivers are asked to signal frames. Ports of all other kinds, NICs included, are only polled.
        let interrupts = matches!(self.spec, PortSpec::VirtioUser { .. } | PortSpec::Vhost { .. });
        // A `vhost` device has this setting among its arguments. Ports of other kinds send and receive single segments.
        let trains = self.trains && matches!(self.spec, PortSpec::VirtioUser { .. });
        let caps = Capabilities::of(&self.spec);
        // Whether the device may filter frames by address, and so must be made promiscuous here. For a port on a kernel
        // interface, `Netdev` does this for as long as the port is open.
        let filters = matches!(self.spec, PortSpec::Pci { .. } | PortSpec::Vdev { .. });
        // A NIC discards frames longer than the MTU that it is set to. Most drivers of virtual devices refuse to set an
        // MTU.
        let jumbo =
            if matches!(self.spec, PortSpec::Pci { .. }) && self.mtu > ETHERNET_MTU { self.mtu } else { 0 };
        let start = move || {
            let ok = |step: &'static str, status: i32| if status == 0 { Ok(()) } else { Err((step, status)) };
            let mut info = sys::rte_eth_dev_info::default();
            let mut conf = sys::rte_eth_conf::default();
            let (mut key, mut rss) = (rss::Key::new(), None);
            // SAFETY: the device exists and is ours; all pointers are to live locals, which DPDK copies, and to
            // mempools, which are leased for as long as the device exists.
            let queues = unsafe {
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
                let most = info.max_rx_queues.min(info.max_tx_queues).max(1);
                let mut queues = driver_queues.min(most);
                if spreads && queues > 1 {
                    match key.request(&info) {
                        None => queues = 1,
                        Some(request) => {
                            conf.rx_adv_conf.rss_conf = request;
                            conf.rxmode.mq_mode = sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
                        }
                    }
                }
                ok(
                    "configuring the device",
                    sys::rte_eth_dev_configure(id, queues, queues, &raw const conf),
                )?;
                let (mut rxd, mut txd) = (queue, queue);
                ok(
                    "sizing the queues",
                    sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rxd, &raw mut txd),
                )?;
                for (queue, pool) in (0..queues).zip(pools.iter().cycle()) {
                    let pool = *pool as *mut sys::rte_mempool;
                    ok(
                        "setting up a receive queue",
                        sys::rte_eth_rx_queue_setup(id, queue, rxd, node, ptr::null(), pool),
                    )?;
                    ok(
                        "setting up a send queue",
                        sys::rte_eth_tx_queue_setup(id, queue, txd, node, ptr::null()),
                    )?;
                }
                ok("starting the device", sys::rte_eth_dev_start(id))?;
                if filters {
                    sys::rte_eth_promiscuous_enable(id);
                }
                if spreads && queues > 1 {
                    rss = rss::settle(id, &info, queues);
                }
                queues
            };
            // A driver that does not report how many segments a frame may have leaves DPDK's preset, 65535, or
            // zero.
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
            Ok((chains, nic, queues, rss))
        };
        let result = if watched {
            Eal::on_interrupt_thread(start).unwrap_or(Err(("setting an alarm", -libc::ENOMEM)))
        } else {
            self.eal.control(start)
        };
        let (chains, nic, queues, rss) = result.map_err(|(step, status)| self.error(step, status))?;
        Ok(Started {
            // The drivers of memory links send chains whatever they report; this was tested.
            chains: chains || self.spec.is_memory_link(),
            nic: matches!(self.spec, PortSpec::Pci { offload: true, .. }).then_some(nic),
            rx_events: if interrupts { rx_events(id, self.rx.len() as u16, queues) } else { Vec::new() },
            driver_queues: queues,
            queues: queues.min(self.rx.len() as u16),
            rss,
            peer,
        })
    }

    /// Returns whether DPDK's interrupt thread must follow the connection to the peer. Without this, `virtio_user`
    /// would register its interrupt handler when its first peer disconnects, and would leave the handler registered on
    /// close.
    fn is_watched(&self) -> bool {
        matches!(self.spec, PortSpec::VirtioUser { .. })
    }

    /// Stops device `id` and removes it from EAL.
    pub(super) fn remove(&self, id: u16) {
        let (bus, name) = (vdev::bus(&self.spec), &self.name);
        // The driver of `memif` handles its peer's messages on the interrupt thread, also while the device is closed.
        let watched = self.is_watched() || matches!(self.spec, PortSpec::Memif { .. });
        if watched && let Err(why) = close_between_interrupts(id) {
            tracing::warn!(
                "{}: cannot close the port, because {why}; it stays open until the process ends",
                self.spec
            );
            return;
        }
        let status = self.eal.control(|| {
            if !watched {
                self.close(id);
            }
            // SAFETY: the device is ours, and closed.
            unsafe { sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) }
        });
        if status != 0 {
            tracing::debug!("removing {name:?}: {}", eal::strerror(status));
        }
    }

    /// Stops and closes device `id`, on EAL's private thread.
    fn close(&self, id: u16) {
        let pause = matches!(self.spec, PortSpec::Vhost { .. }).then(Pause::begin);
        if let Some(Err(e)) = &pause {
            tracing::warn!(
                "{}: closing while DPDK's vhost thread goes on, which could crash: {e}",
                self.spec
            );
        }
        // SAFETY: the device exists and is ours; it is no longer polled.
        unsafe {
            sys::rte_eth_dev_stop(id);
            sys::rte_eth_dev_close(id);
        }
    }
}

/// Stops and closes a device whose driver moves its interrupt handler from socket to socket whenever the peer comes or
/// goes. An alarm makes that move. So the close must run on the interrupt thread, where the alarms run, and while no
/// move is pending. No move is pending if the link has not changed between two alarms. On the interrupt thread,
/// the close also does not meet a handler that is at work.
///
/// # Errors
/// The reason why the device was not closed.
fn close_between_interrupts(id: u16) -> Result<(), &'static str> {
    const TRIES: usize = 100;
    const NO_ALARM: &str = "DPDK has no memory for an alarm";
    let link_status = move || {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the device exists; `link` is ours. For a watched device this only reads the state that the handler
        // recorded.
        unsafe { sys::rte_eth_link_get_nowait(id, &raw mut link) };
        link.link_status()
    };
    let mut before = Eal::on_interrupt_thread(link_status).ok_or(NO_ALARM)?;
    for _ in 0..TRIES {
        let step = Eal::on_interrupt_thread(move || {
            let now = link_status();
            if now == before {
                // SAFETY: the device exists; its owner no longer polls it, and waits for us.
                unsafe {
                    sys::rte_eth_dev_stop(id);
                    sys::rte_eth_dev_close(id);
                }
            }
            now
        });
        match step.ok_or(NO_ALARM)? {
            now if now == before => return Ok(()),
            now => before = now,
        }
    }
    Err("its peer keeps coming and going")
}

/// Returns one receive event for each of the `handles` handles of a started device. The sources of an event are the
/// queues that its handle polls. Empty if the driver has no interrupts, or if an event cannot be created.
fn rx_events(id: u16, handles: u16, queues: u16) -> Vec<Arc<RxEvent>> {
    let of_handle = |handle: u16| {
        let polls = (handle..queues).step_by(handles.into());
        let fds: Option<Vec<_>> = polls.map(|queue| rx_event(id, queue)).collect();
        RxEvent::of_all(&fds?)
            .inspect_err(|e| {
                tracing::warn!("cannot make a receive event, so frames wait until a thread polls: {e}")
            })
            .ok()
            .map(Arc::new)
    };
    (0..handles).map(of_handle).collect::<Option<_>>().unwrap_or_default()
}

fn rx_event<'a>(id: u16, queue: u16) -> Option<BorrowedFd<'a>> {
    // SAFETY: no pointers are passed; a port or queue that does not exist is refused.
    let fd = unsafe { sys::rte_eth_dev_rx_intr_ctl_q_get_fd(id, queue) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the driver keeps the descriptor open while the device is started, which is longer than it is used here.
    Some(unsafe { BorrowedFd::borrow_raw(fd) })
}
