//! Strangers: any number of hosts at one node, which does not use the RNIC's TCP. Each host opens a connection, sends
//! what the test chooses, and then keeps the connection open or resets it.

use super::PORT;
use super::frames::{self, ACK, FIN, Place, RST, SYN, Segment, arp_answer, ethernet};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use urnic::simulation::{Host, Simulation};

/// The behaviour of the strangers, and the state of their connections.
pub struct Strangers {
    mac: [u8; 6],
    /// Returns the address of the stranger with a given number.
    pub who: fn(u32) -> Place,
    /// Octets that each stranger sends once it is connected.
    pub say: Vec<u8>,
    /// Whether each stranger resets its connection after sending.
    pub hang_up: bool,
    /// Time from one stranger's connection to the next stranger's.
    pub every: Duration,
    /// Number of strangers that have not yet tried to connect.
    pub left: u32,
    /// Number of strangers that have connected or tried to.
    pub begun: u32,
    next: Duration,
    /// Open connections, each with the next sequence number to send.
    pub open: HashMap<Place, u32>,
    pub connected: usize,
    pub reset: usize,
    pub finished: usize,
}

/// Makes a node of strangers for a simulation, and the test's handle to the strangers.
pub fn node(node: usize, who: fn(u32) -> Place) -> (Rc<RefCell<Strangers>>, Box<dyn Host>) {
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
    /// Makes a segment from `who` to the first device.
    fn segment(&self, who: Place, (number, acknowledges): (u32, u32), flags: u8, payload: &[u8]) -> Vec<u8> {
        let to = (Simulation::address(0), PORT);
        let segment = Segment { number, acknowledges, flags, window: 0x4000, payload, ..Segment::default() };
        ethernet(&Simulation::mac(0), self.mac, frames::IPV4, &frames::tcp(who, to, &segment))
    }

    fn take(&mut self, frame: &[u8], send: &mut Vec<Vec<u8>>) {
        // Answers an ARP request for any stranger.
        send.extend(arp_answer(frame, self.mac, |ip| (0..2).all(|device| Simulation::address(device) != ip)));
        let Some(heard) = frames::heard(frame) else { return };
        let (who, seq, ack) = (heard.to, heard.number, heard.acknowledges);
        if heard.flags & RST != 0 {
            self.reset += usize::from(self.open.remove(&who).is_some());
        } else if heard.flags & SYN != 0 && !self.open.contains_key(&who) {
            self.connected += 1;
            self.open.insert(who, ack.wrapping_add(self.say.len() as u32));
            send.push(self.segment(who, (ack, seq.wrapping_add(1)), ACK, &self.say));
            if self.hang_up {
                let at = ack.wrapping_add(self.say.len() as u32);
                send.push(self.segment(who, (at, seq.wrapping_add(1)), RST | ACK, &[]));
                self.open.remove(&who);
            }
        } else if heard.flags & FIN != 0 {
            // The stranger's half stays open.
            self.finished += 1;
            if let Some(next) = self.open.get(&who) {
                send.push(self.segment(who, (*next, seq.wrapping_add(1)), ACK, &[]));
            }
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
