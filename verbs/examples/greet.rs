//! A first program: the client writes a greeting into the server's memory, reads it back, and sends the greeting's
//! length in a Send. `docs/write-a-program.md` explains it. `verbs/abi/examples/greet.c` is the same program in C;
//! the two interoperate.
//!
//! ```text
//! greet serve                one client, then exit
//! greet say ADDRESS WORDS
//! ```
//!
//! The environment names the node's network port and IP address (`URNIC_PORT`, `URNIC_IP`, ...). The TCP port is
//! always 7500.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use urnic::{
    Access, CmEvent, CompChannel, ConnParam, Cq, Device, Qp, QpInit, RecvWr, SendFlags, SendOp, SendWr, Sge,
    Wc, WcStatus,
};
use urnic_config::{Config, Sources};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PORT: u16 = 7500;
/// Bytes of memory that the server offers.
const ROOM: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(60);

/// The objects that each end needs: a completion queue, a channel to sleep on, and a queue pair.
struct End {
    channel: CompChannel,
    cq: Cq,
    qp: Qp,
}

impl End {
    fn new(device: &Device, pd: &urnic::Pd) -> Result<Self> {
        let channel = device.create_comp_channel()?;
        let cq = device.create_cq(16, Some(&channel))?;
        let qp = pd.create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        })?;
        Ok(Self { channel, cq, qp })
    }

    /// Sleeps until a request completes. Arms, polls once more, and then sleeps; without that poll it could miss a
    /// completion.
    fn complete(&self) -> Result<Wc> {
        let mut found = [Wc::default()];
        loop {
            if self.cq.poll(&mut found) == 0 {
                self.cq.arm(false);
                if self.cq.poll(&mut found) == 0 {
                    self.channel.get_event(Some(PATIENCE)).ok_or("no request completes")?;
                    continue;
                }
            }
            let [wc] = found;
            return if wc.status == WcStatus::Success {
                Ok(wc)
            } else {
                Err(format!("{}", wc.status).into())
            };
        }
    }

    fn request(&self, op: SendOp, sge: Sge) -> Result<Wc> {
        self.qp.post_send(&SendWr { wr_id: 0, op, sges: &[sge], flags: SendFlags::SIGNALED })?;
        self.complete()
    }
}

fn serve(device: &Device) -> Result<()> {
    let pd = device.alloc_pd();
    let offered =
        pd.alloc_mr(ROOM as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let length = pd.alloc_mr(4, Access::LOCAL_WRITE)?;
    let end = End::new(device, &pd)?;
    // A message needs a receive that waits for it, so post the receive before the client may send.
    end.qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&length, 0, 4)] })?;

    let events = device.create_event_channel()?;
    let _listener = events.listen(PORT, 8)?;
    eprintln!("listening");
    let Some(CmEvent::ConnectRequest(request)) = events.wait(PATIENCE) else {
        return Err("no client connects".into());
    };
    // The place of our memory, in network byte order, as private data of the answer.
    let place = [&offered.addr().to_be_bytes()[..], &offered.rkey().to_be_bytes()].concat();
    let _connection = request.accept(&end.qp, &ConnParam { private_data: place, ..ConnParam::default() })?;

    end.complete()?;
    let mut bytes = [0; 4];
    length.read_at(0, &mut bytes)?;
    let mut words = vec![0; u32::from_be_bytes(bytes).min(ROOM) as usize];
    offered.read_at(0, &mut words)?;
    println!("{}", String::from_utf8_lossy(&words));
    // The client ends the connection.
    while !matches!(events.wait(PATIENCE), Some(CmEvent::Disconnected { .. }) | None) {}
    Ok(())
}

fn say(device: &Device, to: Ipv4Addr, words: &str) -> Result<()> {
    let pd = device.alloc_pd();
    let local = pd.alloc_mr(ROOM as usize, Access::LOCAL_WRITE)?;
    let back = pd.alloc_mr(ROOM as usize, Access::LOCAL_WRITE)?;
    let length = pd.alloc_mr(4, Access::LOCAL_WRITE)?;
    let end = End::new(device, &pd)?;

    let events = device.create_event_channel()?;
    let connection = events.connect(&end.qp, SocketAddrV4::new(to, PORT), &ConnParam::default())?;
    let place = match events.wait(PATIENCE) {
        Some(CmEvent::Established { private_data, .. }) => private_data,
        Some(CmEvent::ConnectError { reason, .. }) => return Err(format!("cannot connect: {reason}").into()),
        other => return Err(format!("cannot connect: {other:?}").into()),
    };
    let addr = place.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)).ok_or("no address")?;
    let rkey = place.get(8..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_be_bytes(*bytes));
    let rkey = rkey.ok_or("no key")?;

    let size = u32::try_from(words.len())?.min(ROOM);
    local.write_at(0, &words.as_bytes()[..size as usize])?;
    length.write_at(0, &size.to_be_bytes())?;
    end.request(SendOp::Write { addr, rkey }, Sge::of(&local, 0, size))?;
    end.request(SendOp::Read { addr, rkey }, Sge::of(&back, 0, size))?;
    let mut found = vec![0; size as usize];
    back.read_at(0, &mut found)?;
    if found != words.as_bytes()[..size as usize] {
        return Err("the server holds other words than were written".into());
    }
    end.request(SendOp::Send, Sge::of(&length, 0, 4))?;
    println!("said");
    connection.disconnect()?;
    while !matches!(events.wait(PATIENCE), Some(CmEvent::Disconnected { .. }) | None) {}
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let device = Device::open(&Config::load(&Sources::process())?)?;
    match arguments[..] {
        ["serve"] => serve(&device),
        ["say", to, words] => say(&device, to.parse()?, words),
        _ => Err("usage: greet serve | greet say ADDRESS WORDS".into()),
    }
}
