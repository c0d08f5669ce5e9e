use std::sync::atomic::Ordering;

use urnic_config::Progress;

use super::Numbers;
use crate::fake;

#[test]
fn numbers_rest_before_they_are_used_again() {
    let numbers = Numbers::new(3);
    assert_eq!(numbers.take(), Some(1));
    numbers.give_back(1);
    assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(2), Some(3), Some(1)]);
    assert_eq!(numbers.take(), None);
    numbers.give_back(2);
    assert_eq!(numbers.take(), Some(2));
}

#[test]
fn attributes_are_those_of_engine_and_device() {
    let (device, _) = fake::device(Progress::Inline);
    let attributes = device.attributes().unwrap();
    assert_eq!((attributes.port.as_str(), attributes.mtu, attributes.link_up), ("fake", 1500, true));
    assert!(attributes.max_qp >= 10_000 && attributes.max_mr >= 10_000);
}

/// Everything can be shared among threads.
#[test]
fn objects_are_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<crate::Device>();
    check::<crate::Pd>();
    check::<crate::Mr>();
    check::<crate::Cq>();
    check::<crate::CompChannel>();
    check::<crate::Qp>();
    check::<crate::EventChannel>();
    check::<crate::Listener>();
    check::<crate::ConnRequest>();
    check::<crate::Connection>();
}

/// The device lives as long as anything made from it, and then ends gracefully.
#[test]
fn the_last_object_ends_the_device() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let (device, knobs) = fake::device(progress);
        knobs.undrained.store(3, Ordering::SeqCst);
        let pd = device.alloc_pd();
        let mr = pd.alloc_mr(1, crate::Access::empty()).unwrap();
        drop((device, pd));
        assert!(!knobs.shut_down.load(Ordering::SeqCst));
        drop(mr);
        assert!(knobs.shut_down.load(Ordering::SeqCst));
        assert_eq!(knobs.undrained.load(Ordering::SeqCst), 0, "driven until drained");
        assert_eq!(knobs.overlaps.load(Ordering::SeqCst), 0);
    }
}
