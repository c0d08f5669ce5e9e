//! Many connections from a raw node, and the FPDUs that they send.

use super::raw::Raw;
use super::{LIMIT, PORT, address, create_qp};
use std::cell::RefCell;
use std::rc::Rc;
use urnic::simulation::Simulation;
use urnic::*;
use urnic_iwarp::startup::{Initiator, Offer};
use urnic_tcp::ConnId;

/// Returns the FPDU of a Send of `payload`, for the first Send of a stream.
pub fn send_fpdu(payload: &[u8]) -> Vec<u8> {
    numbered_fpdu(1, payload)
}

/// Returns the FPDU of a Send of `payload`, for the Send number `msn` of a stream.
pub fn numbered_fpdu(msn: u32, payload: &[u8]) -> Vec<u8> {
    let ulpdu = u16::try_from(18 + payload.len()).unwrap();
    let mut fpdu = ulpdu.to_be_bytes().to_vec();
    fpdu.extend([0x41, 0x43]); // DDP: untagged, last; RDMAP: Send
    fpdu.extend([0; 4]);
    fpdu.extend(0u32.to_be_bytes()); // queue
    fpdu.extend(msn.to_be_bytes());
    fpdu.extend(0u32.to_be_bytes()); // MO
    fpdu.extend(payload);
    fpdu.resize(fpdu.len().next_multiple_of(4), 0);
    let crc = urnic_crc::finish(urnic_crc::crc32c(urnic_crc::INIT, &fpdu));
    fpdu.extend(crc.to_le_bytes());
    fpdu
}

/// Connections to device 0, each with a receive of `payload` octets.
pub struct Crowd {
    pub conns: Vec<ConnId>,
    /// The device's queue pairs, in the order in which the device has accepted the connections.
    pub qps: Vec<Qp>,
    pub cq: Cq,
    pub inbox: Mr,
}

/// Connects the raw node to device 0, `count` times.
pub fn crowd(simulation: &mut Simulation, raw: &Rc<RefCell<Raw>>, count: usize, payload: usize) -> Crowd {
    let device = simulation.device(0);
    let pd = device.alloc_pd();
    let cq = device.create_cq(4 * count.max(256) as u32, None).unwrap();
    // All messages are the same, so all receives share one memory region.
    let inbox = pd.alloc_mr(payload, Access::LOCAL_WRITE).unwrap();
    let events = device.create_event_channel().unwrap();
    let _listener = events.listen(PORT, count as u32).unwrap();
    let (request, offer) =
        (Offer { rev: 1, crc: true, ird: 4, ord: 4, ..Offer::default() }, ConnParam::default());
    let request = Initiator::new(&request).unwrap().1;
    let conns: Vec<ConnId> = (0..count).map(|_| raw.borrow_mut().connect(address(0))).collect();
    let mut qps = Vec::new();
    let mut asked = 0;
    let limit = simulation.now() + LIMIT;
    let all = simulation.run(limit, || {
        let mut raw = raw.borrow_mut();
        while asked < raw.seen.connected.len() {
            let conn = raw.seen.connected[asked];
            raw.send(conn, &request);
            asked += 1;
        }
        while let Some(event) = events.poll() {
            if let CmEvent::ConnectRequest(request) = event {
                let qp = create_qp(&pd, &cq);
                let sge = [Sge::of(&inbox, 0, payload as u32)];
                qp.post_recv(&RecvWr { wr_id: qps.len() as u64, sges: &sge }).unwrap();
                request.accept(&qp, &offer).unwrap();
                qps.push(qp);
            }
        }
        conns.iter().all(|conn| raw.seen.data.get(conn).is_some_and(|reply| reply.len() == 20))
    });
    assert!(all, "{} of {count} are connected", qps.len());
    Crowd { conns, qps, cq, inbox }
}
