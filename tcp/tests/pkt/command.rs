//! Calls of the stack's user, and checks of the stack's state.

use crate::run::{Runner, kebab};
use crate::script::{duration, number};
use crate::settings;
use crate::world::{Record, octet};
use std::net::SocketAddr;
use std::rc::Rc;
use urnic_tcp::{Claim, Patience, UNEVEN};

impl Runner<'_> {
    /// Executes a line without a packet.
    pub fn command(&mut self, name: &str, words: &[String]) -> Result<(), String> {
        let now = self.world.now;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let none = |usage: &str| if words.is_empty() { Ok(()) } else { Err(format!("usage: {usage}")) };
        match name {
            "listen" => self.listen(&words),
            "unlisten" => self.unlisten(),
            "connect" => self.connect(&words),
            "send" => self.send(&words),
            "close" | "abort" => {
                none(name)?;
                let conn = self.conn()?;
                if name == "close" {
                    self.world.stack.close(now, conn, &mut self.world.out);
                } else {
                    self.world.stack.abort(now, conn, &mut self.world.out);
                }
                Ok(())
            }
            "flow" => self.define(&words),
            "rebase" => {
                let [isn] = words[..] else { return Err("usage: rebase NUMBER".into()) };
                let f = &mut self.world.flows[self.flow];
                f.peer_isn = number(isn).ok_or("usage: rebase NUMBER")? as u32;
                f.ts_peer = false;
                Ok(())
            }
            "pressure" => {
                match words[..] {
                    ["on"] => self.world.stack.set_pressure(true),
                    ["off"] => self.world.stack.set_pressure(false),
                    ["more"] => self.world.stack.give_back_held(),
                    _ => return Err("usage: pressure on|off|more".into()),
                }
                Ok(())
            }
            "room" => {
                self.world.out.room = match words[..] {
                    ["any"] => None,
                    [n] => Some(number(n).ok_or("usage: room FRAMES|any")? as usize),
                    _ => return Err("usage: room FRAMES|any".into()),
                };
                Ok(())
            }
            "take" => self.take(&words),
            "patience" => {
                let mut p = Patience { keepalive: None, user_timeout: None };
                for w in words {
                    match w.split_once('=') {
                        Some(("keepalive", v)) => p.keepalive = settings::keepalive(v)?,
                        Some(("user_timeout", v)) => p.user_timeout = settings::optional_time(v)?,
                        _ => {
                            return Err(
                                "usage: patience keepalive=IDLE/INTERVAL/COUNT user_timeout=TIME".into()
                            );
                        }
                    }
                }
                let conn = self.conn()?;
                self.world.stack.set_patience(conn, Some(p));
                Ok(())
            }
            "claim" => {
                none("claim")?;
                self.world.stack.claim_address(now);
                Ok(())
            }
            "link-up" => {
                none("link-up")?;
                self.world.stack.link_came_up(now);
                Ok(())
            }
            "quiet" => match self.world.pending.front() {
                None => Ok(()),
                Some((_, p)) => Err(format!("something was sent:\n    {}", self.world.show(p))),
            },
            "closed" => self.closed(&words),
            "holds" => self.holds(&words),
            "check" => {
                self.world.check_data()?;
                words.iter().try_for_each(|w| self.check(w))
            }
            other => Err(format!("`{other}` is no command; see docs/packet-scripts.md")),
        }
    }

    fn conn(&self) -> Result<urnic_tcp::ConnId, String> {
        self.world.flows[self.flow].conn.ok_or_else(|| "there is no connection yet".into())
    }

    fn listen(&mut self, words: &[&str]) -> Result<(), String> {
        let backlog = match words {
            [] => 1024,
            ["backlog", n] => number(n).ok_or("usage: listen [backlog N]")? as usize,
            _ => return Err("usage: listen [backlog N]".into()),
        };
        let port = self.world.flows[self.flow].port;
        let id = self.world.stack.listen_on(port, backlog).map_err(|e| e.to_string())?;
        self.world.flows[self.flow].listener = Some(id);
        Ok(())
    }

    fn unlisten(&mut self) -> Result<(), String> {
        let id = self.world.flows[self.flow].listener.take().ok_or("nobody listens")?;
        self.world.stack.unbind(id);
        Ok(())
    }

    fn connect(&mut self, words: &[&str]) -> Result<(), String> {
        let now = self.world.now;
        let fails = match words {
            [] => false,
            ["fails"] => true,
            _ => return Err("usage: connect [fails]".into()),
        };
        let remote = self.world.flows[self.flow].peer;
        let remote = self.world.wire.address(remote);
        let result = self.world.stack.connect(now, remote, 0, &mut self.world.out);
        let conn = match (result, fails) {
            (Ok(_), true) => return Err("`connect` does not fail".into()),
            (Err(_), true) => return Ok(()),
            (Err(e), false) => return Err(e.to_string()),
            (Ok(conn), false) => conn,
        };
        let local = self.world.stack.local_addr(conn).ok_or("the connection is gone")?;
        let f = &mut self.world.flows[self.flow];
        (f.conn, f.port, f.sent) = (Some(conn), local.port(), 0);
        Ok(())
    }

    /// `take N|any`: sets how many octets the user takes from now on, starting with waiting data.
    fn take(&mut self, words: &[&str]) -> Result<(), String> {
        let usage = "usage: take OCTETS|any";
        let conn = self.conn()?;
        let appetite = match words {
            ["any"] => None,
            [n] => Some(number(n).ok_or(usage)? as usize),
            _ => return Err(usage.into()),
        };
        self.world.session(self.flow).ok_or("there is no connection")?.appetite = appetite;
        let world = &mut self.world;
        world.stack.resume(world.now, conn, &mut world.events, &mut world.out);
        world.stack.flush(world.now, &mut world.out);
        Ok(())
    }

    /// Queues records, and sends what may leave.
    fn send(&mut self, words: &[&str]) -> Result<(), String> {
        let usage = "usage: send LENGTH[xCOUNT]|LENGTH+LENGTH[+LENGTH]... [unit=N] [fails]";
        let (mut unit, mut fails, mut records) = (0, false, Vec::new());
        for w in words {
            if let Some(n) = w.strip_prefix("unit=") {
                unit = number(n).ok_or(usage)? as u16;
            } else if *w == "fails" {
                fails = true;
            } else if w.contains('+') {
                let parts = w.split('+').map(|len| number(len).map(|len| len as usize));
                let parts: Rc<[usize]> = parts.collect::<Option<_>>().ok_or(usage)?;
                records.push((parts.iter().sum::<usize>() as u32, parts));
            } else {
                let (len, count) = w.split_once('x').unwrap_or((w, "1"));
                let (len, count) = (number(len).ok_or(usage)?, number(count).ok_or(usage)?);
                records.extend((0..count).map(|_| (len as u32, Rc::default())));
            }
        }
        let conn = self.conn()?;
        for (len, parts) in records {
            let unit = if parts.is_empty() { unit } else { UNEVEN };
            let from = self.world.flows[self.flow].sent + 1;
            let bytes = (0..len).map(|i| octet(true, from.wrapping_add(i))).collect();
            match self.world.stack.send(conn, Record { bytes, unit, parts }) {
                Ok(()) if fails => return Err("`send` does not fail".into()),
                Ok(()) => self.world.flows[self.flow].sent += len,
                Err(_) if fails => return Ok(()),
                Err(e) => return Err(e.to_string()),
            }
        }
        self.world.stack.output(self.world.now, conn, &mut self.world.out);
        Ok(())
    }

    /// Sets addresses of a flow: `flow [from=IP:PORT] [to=PORT]`.
    fn define(&mut self, words: &[&str]) -> Result<(), String> {
        let usage = "usage: @NAME flow [from=IP:PORT] [to=PORT]";
        for w in words {
            match w.split_once('=') {
                Some(("from", v)) => {
                    let peer: SocketAddr = v.parse().map_err(|_| usage)?;
                    self.world.flows[self.flow].peer = peer;
                }
                Some(("to", v)) => {
                    let port = number(v).and_then(|n| u16::try_from(n).ok()).ok_or(usage)?;
                    self.world.flows[self.flow].port = port;
                }
                _ => return Err(usage.into()),
            }
        }
        Ok(())
    }

    fn closed(&mut self, words: &[&str]) -> Result<(), String> {
        let [want] = words[..] else {
            return Err("usage: closed graceful|reset|timed-out|refused|unreachable|aborted".into());
        };
        let session = self.world.session(self.flow).ok_or("there is no connection")?;
        match session.closed.map(|r| kebab(&format!("{r:?}"))) {
            None => Err("the connection has not ended".into()),
            Some(_) if session.close_seen => Err("an earlier `closed` line has checked this end".into()),
            Some(reason) if reason == want => {
                session.close_seen = true;
                Ok(())
            }
            Some(reason) => Err(format!("the connection ended, but with: {reason}")),
        }
    }

    /// `holds SEQ+LENGTH [fill OCTET]`: checks a range of the delivered octets.
    fn holds(&mut self, words: &[&str]) -> Result<(), String> {
        let usage = "usage: holds SEQ+LENGTH [fill OCTET]";
        let (range, fill) = match words {
            [range] => (range, None),
            [range, "fill", n] => (range, Some(number(n).ok_or(usage)? as u8)),
            _ => return Err(usage.into()),
        };
        let (seq, len) = range.split_once('+').ok_or(usage)?;
        let (seq, len) = (number(seq).ok_or(usage)? as usize, number(len).ok_or(usage)? as usize);
        let session = self.world.session(self.flow).ok_or("there is no connection")?;
        let at = seq - 1..seq - 1 + len;
        let Some(data) = session.data.get(at.clone()) else {
            return Err(format!("only {} octets have been delivered", session.data.len()));
        };
        for (i, b) in data.iter().enumerate() {
            let want = fill.unwrap_or_else(|| octet(false, (seq + i) as u32));
            if *b != want {
                return Err(format!("octet {} is {b:#04x}, not {want:#04x}", seq + i));
            }
        }
        session.known.push(at);
        Ok(())
    }

    /// Checks `NAME=VALUE`, or the same with `!=`, `<`, `<=`, `>`, `>=`.
    fn check(&mut self, word: &str) -> Result<(), String> {
        let at = word.find(['=', '!', '<', '>']).ok_or_else(|| format!("`{word}` is not NAME=VALUE"))?;
        let (name, rest) = word.split_at(at);
        let operator = ["!=", "<=", ">=", "=", "<", ">"].into_iter().find(|o| rest.starts_with(o));
        let Some(operator) = operator else { return Err(format!("`{word}` is not NAME=VALUE")) };
        let want = &rest[operator.len()..];
        let got = self.value(name)?;
        let order = match (magnitude(&got), magnitude(want)) {
            // The comparison is not exact, because scripts write durations with few digits.
            (Some(a), Some(b)) if (a - b).abs() < 1e-4 * (a.abs() + b.abs()) => std::cmp::Ordering::Equal,
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ if matches!(operator, "=" | "!=") => got.as_str().cmp(want),
            _ => return Err(format!("{name} is {got}, which cannot be compared with `{want}`")),
        };
        let holds = match operator {
            "=" => order.is_eq(),
            "!=" => order.is_ne(),
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            _ => order.is_ge(),
        };
        if holds { Ok(()) } else { Err(format!("{name} is {got}, not {operator} {want}")) }
    }

    fn value(&mut self, name: &str) -> Result<String, String> {
        let flow = self.flow;
        let conn = self.world.flows[flow].conn;
        let yes = |b: bool| String::from(if b { "yes" } else { "no" });
        let (connections, half_open, time_wait) = self.world.stack.census();
        match name {
            "connections" => return Ok(connections.to_string()),
            "half_open" => return Ok(half_open.to_string()),
            "time_wait" => return Ok(time_wait.to_string()),
            "flush" => return Ok(yes(self.world.stack.wants_flush())),
            "claim" => {
                return Ok(match self.world.stack.claim() {
                    Claim::Held => "held".into(),
                    Claim::Probing => "probing".into(),
                    Claim::Conflict(_) => "conflict".into(),
                });
            }
            _ => {}
        }
        if let Some(conn) = conn {
            let stack = &self.world.stack;
            match name {
                "unacked" => return Ok(stack.unacked(conn).to_string()),
                "room" => return Ok(stack.room(conn).to_string()),
                "mss" => return Ok(stack.mss(conn).to_string()),
                "state" if stack.info(conn).is_none() => return Ok("closed".into()),
                _ => {}
            }
            if let Some(info) = stack.info(conn)
                && let Some(v) = field(&format!("{info:?}"), name)
            {
                return Ok(v);
            }
        }
        let session = self.world.session(flow);
        let s = session.as_deref();
        match name {
            "received" | "taken" => return Ok(s.map_or(0, |s| s.data.len()).to_string()),
            "acked" => return Ok(s.map_or(0, |s| s.acked).to_string()),
            "accepted" => return Ok(yes(s.is_some_and(|s| s.accepted))),
            "connected" => return Ok(yes(s.is_some_and(|s| s.connected))),
            "finished" => return Ok(yes(s.is_some_and(|s| s.finished))),
            "closed" => return Ok(yes(s.is_some_and(|s| s.closed.is_some()))),
            _ => {}
        }
        field(&format!("{:?}", self.world.stack.counters()), name).ok_or_else(|| {
            format!(
                "`{name}` is no field of ConnInfo (is there a connection?), no counter and nothing that \
                     docs/packet-scripts.md names"
            )
        })
    }
}

/// Returns the value of a field in the `Debug` output of a struct, in the style of scripts.
fn field(debug: &str, name: &str) -> Option<String> {
    let body = &debug[debug.find('{')? + 1..debug.rfind('}')?];
    let mut depth = 0;
    let parts = body.split(|c: char| {
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        c == ',' && depth == 0
    });
    let value = parts.filter_map(|p| p.trim().split_once(": ")).find(|(k, _)| *k == name)?.1;
    let value = value.strip_prefix("Some(").and_then(|v| v.strip_suffix(')')).unwrap_or(value);
    Some(match value {
        "true" => "yes".into(),
        "false" => "no".into(),
        v if v.starts_with(|c: char| c.is_ascii_uppercase()) => kebab(v),
        v => v.replace('µ', "u"),
    })
}

/// Returns a number, or a time in seconds.
fn magnitude(v: &str) -> Option<f64> {
    let whole = number(v).map(|n| n as f64);
    whole.or_else(|| v.parse().ok()).or_else(|| duration(v).map(|d| d.as_secs_f64()))
}
