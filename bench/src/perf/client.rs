//! The client: the end that chooses the measurement and makes it.

use std::{
    collections::HashMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use urnic::{CmEvent, ConnectFailure, Connection, Device};
use urnic_config::{Config, Progress};

use super::{
    crew::Crew,
    end::{End, Lane, PATIENCE, Role},
    error::{Doing, PerfError},
    measure::{Extent, Outcome},
    options::{Amount, Mode, Op, PerfOptions, Wait},
    pingpong,
    report::PerfReport,
    server::conn_param,
    stream,
    wire::{self, Answer, Control, Hello, MAX_LANES, MAX_SIZE, MAX_THREADS, MAX_WINDOW, Session, VERSION},
};

/// Time that a server has to appear.
const SERVER_APPEARS: Duration = Duration::from_secs(15);
/// Time after which a warning says that the server has not appeared yet.
const SERVER_IS_LATE: Duration = Duration::from_secs(1);

/// Maximum number of connections being set up at once.
const CONNECTING: usize = 64;

/// Limits the default window in the modes `bw` and `rate`: the messages in flight on all lanes have at most this many
/// octets in total. But the window of a lane is at least four messages, even if the total then exceeds this limit.
///
/// With `--verify`, also limits the slots of all lanes at one end, in octets. A lane then has at least two slots, and
/// its window is at most the number of its slots.
const SLOTS_TOTAL: u64 = 16 << 20;

/// Connects to the server and measures. If `bar` is set and stderr is a terminal, shows the progress.
///
/// # Errors
/// [`PerfError`]: the options contradict each other, the server cannot be reached or refuses, an operation failed, or
/// data was wrong.
pub fn run_client(
    config: &Config,
    server: SocketAddr,
    options: &PerfOptions,
    bar: bool,
) -> Result<PerfReport, PerfError> {
    let session = plan(options, config.engine.progress)?;
    let last = Session { thread: session.threads - 1, ..session.clone() };
    if last.port(server.port()).is_none() {
        return Err(PerfError::Usage(
            "--threads: the threads take one TCP port each, counting up from the server's, and 65535 is the last: \
             choose fewer threads or a lower port"
                .to_owned(),
        ));
    }
    if let Some(&core) = options.cores.first() {
        urnic_dataplane::pin_current_thread(core)?;
    }
    let device = Device::open(config).doing("opening the device")?;
    let engines = device.attributes().doing("reading the attributes of the device")?.engines;
    let measure_on = |crew: &Crew, thread: u32| {
        let session = Session { thread, ..session.clone() };
        measure_thread(&device, config, server, options, session, crew, bar && thread == 0)
    };
    let found = Crew::run(session.threads, &options.cores, |crew| measure_on(crew, 0), measure_on)?;
    let all = found.into_iter().reduce(Outcome::join).ok_or(PerfError::OtherThread)?;
    Ok(PerfReport::of(config, &session, engines, &all))
}

/// Measures in one thread, which has its own session.
fn measure_thread(
    device: &Device,
    config: &Config,
    server: SocketAddr,
    options: &PerfOptions,
    session: Session,
    crew: &Crew,
    bar: bool,
) -> Result<Outcome, PerfError> {
    let port = session.port(server.port()).unwrap_or(server.port());
    let server = SocketAddr::new(server.ip(), port);
    let events = device.create_event_channel().doing("creating an event channel")?;
    let mut end = End::new(device, events, Role::Client, session)?;
    let control = connect_control(&mut end, config, server, crew)?;
    let extent = Extent::new(options.amount, bar);
    let measured = measure(&mut end, config, server, extent, crew);
    if let Err(error) = &measured {
        // Best effort, because the connection itself may have failed.
        let _ = end.send_control(&Control::Failed(error.to_string()));
    }
    // Fails if the server disconnected first.
    let _ = control.disconnect();
    measured
}

/// Returns the session that the options describe.
pub(super) fn plan(options: &PerfOptions, progress: Progress) -> Result<Session, PerfError> {
    let usage = |message: &str| Err(PerfError::Usage(message.to_owned()));
    if options.size as u64 > MAX_SIZE {
        return usage("--size: a message has at most 1 GiB");
    }
    if !(1..=MAX_LANES as usize).contains(&options.qps) {
        return usage("--qps: from 1 to 16384");
    }
    if !(1..=MAX_THREADS as usize).contains(&options.threads) {
        return usage("--threads: from 1 to 64");
    }
    match options.amount {
        Amount::Iters(0) => return usage("--iters: at least 1"),
        Amount::Seconds(s) if !(s > 0.0 && s <= 86_400.0) => {
            return usage("--seconds: more than 0, at most a day");
        }
        _ => {}
    }
    match options.window {
        Some(_) if options.mode == Mode::Lat => {
            return usage("--window: only with --mode bw or rate; with lat one message is outstanding");
        }
        Some(window) if !(1..=MAX_WINDOW as usize).contains(&window) => {
            return usage("--window: from 1 to 4096");
        }
        _ => {}
    }
    let lanes = options.qps as u32;
    let mut session = Session {
        op: options.op,
        mode: options.mode,
        size: options.size as u64,
        lanes,
        window: 1,
        // A ping-pong uses one slot for each direction. Verified Reads use both slots in turn.
        slots: 2,
        credit: 2,
        wait: options.wait.unwrap_or(match progress {
            Progress::Dedicated => Wait::Event,
            _ => Wait::Poll,
        }),
        verify: options.verify,
        beside: options.beside,
        threads: options.threads as u32,
        thread: 0,
    };
    if options.mode != Mode::Lat {
        // Enough messages to keep a link busy, and few enough to fit a cache.
        let most = if options.mode == Mode::Rate { 256 } else { 128 };
        let by_size = (SLOTS_TOTAL / session.stride()).clamp(4, most);
        let usual = (by_size as u32 / lanes).max(4);
        session.window = options.window.map_or(usual, |window| window as u32);
        if options.verify {
            let affordable = SLOTS_TOTAL / (session.stride() * u64::from(lanes));
            session.slots = session.window.min(affordable.min(u64::from(MAX_WINDOW)) as u32).max(2);
            session.window = session.window.min(session.slots);
            session.credit = session.slots;
        } else {
            session.slots = 1;
            session.credit = if options.op == Op::Send { 2 * session.window } else { 1 };
        }
    }
    session.check().map_err(|what| PerfError::Usage(format!("cannot measure this: {what}")))?;
    Ok(session)
}

/// Opens the session. A server that does not listen yet gets some time to appear.
fn connect_control(
    end: &mut End,
    config: &Config,
    server: SocketAddr,
    crew: &Crew,
) -> Result<Connection, PerfError> {
    let hello = Hello::Session { version: VERSION, session: end.session.clone() };
    let start = Instant::now();
    let mut warned = false;
    loop {
        crew.check()?;
        let param = conn_param(config, &hello);
        let failed = |reason: String| Err(PerfError::Connect { server, reason });
        let connection = match end.events.connect(&end.control, server, &param) {
            Ok(connection) => connection,
            Err(error) => return failed(error.to_string()),
        };
        match end.events.wait(PATIENCE) {
            Some(CmEvent::Established { .. }) => return Ok(connection),
            Some(CmEvent::Rejected { private_data, .. }) => return Err(refused(&private_data)),
            Some(CmEvent::ConnectError { reason, .. }) => {
                let waits = matches!(
                    reason,
                    ConnectFailure::Refused | ConnectFailure::Unreachable | ConnectFailure::TimedOut
                );
                if !waits || start.elapsed() > SERVER_APPEARS {
                    return failed(reason.to_string());
                }
                if start.elapsed() > SERVER_IS_LATE && !std::mem::replace(&mut warned, true) {
                    let seconds = SERVER_APPEARS.as_secs();
                    tracing::warn!(
                        "{server} does not answer yet; waiting up to {seconds} s for a server there"
                    );
                }
                end.renew_control()?;
                std::thread::sleep(Duration::from_millis(20));
            }
            Some(_) => return Err(PerfError::Protocol("an unexpected event")),
            None => return failed("no answer".to_owned()),
        }
    }
}

fn refused(private_data: &[u8]) -> PerfError {
    match wire::decode(private_data) {
        Some(Answer::Refused(reason)) => PerfError::Refused(reason),
        _ => PerfError::Refused("it does not say why".to_owned()),
    }
}

/// Connects all lanes, several at a time.
fn connect_lanes(end: &mut End, config: &Config, server: SocketAddr) -> Result<(), PerfError> {
    let lanes = end.session.all_lanes();
    let mut waiting = HashMap::new();
    let mut connected: Vec<Option<Lane>> = (0..lanes).map(|_| None).collect();
    let (mut next, mut missing) = (0, lanes);
    while missing > 0 {
        while next < lanes && waiting.len() < CONNECTING {
            let qp = end.create_lane_qp(next)?;
            let hello = Hello::Lane { index: next, target: end.target(next) };
            end.events.connect(&qp, server, &conn_param(config, &hello)).doing("connecting a queue pair")?;
            waiting.insert(qp.qpn(), (next, qp));
            next += 1;
        }
        match end.events.wait(PATIENCE) {
            None => {
                return Err(PerfError::Stalled {
                    what: "connections of queue pairs",
                    seconds: PATIENCE.as_secs(),
                });
            }
            Some(CmEvent::Established { qpn, private_data, .. }) => {
                let Some((index, qp)) = waiting.remove(&qpn) else { continue };
                let Some(Answer::Lane(peer)) = wire::decode(&private_data) else {
                    return Err(PerfError::Protocol("an answer without an address"));
                };
                if let Some(place) = connected.get_mut(index as usize) {
                    *place = Some(Lane { qp, peer });
                }
                missing -= 1;
            }
            Some(CmEvent::Rejected { private_data, .. }) => return Err(refused(&private_data)),
            Some(CmEvent::ConnectError { reason, .. }) => {
                return Err(PerfError::Connect { server, reason: reason.to_string() });
            }
            Some(CmEvent::Disconnected { reason, .. }) => return Err(PerfError::Gone(reason.to_string())),
            Some(_) => return Err(PerfError::Protocol("an unexpected event")),
        }
    }
    end.lanes = connected.into_iter().flatten().collect();
    Ok(())
}

fn measure(
    end: &mut End,
    config: &Config,
    server: SocketAddr,
    extent: Extent,
    crew: &Crew,
) -> Result<Outcome, PerfError> {
    connect_lanes(end, config, server)?;
    end.send_control(&Control::Start)?;
    match end.await_control("the server")? {
        Control::Ready => {}
        _ => return Err(PerfError::Protocol("an unexpected control message")),
    }
    crew.await_all(end)?;
    let in_flight = u64::from(end.session.window) * u64::from(end.session.lanes);
    let mut extent = extent.with_depth(in_flight);
    let begun = Instant::now();
    end.start_streams()?;
    let outcome = match (end.session.mode, end.session.op) {
        (Mode::Lat, Op::Read | Op::Atomic) => pingpong::measure_answered(end, &mut extent),
        (Mode::Lat, _) => pingpong::measure(end, &mut extent),
        _ => stream::measure(end, &mut extent),
    }?;
    let beside_gbit_s = end.streamed() as f64 * 8e-9 / begun.elapsed().as_secs_f64();
    Ok(Outcome { beside_gbit_s, ..outcome })
}

#[cfg(test)]
mod tests;
