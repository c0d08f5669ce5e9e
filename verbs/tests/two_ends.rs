//! Both ends of the RNIC over a perfect simulated network: the first proof that everything fits together.

use std::net::SocketAddrV4;
use std::time::Duration;
use urnic::simulation::{Options, Simulation};
use urnic::*;

const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_secs(60);

/// One connected queue pair and what it needs.
struct End {
    pd: Pd,
    cq: Cq,
    qp: Qp,
    events: EventChannel,
}

impl End {
    fn new(device: &Device) -> End {
        let pd = device.alloc_pd();
        let cq = device.create_cq(256, None).unwrap();
        let init = QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            signal_all: false,
        };
        let qp = pd.create_qp(&init).unwrap();
        let events = device.create_event_channel().unwrap();
        End { pd, cq, qp, events }
    }

    fn next(&self, simulation: &mut Simulation) -> Wc {
        let mut wc = [Wc::default()];
        assert!(simulation.run(LIMIT, || self.cq.poll(&mut wc) == 1), "no completion within {LIMIT:?}");
        wc[0]
    }
}

fn connected(options: &Options) -> (Simulation, End, End) {
    let mut simulation = Simulation::new(options).unwrap();
    let (server, client) = (End::new(&simulation.device(0)), End::new(&simulation.device(1)));
    let _listener = server.events.listen(PORT, 4).unwrap();
    let to = SocketAddrV4::new(Simulation::address(0), PORT);
    let param = ConnParam { private_data: b"hello".to_vec(), ..ConnParam::default() };
    client.events.connect(&client.qp, to, &param).unwrap();
    let mut established = [false, false];
    let all = simulation.run(LIMIT, || {
        match server.events.poll() {
            Some(CmEvent::ConnectRequest(request)) => {
                assert_eq!(request.private_data(), b"hello");
                let param = ConnParam { private_data: b"welcome".to_vec(), ..ConnParam::default() };
                request.accept(&server.qp, &param).unwrap();
            }
            Some(CmEvent::Established { .. }) => established[0] = true,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        match client.events.poll() {
            Some(CmEvent::Established { private_data, .. }) => {
                assert_eq!(private_data, b"welcome");
                established[1] = true;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        established == [true, true]
    });
    assert!(all, "not connected: {established:?}");
    (simulation, server, client)
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn write_read_and_send_carry_their_bytes() {
    let network = "delay=5us".parse().unwrap();
    let (mut simulation, server, client) = connected(&Options { network, ..Options::default() });
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let size = 100_000;
    let remote = server.pd.alloc_mr(size, all).unwrap();
    let local = client.pd.alloc_mr(size, Access::LOCAL_WRITE).unwrap();
    let inbox = server.pd.alloc_mr(size, Access::LOCAL_WRITE).unwrap();
    for (len, seed) in [(0, 1), (1, 2), (3, 3), (8, 4), (1442, 5), (1443, 6), (5000, 7), (size, 8)] {
        let bytes = pattern(len, seed);
        local.write_at(0, &bytes).unwrap();
        server.qp.post_recv(&RecvWr { wr_id: 9, sges: &[Sge::of(&inbox, 0, size as u32)] }).unwrap();
        let remote_at = |op: fn(u64, u32) -> SendOp| op(remote.addr(), remote.rkey());
        let post = |wr_id, op| {
            let sges = [Sge::of(&local, 0, len as u32)];
            client.qp.post_send(&SendWr { wr_id, op, sges: &sges, flags: SendFlags::SIGNALED }).unwrap();
        };
        post(1, remote_at(|addr, rkey| SendOp::Write { addr, rkey }));
        post(2, SendOp::Send);
        for (wr_id, opcode) in [(1, WcOpcode::Write), (2, WcOpcode::Send)] {
            let wc = client.next(&mut simulation);
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, WcStatus::Success, opcode));
        }
        let wc = server.next(&mut simulation);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (9, WcStatus::Success, WcOpcode::Recv));
        assert_eq!(wc.byte_len, len as u32);
        let mut got = vec![0; len];
        remote.read_at(0, &mut got).unwrap();
        assert!(got == bytes, "a Write of {len} bytes");
        inbox.read_at(0, &mut got).unwrap();
        assert!(got == bytes, "a Send of {len} bytes");

        local.write_at(0, &vec![0xEE; len]).unwrap();
        post(3, remote_at(|addr, rkey| SendOp::Read { addr, rkey }));
        let wc = client.next(&mut simulation);
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, WcStatus::Success, WcOpcode::Read));
        local.read_at(0, &mut got).unwrap();
        assert!(got == bytes, "a Read of {len} bytes");
    }
}
