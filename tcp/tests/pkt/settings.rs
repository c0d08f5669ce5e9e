//! `config` lines: settings of the stack and of its surroundings.

use crate::script::{Fault, Script, duration, fault, number};
use crate::translate::{Wire, v4, v6};
use crate::world::{GATEWAY, GATEWAY_V6, PEER, PEER_V6, US, US_V6, World, mac_of};
use std::net::IpAddr;
use std::time::Duration;
use urnic_tcp::{Address, Congestion, Ecn, Keepalive, StackConfig, Time};

/// Makes a stack with the settings of a script.
pub fn world(script: &Script, start: Time, wire: Wire) -> Result<World, Fault> {
    let mut wire = wire;
    let mut cfg = StackConfig::new([2, 0, 10, 0, 0, 1], US, 24, 1);
    cfg.gateways = vec![GATEWAY.into()];
    cfg.tcp.ack_delay = Duration::ZERO; // only scripts about delayed ACKs set a delay
    let mut around = Vec::new();
    for (line, key, value) in &script.config {
        match set(&mut cfg, key, value) {
            _ if key == "family" || key == "vlan" => match (key.as_str(), value.as_str(), number(value)) {
                ("family", "v4", _) => wire.v6 = false,
                ("family", "v6", _) => wire.v6 = true,
                ("vlan", _, Some(n)) => wire.vlan = Some(n as u16),
                _ => return fault(*line, format!("{key}={value}: not v4, v6, or a number")),
            },
            Ok(true) => {}
            Ok(false) => around.push((*line, key, value)),
            Err(why) => return fault(*line, format!("{key}={value}: {why}")),
        }
    }
    let last = script.config.last().map_or(1, |c| c.0);
    let both = around.iter().any(|(_, k, v)| *k == "ip" && *v == "6");
    if both {
        cfg.addresses.push(Address { ip: US_V6.into(), prefix_len: 64 });
        if !cfg.gateways.is_empty() {
            cfg.gateways.push(GATEWAY_V6.into());
        }
    }
    cfg.vlan = wire.vlan;
    if wire.v6 {
        // The IPv6 header is 20 octets longer. With an MTU larger by 20, segments are as long as over IPv4.
        cfg.mtu += 20;
        let of = |ip: IpAddr| IpAddr::V6(v6(v4(ip)));
        for a in &mut cfg.addresses {
            *a = Address { ip: of(a.ip), prefix_len: a.prefix_len + 96 };
        }
        cfg.gateways.iter_mut().for_each(|g| *g = of(*g));
    }
    let mut world = World::new(cfg, start).or_else(|why| fault(last, why))?;
    world.wire = wire;
    for (line, key, value) in around {
        let n = number(value);
        match (key.as_str(), n) {
            ("arp", _) if value == "auto" || value == "manual" => world.arp = value == "auto",
            ("ip", Some(4)) => {}
            ("ip", Some(6)) => world.peer = PEER_V6.into(),
            ("peer_isn", Some(n)) => world.peer_isn = n as u32,
            ("our_isn", Some(n)) => world.our_isn = Some(n as u32),
            ("peer_win", Some(n)) => world.peer_window = n as u16,
            ("gso", Some(n)) => world.stack.set_gso_max(n as usize),
            _ => return fault(line, format!("{key}={value} is no setting; see docs/packet-scripts.md")),
        }
    }
    // The peer asks for our address, so the stack learns the peer's.
    if world.arp {
        let us = world.stack.config().mac;
        let request = crate::packet::Arp {
            request: true,
            dst_mac: [0xff; 6],
            sender_mac: mac_of(PEER),
            sender: PEER,
            target_mac: us,
            target: US,
        };
        world.receive(request.frame());
        world.settle().or_else(|why| fault(last, why))?;
        world.pending.clear();
        world.trace.clear();
    }
    Ok(world)
}

fn int<T: TryFrom<i64>>(value: &str) -> Result<T, String> {
    number(value).and_then(|n| T::try_from(n).ok()).ok_or_else(|| "no number, or out of range".into())
}

fn time(value: &str) -> Result<Duration, String> {
    duration(value).ok_or_else(|| "no time such as 200ms".into())
}

fn on(value: &str) -> Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("neither on nor off".into()),
    }
}

/// Parses `IDLE/INTERVAL/COUNT`, or `off`.
pub fn keepalive(value: &str) -> Result<Option<Keepalive>, String> {
    if value == "off" {
        return Ok(None);
    }
    let parts: Vec<&str> = value.split('/').collect();
    let [idle, interval, count] = parts[..] else { return Err("not IDLE/INTERVAL/COUNT".into()) };
    Ok(Some(Keepalive { idle: time(idle)?, interval: time(interval)?, count: int(count)? }))
}

/// Parses a time, or `off`.
pub fn optional_time(value: &str) -> Result<Option<Duration>, String> {
    if value == "off" { Ok(None) } else { time(value).map(Some) }
}

/// Applies a setting. Returns `false` if it is no setting of the stack.
fn set(cfg: &mut StackConfig, key: &str, value: &str) -> Result<bool, String> {
    let t = &mut cfg.tcp;
    match key {
        "mtu" => cfg.mtu = int(value)?,
        "seed" => cfg.seed = int(value)?,
        "prefix" => cfg.addresses[0].prefix_len = int(value)?,
        "gateway" => cfg.gateways = if on(value)? { vec![GATEWAY.into()] } else { Vec::new() },
        "rto_min" => t.rto_min = time(value)?,
        "rto_initial" => t.rto_initial = time(value)?,
        "rto_max" => t.rto_max = time(value)?,
        "recv_window" => t.recv_window = int(value)?,
        "send_buffer" => t.send_buffer = int(value)?,
        "sack" => t.sack = on(value)?,
        "ts" => t.timestamps = on(value)?,
        "ws" => t.window_scale = on(value)?,
        "congestion" => {
            t.congestion = match value {
                "reno" => Congestion::Reno,
                "cubic" => Congestion::Cubic,
                "dctcp" => Congestion::Dctcp,
                _ => return Err("no congestion control that is known".into()),
            }
        }
        "ecn" => {
            t.ecn = match value {
                "off" => Ecn::Off,
                "accept" => Ecn::Accept,
                "offer" => Ecn::Offer,
                _ => return Err("neither off nor accept nor offer".into()),
            }
        }
        "pacing" => t.pacing = on(value)?,
        "initial_window" => t.initial_window = int(value)?,
        "keepalive" => t.keepalive = keepalive(value)?,
        "user_timeout" => t.user_timeout = optional_time(value)?,
        "syn_retries" => t.syn_retries = int(value)?,
        "data_retries" => t.data_retries = int(value)?,
        "time_wait" => t.time_wait = time(value)?,
        "fin_wait" => t.fin_wait = time(value)?,
        "ack_delay" => t.ack_delay = time(value)?,
        "sws_override" => t.sws_override = time(value)?,
        "max_connections" => t.max_connections = int(value)?,
        "max_syn_backlog" => t.max_syn_backlog = int(value)?,
        "max_time_wait" => t.max_time_wait = int(value)?,
        "max_held_frames" => t.max_held_frames = int(value)?,
        "max_neighbours" => t.max_neighbours = int(value)?,
        _ => return Ok(false),
    }
    Ok(true)
}
