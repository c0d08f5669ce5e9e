use urnic_config::Progress;

use super::*;
use crate::api::fake;
use crate::drive::transport::{OverKernel, Transport};

/// After 2^32 requests, the numbers of an idle queue pair are those of a new one again.
#[test]
fn a_queue_pair_that_was_in_use_is_not_taken_for_a_new_one() {
    let (device, _) = fake::device(Progress::Inline);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(1, None).unwrap());
    let qp = pd.create_qp(&crate::api::qp::tests::init(&cq)).unwrap();
    let mut core = QpCore::<<OverKernel as Transport>::Data>::new(qp.shared.clone(), EngineNumber::FIRST);
    assert!(!core.has_completed());
    core.end(QpState::Error, None, WcStatus::Flushed);
    core.reset();
    assert_eq!((core.tx.done, core.rx.done), (WrNumber(0), WrNumber(0)));
    assert!(core.has_completed());
}
