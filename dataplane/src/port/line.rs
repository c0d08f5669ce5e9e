//! The queues of a port: the state of each queue, and the state they share.
//!
//! The first queue's handle looks after the device: its peer, its link, its memory. The other handles learn the
//! device's state from shared atomics. A device with several queues is started once and stays started until the last
//! handle is dropped, so a port id that a handle has learned stays valid.
//!
//! A `memif` port has a device of its own for each queue, because its device is stopped whenever the peer changes,
//! which must not happen during a burst of another queue. Each handle then looks after its own device. While only the
//! first device has a peer, the others' frames leave through the first.
//!
//! When the peer comes or goes, the driver may change state that bursts use, but never during a burst. `vhost` first
//! waits for the end of each queue's burst. `virtio_user` does not change split rings, and we use no other kind.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dpdk_sys as sys;

use super::device::Device;
use super::packet_ring::PacketRing;
use super::{in_place, ring};
use crate::rx_event::RxEvent;

/// Properties of a started device that the queues need.
#[derive(Clone, Debug)]
struct Ready {
    id: u16,
    /// The receive event of each queue; empty if the driver cannot signal frames.
    rx_events: Vec<Arc<RxEvent>>,
    /// The peer of a `vhost` device.
    peer: Option<Arc<in_place::Link>>,
}

/// The state that the queues of a port share.
#[derive(Debug)]
struct Common {
    /// Only the first queue's handle takes this lock once the port is open, so no handle ever waits for it.
    device: Mutex<Device>,
    ready: OnceLock<Ready>,
    answers: Answers,
}

/// The device's state, as the first queue last saw it. All queues read this whenever they check the link. It
/// has a cache line of its own, because the first queue writes the lock beside it at each check. The first
/// queue writes this line only if something has changed.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Answers {
    up: AtomicBool,
    sends_trains: AtomicBool,
    /// Number of the peer's queues; zero if there is no peer, or if the peer must have as many queues as we.
    peer_queues: AtomicU16,
}

impl Answers {
    fn set_up(&self, up: bool) {
        if self.up.load(Ordering::Relaxed) != up {
            self.up.store(up, Ordering::Relaxed);
        }
    }

    fn set_sends_trains(&self, sends: bool) {
        if self.sends_trains.load(Ordering::Relaxed) != sends {
            self.sends_trains.store(sends, Ordering::Relaxed);
        }
    }

    fn set_peer_queues(&self, queues: u16) {
        if self.peer_queues.load(Ordering::Relaxed) != queues {
            self.peer_queues.store(queues, Ordering::Relaxed);
        }
    }
}

/// One queue of a device, for both directions.
#[derive(Debug)]
pub(super) struct Line {
    /// DPDK's port id; `None` while the device is not known to be started.
    id: Option<u16>,
    /// The number of the queue within the port.
    number: u16,
    /// The number of the queue within its device.
    queue: u16,
    /// Queues of the device that have handles.
    queues: u16,
    /// The queue that the next burst receives from. If the peer has more queues than we, this handle receives from
    /// several queues in turn; otherwise the value is always `queue`.
    turn: u16,
    /// Number of the peer's queues if the peer has more than we; otherwise zero.
    beyond: u16,
    /// Whether the peer has this queue.
    is_served: bool,
    armed: bool,
    /// The rings of a port of kind `ring`, used in place of the driver; `None` for other kinds. Received frames come
    /// from the pool of the device at the other end.
    ring: Option<ring::Queue>,
    /// The `af_packet` driver's socket; `None` for other drivers, or if the socket was not found.
    packet_ring: Option<PacketRing>,
    common: Arc<Common>,
    /// The first device of the port, if this queue belongs to another one.
    first: Option<Arc<Common>>,
}

impl Line {
    /// Returns the queues of a port whose devices have one queue each.
    pub(super) fn one_of_each(devices: Vec<Device>) -> Vec<Self> {
        let mut lines: Vec<Self> = Vec::with_capacity(devices.len());
        for device in devices {
            let first = lines.first().map(|line| line.common.clone());
            let number = lines.len() as u16;
            lines.extend(Self::all_of(device, 1).into_iter().map(|line| Self {
                number,
                first: first.clone(),
                ..line
            }));
        }
        lines
    }

    /// Returns the `queues` queues of a device in order. The first one looks after the device.
    pub(super) fn all_of(mut device: Device, queues: u16) -> Vec<Self> {
        let mut rings = device.ring_queues().into_iter();
        let mut packet_rings = device.take_packet_rings().into_iter();
        let device = Mutex::new(device);
        let common = Arc::new(Common { device, ready: OnceLock::new(), answers: Answers::default() });
        let line = |queue| {
            let (ring, packet_ring, common) = (rings.next(), packet_rings.next(), common.clone());
            let mut line = Self {
                id: None,
                number: queue,
                queue,
                queues,
                turn: queue,
                beyond: 0,
                is_served: true,
                armed: false,
                ring,
                packet_ring,
                common,
                first: None,
            };
            line.with_device(|_| ());
            line
        };
        (0..queues).map(line).collect()
    }

    /// Returns the device's port id; `None` if there is no device to poll.
    #[inline]
    pub(super) fn polled(&self) -> Option<u16> {
        self.id
    }

    /// Returns the number of the queue within the port.
    #[inline]
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// Returns the number of the queue within its device.
    #[inline]
    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the number of the queue that the next burst must receive from.
    #[inline]
    pub(super) fn receiving(&mut self) -> u16 {
        let turn = self.turn;
        if self.beyond > 0 {
            self.turn = if turn + self.queues < self.beyond { turn + self.queues } else { self.queue };
        }
        turn
    }

    /// Returns the peer of a `vhost` device that is started; `None` for other devices.
    pub(super) fn peer(&self) -> Option<Arc<in_place::Link>> {
        self.common.ready.get()?.peer.clone()
    }

    /// Returns whether the peer has this queue: a peer does not look for frames at queues that it does not have.
    #[inline]
    pub(super) fn is_served(&self) -> bool {
        self.is_served
    }

    /// Updates all that depends on the number of the peer's queues.
    fn meet(&mut self) {
        let peers = self.common.answers.peer_queues.load(Ordering::Relaxed);
        self.is_served = peers == 0 || self.queue < peers;
        self.beyond = if peers > self.queues { peers } else { 0 };
        self.turn = self.queue;
    }

    /// Returns the rings of this queue; `None` if the port uses none. Frames received from rings come from the pool of
    /// the device at the other end.
    #[inline]
    pub(super) fn ring(&mut self) -> Option<&mut ring::Queue> {
        self.ring.as_mut()
    }

    /// Returns the numbers of frames received and sent through rings.
    pub(super) fn ring_frames(&self) -> (u64, u64) {
        self.ring.as_ref().map_or((0, 0), |ring| (ring.received, ring.sent))
    }

    fn looks_after_device(&self) -> bool {
        self.queue == 0
    }

    /// Calls `ask` with the device. Then reads anew whether the device can be polled, because `ask` may have changed
    /// that.
    fn with_device<T>(&mut self, ask: impl FnOnce(&mut Device) -> T) -> T {
        let mut device = self.common.device.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = ask(&mut device);
        self.id = device.polled();
        if let (Some(id), Some(rx_events)) = (self.id, device.rx_events()) {
            let peer = || device.peer().cloned();
            self.common.ready.get_or_init(|| Ready { id, rx_events: rx_events.to_vec(), peer: peer() });
        }
        answer
    }

    /// Returns whether the peer is there; if it is not, the queue that looks after the device takes the next step
    /// towards a connection.
    pub(super) fn link_up(&mut self) -> bool {
        if let Some(ring) = &self.packet_ring {
            ring.kick();
        }
        if !self.looks_after_device() {
            self.id = self.common.ready.get().map(|ready| ready.id);
            self.meet();
            return self.common.answers.up.load(Ordering::Relaxed) && self.id.is_some();
        }
        let (up, peers) = self.with_device(|device| (device.link_up(), device.peer_queues()));
        self.common.answers.set_peer_queues(peers.unwrap_or(0));
        self.meet();
        self.common.answers.set_up(up);
        if !up {
            self.common.answers.set_sends_trains(false);
        }
        let Some(first) = &self.first else { return up };
        self.is_served = up;
        up || first.answers.up.load(Ordering::Relaxed)
    }

    /// Returns whether the present peer takes frames of several TCP segments. The first queue asks the device; the
    /// other queues use the answer that the first queue got last.
    pub(super) fn sends_trains(&self) -> bool {
        if !self.looks_after_device() {
            return self.common.answers.sends_trains.load(Ordering::Relaxed);
        }
        let device = self.common.device.lock().unwrap_or_else(PoisonError::into_inner);
        let sends = device.sends_trains();
        self.common.answers.set_sends_trains(sends);
        sends
    }

    /// Returns how many frames the kernel dropped before the driver took them.
    pub(super) fn kernel_drops(&self) -> u64 {
        self.packet_ring.as_ref().map_or(0, PacketRing::drops)
    }

    /// Arms the queue: see [`super::Port::arm`].
    pub(super) fn arm(&mut self) -> Option<Arc<RxEvent>> {
        // The peer sends no frames to a queue that it does not have. Frames that other queues received for this engine
        // wake it by other means.
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
        // The driver's writes for the peer must come before our next read of the peer's writes.
        fence(Ordering::SeqCst);
        self.armed = true;
        Some(event)
    }

    /// Returns the queues that this handle receives from.
    fn polls(&self) -> impl Iterator<Item = u16> + use<> {
        (self.queue..self.beyond.max(self.queue + 1)).step_by(self.queues.into())
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// Stops the driver from signalling frames, because the handle is polled.
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
