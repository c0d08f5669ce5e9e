use super::*;

fn parse(text: &str) -> PortSpec {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn kinds_and_defaults() {
    let path = PathBuf::from("/p/a.sock");
    assert_eq!(
        parse("virtio_user:/p/a.sock"),
        PortSpec::VirtioUser { path: path.clone(), server: true, queue_size: 256 }
    );
    assert_eq!(parse("vhost:/p/a.sock"), PortSpec::Vhost { path: path.clone(), server: false });
    assert_eq!(
        parse("memif:/p/a.sock,role=server,id=3,queue_size=256"),
        PortSpec::Memif { path, role: MemifRole::Server, id: 3, queue_size: 256 }
    );
    assert_eq!(parse("ring:pair"), PortSpec::Ring { name: "pair".to_string() });
    let interface = "eth0".to_string();
    assert_eq!(
        parse("af_packet:eth0"),
        PortSpec::AfPacket { interface: interface.clone(), queue_size: 4096 }
    );
    assert_eq!(parse("af_xdp:eth0"), PortSpec::AfXdp { interface: interface.clone(), queue: 0 });
    assert_eq!(parse("tap:eth0"), PortSpec::Tap { interface });
    for (text, offload) in [("pci:3:1F.7", true), ("pci:3:1F.7,offload=no", false)] {
        assert_eq!(parse(text), PortSpec::Pci { address: "0000:03:1f.7".to_string(), offload });
    }
    assert_eq!(
        parse("vdev:net_pcap9,iface=eth0,a=b"),
        PortSpec::Vdev { name: "net_pcap9".to_string(), args: "iface=eth0,a=b".to_string() }
    );
}

#[test]
fn memory_links_and_networks() {
    for (text, memory, interface) in [
        ("ring:x", true, None),
        ("vhost:/p", true, None),
        ("af_packet:eth0", false, Some("eth0")),
        ("af_xdp:eth0", false, Some("eth0")),
        ("tap:t0", false, Some("t0")),
        ("pci:0:4.0", false, None),
        ("vdev:net_null0", false, None),
    ] {
        assert_eq!((parse(text).is_memory_link(), parse(text).interface()), (memory, interface), "{text}");
    }
}

#[test]
fn written_form_reads_back() {
    for text in [
        "virtio_user:/p/a.sock",
        "virtio_user:/p/a.sock,server=no,queue_size=64",
        "vhost:rel/path",
        "vhost:/p/a:b.sock,server=yes",
        "memif:/p/m.sock,role=client",
        "memif:/p/m.sock,role=server,id=4294967295,queue_size=4096",
        "ring:x",
        "af_packet:eth0",
        "af_packet:enp0s31f6.100,queue_size=256",
        "af_xdp:eth0",
        "af_xdp:eth0,queue=3",
        "tap:dtap0",
        "pci:0000:00:04.0",
        "pci:0000:00:04.0,offload=no",
        "vdev:net_pcap9,iface=eth0",
        "vdev:net_null0",
    ] {
        assert_eq!(parse(text).to_string(), text);
        assert!(PortSpec::KINDS.contains(&parse(text).kind()));
    }
}

#[test]
fn the_two_ends_of_a_link_belong_together() {
    for text in ["virtio_user:/p", "vhost:/p", "memif:/p,role=server,id=2", "ring:x", "vhost:/p,server=yes"] {
        let spec = parse(text);
        let peer = spec.peer();
        assert_eq!(spec.path(), peer.path());
        assert_eq!(peer.peer(), spec, "{text}");
        let creates = |s: &PortSpec| match s {
            PortSpec::VirtioUser { server, .. } | PortSpec::Vhost { server, .. } => *server,
            PortSpec::Memif { role, .. } => *role == MemifRole::Server,
            _ => false,
        };
        if spec.path().is_some() {
            assert_ne!(creates(&spec), creates(&peer), "exactly one side creates the socket: {text}");
        }
    }
}

#[test]
fn mistakes_are_named() {
    let long = format!("vhost:/{}", "x".repeat(107));
    for (bad, why) in [
        ("", "no kind of port \"\""),
        ("virtio:/p", "no kind of port \"virtio\""),
        ("pci:", "not the address of a PCI device"),
        ("pci:0000:00:04", "not the address of a PCI device"),
        ("pci:0000:00:04.8", "not the address of a PCI device"),
        ("pci:0000:00:20.0", "not the address of a PCI device"),
        ("pci:0:0:0:0.0", "not the address of a PCI device"),
        ("pci:+1:00.0", "not the address of a PCI device"),
        ("pci:00:04.0,x=y", "a pci port has no option \"x\"; its options are offload"),
        ("pci:00:04.0,offload=maybe", "offload=maybe is not yes or no"),
        ("af_packet:", "needs the name of a network interface"),
        ("af_packet:a/b", "cannot be the name of a network interface"),
        ("af_packet:abcdefghijklmnop", "cannot be the name of a network interface"),
        ("af_packet:eth0,queue_size=3", "power of two"),
        ("af_xdp:eth0,queue=x", "queue=x is not a number"),
        ("tap:t0,mac=fixed", "a tap port has no options"),
        ("vdev:", "not a network driver"),
        ("vdev:crypto_null0", "not a network driver"),
        ("vdev:net_pcap,iface=x", "not a network driver"),
        ("vhost", "needs the path"),
        ("vhost:", "needs the path"),
        ("memif:,role=server", "needs the path"),
        ("ring:", "needs a name"),
        ("ring:a,b=c", "a ring port has no options"),
        ("vhost:/p,sever=yes", "its options are server"),
        ("memif:/p,role=master", "role=master is not server or client"),
        ("memif:/p,id=-1", "id=-1 is not a number"),
        ("memif:/p,queue_size=1000", "power of two"),
        ("virtio_user:/p,server=maybe", "yes or no"),
        ("vhost:/p,server", "not of the form key=value"),
        ("vhost:/p,", "not of the form key=value"),
        ("vhost:/p,server=yes,server=no", "given twice"),
        ("ring:a\n", "control character"),
        (&long, "108 bytes"),
    ] {
        let error = bad.parse::<PortSpec>().unwrap_err();
        assert!(error.contains(why), "{bad:?}: {error}");
    }
}
