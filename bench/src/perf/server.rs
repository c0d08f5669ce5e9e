//! The server: the end that waits for a client and does what the client asks for.

use std::time::{Duration, Instant};

use urnic::{CmEvent, ConnParam, ConnRequest, Device, EventChannel, Listener};
use urnic_config::Config;

use super::{
    crew::Crew,
    end::{End, Lane, PATIENCE, Role},
    error::{Doing, PerfError},
    pingpong,
    report::PerfReport,
    stream,
    wire::{self, Answer, Control, Hello, Session, VERSION},
};

/// Default TCP port of a server: 18515, the default of perftest.
pub const DEFAULT_PORT: u16 = 18515;

/// Serves one client and returns when the client is done. The client's first thread connects to `port`, its further
/// threads to the following ports.
///
/// The server has as many threads as the client; thread `i` is pinned to core `i` of `cores`. The results are at the
/// client: the returned report contains only the parameters that the client asked for.
///
/// # Errors
/// [`PerfError`]: the device cannot be opened, the client went away, or data was wrong.
pub fn run_server(config: &Config, port: u16, cores: &[usize]) -> Result<PerfReport, PerfError> {
    if let Some(&core) = cores.first() {
        urnic_dataplane::pin_current_thread(core)?;
    }
    let device = Device::open(config).doing("opening the device")?;
    let engines = device.attributes().doing("reading the attributes of the device")?.engines;
    let door = Door::open(&device, port)?;
    let (request, session) = door.await_first()?;
    let report = PerfReport::unmeasured(config, &session, engines);
    let whole = session.clone();
    Crew::run(
        session.threads,
        cores,
        |_| serve_thread(&device, config, door, request, session),
        |crew, thread| {
            let session = Session { thread, ..whole.clone() };
            let Some(port) = session.port(port) else { return Err(PerfError::OtherThread) };
            let door = Door::open(&device, port)?;
            let request = door.await_next(crew, &session)?;
            serve_thread(&device, config, door, request, session)
        },
    )?;
    Ok(report)
}

/// Serves one thread of the client.
fn serve_thread(
    device: &Device,
    config: &Config,
    door: Door,
    request: ConnRequest,
    session: Session,
) -> Result<(), PerfError> {
    let Door { events, _listener } = door;
    let mut end = match End::new(device, events, Role::Server, session) {
        Ok(end) => end,
        Err(error) => {
            refuse(request, &error.to_string());
            return Err(error);
        }
    };
    let param = conn_param(config, &Answer::Welcome);
    request.accept(&end.control, &param).doing("accepting the client")?;
    let served = serve(&mut end, config);
    if let Err(error) = &served {
        // Best effort, because the connection itself may have failed.
        let _ = end.send_control(&Control::Failed(error.to_string()));
    }
    // The last message must arrive before the queue pairs are destroyed.
    await_farewell(&end.events, &end);
    served
}

pub(super) fn conn_param(config: &Config, answer: &impl serde::Serialize) -> ConnParam {
    ConnParam {
        private_data: wire::encode(answer),
        ird: config.mpa.ird,
        ord: config.mpa.ord,
        timeout: Duration::from_secs(5),
        ..ConnParam::default()
    }
}

fn refuse(request: ConnRequest, reason: &str) {
    // Best effort, because a client that gets no answer times out.
    let _ = request.reject(&wire::refusal(reason));
}

/// The listener at which a thread of the server waits for a thread of the client.
struct Door {
    events: EventChannel,
    _listener: Listener,
}

impl Door {
    fn open(device: &Device, port: u16) -> Result<Self, PerfError> {
        let events = device.create_event_channel().doing("creating an event channel")?;
        let listener = events.listen(port, 128).doing("listening")?;
        Ok(Self { events, _listener: listener })
    }

    /// Waits without a time limit until a client opens a session that can be served.
    fn await_first(&self) -> Result<(ConnRequest, Session), PerfError> {
        loop {
            let Some(CmEvent::ConnectRequest(request)) = self.events.wait(Duration::from_secs(3600)) else {
                continue;
            };
            match opened(&request) {
                Ok(session) if session.thread == 0 => return Ok((request, session)),
                Ok(_) => refuse(request, "the first thread of the client must connect to this server first"),
                Err(reason) => refuse(request, reason),
            }
        }
    }

    /// Waits until the client's thread with the number of `session` connects. Refuses any other session.
    fn await_next(&self, crew: &Crew, session: &Session) -> Result<ConnRequest, PerfError> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            crew.check()?;
            let Some(CmEvent::ConnectRequest(request)) = self.events.wait(Duration::from_millis(100)) else {
                continue;
            };
            match opened(&request) {
                Ok(wanted) if wanted == *session => return Ok(request),
                Ok(_) => refuse(request, "this server has a client already"),
                Err(reason) => refuse(request, reason),
            }
        }
        Err(PerfError::Stalled { what: "the client's other threads", seconds: PATIENCE.as_secs() })
    }
}

/// Returns the session that a request opens, or the reason why the server refuses it.
fn opened(request: &ConnRequest) -> Result<Session, &'static str> {
    match wire::decode(request.private_data()) {
        Some(Hello::Session { version: VERSION, session }) => session.check().map(|()| session),
        Some(Hello::Session { .. }) => Err("this server has another version than the client"),
        _ => Err("this is urnic perf server: use urnic perf client"),
    }
}

fn serve(end: &mut End, config: &Config) -> Result<(), PerfError> {
    accept_lanes(end, config)?;
    stream::prepare_reads(end)?;
    match end.await_control("the client's start")? {
        Control::Start => end.send_control(&Control::Ready)?,
        _ => return Err(PerfError::Protocol("an unexpected control message")),
    }
    if end.session.pingpong() { pingpong::serve(end) } else { stream::serve(end) }
}

/// Accepts the client's lanes, in whatever order they arrive.
fn accept_lanes(end: &mut End, config: &Config) -> Result<(), PerfError> {
    let lanes = end.session.all_lanes();
    let mut accepted: Vec<Option<Lane>> = (0..lanes).map(|_| None).collect();
    let mut missing = lanes;
    while missing > 0 {
        let what = "the client's queue pairs";
        match end.events.wait(PATIENCE) {
            None => return Err(PerfError::Stalled { what, seconds: PATIENCE.as_secs() }),
            Some(CmEvent::Disconnected { reason, .. }) => return Err(PerfError::Gone(reason.to_string())),
            Some(CmEvent::ConnectRequest(request)) => match wire::decode(request.private_data()) {
                Some(Hello::Lane { index, target }) if index < lanes => {
                    let Some(place @ None) = accepted.get_mut(index as usize) else {
                        return Err(PerfError::Protocol("a queue pair that was connected before"));
                    };
                    let qp = end.create_lane_qp(index)?;
                    let answer = Answer::Lane(end.target(index));
                    request.accept(&qp, &conn_param(config, &answer)).doing("accepting a queue pair")?;
                    *place = Some(Lane { qp, peer: target });
                    missing -= 1;
                }
                _ => refuse(request, "this server has a client already"),
            },
            Some(_) => {}
        }
    }
    end.lanes = accepted.into_iter().flatten().collect();
    Ok(())
}

/// Waits until the client has closed the control connection, but at most three seconds.
fn await_farewell(events: &EventChannel, end: &End) {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.wait(left) {
            Some(CmEvent::Disconnected { qpn, .. }) if qpn == end.control.qpn() => return,
            None => return,
            Some(_) => {}
        }
    }
}
