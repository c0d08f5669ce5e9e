//! The two ends of a link, whose devices may have several engines. Each engine has its own queue of the port.
//! Crowds of queue pairs make traffic between all engines of both ends.

#[path = "../engines/ends.rs"]
mod ends;
#[path = "../engines/parties.rs"]
mod parties;

use std::net::{Ipv4Addr, SocketAddr};

use urnic::*;
use urnic_config::Cidr;

use super::child;
use super::node::{CLIENT, PORT, SERVER};
use ends::Limit;

fn open() -> Device {
    Device::open(&child::config()).expect("the device opens")
}

fn there() -> SocketAddr {
    (SERVER, PORT).into()
}

/// Reports the number of engines, the number of frames that have arrived, the number of frames that have
/// arrived at another engine than their own, and the number of frames that were lost between engines.
fn report(device: &Device) {
    let attributes = device.attributes().expect("the device's attributes");
    let figure = |name: &str| {
        let counters = &attributes.counters;
        counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, figure)| *figure)
    };
    let (frames, moved) = (figure("rx_frames"), figure("frames_handed_over"));
    let lost = figure("frames_between_engines_dropped");
    child::say(&format!("{} engines, {frames} frames, {moved} moved, {lost} lost", attributes.engines));
}

pub fn server() {
    let device = open();
    let events = device.create_event_channel().expect("a channel");
    let _listener = events.listen(PORT, 64).expect("a listener");
    child::say("listening");
    let orders = child::orders();
    parties::serve(&device, &events, &Limit::new(), move || {
        let _ = orders.recv();
    });
    report(&device);
}

pub fn client() {
    let device = open();
    parties::visit(&device, there(), &Limit::new());
    report(&device);
    // Keeps the device until the server has reported, too.
    let _ = child::orders().recv();
}

/// Runs both ends of a ring.
pub fn both() {
    let (there, limit) = (self::there(), Limit::new());
    let server = open();
    let mut config = child::config();
    config.ip.addresses = vec![Cidr { address: Ipv4Addr::into(CLIENT), prefix: 24 }];
    let client = Device::open(&config).expect("the other device opens");
    let events = server.create_event_channel().expect("a channel");
    let _listener = events.listen(PORT, 64).expect("a listener");
    parties::serve(&server, &events, &limit, || parties::visit(&client, there, &limit));
    report(&server);
    report(&client);
}

/// The numbers that an end reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub engines: u64,
    pub frames: u64,
    pub moved: u64,
    pub lost: u64,
}

impl Report {
    pub fn of(line: &str) -> Self {
        let mut numbers = line.split(", ").filter_map(|part| part.split(' ').next()?.parse().ok());
        let mut next = || numbers.next().unwrap_or_else(|| panic!("{line:?} instead of a report"));
        Self { engines: next(), frames: next(), moved: next(), lost: next() }
    }
}
