use std::sync::atomic::Ordering;

use urnic_config::Progress;

use super::Numbers;
use crate::api::fake;
use crate::api::qp::QpInit;
use crate::shared::error::Error;

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

/// Threads may share these objects, and move them to other threads.
#[test]
fn objects_are_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<crate::Device>();
    check::<crate::Pd>();
    check::<crate::Mr>();
    check::<crate::Mw>();
    check::<crate::Cq>();
    check::<crate::CompChannel>();
    check::<crate::Srq>();
    check::<crate::Qp>();
    check::<crate::AsyncEvents>();
    check::<crate::EventChannel>();
    check::<crate::Bound>();
    check::<crate::Listener>();
    check::<crate::ConnRequest>();
    check::<crate::Connection>();
}

/// The device lives as long as any object made from it, and then ends gracefully.
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

/// SEC-14, SEC-17, SEC-18: the device gives out all scarce resources, within limits. A program can get a resource
/// again that it has given back.
#[test]
fn scarce_resources_have_limits() {
    let (device, _) = fake::device(Progress::Inline);
    let limits = device.attributes().unwrap();
    for depth in [0, limits.max_cqe + 1, u32::MAX] {
        assert!(matches!(device.create_cq(depth, None), Err(Error::Invalid(_))), "{depth}");
    }
    let (pd, cq) = (device.alloc_pd(), device.create_cq(1, None).unwrap());
    let good = QpInit {
        send_cq: &cq,
        recv_cq: &cq,
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 0,
        max_recv_sge: 0,
        max_inline: 0,
        signal_all: true,
    };
    for bad in [
        QpInit { max_send_wr: limits.max_qp_wr + 1, ..good },
        QpInit { max_recv_wr: limits.max_qp_wr + 1, ..good },
        QpInit { max_send_sge: limits.max_sge + 1, ..good },
        QpInit { max_recv_sge: limits.max_sge + 1, ..good },
        QpInit { max_inline: limits.max_inline + 1, ..good },
    ] {
        assert!(matches!(pd.create_qp(&bad), Err(Error::Invalid(_))));
    }
    let mut qps: Vec<_> = (0..limits.max_qp).map(|_| pd.create_qp(&good).unwrap()).collect();
    assert!(matches!(pd.create_qp(&good), Err(Error::Exhausted(_))));
    qps.pop();
    qps.push(pd.create_qp(&good).unwrap());
    assert!(matches!(pd.create_qp(&good), Err(Error::Exhausted(_))));
}

/// SEC-10: a completion queue serves the device that it was made from, which belongs to one process. No other
/// device can attach to it.
#[test]
fn a_completion_queue_serves_one_device() {
    let [(own, _), (other, _)] = [fake::device(Progress::Inline), fake::device(Progress::Inline)];
    let [own_cq, other_cq] = [own.create_cq(4, None).unwrap(), other.create_cq(4, None).unwrap()];
    for (send_cq, recv_cq) in [(&own_cq, &other_cq), (&other_cq, &own_cq)] {
        let init = QpInit {
            send_cq,
            recv_cq,
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: true,
        };
        assert!(matches!(own.alloc_pd().create_qp(&init), Err(Error::Invalid(_))));
    }
}

/// A program asks the device before it offers Atomics or immediate data to its peer. RDMAPX-31.
#[test]
fn extensions_are_reported() {
    let simulation =
        crate::api::simulation::Simulation::new(&crate::api::simulation::Options::default()).unwrap();
    assert!(simulation.device(0).attributes().unwrap().extensions);
}

/// SEC-1: no queue pair, however late it comes, can use the memory of a domain that is not its own.
#[test]
fn an_old_domain_shares_its_scope_with_no_later_queue_pair() {
    let (device, _) = fake::device(Progress::Inline);
    let (old, cq) = (device.alloc_pd(), device.create_cq(1, None).unwrap());
    let memory = old.alloc_mr(8, crate::Access::REMOTE_READ).unwrap();
    let pd = device.alloc_pd();
    device.shared.scopes.go_on_at(0); // as after 2^32 queue pairs and domains
    for _ in 0..3 {
        let qp = pd.create_qp(&crate::api::qp::tests::init(&cq)).unwrap();
        let (scopes, need) = (qp.shared.scopes, crate::Access::REMOTE_READ);
        let found = device.shared.table.resolve(memory.rkey(), scopes, need, memory.addr(), 8);
        assert_eq!(found, Err(crate::shared::memory::MrFault::NotAssociated));
    }
    // Numbers are free again when the queue pair or the domain has ended.
    let scope = pd.shared.scope;
    drop(pd);
    device.shared.scopes.go_on_at(scope.0);
    assert_eq!(device.alloc_pd().shared.scope, scope);
}
