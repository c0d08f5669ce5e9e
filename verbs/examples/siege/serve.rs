//! The server: whatever its peers do, it echoes Sends, and releases everything of a connection that has ended.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use urnic::{
    Access, CmEvent, CompChannel, ConnParam, ConnRequest, Cq, CqInit, Device, EventChannel, Mr, Pd, Qp,
    QpInit, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};

use crate::{HALL, MESSAGE, ROOM, Result, hall};

/// Maximum number of connections at once, more than any siege opens.
const GUESTS: usize = 4096;
/// Number of messages that a peer may send before it takes the echoes.
const RECEIVES: usize = 4;
/// Interval at which orders are checked while nothing else happens.
const LOOK: Duration = Duration::from_millis(5);
/// Pause between the end of a dialled connection, or the failure to make it, and the next dial.
const REST: Duration = Duration::from_secs(1);

/// A connection. The queue pair is dropped before the memory that it uses. The memory is registered for each
/// connection but allocated only once, so that accepting is quick.
struct Guest {
    qp: Qp,
    cq: Cq,
    room: Mr,
    /// Index of this connection's part of the shared message memory.
    place: usize,
    dialled: bool,
}

/// State that both threads use.
struct House {
    device: Device,
    engines: u32,
    pd: Pd,
    channel: CompChannel,
    /// Message buffers of all connections. A later connection gets a buffer with its old content.
    messages: Mr,
    /// The memory of all rooms.
    rooms: Mr,
    hall: Mr,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    /// Guests, by the number of their completion queue.
    guests: HashMap<u32, Arc<Guest>>,
    /// Number of the completion queue, by the number of its queue pair.
    queues: HashMap<u32, u32>,
    places: Vec<usize>,
    figures: Figures,
}

/// Counts since the start.
#[derive(Default)]
struct Figures {
    requests: u64,
    accepted: u64,
    turned_away: u64,
    ended: u64,
    echoed: u64,
    dials: u64,
    dials_failed: u64,
}

pub fn run(device: &Device, port: u16, orders: &Receiver<String>) -> Result<()> {
    let pd = device.alloc_pd();
    let open = pd.alloc_mr(HALL, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    open.write_at(0, &(0..HALL).map(hall).collect::<Vec<_>>())?;
    let messages = pd.alloc_mr(GUESTS * RECEIVES * MESSAGE, Access::LOCAL_WRITE)?;
    let rooms = pd.alloc_mr(GUESTS * ROOM, Access::LOCAL_WRITE)?;
    let books = Books { places: (0..GUESTS).collect(), ..Books::default() };
    let channel = device.create_comp_channel()?;
    let house = Arc::new(House {
        device: device.clone(),
        engines: device.attributes()?.engines.max(1),
        pd,
        channel,
        messages,
        rooms,
        hall: open,
        books: Mutex::new(books),
    });
    let events = device.create_event_channel()?;
    let _listener = events.listen(port, 128)?;
    println!("{{\"listening\": {port}}}");
    let echo = house.clone();
    thread::spawn(move || echo.echo());
    let mut dials = Dials::default();
    loop {
        match orders.try_recv() {
            Ok(order) => house.obey(&order, &mut dials)?,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
        if let Some(event) = events.wait(LOOK) {
            house.attend(event, &mut dials);
        }
        house.dial(&events, &mut dials);
    }
}

/// Connections to be made.
#[derive(Default)]
struct Dials {
    to: Option<SocketAddr>,
    /// For each connection to be made, the earliest time to dial it.
    due: Vec<Instant>,
}

impl House {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn obey(&self, order: &str, dials: &mut Dials) -> Result<()> {
        let words: Vec<&str> = order.split_whitespace().collect();
        match words[..] {
            ["status"] => println!("{}", self.status()?),
            ["dial", to, port, count] => {
                dials.to = Some(SocketAddr::new(to.parse()?, port.parse()?));
                dials.due = vec![Instant::now(); count.parse()?];
                println!("{{}}");
            }
            ["hang"] => {
                *dials = Dials::default();
                let qpns = |guest: &Arc<Guest>| guest.dialled.then(|| guest.qp.qpn());
                let dialled: Vec<u32> = self.books().guests.values().filter_map(qpns).collect();
                dialled.into_iter().for_each(|qpn| self.part(qpn));
                println!("{{}}");
            }
            _ => return Err(format!("{order}: no such order").into()),
        }
        Ok(())
    }

    fn status(&self) -> Result<String> {
        let connections = self.device.connections()?.len();
        let counters = self.device.attributes()?.counters;
        let books = self.books();
        let Figures { requests, accepted, turned_away, ended, echoed, dials, dials_failed } = books.figures;
        let mut text = format!(
            "{{\"guests\": {}, \"connections\": {connections}, \"requests\": {requests}, \"accepted\": {accepted}, \
             \"turned_away\": {turned_away}, \"ended\": {ended}, \"echoed\": {echoed}, \"dials\": {dials}, \
             \"dials_failed\": {dials_failed}, \"counters\": {{",
            books.guests.len()
        );
        for (i, (name, value)) in counters.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(text, "{comma}\"{name}\": {value}")?;
        }
        text.push_str("}}");
        Ok(text)
    }

    /// Makes the queues and the memory of a connection, if there is a place for one more.
    fn furnish(&self, dialled: bool) -> Result<Guest> {
        let place = self.books().places.pop().ok_or("all places for connections are taken")?;
        let made = || -> Result<Guest> {
            // Spreads the queues over the engines.
            let cq = self.device.create_cq_with(&CqInit {
                depth: 4 * RECEIVES as u32,
                channel: Some(&self.channel),
                timestamps: false,
                vector: place as u32 % self.engines,
            })?;
            let qp = self.pd.create_qp(&QpInit {
                send_cq: &cq,
                recv_cq: &cq,
                max_send_wr: RECEIVES as u32,
                max_recv_wr: RECEIVES as u32,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
                signal_all: true,
            })?;
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let memory = self.rooms.as_ptr().wrapping_add(place * ROOM);
            // SAFETY: memory of `rooms`, which outlives the guests, and which no other guest uses.
            let room = unsafe { self.pd.reg_mr(memory, ROOM, rights) }?;
            room.restrict_to(&qp)?;
            cq.arm(false);
            Ok(Guest { qp, cq, room, place, dialled })
        };
        made().inspect_err(|_| self.books().places.push(place))
    }

    /// Returns message buffer `index` of `guest`.
    fn buffer(&self, guest: &Guest, index: u64, len: u32) -> [Sge; 1] {
        let at = (guest.place * RECEIVES + index as usize) * MESSAGE;
        [Sge::of(&self.messages, at as u64, len)]
    }

    fn post_receive(&self, guest: &Guest, index: u64) -> Result<()> {
        let sges = self.buffer(guest, index, MESSAGE as u32);
        Ok(guest.qp.post_recv(&RecvWr { wr_id: index, sges: &sges })?)
    }

    fn attend(&self, event: CmEvent, dials: &mut Dials) {
        match event {
            CmEvent::ConnectRequest(request) => {
                self.books().figures.requests += 1;
                // A peer that has left, or for which there is no room, is not an error of the server.
                if self.accept(request).is_err() {
                    self.books().figures.turned_away += 1;
                }
            }
            CmEvent::Rejected { qpn, .. }
            | CmEvent::ConnectError { qpn, .. }
            | CmEvent::Disconnected { qpn, .. } => {
                let failed = !matches!(event, CmEvent::Disconnected { .. });
                let mut books = self.books();
                let guest = books.queues.get(&qpn).and_then(|cqn| books.guests.get(cqn)).cloned();
                if guest.is_some_and(|guest| guest.dialled) && dials.to.is_some() {
                    books.figures.dials_failed += u64::from(failed);
                    dials.due.push(Instant::now() + REST);
                }
                drop(books);
                self.part(qpn);
            }
            _ => {}
        }
    }

    fn accept(&self, request: ConnRequest) -> Result<()> {
        let guest = self.furnish(false)?;
        for index in 0..RECEIVES as u64 {
            self.post_receive(&guest, index)?;
        }
        let param = ConnParam { private_data: self.offer(&guest), ..ConnParam::default() };
        // The guest must be in the books before its first message can come.
        let guest = self.enter(guest);
        match request.accept(&guest.qp, &param) {
            Ok(_) => {
                self.books().figures.accepted += 1;
                Ok(())
            }
            Err(error) => {
                self.part(guest.qp.qpn());
                Err(error.into())
            }
        }
    }

    /// Returns the private data for a peer: address, key and length of its room, then of the hall, each big endian.
    fn offer(&self, guest: &Guest) -> Vec<u8> {
        let place = |mr: &Mr| {
            [&mr.addr().to_be_bytes()[..], &mr.rkey().to_be_bytes(), &(mr.len() as u32).to_be_bytes()]
                .concat()
        };
        [place(&guest.room), place(&self.hall)].concat()
    }

    fn enter(&self, guest: Guest) -> Arc<Guest> {
        let (qpn, cqn, guest) = (guest.qp.qpn(), guest.cq.cqn(), Arc::new(guest));
        let mut books = self.books();
        books.queues.insert(qpn, cqn);
        books.guests.insert(cqn, guest.clone());
        guest
    }

    /// Releases a connection. The echoing thread may use it a moment longer.
    fn part(&self, qpn: u32) {
        let mut books = self.books();
        let Some(cqn) = books.queues.remove(&qpn) else { return };
        let Some(guest) = books.guests.remove(&cqn) else { return };
        books.figures.ended += 1;
        // `furnish` takes places from the other end, so this place is reused as late as possible: the echoing
        // thread may still use it.
        books.places.insert(0, guest.place);
        drop(books);
        drop(guest);
    }

    fn dial(&self, events: &EventChannel, dials: &mut Dials) {
        let Some(to) = dials.to else { return };
        let now = Instant::now();
        // Dials few connections at a time, so that guests are served in between.
        for _ in 0..4 {
            let Some(at) = dials.due.iter().position(|due| *due <= now) else { return };
            dials.due.swap_remove(at);
            self.books().figures.dials += 1;
            let made = self.furnish(true).and_then(|guest| {
                let param = ConnParam { timeout: Duration::from_secs(3), ..ConnParam::default() };
                let guest = self.enter(guest);
                events.connect(&guest.qp, to, &param).map(drop).map_err(|error| {
                    self.part(guest.qp.qpn());
                    error.into()
                })
            });
            if made.is_err() {
                self.books().figures.dials_failed += 1;
                dials.due.push(now + REST);
            }
        }
    }

    /// Echoes what arrives, as long as the process lives.
    fn echo(&self) {
        let mut found = [Wc::default(); 16];
        loop {
            let Some(cq) = self.channel.get_event(Some(Duration::from_secs(1))) else { continue };
            let guest = self.books().guests.get(&cq.cqn()).cloned();
            // Arms, then polls: the poll finds a completion that came before the arming, and an event announces a
            // later one.
            cq.arm(false);
            loop {
                let count = cq.poll(&mut found);
                if count == 0 {
                    break;
                }
                let Some(guest) = &guest else { continue };
                for wc in found.iter().take(count).filter(|wc| wc.status == WcStatus::Success) {
                    self.answer(guest, wc);
                }
            }
        }
    }

    fn answer(&self, guest: &Guest, wc: &Wc) {
        // A refusal by a queue pair that is about to end has no consequence.
        let _ = if wc.opcode == WcOpcode::Recv {
            let sges = self.buffer(guest, wc.wr_id, wc.byte_len);
            self.books().figures.echoed += 1;
            let wr = SendWr { wr_id: wc.wr_id, op: SendOp::Send, sges: &sges, flags: SendFlags::SIGNALED };
            guest.qp.post_send(&wr).map_err(Into::into)
        } else {
            self.post_receive(guest, wc.wr_id)
        };
    }
}
