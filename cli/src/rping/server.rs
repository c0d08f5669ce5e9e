//! The server, which echoes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use urnic::{Access, Bound, CmEvent, ConnParam, ConnRequest, Device, Error, EventChannel};
use urnic_config::Config;

use super::lane::{Interrupted, Lane};
use super::wire::{self, Info, MAX_SIZE};
use super::{DEFAULT_PORT, Report};
use crate::args::RpingArgs;
use crate::failure::{Failure, print};

/// Interval at which a server checks whether a client is done, while the server waits for further clients.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of connection requests that wait for an answer.
const BACKLOG: u32 = 128;

pub fn run(config: &Config, args: &RpingArgs) -> Result<(), Failure> {
    let port = args.tcp_port.unwrap_or(DEFAULT_PORT);
    let address = own_address(config, args, port)?;
    let device = Device::open(config)?;
    let events = device.create_event_channel()?;
    let listener = match address {
        Some(address) => events.listen_at(bind(&device, args, address)?, BACKLOG)?,
        None => events.listen(port, BACKLOG)?,
    };
    tracing::debug!("listening on port {}", listener.port());
    let (done, results) = channel();
    if args.persistent {
        serve_all(&device, &events, args, &done, &results)
    } else {
        serve_one(&device, &events, args, &done, &results)
    }
}

/// Returns the address that `-a` names; `None` without `-a`. On a port, this can only be one of the node's own
/// addresses, or the unspecified address.
fn own_address(config: &Config, args: &RpingArgs, port: u16) -> Result<Option<SocketAddr>, Failure> {
    let Some(host) = &args.address else { return Ok(None) };
    let own = &config.ip.addresses;
    let named = crate::host::resolve(host, port)?;
    let is_own = named.ip().is_unspecified() || own.iter().any(|own| own.address == named.ip());
    if is_own || config.port.spec.is_none() {
        return Ok(Some(named));
    }
    let own: Vec<_> = own.iter().map(|own| own.address.to_string()).collect();
    let own = own.join(", ");
    Err(Failure::Usage(format!(
        "-a {host} is not an address of this device (ip.ip: {own}); leave -a out, or change --ip"
    )))
}

fn bind(device: &Device, args: &RpingArgs, address: SocketAddr) -> Result<Bound, Failure> {
    device.bind(address, false).map_err(|error| match error {
        Error::NotOurAddress(_) => {
            let host = args.address.as_deref().unwrap_or_default();
            Failure::Usage(format!("-a {host}: {error}; leave -a out, or name an address of this host"))
        }
        error => error.into(),
    })
}

type Done = (SocketAddr, Result<Report, Failure>);

/// Serves one client: the first with which a connection is established.
fn serve_one(
    device: &Device,
    events: &EventChannel,
    args: &RpingArgs,
    done: &Sender<Done>,
    results: &Receiver<Done>,
) -> Result<(), Failure> {
    let (mut lanes, mut established) = (HashMap::new(), false);
    loop {
        match events.wait(LOOK) {
            Some(CmEvent::ConnectRequest(request)) if lanes.is_empty() && !established => {
                lanes.extend(accept(device, request)?);
            }
            // Dropping a connection request rejects it.
            Some(event) => {
                established |= matches!(event, CmEvent::Established { .. });
                attend(event, &mut lanes, args, done)?;
            }
            None => {}
        }
        if let Ok((_, result)) = results.try_recv() {
            return result?.show(args.json);
        }
    }
}

/// Serves any number of clients, several at a time, until the process is killed.
fn serve_all(
    device: &Device,
    events: &EventChannel,
    args: &RpingArgs,
    done: &Sender<Done>,
    results: &Receiver<Done>,
) -> Result<(), Failure> {
    let mut lanes = HashMap::new();
    loop {
        match events.wait(LOOK) {
            Some(CmEvent::ConnectRequest(request)) => {
                let peer = request.peer();
                match accept(device, request) {
                    Ok(accepted) => lanes.extend(accepted),
                    // A failure of one client must not affect the others.
                    Err(failure) => eprintln!("urnic: client {peer}: {failure}"),
                }
            }
            Some(event) => attend(event, &mut lanes, args, done)?,
            None => {}
        }
        while let Ok((peer, result)) = results.try_recv() {
            match result {
                Ok(report) => report.show(args.json)?,
                Err(failure) => eprintln!("urnic: client {peer}: {failure}"),
            }
        }
    }
}

/// The objects that serve a connection.
type Service = (Lane, urnic::Pd);

/// Accepted connections that are not yet established, by the numbers of their queue pairs.
type Waiting = HashMap<u32, Service>;

fn accept(device: &Device, request: ConnRequest) -> Result<Option<(u32, Service)>, Failure> {
    let pd = device.alloc_pd();
    let lane = Lane::new(device, &pd)?;
    match request.accept(&lane.qp, &ConnParam { ird: 1, ord: 1, ..ConnParam::default() }) {
        Ok(_) => Ok(Some((lane.qp.qpn(), (lane, pd)))),
        Err(Error::RequestGone) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn attend(event: CmEvent, lanes: &mut Waiting, args: &RpingArgs, done: &Sender<Done>) -> Result<(), Failure> {
    match event {
        CmEvent::Established { qpn, peer, .. } => {
            let Some((lane, pd)) = lanes.remove(&qpn) else { return Ok(()) };
            tracing::debug!("connected with {peer}");
            let (validate, verbose, done) = (args.validate, args.verbose, done.clone());
            let serve = move || {
                let result = echo(lane, &pd, peer, validate, verbose);
                // The receiver is gone when the command ends.
                let _ = done.send((peer, result));
            };
            let thread = thread::Builder::new().name("rping".to_owned()).spawn(serve);
            thread.map_err(|error| Failure::Failed(format!("cannot start a thread: {error}")))?;
        }
        CmEvent::ConnectError { qpn, .. } => drop(lanes.remove(&qpn)),
        // The thread that serves a connection learns of the connection's end by completions.
        _ => {}
    }
    Ok(())
}

/// Echoes until the client disconnects.
fn echo(
    mut lane: Lane,
    pd: &urnic::Pd,
    peer: SocketAddr,
    validate: bool,
    verbose: bool,
) -> Result<Report, Failure> {
    let buffer =
        pd.alloc_mr(MAX_SIZE as usize, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let mut report =
        Report { op: "rping", role: "server", peer, size: 0, pings: 0, verified: validate, ping_us: None };
    let mut found = Vec::new();
    let mut expected = Vec::new();
    loop {
        let source = match lane.receive(None) {
            Ok(source) => source,
            Err(Interrupted::Gone(_)) if lane.qp.terminate().is_none() => return Ok(report),
            Err(why) => return Err(why.failure("a request to read")),
        };
        if source.size > MAX_SIZE {
            return Err(Failure::Failed(format!(
                "the client's buffer has {} bytes; the limit is {MAX_SIZE}",
                source.size
            )));
        }
        let size = source.size as usize;
        lane.read(source, &buffer, source.size).map_err(|why| why.failure("a Read to complete"))?;
        found.resize(size, 0);
        buffer.read_at(0, &mut found)?;
        if validate {
            wire::ping(report.pings, size, &mut expected);
            if found != expected {
                let at = found.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or_default();
                return Err(Failure::Failed(format!(
                    "wrong data: ping {} is wrong from byte {at} on",
                    report.pings
                )));
            }
        }
        let text = wire::text(&found);
        if verbose {
            print(&format!("server ping data: {}", String::from_utf8_lossy(text)))?;
        }
        lane.send(Info::default()).map_err(|why| why.failure("the Send of a go-ahead to complete"))?;
        let sink = lane.receive(None).map_err(|why| why.failure("a request to write"))?;
        // rping writes the text including its final zero byte.
        let echoed = (text.len() + 1).min(size) as u32;
        lane.write(sink, &buffer, echoed).map_err(|why| why.failure("a Write to complete"))?;
        lane.send(Info::default()).map_err(|why| why.failure("the Send of a go-ahead to complete"))?;
        report.pings += 1;
        report.size = report.size.max(source.size);
        tracing::debug!("ping {} of {peer} echoed", report.pings);
    }
}
