//! RDMA Reads into several pieces of memory. A Read Request names only one sink (RFC 5040 §4.4). For a Read into a
//! list, the sink is the STag of lists, [`MrTable::list`], with a tagged offset whose upper half is the number of the
//! work request. The list stays in the send queue until the Read is complete. The peer's response carries STag and
//! offset unchanged (RDMAP-14), and the stream refuses a response that differs from the oldest outstanding request
//! (RDMAP-39).

use crate::shared::memory::{Access, MrFault, MrTable};
use crate::shared::queue::WrNumber;
use crate::shared::scope::Scopes;
use crate::shared::wr::Sge;

/// Bits of the offset within a list. A message has less than 2^32 octets, so no offset within a list reaches the bits
/// of the number.
const OFFSET_BITS: u32 = u32::BITS;

/// Returns the STag and the tagged offset of the sink of Read `number` into the list `sges`.
///
/// If the list has one element, that element is the sink. Several elements are checked here. An element is also checked
/// when octets are placed in it.
pub(super) fn sink(
    table: &MrTable,
    by: Scopes,
    number: WrNumber,
    sges: &[Sge],
) -> Result<(u32, u64), MrFault> {
    match sges {
        // A sink with this key would be taken for a list.
        [only] if only.lkey == table.list() => Err(MrFault::InvalidStag),
        [only] => Ok((only.lkey, only.addr)),
        several => {
            for sge in several {
                table.resolve(sge.lkey, by, Access::LOCAL_WRITE, sge.addr, sge.len)?;
            }
            Ok((table.list(), u64::from(number.0) << OFFSET_BITS))
        }
    }
}

/// Returns the number of the Read that a tagged offset encodes, and the offset in the Read's list.
pub(super) fn place(to: u64) -> (WrNumber, u32) {
    (WrNumber((to >> OFFSET_BITS) as u32), to as u32)
}

#[cfg(test)]
mod tests;
