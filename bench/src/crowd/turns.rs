//! Makes Writes on each of many queue pairs in turn. One function posts a Write, one drives the client, and one drives
//! the server. They are never inlined, so that `scripts/stages` can count the instructions and cache lines of each.

use std::time::Instant;

use urnic::{SendFlags, SendOp, SendWr, Sge, Wc, WcStatus};

use super::{Crowd, Memory, PATIENCE};
use crate::perf::PerfError;

/// Writes that are outstanding at once, each on a queue pair of its own.
const BURST: usize = 32;

/// Posts a signalled Write of `size` octets on a queue pair.
#[inline(never)]
fn turn_of_poster(crowd: &Crowd, number: usize, size: u32) -> Result<(), PerfError> {
    let Some(qp) = crowd.active.get(number) else {
        return Err(PerfError::Usage("no such queue pair".to_owned()));
    };
    let op = SendOp::Write { addr: crowd.server.memory.addr(), rkey: crowd.server.memory.rkey() };
    let sges = [Sge::of(&crowd.client.memory, 0, size)];
    Ok(qp.post_send(&SendWr { wr_id: 1, op, sges: &sges, flags: SendFlags::SIGNALED })?)
}

/// Drives the engine of the client once. Returns the number of completed Writes.
#[inline(never)]
fn turn_of_client(crowd: &Crowd, found: &mut [Wc]) -> usize {
    crowd.client.cqs.iter().map(|cq| cq.poll(found)).sum()
}

/// Drives the engine of the server once.
#[inline(never)]
fn turn_of_server(crowd: &Crowd, found: &mut [Wc]) {
    crowd.server.cqs.iter().for_each(|cq| {
        cq.poll(found);
    });
}

/// Connects `qps` queue pairs between devices of one engine each, and makes `rounds` Writes of `size` octets on each,
/// in bursts of 32 on successive queue pairs.
///
/// # Errors
/// [`PerfError`].
pub fn turns(qps: usize, size: u32, rounds: usize) -> Result<(), PerfError> {
    let mut crowd = Crowd::open("turns", 1, 6, Memory::Ordinary)?;
    crowd.grow(qps)?;
    let mut found = [Wc::default(); BURST];
    let mut number = 0;
    let mut left = qps * rounds;
    while left > 0 {
        let burst = left.min(BURST).min(qps);
        for _ in 0..burst {
            turn_of_poster(&crowd, number, size)?;
            number = (number + 1) % qps;
        }
        let (mut done, start) = (0, Instant::now());
        while done < burst {
            let some = turn_of_client(&crowd, &mut found);
            if let Some(wc) = found.iter().take(some).find(|wc| wc.status != WcStatus::Success) {
                return Err(PerfError::Completion { qpn: wc.qpn, status: wc.status, detail: String::new() });
            }
            done += some;
            turn_of_server(&crowd, &mut found);
            if start.elapsed() > PATIENCE {
                return Err(PerfError::Stalled { what: "Writes", seconds: PATIENCE.as_secs() });
            }
        }
        left -= burst;
    }
    std::mem::forget(crowd);
    Ok(())
}
