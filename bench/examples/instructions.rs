//! Runs RDMA operations between two devices over a perfect simulated link, and does nothing else, so that
//! `scripts/instructions` can count the instructions of an operation. Usage: `instructions OP SIZE COUNT` with OP
//! write, read, send, or pingpong. In a pingpong, the other end answers each Write by a Write. COUNT is the number of
//! operations, or of round trips in a pingpong.

use std::net::SocketAddrV4;
use std::time::Duration;
use urnic::simulation::{CrcKernel, Options, Simulation};
use urnic::*;

const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_secs(3600);
const BATCH: u64 = 16;

fn queue_pair(device: &Device) -> Result<(Pd, Cq, Qp, EventChannel)> {
    let pd = device.alloc_pd();
    let cq = device.create_cq(256, None)?;
    let init = QpInit {
        send_cq: &cq,
        recv_cq: &cq,
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
        signal_all: true,
    };
    let qp = pd.create_qp(&init)?;
    let events = device.create_event_channel()?;
    Ok((pd, cq, qp, events))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, op, size, count] = arguments.as_slice() else {
        return Err("usage: instructions write|read|send|pingpong SIZE COUNT".into());
    };
    let (size, count): (u32, u64) = (size.parse()?, count.parse()?);
    // Portable CRC code, because its instructions do not depend on the processor.
    let mut simulation = Simulation::new(&Options { crc_kernel: CrcKernel::Portable, ..Options::default() })?;
    let (pd, server_cq, server, server_events) = queue_pair(&simulation.device(0))?;
    let (client_pd, cq, client, events) = queue_pair(&simulation.device(1))?;
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let remote = pd.alloc_mr(size.max(8) as usize, all)?;
    let local = client_pd.alloc_mr(size.max(8) as usize, all)?;

    let _listener = server_events.listen(PORT, 1)?;
    let to = SocketAddrV4::new(Simulation::address(0), PORT);
    events.connect(&client, to, &ConnParam::default())?;
    let mut up = false;
    simulation.run(LIMIT, || {
        if let Some(CmEvent::ConnectRequest(request)) = server_events.poll() {
            let _ = request.accept(&server, &ConnParam::default());
        }
        up |= matches!(events.poll(), Some(CmEvent::Established { .. }));
        up
    });

    let (addr, rkey) = (remote.addr(), remote.rkey());
    let sges = [Sge::of(&local, 0, size)];
    let mut wc = [Wc::default(); 64];
    if op == "pingpong" {
        let ends = [(&client, &cq, &local, &remote), (&server, &server_cq, &remote, &local)];
        for turn in 1..=count {
            for (qp, cq, from, to) in ends {
                from.write_at(0, &turn.to_le_bytes())?;
                let op = SendOp::Write { addr: to.addr(), rkey: to.rkey() };
                qp.post_send(&SendWr {
                    wr_id: turn,
                    op,
                    sges: &[Sge::of(from, 0, size)],
                    flags: SendFlags::SIGNALED,
                })?;
                let (mut arrived, mut got) = (0, [0; 8]);
                let done = simulation.run(LIMIT, || {
                    arrived += cq.poll(&mut wc);
                    arrived == 1 && to.read_at(0, &mut got).is_ok() && u64::from_le_bytes(got) == turn
                });
                if !done {
                    return Err("a Write did not arrive".into());
                }
            }
        }
        return Ok(());
    }
    let (op, receives) = match op.as_str() {
        "write" => (SendOp::Write { addr, rkey }, false),
        "read" => (SendOp::Read { addr, rkey }, false),
        "send" => (SendOp::Send, true),
        other => return Err(format!("{other:?} is none of write, read, send, pingpong").into()),
    };
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        for wr_id in 0..batch {
            if receives {
                server.post_recv(&RecvWr { wr_id, sges: &[Sge::of(&remote, 0, size)] })?;
            }
            client.post_send(&SendWr { wr_id, op, sges: &sges, flags: SendFlags::SIGNALED })?;
        }
        let (mut sent, mut received) = (0, if receives { 0 } else { batch });
        let done = simulation.run(LIMIT, || {
            sent += cq.poll(&mut wc) as u64;
            received += server_cq.poll(&mut wc) as u64;
            sent == batch && received == batch
        });
        if !done {
            return Err("the operations did not complete".into());
        }
        left -= batch;
    }
    Ok(())
}
