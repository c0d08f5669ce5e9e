//! Two RNICs that are connected over a perfect simulated network: the first test that everything fits together.

mod common;

use common::{connected, options, pattern};
use urnic::*;

#[test]
fn write_read_and_send_carry_their_bytes() {
    let (mut simulation, server, client) = connected(&options());
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
