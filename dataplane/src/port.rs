//! Ports: opened when a device is opened, by hot-plugging a virtual device into the running EAL.

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use dpdk_sys as sys;
use urnic_config::PortSpec;

use crate::eal::{self, Eal};
use crate::frame::{Part, TxFrame, TxQueue};
use crate::mbuf::prefetch_data;
use crate::pool::{Pool, PoolError, Users};
use crate::{Capabilities, Mbuf, log};

mod ring;
mod sigpipe;
mod socket;
mod vdev;

/// Frames that a burst receives at most.
pub const BURST: usize = 32;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// Settings of [`Port::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Largest IP packet in bytes. Ours alone: DPDK's own MTU is left as it is.
    pub mtu: u16,
    /// Mbufs for received frames, beyond what the port's queue holds: what an engine may hold on to.
    pub rx_frames: u32,
    /// Mbufs for payload and headers to send, beyond what the port's queue may hold back.
    pub tx_frames: u32,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { mtu: 1500, rx_frames: 2048, tx_frames: 2048 }
    }
}

/// Why a port could not be opened.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PortError {
    /// Somebody listens on the socket already.
    #[error("{port}: the socket {path} is in use by another process; stop it or choose another path")]
    SocketInUse {
        /// The port.
        port: String,
        /// Its socket.
        path: PathBuf,
    },
    /// The path of the socket cannot be used.
    #[error("{port}: cannot use the socket path {path}: {reason}")]
    SocketPath {
        /// The port.
        port: String,
        /// Its socket.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Both ends of an in-process link are open.
    #[error("{0}: both ends of this link are open already; a ring joins two devices of one process")]
    RingInUse(String),
    /// No memory for its frames.
    #[error("{port}: {source}")]
    Pool {
        /// The port.
        port: String,
        /// Which pool.
        source: PoolError,
    },
    /// DPDK refused.
    #[error("{port}: {step} failed: {reason}{}", log::appendix(.log))]
    Dpdk {
        /// The port.
        port: String,
        /// What was being done.
        step: &'static str,
        /// The error in words.
        reason: String,
        /// The last errors that DPDK logged.
        log: Vec<String>,
    },
}

/// What a port has counted since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that found no mbuf, or were longer than the port's MTU, and were dropped.
    pub rx_dropped: u64,
}

/// An open port with one queue each way and its own pools.
#[derive(Debug)]
pub struct Port {
    id: u16,
    rx: Pool,
    tx: Pool,
    caps: Capabilities,
    dropped: u64,
    mac: [u8; 6],
    mtu: u16,
    /// Removed from EAL on drop; after the pools in name only, as `Drop` runs first.
    device: Device,
    spec: PortSpec,
}

/// The device in EAL that a port polls.
#[derive(Debug)]
struct Device {
    name: CString,
    link: Option<ring::End>,
    eal: Arc<Eal>,
    /// Whether there is anything to remove.
    plugged: bool,
    id: u16,
    _listening: Option<socket::Listening>,
}

impl Port {
    /// Opens the port: makes its pools, plugs the device in, starts it. The link may come up later.
    pub fn open(eal: &Arc<Eal>, spec: &PortSpec, options: &PortOptions) -> Result<Self, PortError> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let port = || spec.to_string();
        let frame = usize::from(options.mtu) + ETHERNET;
        let queue = vdev::queue_size(spec);
        let pool = |frames: u32, users| {
            Pool::new(eal, frames + u32::from(queue), frame, users)
                .map_err(|source| PortError::Pool { port: port(), source })
        };
        let users = if vdev::is_ring(spec) { Users::Link } else { Users::Engine };
        let rx = pool(options.rx_frames, users)?;
        let tx = pool(options.tx_frames, users)?;

        let name = vdev::name(spec, SERIAL.fetch_add(1, Ordering::Relaxed));
        let listening = socket::prepare(spec)?;
        let mut device =
            Device { name, link: None, eal: Arc::clone(eal), plugged: false, id: 0, _listening: listening };
        log::recent_errors();
        match spec {
            PortSpec::Ring { name } => {
                device.link = Some(ring::End::join(name).ok_or_else(|| PortError::RingInUse(port()))?);
            }
            _ => device.plug(spec, &vdev::args(spec, frame)?)?,
        }
        if device.link.is_some() {
            device.make_ring(spec)?;
        }
        let mac = device.start(spec, queue, &rx)?;
        Ok(Self {
            id: device.id,
            rx,
            tx,
            caps: Capabilities::of(spec),
            dropped: 0,
            mac,
            mtu: options.mtu,
            device,
            spec: spec.clone(),
        })
    }

    /// Receives up to as many frames as `frames` has room for, and prefetches their headers. Every frame is linear;
    /// what does not fit one mbuf of the MTU is dropped and counted.
    #[inline]
    pub fn rx_burst(&mut self, frames: &mut ArrayVec<Mbuf, BURST>) -> usize {
        let mut burst = [ptr::null_mut(); BURST];
        // SAFETY: the device is started and has a queue 0, which only this port polls; `burst` has the room stated.
        let n = unsafe {
            let ops = (&raw const sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>().add(self.id.into());
            let Some(receive) = (*ops).rx_pkt_burst else { return 0 };
            receive(*(*ops).rxq.data, burst.as_mut_ptr(), frames.remaining_capacity() as u16)
        };
        let before = frames.len();
        for &m in burst.iter().take(n.into()) {
            let Some(m) = NonNull::new(m) else { continue };
            // SAFETY: the driver has given us the mbuf.
            unsafe {
                if self.device.link.is_some() {
                    self.accept_from_ring(m, frames);
                } else if m.as_ref().nb_segs == 1 {
                    prefetch_data(m);
                    let mut frame = Mbuf::from_raw(m);
                    if !self.caps.checksum_metadata {
                        frame.distrust_checksum();
                    }
                    frames.push_unchecked(frame);
                } else {
                    self.dropped += 1;
                    sys::rte_pktmbuf_free(m.as_ptr());
                }
            }
        }
        frames.len() - before
    }

    /// A frame of the other device's pool: copied into ours, so that nobody holds on to another's memory.
    ///
    /// # Safety
    /// `m` is a whole frame that is ours to free, and `frames` has room.
    unsafe fn accept_from_ring(&mut self, m: NonNull<sys::rte_mbuf>, frames: &mut ArrayVec<Mbuf, BURST>) {
        // SAFETY: as the caller promises.
        match unsafe { ring::copy(m, &mut self.rx) } {
            Some(copy) => frames.push(copy),
            None => self.dropped += 1,
        }
        // SAFETY: as the caller promises.
        unsafe { sys::rte_pktmbuf_free(m.as_ptr()) };
    }

    /// Offers the queue to the driver, which takes frames from its front; answers how many. The rest stays queued.
    #[inline]
    pub fn tx_burst(&mut self, queue: &mut TxQueue) -> usize {
        // SAFETY: the device is started and has a queue 0, which only this port uses; the queue passes live frames.
        queue.offer(|frames, n| unsafe {
            let ops = (&raw const sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>().add(self.id.into());
            let Some(send) = (*ops).tx_pkt_burst else { return 0 };
            send(*(*ops).txq.data, frames, n)
        })
    }

    /// Makes a frame of `headers` and the parts, in the cheapest way that this port can send: headers written in front
    /// of the first payload while nobody else refers to it, further parts as segments, a copy where the port cannot
    /// chain. `None` if the TX pool is empty, a range is out of bounds, or a copy would not fit.
    ///
    /// `leave_checksum` says that the TCP checksum field holds the sum of the pseudo-header only (IPv4 without options
    /// over plain Ethernet); allowed if [`Capabilities::checksum_metadata`].
    #[inline]
    pub fn frame(&mut self, headers: &[u8], parts: &[Part<'_>], leave_checksum: bool) -> Option<TxFrame> {
        let mut frame = TxFrame::assemble(&mut self.tx, headers, parts, self.caps.multi_segment_tx)?;
        if leave_checksum && self.caps.checksum_metadata {
            frame.leave_checksum();
        }
        Some(frame)
    }

    /// Whether the peer is there. Costs a few system calls on some ports, and lets a `virtio_user` port accept a peer
    /// that has (re)started: to be called by the engine every few milliseconds, not every pass.
    pub fn link_up(&mut self) -> bool {
        if let Some(link) = &self.device.link {
            return link.is_whole();
        }
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the device is open; `link` is ours.
        let status = sigpipe::blocked(|| unsafe { sys::rte_eth_link_get_nowait(self.id, &raw mut link) });
        status == 0 && link.link_status() != 0
    }

    /// What the kind of port can do.
    pub fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// The address that the device came with. A stack may use another: virtual devices do not filter.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Largest IP packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What was opened.
    pub fn spec(&self) -> &PortSpec {
        &self.spec
    }

    /// The pool of received frames.
    pub fn rx_pool(&self) -> &Pool {
        &self.rx
    }

    /// The pool for frames to send.
    pub fn tx_pool(&mut self) -> &mut Pool {
        &mut self.tx
    }

    /// Pool for received frames, to make one of our own (see [`Pool::copied`]).
    pub fn rx_pool_mut(&mut self) -> &mut Pool {
        &mut self.rx
    }

    /// Counters.
    pub fn stats(&self) -> PortStats {
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: the device is open; `stats` is ours. On failure they stay zero.
        unsafe { sys::rte_eth_stats_get(self.id, &raw mut stats) };
        PortStats {
            rx_frames: stats.ipackets,
            rx_bytes: stats.ibytes,
            tx_frames: stats.opackets,
            tx_bytes: stats.obytes,
            rx_dropped: stats.imissed + stats.rx_nombuf + self.dropped,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.device.unplug();
    }
}

impl Device {
    fn error(spec: &PortSpec, step: &'static str, errno: i32) -> PortError {
        PortError::Dpdk {
            port: spec.to_string(),
            step,
            reason: eal::strerror(errno),
            log: log::recent_errors(),
        }
    }

    /// Plugs a virtual device in.
    fn plug(&mut self, spec: &PortSpec, args: &CStr) -> Result<(), PortError> {
        let name = self.name.clone();
        // SAFETY: EAL runs; NUL-terminated strings.
        let status = self
            .eal
            .control(|| unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), name.as_ptr(), args.as_ptr()) });
        if status != 0 {
            return Err(Self::error(spec, "plugging the device in", status));
        }
        self.plugged = true;
        self.find(spec)
    }

    /// Makes a device of the rings of an in-process link.
    fn make_ring(&mut self, spec: &PortSpec) -> Result<(), PortError> {
        let Some(link) = &self.link else { return Ok(()) };
        let status = self.eal.control(|| link.make_device(&self.name));
        if status < 0 {
            return Err(Self::error(spec, "making the ring device", eal::errno()));
        }
        self.plugged = true;
        self.id = status as u16;
        Ok(())
    }

    fn find(&mut self, spec: &PortSpec) -> Result<(), PortError> {
        let mut id = 0;
        // SAFETY: a NUL-terminated string and a place of ours.
        let status = unsafe { sys::rte_eth_dev_get_port_by_name(self.name.as_ptr(), &raw mut id) };
        if status != 0 {
            return Err(Self::error(spec, "finding the device", status));
        }
        self.id = id;
        Ok(())
    }

    /// Configures one queue each way and starts the device; answers its address.
    fn start(&mut self, spec: &PortSpec, queue: u16, rx: &Pool) -> Result<[u8; 6], PortError> {
        let id = self.id;
        let pool = rx.as_ptr() as usize;
        let result = self.eal.control(|| {
            let ok = |step: &'static str, status: i32| if status == 0 { Ok(()) } else { Err((step, status)) };
            let mut info = sys::rte_eth_dev_info::default();
            let mut conf = sys::rte_eth_conf::default();
            let mut mac = sys::rte_ether_addr::default();
            // SAFETY: the device exists and is ours; all pointers are to live locals, which DPDK copies.
            unsafe {
                ok("reading the device's properties", sys::rte_eth_dev_info_get(id, &raw mut info))?;
                conf.rxmode.offloads = sys::RTE_ETH_RX_OFFLOAD_TCP_CKSUM & info.rx_offload_capa;
                conf.txmode.offloads = (sys::RTE_ETH_TX_OFFLOAD_TCP_CKSUM
                    | sys::RTE_ETH_TX_OFFLOAD_MULTI_SEGS)
                    & info.tx_offload_capa;
                ok("configuring the device", sys::rte_eth_dev_configure(id, 1, 1, &raw const conf))?;
                let (mut rxd, mut txd) = (queue, queue);
                ok(
                    "sizing the queues",
                    sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &raw mut rxd, &raw mut txd),
                )?;
                let pool = pool as *mut sys::rte_mempool;
                ok(
                    "setting up the receive queue",
                    sys::rte_eth_rx_queue_setup(id, 0, rxd, u32::MAX, ptr::null(), pool),
                )?;
                ok(
                    "setting up the send queue",
                    sys::rte_eth_tx_queue_setup(id, 0, txd, u32::MAX, ptr::null()),
                )?;
                ok("starting the device", sys::rte_eth_dev_start(id))?;
                // Devices that do not filter refuse this.
                sys::rte_eth_promiscuous_enable(id);
                ok("reading the device's address", sys::rte_eth_macaddr_get(id, &raw mut mac))?;
                Ok(std::mem::transmute::<sys::rte_ether_addr, [u8; 6]>(mac))
            }
        });
        result.map_err(|(step, status)| Self::error(spec, step, status))
    }

    /// Stops the device and takes it out of EAL.
    fn unplug(&mut self) {
        if !std::mem::take(&mut self.plugged) {
            return;
        }
        let (id, name) = (self.id, &self.name);
        // SAFETY: the device exists and is ours; nobody polls it any more.
        let status = self.eal.control(|| unsafe {
            sys::rte_eth_dev_stop(id);
            sys::rte_eth_dev_close(id);
            sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), name.as_ptr())
        });
        if status != 0 {
            tracing::debug!("removing {name:?}: {}", eal::strerror(status));
        }
        self.link = None;
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.unplug();
    }
}
