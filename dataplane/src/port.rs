//! Ports: opening one hot-plugs its device into the running EAL.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dpdk_sys as sys;
use urnic_config::PortSpec;

use self::burst::BurstSize;
use self::device::Device;
use self::held::{Held, HoldError};
use self::in_place::{InPlace, Outlet, Received, Sent};
use self::line::Line;
use self::nic::Nic;
use crate::buffers::{HEADROOM, Pool, PoolError, Users, prefetch_data};
use crate::eal::{Eal, MemoryKind};
use crate::frame::{Part, TxFrame, TxQueue};
use crate::rx_event::RxEvent;
use crate::{Capabilities, Mbuf, RxChecksum, Spread, TxChecksum, joined, log};

mod burst;
mod device;
mod door;
mod held;
mod in_place;
mod line;
mod netdev;
mod nic;
mod packet_ring;
mod pause;
mod pci;
mod recipe;
mod ring;
mod rss;
mod signals;
mod sigpipe;
mod socket;
mod train;
mod vdev;

/// The maximum number of frames that one burst receives.
pub const BURST: usize = 32;

/// Number of calls of [`Port::link_up`], milliseconds apart, after which [`Held::drain`] is called.
const DRAIN_EVERY: u32 = 256;

/// Bytes of an Ethernet header with a VLAN tag.
const ETHERNET: usize = 18;

/// Settings of [`Port::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Largest IP packet in bytes. A NIC may be set to this MTU. On all other ports, only urnic uses it, and DPDK's own
    /// MTU stays as it is.
    pub mtu: u16,
    /// Mbufs of each queue for received frames that an engine may hold on to, in addition to those in the queue
    /// itself.
    pub rx_frames: u32,
    /// Mbufs of each queue for payload and headers to send, in addition to those that the queue may hold back.
    pub tx_frames: u32,
    /// Whether this end and the peer may send several TCP segments as one frame, where the port and the peer support
    /// that.
    pub trains: bool,
    /// Queues each way, one for each engine; a port may get fewer, see [`Port::open_queues`].
    pub queues: u16,
    /// NUMA node of the NIC, whose memory is used for frames and queues; `None`: any node.
    pub node: Option<u32>,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { mtu: 1500, rx_frames: 1024, tx_frames: 1536, trains: true, queues: 1, node: None }
    }
}

/// Why a port could not be opened.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PortError {
    /// The socket is in use already, by another process or by another device of this one.
    #[error(
        "{port}: the socket {path} is in use already, by another process or another device of this one; close that one, \
         or choose another path"
    )]
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
        /// Why it cannot be used.
        reason: String,
    },
    /// The port connects to a socket on which no process listens.
    #[error(
        "{port}: no process listens on the socket {path}; start the other end first, or let this end be the server"
    )]
    NoPeer {
        /// The port.
        port: String,
        /// Its socket.
        path: PathBuf,
    },
    /// Both ends of an in-process link are already open.
    #[error(
        "{0}: both ends of this link are open already; a ring joins two devices of one process: choose another name"
    )]
    RingInUse(String),
    /// The other end of an in-process link has another number of queues.
    #[error(
        "{port}: this end would have {queues} queues, but the other has {other}; open both with the same number of engines"
    )]
    RingQueues {
        /// The port.
        port: String,
        /// Queues asked for.
        queues: u16,
        /// Queues of the other end.
        other: u16,
    },
    /// The process lacks a privilege.
    #[error(
        "{port}: not permitted: the port needs {needs}; run as root, or give the program the missing capabilities with \
         setcap(8)"
    )]
    NoPermission {
        /// The port.
        port: String,
        /// The capabilities or rights that the port needs.
        needs: &'static str,
    },
    /// The network interface does not exist.
    #[error("{port}: there is no such network interface; here are {known}")]
    NoInterface {
        /// The port.
        port: String,
        /// The interfaces that exist.
        known: String,
    },
    /// The network interface is down.
    #[error("{port}: the interface is down; bring it up with `ip link set {interface} up`")]
    InterfaceDown {
        /// The port.
        port: String,
        /// Its interface.
        interface: String,
    },
    /// The network interface carries only smaller packets.
    #[error(
        "{port}: the interface carries packets of at most {carries} bytes, but the MTU is {mtu}; set port.mtu to \
         {carries}, or raise the MTU of the interface with `ip link set {interface} mtu {mtu}`, on all hosts of the \
         network alike"
    )]
    InterfaceMtu {
        /// The port.
        port: String,
        /// Its interface.
        interface: String,
        /// MTU asked for, in bytes.
        mtu: u16,
        /// MTU of the interface, in bytes.
        carries: i32,
    },
    /// The driver carries only smaller packets.
    #[error(
        "{port}: a port of this kind carries packets of at most {carries} bytes, but the MTU is {mtu}; lower port.mtu"
    )]
    Mtu {
        /// The port.
        port: String,
        /// MTU asked for, in bytes.
        mtu: u16,
        /// Largest packet that the driver carries, in bytes.
        carries: u16,
    },
    /// Another port of this process uses the interface.
    #[error("{0}: this process has a port on the interface already; use another interface for each device")]
    InterfaceInUse(String),
    /// Another port on this machine has the address on the same interface.
    #[error(
        "{port}: address conflict: {holder} has the address {address} on this interface; stop that process, or choose another address"
    )]
    AddressInUse {
        /// The port.
        port: String,
        /// The address.
        address: IpAddr,
        /// The process that holds it, in words.
        holder: String,
    },
    /// The network interface or the NIC cannot be used.
    #[error("{port}: the port cannot be opened: {reason}")]
    Interface {
        /// The port.
        port: String,
        /// Why.
        reason: String,
    },
    /// The program started EAL in a way that this port cannot work with.
    #[error(
        "{port}: the program has started DPDK itself, and {reason}; have it start DPDK with --single-file-segments \
         (SPDK's programs: option -g), or choose another port"
    )]
    ForeignMemory {
        /// The port.
        port: String,
        /// The problem.
        reason: String,
    },
    /// EAL has no memory for the port's frames.
    #[error("{port}: {source}")]
    Pool {
        /// The port.
        port: String,
        /// Why the pool could not be made.
        source: PoolError,
    },
    /// A call of DPDK failed.
    #[error("{port}: {step} failed: {reason}{}", log::appendix(.log))]
    Dpdk {
        /// The port.
        port: String,
        /// The purpose of the call.
        step: &'static str,
        /// The error in words.
        reason: String,
        /// The last errors that DPDK logged.
        log: Vec<String>,
    },
}

/// Counters of a port since it was opened.
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
    /// Frames that the peer's buffers were too small for.
    pub tx_dropped: u64,
    /// Frames that were dropped because they did not fit an mbuf, because there was no mbuf or no room in the
    /// port's ring, or, for parts of a split frame, because there was no room in the burst.
    pub rx_dropped: u64,
    /// Counters of the NIC's work on TCP checksums; `None` unless the port is a NIC with offload.
    pub checksums: Option<NicChecksums>,
}

/// Counters of a NIC's work on TCP checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicChecksums {
    /// Sent frames whose checksum was left to the NIC.
    pub tx_filled: u64,
    /// Frames that the driver refused, and that were replaced by linear copies. If the checksum was left to the
    /// NIC, it was computed in software instead.
    pub tx_refused: u64,
    /// Frames that the driver refused and that were lost because there was no mbuf for a copy.
    pub tx_unsent: u64,
    /// Segments received whose checksum was trusted, because the NIC reported it as right, or because a virtio
    /// device reported that it needs no check.
    pub rx_good: u64,
    /// Frames received whose checksum the NIC reported as wrong.
    pub rx_bad: u64,
}

/// One queue each way of an open port, with pools of its own. The device is closed when the last of its queues is
/// dropped.
#[derive(Debug)]
pub struct Port {
    /// Reception in place; `None` where the driver always receives.
    // Dropped before the pools, because mbufs from them are on its list.
    in_place: Option<Box<InPlace>>,
    /// Transmission in place; `None` where the driver always sends.
    outlet: Option<Box<Outlet>>,
    works_in_place: bool,
    /// Least number of mbufs that the driver gets at a time while it receives; 0: any number.
    refill: u32,
    // Dropped before the pools, because the driver holds mbufs from them.
    line: Line,
    rx: Pool,
    tx: Pool,
    caps: Capabilities,
    /// The NIC; `None` unless the port is a NIC with offload.
    nic: Option<Box<Nic>>,
    burst: BurstSize,
    dropped: u64,
    mtu: u16,
    spec: PortSpec,
    /// The port's addresses, reserved against other processes.
    held: Vec<Held>,
    /// Number of calls of [`Port::link_up`]. Every [`DRAIN_EVERY`]th call drains `held`.
    looks: u32,
}

impl Port {
    /// Opens the port with one queue. See [`open_queues`](Self::open_queues).
    ///
    /// # Errors
    /// The errors of `open_queues`.
    pub fn open(eal: &Arc<Eal>, spec: &PortSpec, options: &PortOptions) -> Result<Self, PortError> {
        let one = PortOptions { queues: 1, ..options.clone() };
        let no_queue =
            || PortError::Interface { port: spec.to_string(), reason: "the port has no queue".to_owned() };
        Self::open_queues(eal, spec, &one)?.pop().ok_or_else(no_queue)
    }

    /// Opens the port: makes its pools, plugs the device in and starts it. Does not wait for a peer: if the
    /// device needs one, [`link_up`](Self::link_up) plugs the device in or starts it later. Waits up to five
    /// seconds for the link of a NIC. Returns a handle for each queue, the first queue first. Returns fewer
    /// handles than [`PortOptions::queues`] if ports of this kind ([`Capabilities::queues`]), the port's
    /// interface or the NIC's driver support fewer queues.
    ///
    /// # Errors
    /// The problem that prevents the port from being opened, with a remedy.
    pub fn open_queues(
        eal: &Arc<Eal>,
        spec: &PortSpec,
        options: &PortOptions,
    ) -> Result<Vec<Self>, PortError> {
        let frame = usize::from(options.mtu) + ETHERNET;
        let carries = vdev::mtu_limit(spec);
        if options.mtu > carries {
            return Err(PortError::Mtu { port: spec.to_string(), mtu: options.mtu, carries });
        }
        if eal.memory() == MemoryKind::Foreign
            && let PortSpec::VirtioUser { .. } = spec
            && let Some(reason) = joined::cannot_be_shared()
        {
            return Err(PortError::ForeignMemory { port: spec.to_string(), reason });
        }
        let mut caps = Capabilities::of(spec);
        let wanted = options.queues.clamp(1, caps.queues);
        let netdev = eal.control(|| netdev::Netdev::open(spec, options.mtu, wanted))?;
        let wanted = netdev.as_ref().map_or(wanted, netdev::Netdev::queues);
        let queue = vdev::held_frames(spec);
        let users = if vdev::is_ring(spec) { Users::Link } else { Users::Engine };
        let pool = |frames: u32, room: usize| {
            Pool::new(eal, frames + queue, room, users, options.node)
                .map_err(|source| PortError::Pool { port: spec.to_string(), source })
        };
        let pools = (0..wanted).map(|_| {
            let rx = pool(options.rx_frames, vdev::receive_room(spec, frame))?;
            Ok((rx, pool(options.tx_frames, vdev::send_room(spec, frame))?))
        });
        let pools = pools.collect::<Result<Vec<_>, _>>()?;
        let mut leases: Vec<_> = pools.iter().map(|(rx, _)| rx.lease()).collect();
        let others = leases.split_off(if vdev::has_device_for_each_queue(spec) { 1 } else { leases.len() });
        let device = Device::open(eal, spec, options, leases, netdev)?;
        let others = vdev::other_interfaces(spec).zip(others);
        let others: Vec<_> = others
            .map(|(spec, lease)| Device::open(eal, &spec, options, vec![lease], None))
            .collect::<Result<_, _>>()?;
        caps.multi_segment_tx &= device.chains();
        let nic = device.nic();
        if let Some(does) = nic {
            (caps.tx_checksum, caps.rx_checksum) = (does.tx, does.rx);
        }
        let queues = device.queues();
        caps.queues = queues + others.len() as u16;
        if let Some(rss) = device.rss() {
            caps.spread = Spread::Known(rss);
        }
        let port = |(line, (rx, tx))| Self {
            in_place: None,
            outlet: None,
            works_in_place: false,
            refill: 0,
            line,
            rx,
            tx,
            caps,
            nic: nic.map(|does| Box::new(Nic::new(does.driver))),
            burst: BurstSize::unbounded(),
            dropped: 0,
            mtu: options.mtu,
            spec: spec.clone(),
            held: Vec::new(),
            looks: 0,
        };
        let lines = if others.is_empty() {
            Line::all_of(device, queues)
        } else {
            Line::one_of_each(std::iter::once(device).chain(others).collect())
        };
        Ok(lines.into_iter().zip(pools).map(port).collect())
    }

    /// From now on, [`rx_burst`](Self::rx_burst) receives fewer frames at a time if they are long: some 80 KiB while
    /// short frames come too, else twice as many. Trains of segments make a full burst of more than half a MiB, during
    /// which a caller cannot do anything else.
    pub fn bound_bursts(&mut self) {
        let trains = matches!(self.spec, PortSpec::VirtioUser { .. } | PortSpec::Vhost { .. });
        self.burst = BurstSize::bounded(trains);
    }

    /// From now on, a `vhost` port serves the rings of its peer without the driver where it can. The payload of long TCP
    /// frames may then stay in the memory of the peer: such a frame [is borrowed](Mbuf::is_borrowed) until the next burst
    /// is received, and copied then if it is still in use. On a `virtio_user` port, the driver offers its peer new buffers
    /// many at a time.
    pub fn work_in_place(&mut self) {
        self.works_in_place = true;
        self.refill = vdev::refill(&self.spec);
    }

    /// Returns whether the peer takes frames from this queue. A peer with fewer queues does not serve all of ours. The
    /// frames for a queue that is not served must leave through the first queue.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.line.is_served()
    }

    /// Returns the number of this queue within the port.
    pub fn queue(&self) -> u16 {
        self.line.number()
    }

    /// Receives one burst of frames, at most as many as `frames` has room for, and prefetches their headers. Returns
    /// the number of frames received. Every frame is linear: a frame of several TCP segments that does not fit one mbuf
    /// is split; any other frame that does not fit is dropped and counted.
    #[inline]
    pub fn rx_burst<F: From<Mbuf>>(&mut self, frames: &mut ArrayVec<F, BURST>) -> usize {
        let mut burst = [const { MaybeUninit::<*mut sys::rte_mbuf>::uninit() }; BURST];
        let Some(id) = self.line.polled() else { return 0 };
        if self.line.ring().is_some() {
            return self.rx_from_ring(frames);
        }
        let queue = self.line.receiving();
        if let Some(outlet) = &mut self.outlet {
            outlet.follow_up();
        }
        if let Some(in_place) = &mut self.in_place {
            let mut burst = ArrayVec::new();
            let most = usize::from(self.burst.frames()).min(frames.remaining_capacity());
            // SAFETY: all frames come from this pool. Octets of earlier bursts are no longer used, by the contract of
            // `Mbuf::piece`. What is received is ours.
            unsafe {
                match in_place.receive(queue, &mut self.rx, most, &mut burst) {
                    Received::ByDriver => {}
                    Received::InPlace(0) => return 0,
                    Received::InPlace(_) => return self.accept(&burst, frames),
                }
            }
        }
        if self.refill > 0 {
            self.rx.set_least(self.refill);
        }
        // SAFETY: the device is started and has this queue, which only this handle polls; `burst` has the room stated.
        let n = unsafe {
            let ops = (&raw const sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>().add(id.into());
            let Some(receive) = (*ops).rx_pkt_burst else { return 0 };
            receive(
                *(*ops).rxq.data.add(queue.into()),
                burst.as_mut_ptr().cast(),
                self.burst.frames().min(frames.remaining_capacity() as u16),
            )
        };
        if self.refill > 0 {
            self.rx.set_least(0);
        }
        // The usual case when idle: returns without the call of `accept`, because the caller polls again soon.
        if n == 0 {
            return 0;
        }
        // SAFETY: the driver has written `n` mbufs there, and passed their ownership to us.
        unsafe { self.accept(slice::from_raw_parts(burst.as_ptr().cast(), n.into()), frames) }
    }

    /// Does the work of `rx_burst` for a port that uses rings.
    #[inline(never)]
    fn rx_from_ring<F: From<Mbuf>>(&mut self, frames: &mut ArrayVec<F, BURST>) -> usize {
        let mut burst = [const { MaybeUninit::<*mut sys::rte_mbuf>::uninit() }; BURST];
        let Some(ring) = self.line.ring() else { return 0 };
        let (before, room) = (frames.len(), frames.remaining_capacity().min(BURST) as u16);
        // SAFETY: the device is open and only this handle uses the queue; `burst` has the room stated. The `n` frames
        // become ours, and each is whole.
        unsafe {
            let n = ring.receive(burst.as_mut_ptr().cast(), room);
            for &m in slice::from_raw_parts(burst.as_ptr().cast::<*mut sys::rte_mbuf>(), n.into()) {
                if let Some(m) = NonNull::new(m) {
                    self.accept_from_ring(m, frames);
                }
            }
        }
        frames.len() - before
    }

    /// Takes over the frames that the driver has delivered, and returns how many frames the caller gets.
    ///
    /// # Safety
    /// `burst` contains whole frames that are ours to free, no more than `frames` has room for.
    #[inline(never)]
    unsafe fn accept<F: From<Mbuf>>(
        &mut self,
        burst: &[*mut sys::rte_mbuf],
        frames: &mut ArrayVec<F, BURST>,
    ) -> usize {
        if self.line.is_armed() {
            self.line.disarm();
        }
        let before = frames.len();
        let (mut bytes, mut shortest) = (0, u32::MAX);
        for &m in burst {
            let Some(m) = NonNull::new(m) else { continue };
            // SAFETY: as the caller promises.
            unsafe {
                bytes += m.as_ref().pkt_len;
                shortest = shortest.min(m.as_ref().pkt_len);
                if m.as_ref().nb_segs == 1 {
                    prefetch_data(m);
                    let mut frame = Mbuf::from_raw(m);
                    if self.caps.rx_checksum != RxChecksum::Link {
                        match self.nic.as_mut().filter(|_| self.caps.rx_checksum == RxChecksum::Nic) {
                            Some(nic) => nic.judge(&mut frame),
                            None => frame.distrust_checksum(),
                        }
                    }
                    // Frames that were split may have filled `frames`. This check with `push_unchecked` is far faster
                    // than `try_push`.
                    if frames.is_full() {
                        self.dropped += 1;
                    } else {
                        frames.push_unchecked(F::from(frame));
                    }
                } else {
                    self.dropped += train::split(m, frames);
                }
            }
        }
        self.burst.received(burst.len(), bytes, shortest);
        frames.len() - before
    }

    /// Copies a frame of the other device's pool into ours, so that neither device holds on to the other's memory.
    ///
    /// # Safety
    /// `m` is a whole frame that is ours to free, and `frames` has room.
    unsafe fn accept_from_ring<F: From<Mbuf>>(
        &mut self,
        m: NonNull<sys::rte_mbuf>,
        frames: &mut ArrayVec<F, BURST>,
    ) {
        // SAFETY: as the caller promises.
        match unsafe { ring::copy(m, &mut self.rx) } {
            Some(copy) => frames.push(F::from(copy)),
            None => self.dropped += 1,
        }
        // SAFETY: as the caller promises.
        unsafe { sys::rte_pktmbuf_free(m.as_ptr()) };
    }

    /// Offers the queue to the driver, which takes frames from the front of the queue. Returns how many the driver
    /// took; the rest stays queued.
    #[inline]
    pub fn tx_burst(&mut self, queue: &mut TxQueue) -> usize {
        let Some(id) = self.line.polled() else { return 0 };
        let number = self.line.queue();
        // SAFETY: the device is started and has this queue, which only this handle uses; `queue` passes live frames.
        queue.offer(|frames, n| unsafe {
            if let Some(ring) = self.line.ring() {
                return ring.send(frames, n);
            }
            if let Some(outlet) = &mut self.outlet
                && let Sent::InPlace(n) = outlet.send(slice::from_raw_parts(frames.cast(), n.into()))
            {
                return n;
            }
            let ops = (&raw const sys::rte_eth_fp_ops).cast::<sys::rte_eth_fp_ops>().add(id.into());
            if let Some(nic) = &mut self.nic {
                return nic.send((ops, number), frames, n, &mut self.tx);
            }
            let Some(send) = (*ops).tx_pkt_burst else { return 0 };
            send(*(*ops).txq.data.add(number.into()), frames, n)
        })
    }

    /// Makes a frame of `headers` and the parts, in the cheapest way that this port can send. The headers are written
    /// in front of the first payload if that has no other user. Further parts become segments. If the port cannot send
    /// the segments that this needs, the headers and all parts are copied into one mbuf. Returns `None` if the TX pool
    /// is empty, a range is out of bounds, or a copy would not fit.
    ///
    /// `leave_checksum` means that the TCP checksum field holds only the sum of the pseudo-header; it is ignored if
    /// [`Capabilities::tx_checksum`] is [`TxChecksum::Software`].
    #[inline]
    pub fn frame(&mut self, headers: &[u8], parts: &[Part<'_>], leave_checksum: bool) -> Option<TxFrame> {
        let mut frame = TxFrame::assemble(&mut self.tx, headers, parts, self.caps.multi_segment_tx)?;
        if leave_checksum && self.caps.tx_checksum != TxChecksum::Software {
            frame.leave_checksum(headers);
        }
        Some(frame)
    }

    /// Returns whether the peer is there. The first queue's handle checks this for all queues, and also lets the port
    /// accept or find a peer that has (re)started. The call costs a few system calls on some ports, and occasionally
    /// takes some milliseconds, so the engine must call it every few milliseconds, not in every pass. Nothing is sent
    /// or received until the first peer is there.
    pub fn link_up(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(DRAIN_EVERY) {
            self.held.iter().for_each(Held::drain);
        }
        let up = self.line.link_up();
        if self.works_in_place
            && self.in_place.is_none()
            && let Some(link) = self.line.peer()
        {
            self.outlet = Some(Box::new(Outlet::new(link.clone(), self.line.queue())));
            self.in_place = Some(Box::new(InPlace::new(link)));
        }
        up
    }

    /// Reserves `addresses`, in the VLAN `vlan`, against other processes on the same network interface, until the
    /// port is closed. Such processes do not receive each other's frames, so asking the network would not find them.
    /// Does nothing on a port whose interface other processes cannot use.
    ///
    /// # Errors
    /// [`PortError::AddressInUse`] if another port, usually of another process, has one of the addresses;
    /// [`PortError::Interface`] if the kernel refuses.
    pub fn hold_addresses(&mut self, addresses: &[IpAddr], vlan: Option<u16>) -> Result<(), PortError> {
        let Some(index) = vdev::shared_interface(&self.spec).and_then(held::index_of) else { return Ok(()) };
        let port = || self.spec.to_string();
        let hold = |&address: &IpAddr| {
            Held::hold(index, vlan, address).map_err(|e| match e {
                HoldError::Taken(holder) => PortError::AddressInUse { port: port(), address, holder },
                HoldError::System(e) => {
                    PortError::Interface { port: port(), reason: format!("reserving {address}: {e}") }
                }
            })
        };
        self.held = addresses.iter().map(hold).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Makes the driver signal the next frame that arrives. After arming, the caller must poll once more before it
    /// sleeps on the event, because frames that arrived before raise no event. The first burst that receives a frame
    /// disarms the port. `None`: no frame will be signalled, so keep polling. This is so if the driver cannot signal
    /// frames, if there is no device yet, or if the peer does not have this queue.
    pub fn arm(&mut self) -> Option<Arc<RxEvent>> {
        if let Some(in_place) = &mut self.in_place {
            in_place.pause();
        }
        self.line.arm()
    }

    /// Returns how many bytes of payload one frame may carry as several TCP segments to the present peer; zero if the
    /// peer takes only single segments. See [`TxFrame::segmented`].
    pub fn gso_max(&self) -> usize {
        // Assumes that the receiver's mbufs are as large as ours. One mbuf must hold the headers and the payload.
        if self.line.is_served() && self.line.sends_trains() {
            self.tx.room().saturating_sub(HEADROOM)
        } else {
            0
        }
    }

    /// Returns the Ethernet address of the NIC or interface; `None` if there is no device yet, or it has no address.
    pub fn mac(&self) -> Option<[u8; 6]> {
        let id = self.line.polled()?;
        let mut address = sys::rte_ether_addr::default();
        // SAFETY: the device exists; an Ethernet address is six bytes.
        unsafe {
            let status = sys::rte_eth_macaddr_get(id, &raw mut address);
            let mac = (&raw const address).cast::<[u8; 6]>().read_unaligned();
            (status == 0 && mac != [0; 6]).then_some(mac)
        }
    }

    /// Returns the capabilities of the port.
    pub fn caps(&self) -> &Capabilities {
        &self.caps
    }

    /// Returns the largest IP packet in bytes.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the specification that the port was opened with.
    pub fn spec(&self) -> &PortSpec {
        &self.spec
    }

    /// Returns the pool of received frames.
    pub fn rx_pool(&self) -> &Pool {
        &self.rx
    }

    /// Returns the number of free mbufs in the pool for frames to send.
    #[inline]
    pub fn tx_available(&self) -> usize {
        self.tx.available()
    }

    /// Returns the number of mbufs in the pool for frames to send, free or not.
    pub fn tx_capacity(&self) -> usize {
        self.tx.capacity()
    }

    /// Returns the pool for frames to send.
    pub fn tx_pool(&mut self) -> &mut Pool {
        &mut self.tx
    }

    /// Returns the pool for frames to ourselves, which are handled as received frames (see [`Pool::copied`]). While
    /// there is no device, this is not the pool of received frames, because EAL's thread may be filling the driver's
    /// queue from that pool.
    pub fn own_pool(&mut self) -> &mut Pool {
        if self.line.polled().is_some() { &mut self.rx } else { &mut self.tx }
    }

    /// Returns counters. The first queue's handle returns what the driver has counted for all queues; the other handles
    /// do not. All else (frames through rings, frames dropped by us or the kernel, checksums) is counted for each queue
    /// and returned by its handle.
    pub fn stats(&self) -> PortStats {
        let mut stats = sys::rte_eth_stats::default();
        if let Some(id) = self.line.polled().filter(|_| self.line.queue() == 0) {
            // SAFETY: the device is open; `stats` is ours. On failure the counters stay zero.
            unsafe { sys::rte_eth_stats_get(id, &raw mut stats) };
        }
        let (received, sent) = self.line.ring_frames();
        let in_place = self.in_place.as_ref().map_or((0, 0, 0), |i| (i.frames, i.bytes, i.dropped));
        let outlet = self.outlet.as_ref().map_or((0, 0, 0), |o| (o.frames, o.bytes, o.dropped));
        PortStats {
            rx_frames: stats.ipackets + received + in_place.0,
            rx_bytes: stats.ibytes + in_place.1,
            tx_frames: stats.opackets + sent + outlet.0,
            tx_bytes: stats.obytes + outlet.1,
            tx_dropped: outlet.2,
            rx_dropped: stats.imissed
                // What the driver was refused is no loss.
                + if self.refill > 0 { 0 } else { stats.rx_nombuf }
                + self.dropped
                + in_place.2
                + self.line.kernel_drops(),
            checksums: self.nic.as_ref().map(|nic| nic.counts),
        }
    }
}
