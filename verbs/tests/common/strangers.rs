//! Any number of hosts at one node, which shares no code with the RNIC: each opens a connection, says something, and keeps
//! it.

use super::{PORT, address};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Host, Simulation};

const SYN: u8 = 2;
const RST: u8 = 4;
const FIN: u8 = 1;
const ACK: u8 = 16;

/// Who connects: address and port.
type Who = (Ipv4Addr, u16);

/// What the strangers do, and what they have seen.
pub struct Strangers {
    mac: [u8; 6],
    /// Who they are, by their number.
    pub who: fn(u32) -> Who,
    /// What each says once it is connected.
    pub say: Vec<u8>,
    /// Each resets its connection when it has said that.
    pub hang_up: bool,
    /// Time from one to the next.
    pub every: Duration,
    /// How many there are to come, and how many have come.
    pub left: u32,
    pub begun: u32,
    next: Duration,
    /// Connections that are open: the number that we send next.
    pub open: HashMap<Who, u32>,
    pub connected: usize,
    pub reset: usize,
    pub finished: usize,
}

/// Strangers at a node, for a simulation, and the test's handle to them.
pub fn node(node: usize, who: fn(u32) -> Who) -> (Rc<RefCell<Strangers>>, Box<dyn Host>) {
    let strangers = Rc::new(RefCell::new(Strangers {
        mac: Simulation::mac(node),
        who,
        say: Vec::new(),
        hang_up: false,
        every: Duration::from_micros(50),
        left: 0,
        begun: 0,
        next: Duration::ZERO,
        open: HashMap::new(),
        connected: 0,
        reset: 0,
        finished: 0,
    }));
    (strangers.clone(), Box::new(Shared(strangers)))
}

impl Strangers {
    fn ethernet(&self, to: &[u8], kind: u16) -> Vec<u8> {
        [to, &self.mac, &kind.to_be_bytes()].concat()
    }

    /// A segment of `who` to the first device.
    fn segment(&self, who: Who, (seq, ack): (u32, u32), flags: u8, data: &[u8]) -> Vec<u8> {
        let IpAddr::V4(to) = address(0).ip() else { panic!("an IPv4 address") };
        let mut tcp = [who.1.to_be_bytes(), PORT.to_be_bytes()].concat();
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        tcp.extend([0x50, flags, 0x40, 0, 0, 0, 0, 0]);
        tcp.extend(data);
        let len = tcp.len() as u16;
        let pseudo = [&who.0.octets()[..], &to.octets(), &[0, 6], &len.to_be_bytes(), &tcp].concat();
        tcp[16..18].copy_from_slice(&(!urnic_crc::sum(&pseudo)).to_be_bytes());
        let mut ip = [&[0x45, 0][..], &(len + 20).to_be_bytes(), &[0, 0, 0x40, 0, 64, 6, 0, 0]].concat();
        ip.extend(who.0.octets());
        ip.extend(to.octets());
        let sum = !urnic_crc::sum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        [self.ethernet(&Simulation::mac(0), 0x0800), ip, tcp].concat()
    }

    fn take(&mut self, frame: &[u8], send: &mut Vec<Vec<u8>>) {
        match frame[12..14] {
            // An ARP request for any of us.
            [8, 6] if frame[21] == 1 => {
                let target: [u8; 4] = frame[38..42].try_into().unwrap();
                let devices = (0..2).map(Simulation::address);
                if devices.into_iter().all(|device| device.octets() != target) {
                    let mut reply = self.ethernet(&frame[6..12], 0x0806);
                    reply.extend(&frame[14..20]);
                    reply.extend([0, 2]);
                    reply.extend(self.mac);
                    reply.extend(target);
                    reply.extend(&frame[22..32]);
                    send.push(reply);
                }
            }
            [8, 0] if frame[23] == 6 => {
                let (ip, tcp) = (&frame[14..34], &frame[34..]);
                let who: Who =
                    (Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]), u16::from_be_bytes([tcp[2], tcp[3]]));
                let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
                let (seq, ack, flags) = (word(4), word(8), tcp[13]);
                if flags & RST != 0 {
                    self.reset += usize::from(self.open.remove(&who).is_some());
                } else if flags & SYN != 0 && !self.open.contains_key(&who) {
                    self.connected += 1;
                    self.open.insert(who, ack.wrapping_add(self.say.len() as u32));
                    send.push(self.segment(who, (ack, seq.wrapping_add(1)), ACK, &self.say));
                    if self.hang_up {
                        let at = ack.wrapping_add(self.say.len() as u32);
                        send.push(self.segment(who, (at, seq.wrapping_add(1)), RST | ACK, &[]));
                        self.open.remove(&who);
                    }
                } else if flags & FIN != 0 {
                    // The other half stays open.
                    self.finished += 1;
                    if let Some(next) = self.open.get(&who) {
                        send.push(self.segment(who, (*next, seq.wrapping_add(1)), ACK, &[]));
                    }
                }
            }
            _ => {}
        }
    }
}

struct Shared(Rc<RefCell<Strangers>>);

impl Host for Shared {
    fn turn(
        &mut self,
        now: Duration,
        arrived: &mut VecDeque<Vec<u8>>,
        send: &mut Vec<Vec<u8>>,
    ) -> Option<Duration> {
        let mut all = self.0.borrow_mut();
        for frame in arrived.drain(..) {
            all.take(&frame, send);
        }
        all.next = all.next.max(now.saturating_sub(all.every));
        while all.left > 0 && all.next <= now {
            let who = (all.who)(all.begun);
            send.push(all.segment(who, (1_000_000, 0), SYN, &[]));
            let every = all.every;
            all.next += every;
            all.left -= 1;
            all.begun += 1;
        }
        (all.left > 0).then_some(all.next)
    }
}
