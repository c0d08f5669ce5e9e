//! The client, which sends pings.

use std::time::Instant;

use hdrhistogram::Histogram;
use urnic::{Access, CmEvent, ConnParam, Device, Mr};
use urnic_config::Config;

use super::lane::Lane;
use super::wire::{self, Info};
use super::{DEFAULT_PORT, PATIENCE, Quantiles, Report};
use crate::args::RpingArgs;
use crate::failure::{Failure, print};

pub fn run(config: &Config, args: &RpingArgs) -> Result<(), Failure> {
    let host = args.address.as_deref().unwrap_or_default();
    let server = crate::host::resolve(host, args.tcp_port.unwrap_or(DEFAULT_PORT))?;
    let device = Device::open(config)?;
    let pd = device.alloc_pd();
    let mut lane = Lane::new(&device, &pd)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let source = pd.alloc_mr(args.size as usize, access)?;
    let sink = pd.alloc_mr(args.size as usize, access)?;

    let events = device.create_event_channel()?;
    let cannot = |why: String| {
        Failure::Failed(format!("cannot connect to {server}: {why}; does an rping server run there?"))
    };
    let param = ConnParam { ird: 1, ord: 1, ..ConnParam::default() };
    let connection = events.connect(&lane.qp, server, &param).map_err(|error| cannot(error.to_string()))?;
    match events.wait(PATIENCE) {
        Some(CmEvent::Established { .. }) => {}
        Some(CmEvent::Rejected { .. }) => return Err(cannot("the server rejects the connection".to_owned())),
        Some(CmEvent::ConnectError { reason, .. }) => return Err(cannot(reason.to_string())),
        Some(_) => return Err(cannot("an unexpected event".to_owned())),
        None => return Err(cannot("no answer".to_owned())),
    }
    tracing::debug!("connected to {server}");

    let mut times = Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .map_err(|error| Failure::Failed(format!("cannot make a histogram: {error}")))?;
    let mut sent = Vec::with_capacity(args.size as usize);
    let mut back = vec![0; args.size as usize];
    let mut pings = 0;
    while args.count == 0 || pings < args.count {
        wire::ping(pings, args.size as usize, &mut sent);
        source.write_at(0, &sent)?;
        let began = Instant::now();
        for (buffer, what) in [
            (&source, "the server's go-ahead after the Read"),
            (&sink, "the server's go-ahead after the Write"),
        ] {
            lane.send(info(buffer, args.size)).map_err(|why| why.failure("a Send to complete"))?;
            lane.receive(Some(PATIENCE)).map_err(|why| why.failure(what))?;
        }
        // A ping consists of four waits of up to `PATIENCE` each. If it takes longer than the histogram's upper
        // bound, a minute, it counts as a minute.
        times.saturating_record(began.elapsed().as_nanos() as u64);
        if args.validate || args.verbose {
            sink.read_at(0, &mut back)?;
        }
        if args.validate && back != sent {
            let at = back.iter().zip(&sent).position(|(a, b)| a != b).unwrap_or_default();
            return Err(Failure::Failed(format!("wrong data: ping {pings} is wrong from byte {at} on")));
        }
        if args.verbose {
            print(&format!("ping data: {}", String::from_utf8_lossy(wire::text(&back))))?;
        }
        tracing::debug!("ping {pings} is back");
        pings += 1;
    }
    // Fails if the server disconnected first.
    let _ = connection.disconnect();
    let report = Report {
        op: "rping",
        role: "client",
        peer: server,
        size: args.size,
        pings,
        verified: args.validate,
        ping_us: Quantiles::of(&times),
    };
    report.show(args.json)
}

fn info(buffer: &Mr, size: u32) -> Info {
    Info { addr: buffer.addr(), rkey: buffer.rkey(), size }
}
