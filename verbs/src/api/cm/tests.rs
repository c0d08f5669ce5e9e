use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering;
use std::time::Duration;

use urnic_config::Progress;

use crate::api::fake;
use crate::api::qp::tests::init;
use crate::{CmEvent, ConnParam, ConnectFailure, Device, DisconnectReason, Error, EventChannel, Qp};

const TO: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7471);

fn qp(device: &Device) -> Qp {
    device.alloc_pd().create_qp(&init(&device.create_cq(16, None).unwrap())).unwrap()
}

fn param(private_data: &[u8]) -> ConnParam {
    ConnParam { private_data: private_data.to_vec(), ird: 3, ord: 4, ..ConnParam::default() }
}

fn next(events: &EventChannel) -> CmEvent {
    events.wait(Duration::from_secs(60)).expect("an event")
}

fn connections_come_and_go(progress: Progress) {
    let (device, _) = fake::device(progress);
    let (server, client) = (device.create_event_channel().unwrap(), device.create_event_channel().unwrap());
    let listener = server.listen(TO.port(), 8).unwrap();
    assert_eq!(listener.port(), TO.port());
    assert!(matches!(client.listen(TO.port(), 8), Err(Error::PortInUse(7471))));
    let (a, b) = (qp(&device), qp(&device));
    let connection = client.connect(&a, TO, &param(b"hello")).unwrap();
    assert_eq!(connection.qpn(), a.qpn());
    let CmEvent::ConnectRequest(request) = next(&server) else { panic!("no request") };
    assert_eq!((request.private_data(), request.ird(), request.ord()), (&b"hello"[..], Some(3), Some(4)));
    request.accept(&b, &param(b"welcome")).unwrap();
    let CmEvent::Established { qpn, private_data, .. } = next(&client) else { panic!("not established") };
    assert_eq!((qpn, &private_data[..]), (a.qpn(), &b"welcome"[..]));
    connection.disconnect().unwrap();
    let CmEvent::Disconnected { qpn, reason } = next(&client) else { panic!("not disconnected") };
    assert_eq!((qpn, reason), (a.qpn(), DisconnectReason::Local));
    assert!(matches!(connection.disconnect(), Err(Error::NotConnected)));
    drop(listener);
    client.connect(&qp(&device), TO, &param(b"")).unwrap();
    let CmEvent::ConnectError { reason, .. } = next(&client) else { panic!("no error") };
    assert_eq!(reason, ConnectFailure::Refused);
}

/// The first engine has reserved the address when the second refuses it. The call returns, and the reservation is over.
#[test]
fn what_one_engine_refuses_no_engine_keeps() {
    let device = fake::device_without_shared_addresses();
    let events = device.create_event_channel().unwrap();
    for _ in 0..2 {
        assert!(matches!(device.bind(TO, false).err(), Some(Error::Exhausted(_))));
        assert!(matches!(events.listen(TO.port(), 8).err(), Some(Error::Exhausted(_))));
    }
}

#[test]
fn connections_come_and_go_inline() {
    connections_come_and_go(Progress::Inline);
}

#[test]
fn connections_come_and_go_adaptive() {
    connections_come_and_go(Progress::Adaptive);
}

#[test]
fn connections_come_and_go_dedicated() {
    connections_come_and_go(Progress::Dedicated);
}

#[test]
fn queue_pairs_of_other_devices_are_refused() {
    let [(device, _), (other, _)] = [(); 2].map(|()| fake::device(Progress::Inline));
    let (server, client) = (device.create_event_channel().unwrap(), device.create_event_channel().unwrap());
    let _listener = server.listen(TO.port(), 8).unwrap();
    let (own, foreign) = (qp(&device), qp(&other));
    assert!(matches!(client.connect(&foreign, TO, &param(b"")), Err(Error::Invalid(_))));
    client.connect(&own, TO, &param(b"")).unwrap();
    let CmEvent::ConnectRequest(request) = next(&server) else { panic!("no request") };
    assert!(matches!(request.accept(&foreign, &param(b"")), Err(Error::Invalid(_))));
    assert!(matches!(next(&client), CmEvent::Rejected { .. }));
}

#[test]
fn requests_are_rejected_by_word_or_by_neglect() {
    let (device, knobs) = fake::device(Progress::Inline);
    let (server, client) = (device.create_event_channel().unwrap(), device.create_event_channel().unwrap());
    let _listener = server.listen(TO.port(), 8).unwrap();
    let qp = qp(&device);
    let ask = || client.connect(&qp, TO, &param(b"")).unwrap();
    ask();
    let CmEvent::ConnectRequest(request) = next(&server) else { panic!("no request") };
    request.reject(b"go away").unwrap();
    let CmEvent::Rejected { private_data, .. } = next(&client) else { panic!("not rejected") };
    assert_eq!(private_data, b"go away");
    // The application drops the request unread.
    ask();
    drop(next(&server));
    assert!(matches!(next(&client), CmEvent::Rejected { .. }));
    // The application never fetches the requests.
    ask();
    ask();
    drop(server);
    assert_eq!(knobs.rejected.load(Ordering::SeqCst), 4);
}

#[test]
fn too_much_private_data_is_refused() {
    let (device, knobs) = fake::device(Progress::Inline);
    let events = device.create_event_channel().unwrap();
    let _listener = events.listen(TO.port(), 8).unwrap();
    let qp = qp(&device);
    assert!(matches!(events.connect(&qp, TO, &param(&[0; 513])), Err(Error::Invalid(_))));
    events.connect(&qp, TO, &param(&[0; 512])).unwrap();
    let CmEvent::ConnectRequest(request) = next(&events) else { panic!("no request") };
    assert!(matches!(request.reject(&[0; 513]), Err(Error::Invalid(_))));
    assert_eq!(knobs.rejected.load(Ordering::SeqCst), 1, "refused words do not keep the peer waiting");
}

#[test]
fn waiting_ends_in_time() {
    for progress in [Progress::Inline, Progress::Adaptive, Progress::Dedicated] {
        let (device, _) = fake::device(progress);
        let events = device.create_event_channel().unwrap();
        assert!(events.wait(Duration::from_millis(3)).is_none());
        assert!(events.poll().is_none());
    }
}
