//! Makes RNICs appear to break a rule. The RNICs keep all rules, but this module changes requests and completions
//! between an RNIC and its application, as if the RNIC had broken the rule.

use super::arena::Region;
use super::end::RECEIVE;
use super::{Parameters, Poison, World};
use urnic::simulation::RtrChoice;
use urnic::*;

/// A rule whose violation an application can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An access stays within its region.
    Bounds,
    /// A Write ends within its region, wherever it begins.
    FarBound,
    /// A region is accessed only through queue pairs of its protection domain.
    ProtectionDomain,
    /// A region is accessed only with the rights that it has.
    Rights,
    /// An invalidated region is no longer accessed.
    Invalidate,
    /// A refused Write ends its stream.
    RefusalEnds,
    /// A segment with a wrong CRC is refused.
    Crc,
    /// There are at most as many Reads under way as the peer accepts.
    Ord,
    /// A message goes to the place that its header names.
    Place,
    /// A message fills the scatter list element by element.
    Scatter,
    /// A message is gathered from its list element by element.
    Gather,
    /// A receive reports the length of the message.
    ReceivedLength,
    /// A request completes when all of its data has been copied.
    CopiedBeforeCompletion,
    /// A Read or Atomic completes only when it is answered.
    ReadAnswered,
    /// A Read completes only with the last octet of its answer.
    ReadWhole,
    /// A Send is delivered only with its last octet.
    SendWhole,
    /// A fence waits for all earlier Reads.
    Fence,
    /// A success is reported only for a signalled request.
    Signalled,
    /// All posted receives are flushed.
    FlushReceives,
    /// No request is reported twice.
    ReportOnce,
    /// A receive of a Send with Solicited Event is reported as solicited.
    Solicited,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 21] = [
        Rule::Bounds,
        Rule::FarBound,
        Rule::ProtectionDomain,
        Rule::Rights,
        Rule::Invalidate,
        Rule::RefusalEnds,
        Rule::Crc,
        Rule::Ord,
        Rule::Place,
        Rule::Scatter,
        Rule::Gather,
        Rule::ReceivedLength,
        Rule::CopiedBeforeCompletion,
        Rule::ReadAnswered,
        Rule::ReadWhole,
        Rule::SendWhole,
        Rule::Fence,
        Rule::Signalled,
        Rule::FlushReceives,
        Rule::ReportOnce,
        Rule::Solicited,
    ];

    /// Changes the settings of RNICs that break the rule.
    pub(super) fn configure(self, p: &mut Parameters) {
        match self {
            Rule::Crc => p.options.crc = false,
            // Revision 1 does not negotiate, so an end with a high ORD sends too many Reads.
            Rule::Ord => (p.options.mpa_rev, p.options.rtr, p.reads) = (1, RtrChoice::Off, (1, 16)),
            _ => {}
        }
    }

    /// Changes a send request on its way to the RNIC.
    pub(super) fn post(self, op: &mut SendOp, sges: &mut [Sge], flags: &mut SendFlags) {
        match (self, op) {
            (Rule::Place, SendOp::Write { addr, .. } | SendOp::WriteImm { addr, .. }) => {
                *addr = addr.wrapping_add(1);
            }
            (Rule::Gather, _) => exchange(sges),
            (Rule::Fence, _) => flags.remove(SendFlags::FENCE),
            (Rule::Signalled, _) => flags.insert(SendFlags::SIGNALED),
            (Rule::Solicited, _) => flags.remove(SendFlags::SOLICITED),
            _ => {}
        }
    }

    /// Changes a receive on its way to the RNIC.
    pub(super) fn post_receive(self, sges: &mut [Sge]) {
        if self == Rule::Scatter {
            exchange(sges);
        }
    }

    /// Returns whether requests complete before their data is copied. (Lent payload is not copied.)
    pub(super) fn completes_at_once(self, p: &Parameters) -> bool {
        self == Rule::CopiedBeforeCompletion && p.options.lends_from == usize::MAX
    }

    /// Returns whether `poison`, which must be refused, passes because the rule is broken.
    fn lets_pass(self, poison: Poison) -> bool {
        use Poison::*;
        match self {
            Rule::Bounds => matches!(poison, WriteBeyondEnd | WriteBeforeStart | ReadBeyondEnd),
            Rule::FarBound => poison == WriteBeyondEnd,
            Rule::ProtectionDomain => matches!(poison, WriteOtherDomain | ReadOtherDomain),
            Rule::Rights => matches!(poison, WriteWithoutRight | ReadWithoutRight | AtomicWithoutRight),
            Rule::Invalidate => poison == WriteInvalidated,
            Rule::RefusalEnds => matches!(
                poison,
                WriteUnknownStag
                    | WriteBeyondEnd
                    | WriteBeforeStart
                    | WriteWithoutRight
                    | WriteOtherDomain
                    | WriteInvalidated
            ),
            _ => false,
        }
    }
}

/// Exchanges the first two non-empty elements of a list, if there are two.
fn exchange(sges: &mut [Sge]) {
    let mut full = (0..sges.len()).filter(|i| sges[*i].len > 0);
    if let (Some(a), Some(b)) = (full.next(), full.next()) {
        sges.swap(a, b);
    }
}

impl World {
    /// Returns an address and a key with which `poison` succeeds; `None` if the broken rule does not concern `poison`.
    /// The address names the memory that `poison` asks for, with one exception: if `RefusalEnds` is broken, the RNIC
    /// must seem to drop the request and to keep the stream, so the address names memory that the test does not check.
    pub(super) fn let_pass(
        &mut self,
        pair: usize,
        target: usize,
        poison: Poison,
        at: usize,
        len: usize,
    ) -> Option<(u64, u32)> {
        let rule = self.p.broken.filter(|rule| rule.lets_pass(poison))?;
        let (arena, pd) = (&self.arenas[target], &self.ends[pair][target].pd);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let region = if rule == Rule::RefusalEnds {
            Region::new(pd.alloc_mr(len, access).unwrap(), 0, len)
        } else {
            arena.register(pd, at, len, access)
        };
        let passes = region.mr.as_ref().map(|mr| (mr.addr(), mr.rkey()));
        self.decoys.push(region);
        passes
    }

    /// Returns the completions that the application sees in place of a completion of a queue pair.
    pub(super) fn seen(&mut self, side: usize, wc: Wc) -> Vec<Wc> {
        let reported = self.early.iter().position(|e| (e.qpn, e.wr_id) == (wc.qpn, wc.wr_id));
        if let Some(place) = reported.filter(|_| wc.status == WcStatus::Success) {
            self.early.swap_remove(place);
            return Vec::new();
        }
        let receive = wc.wr_id & RECEIVE != 0;
        match self.p.broken {
            Some(Rule::FlushReceives) if receive && wc.status == WcStatus::Flushed => Vec::new(),
            Some(Rule::ReportOnce) => vec![wc, wc],
            Some(Rule::ReceivedLength) if receive => {
                let end = self.ends.iter().map(|pair| &pair[side]).find(|end| end.qp.qpn() == wc.qpn);
                let capacity = end.and_then(|end| end.receives.front()).map_or(0, |r| r.capacity);
                vec![Wc { byte_len: capacity as u32, ..wc }]
            }
            _ => vec![wc],
        }
    }

    /// Returns completions that an RNIC reports too early. [`World::seen`] drops the true completions later.
    pub(super) fn report_early(&mut self, side: usize) -> Vec<Wc> {
        let Some(rule @ (Rule::ReadAnswered | Rule::ReadWhole | Rule::SendWhole)) = self.p.broken else {
            return Vec::new();
        };
        let early = (0..self.ends.len()).filter_map(|pair| match rule {
            Rule::SendWhole => self.early_receive(pair, side),
            _ => self.early_read(pair, side, rule),
        });
        let early: Vec<Wc> = early.collect();
        self.early.extend(&early);
        early
    }

    /// Returns the early completion of a Read or Atomic, if this request is the next to complete.
    fn early_read(&self, pair: usize, side: usize, rule: Rule) -> Option<Wc> {
        let end = &self.ends[pair][side];
        let posted = end.posted.iter().find(|posted| posted.signalled)?;
        let effect = posted.read.filter(|effect| rule == Rule::ReadAnswered || self.has_begun(*effect))?;
        let &super::end::Posted { wr_id, opcode, len, .. } = posted;
        let usual = !end.failed() && self.effects[effect].fate == super::Fate::Maybe;
        usual.then_some(Wc { wr_id, opcode, byte_len: len, qpn: end.qp.qpn(), ..Wc::default() })
    }

    /// Returns the early completion of the oldest receive, if its message has begun to arrive.
    fn early_receive(&self, pair: usize, side: usize) -> Option<Wc> {
        let end = &self.ends[pair][side];
        let (receive, due) = (end.receives.front()?, end.due.front()?);
        let usual = !end.failed() && due.imm.is_none() && !due.too_long;
        if !usual || !self.has_begun(due.effect) {
            return None;
        }
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::SOLICITED, due.solicited);
        flags.set(WcFlags::WITH_INV, due.invalidates.is_some());
        Some(Wc {
            wr_id: receive.wr_id,
            opcode: WcOpcode::Recv,
            byte_len: due.len,
            flags,
            invalidated_rkey: due.invalidates.unwrap_or(0),
            qpn: end.qp.qpn(),
            ..Wc::default()
        })
    }

    /// Returns whether the first octets of an effect are in memory: enough of them to exclude chance.
    fn has_begun(&self, effect: usize) -> bool {
        const BEGINNING: usize = 16;
        let effect = &self.effects[effect];
        let now = self.arenas[effect.device].gather(&effect.pieces);
        now.len() >= BEGINNING && effect.data.starts_with(&now[..BEGINNING])
    }
}
