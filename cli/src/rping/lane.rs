//! A lane: one end of a connection, a queue pair with its memory and completions. Client and server both use it.

use std::time::{Duration, Instant};

use urnic::{
    Access, CompChannel, Cq, Device, Mr, Pd, Qp, QpInit, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc,
    WcOpcode, WcStatus,
};

use super::wire::{INFO_LEN, Info};
use crate::failure::Failure;

/// Why a wait ended without the completion.
#[derive(Debug)]
pub enum Interrupted {
    /// The connection ended.
    Gone(String),
    /// Nothing happened within the time limit.
    Silent,
    /// An error, or a violation of the protocol.
    Failed(String),
}

impl From<urnic::PostError> for Interrupted {
    fn from(error: urnic::PostError) -> Self {
        Self::Failed(format!("cannot post a request: {error}"))
    }
}

impl From<urnic::Error> for Interrupted {
    fn from(error: urnic::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// One end of a connection.
pub struct Lane {
    pub qp: Qp,
    cq: Cq,
    channel: CompChannel,
    /// The buffer in which requests and go-aheads arrive.
    inbox: Mr,
    /// Number of polled completions of Sends that no wait has consumed yet; likewise `read` and `written`.
    sent: u32,
    read: u32,
    written: u32,
    received: Option<Info>,
    /// Why the connection ended. What has completed before, even if it was polled together with that, counts first.
    ended: Option<Interrupted>,
}

impl Lane {
    /// Makes a queue pair with a receive posted.
    pub fn new(device: &Device, pd: &Pd) -> Result<Self, urnic::Error> {
        let channel = device.create_comp_channel()?;
        let cq = device.create_cq(16, Some(&channel))?;
        let qp = pd.create_qp(&QpInit {
            send_cq: &cq,
            recv_cq: &cq,
            max_send_wr: 8,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: INFO_LEN as u32,
            signal_all: true,
        })?;
        let inbox = pd.alloc_mr(INFO_LEN, Access::LOCAL_WRITE)?;
        let lane = Self { qp, cq, channel, inbox, sent: 0, read: 0, written: 0, received: None, ended: None };
        lane.post_receive().map_err(|_| urnic::Error::Invalid("the queue pair refused its first receive"))?;
        Ok(lane)
    }

    fn post_receive(&self) -> Result<(), urnic::PostError> {
        self.qp.post_recv(&RecvWr { wr_id: 0, sges: &[Sge::of(&self.inbox, 0, INFO_LEN as u32)] })
    }

    /// Sends a request or go-ahead.
    pub fn send(&mut self, info: Info) -> Result<(), Interrupted> {
        let wr = SendWr { wr_id: 0, op: SendOp::Send, sges: &[], flags: SendFlags::SIGNALED };
        self.qp.post_send_inline(&wr, &info.encode())?;
        self.until(Some(super::PATIENCE), |lane| lane.sent.checked_sub(1).map(|left| lane.sent = left))
    }

    /// Reads `size` bytes of the peer's buffer into `sink`.
    pub fn read(&mut self, from: Info, sink: &Mr, size: u32) -> Result<(), Interrupted> {
        let op = SendOp::Read { addr: from.addr, rkey: from.rkey };
        self.post(op, sink, size)?;
        self.until(Some(super::PATIENCE), |lane| lane.read.checked_sub(1).map(|left| lane.read = left))
    }

    /// Writes the first `size` bytes of `source` to the peer's buffer.
    pub fn write(&mut self, to: Info, source: &Mr, size: u32) -> Result<(), Interrupted> {
        self.post(SendOp::Write { addr: to.addr, rkey: to.rkey }, source, size)?;
        self.until(Some(super::PATIENCE), |lane| lane.written.checked_sub(1).map(|left| lane.written = left))
    }

    fn post(&self, op: SendOp, memory: &Mr, size: u32) -> Result<(), Interrupted> {
        let sges = [Sge::of(memory, 0, size)];
        Ok(self.qp.post_send(&SendWr { wr_id: 0, op, sges: &sges, flags: SendFlags::SIGNALED })?)
    }

    /// Waits for a request or go-ahead, at most for `patience`; `None`: without a time limit.
    pub fn receive(&mut self, patience: Option<Duration>) -> Result<Info, Interrupted> {
        self.until(patience, |lane| lane.received.take())
    }

    /// Takes completions until `done` returns a value.
    fn until<T>(
        &mut self,
        patience: Option<Duration>,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Interrupted> {
        /// Number of polls before this thread sleeps. A peer on the same machine answers sooner than a thread wakes up.
        const POLLS: u32 = 2000;
        let mut polls = 0;
        let mut armed = false;
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(found) = done(self) {
                return Ok(found);
            }
            if let Some(why) = self.ended.take() {
                return Err(why);
            }
            let mut found = [Wc::default(); 4];
            let n = self.cq.poll(&mut found);
            if n > 0 {
                for wc in found.iter().take(n) {
                    if let Err(why) = self.take(wc) {
                        self.ended.get_or_insert(why);
                    }
                }
                (polls, armed) = (0, false);
            } else if polls < POLLS {
                polls += 1;
            } else if !armed {
                // The loop polls the queue once more after this, so that it misses no completion.
                self.cq.arm(false);
                armed = true;
            } else {
                let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Err(Interrupted::Silent);
                }
                if self.channel.get_event(left).is_some() {
                    armed = false;
                }
            }
        }
    }

    fn take(&mut self, wc: &Wc) -> Result<(), Interrupted> {
        if wc.status != WcStatus::Success {
            let why = self.qp.terminate().map(|why| format!(", {why}")).unwrap_or_default();
            return Err(Interrupted::Gone(format!("{}{why}", wc.status)));
        }
        match wc.opcode {
            WcOpcode::Send => self.sent += 1,
            WcOpcode::Read => self.read += 1,
            WcOpcode::Write => self.written += 1,
            WcOpcode::Recv => {
                if wc.byte_len as usize != INFO_LEN {
                    return Err(Interrupted::Failed(format!(
                        "the peer does not speak rping: a message of {} bytes instead of {INFO_LEN}",
                        wc.byte_len
                    )));
                }
                let mut bytes = [0; INFO_LEN];
                self.inbox.read_at(0, &mut bytes)?;
                self.received = Some(Info::decode(&bytes));
                self.post_receive()?;
            }
            // No requests of other kinds are posted.
            _ => {}
        }
        Ok(())
    }
}

impl Interrupted {
    /// Converts this reason into the failure of a command.
    pub fn failure(self, waiting_for: &str) -> Failure {
        Failure::Failed(match self {
            Self::Gone(how) => format!("the connection ended while waiting for {waiting_for}: {how}"),
            Self::Silent => {
                format!("the peer is silent: waited {} s for {waiting_for}", super::PATIENCE.as_secs())
            }
            Self::Failed(what) => what,
        })
    }
}
