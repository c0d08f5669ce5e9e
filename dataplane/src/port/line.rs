//! The queues of a port: what each has for itself, and what they have in common.
//!
//! The first queue's handle looks after the device: its peer, its link, its memory. The others learn from words that it
//! leaves. A device with several queues is started once and stays started until the last handle has gone, so a number that a
//! handle has learned stays right, whatever the others do. The drivers change under a burst what the peer's coming and going
//! changes: `vhost` waits, for each queue, until its burst is over; `virtio_user` keeps split rings, which are all that we
//! use, as they are.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dpdk_sys as sys;

use super::device::Device;
use super::packet_ring::PacketRing;
use super::ring;
use crate::rx_event::RxEvent;

/// A started device, as its queues need it.
#[derive(Clone, Debug)]
struct Ready {
    id: u16,
    /// What tells of frames at each queue; empty where the driver cannot.
    rx_events: Vec<Arc<RxEvent>>,
}

/// What the queues of a port have in common.
#[derive(Debug)]
struct Common {
    /// Only the first queue's handle takes it after the port was opened, so nobody ever waits for it.
    device: Mutex<Device>,
    ready: OnceLock<Ready>,
    up: AtomicBool,
    sends_trains: AtomicBool,
    /// Queues of the peer; zero while they are not known, or as many as ours.
    peer_queues: AtomicU16,
}

/// A queue of a device, in either direction.
#[derive(Debug)]
pub(super) struct Line {
    /// The device, once it is known to be started.
    id: Option<u16>,
    queue: u16,
    /// Queues of the port.
    queues: u16,
    /// The queue from which frames are taken next: another one than `queue` at times if the peer has more than we.
    turn: u16,
    /// Queues of the peer beyond this are nobody's; zero where there are none but our own.
    beyond: u16,
    /// The peer has this queue.
    is_served: bool,
    armed: bool,
    /// What a ring has instead of a driver; frames come from the other device's pool.
    ring: Option<ring::Queue>,
    /// The `af_packet` driver's socket.
    packet_ring: Option<PacketRing>,
    common: Arc<Common>,
}

impl Line {
    /// Returns the queues of a device that has so many, the one that looks after it first.
    pub(super) fn all_of(mut device: Device, queues: u16) -> Vec<Self> {
        let mut rings = device.ring_queues().into_iter();
        let mut packet_rings = device.take_packet_rings().into_iter();
        let common = Arc::new(Common {
            device: Mutex::new(device),
            ready: OnceLock::new(),
            up: AtomicBool::new(false),
            sends_trains: AtomicBool::new(false),
            peer_queues: AtomicU16::new(0),
        });
        let line = |queue| {
            let (ring, packet_ring, common) = (rings.next(), packet_rings.next(), common.clone());
            let mut line = Self {
                id: None,
                queue,
                queues,
                turn: queue,
                beyond: 0,
                is_served: true,
                armed: false,
                ring,
                packet_ring,
                common,
            };
            line.with_device(|_| ());
            line
        };
        (0..queues).map(line).collect()
    }

    /// The device, if there is one to poll.
    #[inline]
    pub(super) fn polled(&self) -> Option<u16> {
        self.id
    }

    /// The number of the queue.
    #[inline]
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// The number of the queue at which to look for frames now.
    #[inline]
    pub(super) fn receiving(&mut self) -> u16 {
        let turn = self.turn;
        if self.beyond > 0 {
            self.turn = if turn + self.queues < self.beyond { turn + self.queues } else { self.queue };
        }
        turn
    }

    /// Whether the peer has this queue: it looks for no frames elsewhere.
    #[inline]
    pub(super) fn is_served(&self) -> bool {
        self.is_served
    }

    /// Learns how many queues the peer has.
    fn meet(&mut self) {
        let peers = self.common.peer_queues.load(Ordering::Relaxed);
        self.is_served = peers == 0 || self.queue < peers;
        self.beyond = if peers > self.queues { peers } else { 0 };
        self.turn = self.queue;
    }

    /// The rings of this queue, if there are: frames come from the other device's pool then.
    #[inline]
    pub(super) fn ring(&mut self) -> Option<&mut ring::Queue> {
        self.ring.as_mut()
    }

    /// Frames received and sent by way of rings.
    pub(super) fn ring_frames(&self) -> (u64, u64) {
        self.ring.as_ref().map_or((0, 0), |ring| (ring.received, ring.sent))
    }

    fn looks_after_device(&self) -> bool {
        self.queue == 0
    }

    /// Asks the device, and learns whether it can be polled now.
    fn with_device<T>(&mut self, ask: impl FnOnce(&mut Device) -> T) -> T {
        let mut device = self.common.device.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = ask(&mut device);
        self.id = device.polled();
        if let (Some(id), Some(rx_events)) = (self.id, device.rx_events()) {
            self.common.ready.get_or_init(|| Ready { id, rx_events: rx_events.to_vec() });
        }
        answer
    }

    /// Whether the peer is there; the first queue furthers a connection that is not.
    pub(super) fn link_up(&mut self) -> bool {
        if let Some(ring) = &self.packet_ring {
            ring.kick();
        }
        if !self.looks_after_device() {
            self.id = self.common.ready.get().map(|ready| ready.id);
            self.meet();
            return self.common.up.load(Ordering::Relaxed) && self.id.is_some();
        }
        let (up, peers) = self.with_device(|device| (device.link_up(), device.peer_queues()));
        self.common.peer_queues.store(peers.unwrap_or(0), Ordering::Relaxed);
        self.meet();
        self.common.up.store(up, Ordering::Relaxed);
        if !up {
            self.common.sends_trains.store(false, Ordering::Relaxed);
        }
        up
    }

    /// Whether the peer that is there takes frames of several TCP segments: as the device says, or has said when the first
    /// queue was asked.
    pub(super) fn sends_trains(&self) -> bool {
        if !self.looks_after_device() {
            return self.common.sends_trains.load(Ordering::Relaxed);
        }
        let device = self.common.device.lock().unwrap_or_else(PoisonError::into_inner);
        let sends = device.sends_trains();
        self.common.sends_trains.store(sends, Ordering::Relaxed);
        sends
    }

    /// Frames that the kernel had for the driver and dropped.
    pub(super) fn kernel_drops(&self) -> u64 {
        self.packet_ring.as_ref().map_or(0, PacketRing::drops)
    }

    /// See [`super::Port::arm`].
    pub(super) fn arm(&mut self) -> Option<Arc<RxEvent>> {
        // Nothing arrives at a queue that the peer has not; frames that others hand over wake by themselves.
        let id = self.polled().filter(|_| self.is_served)?;
        let event = self.common.ready.get()?.rx_events.get(usize::from(self.queue))?.clone();
        for queue in self.polls() {
            // SAFETY: no pointers are passed; the device is started and has these queues, which only their owner polls.
            if unsafe { sys::rte_eth_dev_rx_intr_enable(id, queue) } != 0 {
                if queue != self.queue {
                    self.disarm();
                }
                return None;
            }
        }
        // What the driver has written for the peer to see comes before our next look at what the peer has written.
        fence(Ordering::SeqCst);
        self.armed = true;
        Some(event)
    }

    /// The queues at which this handle looks for frames.
    fn polls(&self) -> impl Iterator<Item = u16> + use<> {
        (self.queue..self.beyond.max(self.queue + 1)).step_by(self.queues.into())
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
            for queue in self.polls() {
                // SAFETY: as for arming.
                unsafe { sys::rte_eth_dev_rx_intr_disable(id, queue) };
            }
        }
    }
}
