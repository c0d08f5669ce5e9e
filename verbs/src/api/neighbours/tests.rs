use super::*;

#[test]
fn ports_are_read_from_the_list_of_sockets() {
    let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000: 00000002 00000000 00010000 0001 01 12 /run/dbus\n\
        0000: 00000002 00000000 00010000 0001 01 13 @urnic/17/0/10.0.0.5/fd00::5\n\
        0000: 00000003 00000000 00000000 0001 03 14 @urnic/17/0/10.0.0.5/fd00::5\n\
        0000: 00000002 00000000 00010000 0001 01 15 @urnic/18/0\n\
        0000: 00000002 00000000 00010000 0001 01 16 @urnic/x/0/10.0.0.6\n\
        0000: 00000002 00000000 00010000 0001 01 17 @other/19/0/10.0.0.7\n";
    let [v4, v6]: [IpAddr; 2] = ["10.0.0.5", "fd00::5"].map(|ip| ip.parse().unwrap());
    let port = |address| Port { address, pid: 17 };
    assert_eq!(ports(list), [port(v4), port(v6), port(v4), port(v6)]);
}

/// A device on a port shows its addresses to other processes of this host.
#[test]
fn a_port_is_seen() {
    let (device, _knobs) = crate::api::fake::device(urnic_config::Progress::Inline);
    let own = ["10.99.7.1/24", "fd00:99::7/64"].map(|own| own.parse().unwrap());
    let inspector =
        crate::api::inspect::Inspector::start(&device.shared.shards, &own).expect("an abstract socket");
    let seen = || ports(&std::fs::read_to_string("/proc/net/unix").unwrap());
    for own in own {
        assert!(seen().contains(&Port { address: own.address, pid: std::process::id() }));
    }
    let neighbours = Neighbours::default();
    neighbours.warn(own[0].address);
    neighbours.warn(own[0].address);
    neighbours.warn([10, 99, 7, 2].into());
    let told = neighbours.0.lock().unwrap().told.clone();
    assert_eq!(told, [Port { address: own[0].address, pid: std::process::id() }], "once");
    drop(inspector);
    assert!(!seen().iter().any(|port| port.address == own[0].address));
}
