use std::mem::{align_of, offset_of};

use super::QpShared;
use crate::shared::queue::SendQueue;

/// To send a request of a queue pair that it has not touched for a while, the engine reads one cache line of
/// `QpShared`. A poster on another core writes only the next line, in which the bell is.
#[test]
fn the_first_cache_line_is_enough_for_a_send_request() {
    assert_eq!(align_of::<QpShared>(), 64);
    let read = [
        offset_of!(QpShared, state),
        offset_of!(QpShared, owner),
        offset_of!(QpShared, qpn),
        offset_of!(QpShared, scopes),
        offset_of!(QpShared, send_cq),
        offset_of!(QpShared, signal_all),
        offset_of!(QpShared, send) + SendQueue::WRITTEN_BY_POSTERS - 1,
    ];
    assert!(read.iter().all(|at| *at < 64), "{read:?}");
    assert_eq!(offset_of!(QpShared, send) + SendQueue::WRITTEN_BY_POSTERS, 64);
    const { assert!(SendQueue::END_OF_WRITTEN - SendQueue::WRITTEN_BY_POSTERS <= 64) };
}
