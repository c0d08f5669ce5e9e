//! A peer that speaks the vhost-user protocol.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::inbox::Inbox;

use nix::sys::eventfd::EventFd;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use urnic_dataplane::{Eal, EalConfig, Hugepages, Port, PortOptions};

/// Messages of the vhost-user protocol.
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ENABLE: u32 = 18;
}

pub const VERSION_1: u64 = 1 << 32;
/// The peer takes frames whose checksum is left to it.
pub const GUEST_CSUM: u64 = 1 << 1;
/// One frame for the peer may lie in several chains.
pub const MRG_RXBUF: u64 = 1 << 15;
/// What the peer negotiates unless a test says otherwise.
pub const FEATURES: u64 = VERSION_1 | GUEST_CSUM;
/// The peer has several queues each way.
pub const MQ: u64 = 1 << 22;
/// The device logs which memory it writes, because the guest is being moved.
pub const LOG_ALL: u64 = 1 << 26;

/// The peer's addresses of its memory.
pub const GUEST: u64 = 0x10_0000;
pub const USER: u64 = 0x5000_0000_0000;
pub const MEMORY: usize = 1 << 20;
pub const SIZE: u16 = 64;
/// The peer's ring for frames to us.
pub const RING: u32 = 1;
pub const BUFFERS: usize = 128 << 10;
pub const BUFFER: usize = 4096;
pub const LONG: usize = 2000;
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the offsets of the descriptors, the available ring, and the used ring.
pub const fn ring(index: u32) -> [usize; 3] {
    let at = 16384 * index as usize;
    [at, at + 4096, at + 8192]
}

pub struct Peer {
    pub stream: UnixStream,
    pub memory: File,
    pub at: NonNull<u8>,
    pub call: EventFd,
    pub kick: EventFd,
    pub offers: u16,
    /// Descriptors of each ring.
    pub size: u16,
    pub features: u64,
    pub inbox: Inbox,
}

// SAFETY: addresses of shared memory, which is used through raw pointers.
unsafe impl Send for Peer {}

impl Peer {
    /// Accepts the port's connection, and sets up both rings.
    pub fn accept(listener: &UnixListener) -> Self {
        Self::accept_with(listener, FEATURES, SIZE)
    }

    /// As [`accept`](Self::accept), with the features and the number of descriptors of each ring.
    pub fn accept_with(listener: &UnixListener, features: u64, size: u16) -> Self {
        let stream = listener.accept().expect("the port").0;
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let memory = File::from(memfd_create(c"peer", MFdFlags::MFD_CLOEXEC).expect("memory"));
        memory.set_len(MEMORY as u64).expect("memory");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let len = NonZeroUsize::new(MEMORY).expect("some");
        // SAFETY: a mapping at a place that the kernel chooses, which stays.
        let at = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, &memory, 0).expect("a mapping") };
        let events = [(); 2].map(|()| EventFd::new().expect("an event"));
        let [call, kick] = events;
        let mut peer = Self {
            stream,
            memory,
            at: at.cast(),
            call,
            kick,
            offers: 0,
            size,
            features,
            inbox: Inbox::default(),
        };
        let offered = peer.ask(message::GET_FEATURES, &[]);
        assert_eq!(offered & (features | LOG_ALL), features | LOG_ALL);
        assert!(peer.tell(message::SET_OWNER, &[], &[]));
        assert!(peer.tell(message::SET_FEATURES, &[features], &[]));
        assert!(peer.share(MEMORY as u64));
        for index in [0, RING] {
            peer.start(index, 0);
        }
        peer
    }

    /// Shares `len` octets of memory.
    pub fn share(&mut self, len: u64) -> bool {
        let memory = self.memory.as_raw_fd();
        self.tell(message::SET_MEM_TABLE, &[1, GUEST, len, USER, 0], &[memory])
    }

    pub fn start(&mut self, index: u32, base: u16) {
        let state = |value: u16| [u64::from(index) | u64::from(value) << 32];
        let [descriptors, available, used] = ring(index).map(|offset| USER + offset as u64);
        assert!(self.tell(message::SET_VRING_NUM, &state(self.size), &[]));
        assert!(self.tell(message::SET_VRING_BASE, &state(base), &[]));
        let addresses = [index.into(), descriptors, used, available, 0];
        assert!(self.tell(message::SET_VRING_ADDR, &addresses, &[]));
        let (call, kick) = (self.call.as_fd().as_raw_fd(), self.kick.as_fd().as_raw_fd());
        assert!(self.tell(message::SET_VRING_CALL, &[index.into()], &[call]));
        assert!(self.tell(message::SET_VRING_KICK, &[index.into()], &[kick]));
    }

    /// Stops both rings, one of them first, and starts them where they were stopped.
    pub fn restart(&mut self, first: u32) {
        let bases = [first, 1 - first].map(|index| (index, self.stop(index)));
        for (index, base) in bases {
            self.start(index, base);
        }
    }

    /// Offers frames, and changes everything that can be changed meanwhile.
    pub fn be_restless(&mut self, seed: u64) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..rng.u32(..200) {
            if self.offers.wrapping_sub(self.used()) < SIZE {
                self.offer(*rng.choice(&[100, LONG]).expect("one"));
            }
            match rng.u32(..40) {
                0 => self.restart(0),
                1 => self.restart(RING),
                2 => assert!(self.tell(message::SET_FEATURES, &[self.features | LOG_ALL], &[])),
                3 => assert!(self.tell(message::SET_FEATURES, &[self.features], &[])),
                4 => assert!(self.share(MEMORY as u64 - 4096 * rng.u64(..2))),
                _ => {}
            }
            let (used, offers) = (self.used(), self.offers);
            assert!(offers.wrapping_sub(used) <= SIZE, "{used} frames of {offers} were given back");
        }
    }

    /// Returns how far the port has served a ring, which it then stops.
    pub fn stop(&mut self, index: u32) -> u16 {
        (self.ask(message::GET_VRING_BASE, &[index.into()]) >> 32) as u16
    }

    /// Waits until the port has handled all messages. It handles one after the other, and answers some before it has
    /// drawn all conclusions, for example that its link is up and its rings can be served in place.
    pub fn await_handled(&mut self) {
        self.ask(message::GET_FEATURES, &[]);
    }

    /// Sends a message that has an answer.
    pub fn ask(&mut self, code: u32, payload: &[u64]) -> u64 {
        self.send(code, 1, payload, &[]);
        self.answer(code)
    }

    /// Sends a message, and returns whether the port has accepted it.
    pub fn tell(&mut self, code: u32, payload: &[u64], files: &[RawFd]) -> bool {
        const NEED_REPLY: u32 = 8;
        self.send(code, 1 | NEED_REPLY, payload, files);
        self.answer(code) == 0
    }

    pub fn send(&mut self, code: u32, flags: u32, payload: &[u64], files: &[RawFd]) {
        let header = [code, flags, 8 * payload.len() as u32];
        let mut octets: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        octets.extend(payload.iter().flat_map(|word| word.to_le_bytes()));
        let Some(&file) = files.first() else { return self.stream.write_all(&octets).expect("the port") };
        let mut control = [0_u64; 4];
        let mut part = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        // SAFETY: the message refers to memory that lives until it is sent, and has room for one descriptor.
        let sent = unsafe {
            let mut m = std::mem::zeroed::<libc::msghdr>();
            (m.msg_iov, m.msg_iovlen) = (&raw mut part, 1);
            (m.msg_control, m.msg_controllen) = (control.as_mut_ptr().cast(), libc::CMSG_SPACE(4) as usize);
            let c = libc::CMSG_FIRSTHDR(&raw const m);
            ((*c).cmsg_level, (*c).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(c).cast::<RawFd>().write_unaligned(file);
            libc::sendmsg(self.stream.as_raw_fd(), &raw const m, 0)
        };
        assert_eq!(sent, octets.len() as isize);
    }

    pub fn answer(&mut self, code: u32) -> u64 {
        let mut answer = [0; 20];
        self.stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer[..4], code.to_le_bytes());
        u64::from_le_bytes(answer[12..].try_into().expect("eight octets"))
    }

    pub fn write(&self, offset: usize, octets: &[u8]) {
        assert!(offset + octets.len() <= MEMORY);
        // SAFETY: within the memory.
        unsafe { self.at.add(offset).as_ptr().copy_from_nonoverlapping(octets.as_ptr(), octets.len()) };
    }

    /// Returns how many frames the port has given back.
    pub fn used(&self) -> u16 {
        // SAFETY: within the memory.
        unsafe { self.at.add(ring(RING)[2] + 2).cast::<u16>().as_ptr().read_volatile() }
    }

    /// Offers a TCP frame with `len` octets, whose checksum is left to the link. The last octet is its number.
    pub fn offer(&mut self, len: usize) {
        let mut octets = vec![0; 12 + len];
        (octets[0], octets[6], octets[8]) = (1, 34, 16);
        let frame = &mut octets[12..];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&(len as u16 - 14).to_be_bytes());
        (frame[23], frame[46]) = (6, 0x50);
        frame[len - 1] = self.offers as u8;
        let chain = self.offers % self.size;
        let buffer = BUFFERS + BUFFER * usize::from(chain);
        self.write(buffer, &octets);
        let [descriptors, available, _] = ring(RING);
        let descriptor = [GUEST + buffer as u64, octets.len() as u64];
        self.write(descriptors + 16 * usize::from(chain), &descriptor.map(u64::to_le_bytes).concat());
        self.write(available + 4 + 2 * usize::from(chain), &chain.to_le_bytes());
        self.offers += 1;
        self.write(available + 2, &self.offers.to_le_bytes());
    }
}

impl Peer {
    /// Offers a frame of several TCP segments, as long as any can be, in `pieces` buffers.
    pub fn offer_longest(&mut self, pieces: usize) {
        const LEN: usize = 14 + 65535;
        const AT: usize = 512 << 10;
        let mut octets = vec![0; 12 + LEN];
        (octets[0], octets[1], octets[6], octets[8]) = (1, 1, 34, 16);
        let frame = &mut octets[12..];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&u16::MAX.to_be_bytes());
        (frame[23], frame[46]) = (6, 0x50);
        self.write(AT, &octets);
        let [descriptors, available, _] = ring(RING);
        let each = octets.len().div_ceil(pieces);
        for (i, piece) in octets.chunks(each).enumerate() {
            let flags = if i + 1 < pieces { 1 | (i as u64 + 1) << 16 } else { 0 };
            let descriptor = [GUEST + (AT + each * i) as u64, piece.len() as u64 | flags << 32];
            self.write(descriptors + 16 * i, &descriptor.map(u64::to_le_bytes).concat());
        }
        self.write(available + 4 + 2 * usize::from(self.offers % self.size), &[0, 0]);
        self.offers += 1;
        self.write(available + 2, &self.offers.to_le_bytes());
    }
}

/// Runs `test` with a port of one queue, at whose path a peer may listen.
pub fn with_port(test: impl FnOnce(&mut Port, &UnixListener)) {
    with_queues(1, |queues, listener| test(queues.first_mut().expect("a queue"), listener));
}

/// Runs `test` with the queues of a port, at whose path a peer may listen. One test at a time, because EAL has one
/// thread for all.
pub fn with_queues(queues: u16, test: impl FnOnce(&mut Vec<Port>, &UnixListener)) {
    static LOCK: Mutex<Option<Arc<Eal>>> = Mutex::new(None);
    let mut eal: MutexGuard<'_, _> = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let config = EalConfig { hugepages: Hugepages::Off, ..EalConfig::default() };
    let eal = eal.get_or_insert_with(|| Eal::start(&config).expect("EAL"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let spec = format!("vhost:{}", path.display()).parse().expect("a port");
    let PortOptions { rx_frames, tx_frames, .. } = PortOptions::default();
    // Pools for several queues must fit into EAL's memory.
    let frames = |n| if queues == 1 { n } else { 64 };
    let (rx_frames, tx_frames) = (frames(rx_frames), frames(tx_frames));
    let options = PortOptions { queues, rx_frames, tx_frames, ..PortOptions::default() };
    let mut queues = Port::open_queues(eal, &spec, &options).expect("the port");
    queues.iter_mut().for_each(Port::work_in_place);
    test(&mut queues, &listener);
}

/// Lets a peer set itself up.
pub fn meet(port: &mut Port, listener: &UnixListener) -> Peer {
    meet_with(port, listener, FEATURES, SIZE)
}

/// Lets a peer with these features and this number of descriptors set itself up.
pub fn meet_with(port: &mut Port, listener: &UnixListener, features: u64, size: u16) -> Peer {
    let mut peer = Peer::accept_with(listener, features, size);
    peer.await_handled();
    await_link(port, true);
    peer
}

pub fn await_link(port: &mut Port, up: bool) {
    let start = Instant::now();
    while port.link_up() != up {
        assert!(start.elapsed() < PATIENCE, "the link does not change");
        std::thread::sleep(Duration::from_millis(1));
    }
}
