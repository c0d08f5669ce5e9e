//! Queue pairs and the engines that they belong to.
//!
//! A queue pair begins at the home engine of its send completion queue. In two cases its connection is at another
//! engine. First, the program accepts a connection request that came to another engine: the connection moves to the
//! queue pair's engine if its transport can part with it; otherwise the queue pair moves. Second, only another engine
//! can open a connection from a reserved address: the queue pair moves there. No two engines are locked at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::DeviceShared;
use crate::drive::shard::{EngineOps, Occasion, Parcel, Way};
use crate::shared::cm::{ConnParam, RequestId};
use crate::shared::cq::CqShared;
use crate::shared::engines::EngineNumber;
use crate::shared::error::{Error, Result};
use crate::shared::qp::QpShared;

/// How long a verb waits for a queue pair that another thread is moving. That thread may never continue, for
/// example if a signal handler has interrupted it.
const MOVES_WITHIN: Duration = Duration::from_secs(5);

impl DeviceShared {
    /// Runs `verb` on the engine that a queue pair belongs to, between passes, and then runs a pass.
    ///
    /// # Errors
    /// Those of `verb`; [`Error::Forked`], [`Error::Interrupted`].
    pub(crate) fn control_qp<R>(
        &self,
        qp: &QpShared,
        verb: impl FnOnce(&mut dyn EngineOps) -> Result<R>,
    ) -> Result<R> {
        self.at_owner(qp, verb, true)
    }

    /// Runs `verb` as [`control_qp`](Self::control_qp) does, without the pass: for a verb that gives the engine no
    /// work.
    ///
    /// # Errors
    /// As for [`control_qp`](Self::control_qp).
    pub(crate) fn arrange_qp<R>(
        &self,
        qp: &QpShared,
        verb: impl FnOnce(&mut dyn EngineOps) -> Result<R>,
    ) -> Result<R> {
        self.at_owner(qp, verb, false)
    }

    fn at_owner<R>(
        &self,
        qp: &QpShared,
        verb: impl FnOnce(&mut dyn EngineOps) -> Result<R>,
        gives_work: bool,
    ) -> Result<R> {
        let mut verb = Some(verb);
        loop {
            let owner = settled(qp)?;
            let shard = self.shards.of(owner);
            // The queue pair may have moved since `settled`.
            let attempt =
                |engine: &mut dyn EngineOps| match verb.take_if(|_| qp.owner.settled() == Some(owner)) {
                    Some(verb) => verb(engine).map(Some),
                    None => Ok(None),
                };
            let answer = if gives_work { shard.control(attempt) } else { shard.arrange(attempt) };
            if let Some(answer) = answer? {
                return Ok(answer);
            }
        }
    }

    /// Accepts a request with an idle queue pair. If the connection moves to another engine, `request` becomes its id
    /// there.
    ///
    /// # Errors
    /// As for [`ConnRequest::accept`](crate::ConnRequest::accept).
    pub(crate) fn accept_with(
        &self,
        request: &mut RequestId,
        qp: &Arc<QpShared>,
        param: &ConnParam,
    ) -> Result<()> {
        let home = settled(qp)?;
        if home != request.engine {
            let parcel = self.shards.of(request.engine).control(|engine| {
                // This pass learns whether the peer has given up.
                engine.pass(Occasion::Other);
                engine.part_with(*request)
            })?;
            match parcel {
                Some(parcel) => self.carry_request(request, parcel, home)?,
                None => self.move_qp(qp, request.engine)?,
            }
        }
        self.control_qp(qp, |engine| {
            engine.pass(Occasion::Other);
            engine.accept(*request, qp.qpn, param)
        })
    }

    /// Moves the connection of a request, which its engine has parted with, to engine `to`. If that engine cannot be
    /// locked, the connection goes back to its former engine, so that it can be rejected.
    fn carry_request(&self, request: &mut RequestId, parcel: Parcel, to: EngineNumber) -> Result<()> {
        let mut parcel = Some(parcel);
        let mut bring = |to| {
            let take_in = |engine: &mut dyn EngineOps| match parcel.take() {
                Some(parcel) => engine.take_in(parcel),
                None => Err(Error::RequestGone),
            };
            self.shards.of(to).control(take_in)
        };
        match bring(to) {
            Ok(now) => {
                *request = now;
                Ok(())
            }
            Err(error) => {
                // This does nothing if engine `to` has taken the parcel.
                if let Ok(now) = bring(request.engine) {
                    *request = now;
                }
                Err(error)
            }
        }
    }

    /// Moves a queue pair to the engine that must open a connection with the addresses of `way`, if there is such an
    /// engine.
    ///
    /// # Errors
    /// As for [`move_qp`](Self::move_qp).
    pub(crate) fn move_to_opening_engine(&self, qp: &QpShared, way: &Way) -> Result<()> {
        let Some(from) = way.from.filter(|_| self.shards.count() > 1) else { return Ok(()) };
        let home = self.shards.first().arrange(|engine| Ok(engine.home_of(from, way.to)))?;
        home.map_or(Ok(()), |home| self.move_qp(qp, home))
    }

    /// Takes an idle queue pair out of the engine `from`, which forwards doorbells to `to` from now on. Waits
    /// briefly for the program to take the completions that the queue pair has at `from`.
    fn release_qp(&self, qp: &QpShared, from: EngineNumber, to: EngineNumber) -> Result<Parcel> {
        for _ in 0..ATTEMPTS {
            let parcel = self.shards.of(from).arrange(|engine| {
                // The program must take the completions that the queue pair has here before those that it will have
                // there.
                let holds = |cq: &Arc<CqShared>| cq.holds_of(from, qp.qpn);
                let waits = engine.has_completed(qp.qpn) && [&qp.send_cq, &qp.recv_cq].into_iter().any(holds);
                if waits { Ok(None) } else { engine.release_qp(qp.qpn, to).map(Some) }
            })?;
            if let Some(parcel) = parcel {
                return Ok(parcel);
            }
            std::thread::yield_now();
        }
        Err(UNTAKEN)
    }

    /// Moves an idle queue pair to another engine.
    ///
    /// # Errors
    /// [`Error::QpState`] if it is not idle or has a connection; [`Error::Invalid`] if the program has not
    /// taken all of the queue pair's completions.
    pub(crate) fn move_qp(&self, qp: &QpShared, to: EngineNumber) -> Result<()> {
        loop {
            let from = settled(qp)?;
            if from == to {
                return Ok(());
            }
            if !qp.owner.leave(from) {
                continue;
            }
            let mut parcel = Some(self.release_qp(qp, from, to).inspect_err(|_| qp.owner.join(from))?);
            let mut admit = |at| {
                self.shards.of(at).control(|engine| match parcel.take() {
                    Some(parcel) => {
                        qp.owner.join(at);
                        engine.admit_qp(parcel)
                    }
                    None => Ok(()),
                })
            };
            // If engine `to` cannot be locked (for example because a signal handler has interrupted it), the queue
            // pair goes back to engine `from`.
            return admit(to).or_else(|error| admit(from).and(Err(error)));
        }
    }
}

/// How often a move checks whether the program has taken all completions of a queue pair. One check is not enough,
/// because it cannot tell while another thread polls.
const ATTEMPTS: u32 = 1000;

const UNTAKEN: Error = Error::Invalid(
    "the connection belongs to another engine, and completions of the queue pair are still unread: poll its completion \
     queues first",
);

/// Waits until no thread moves the queue pair, and returns the engine that it belongs to. [`Error::Interrupted`] after
/// [`MOVES_WITHIN`].
fn settled(qp: &QpShared) -> Result<EngineNumber> {
    let mut since = None;
    loop {
        if let Some(owner) = qp.owner.settled() {
            return Ok(owner);
        }
        if since.get_or_insert_with(Instant::now).elapsed() >= MOVES_WITHIN {
            return Err(Error::Interrupted);
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
