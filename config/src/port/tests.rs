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
            PortSpec::Ring { .. } => false,
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
        ("pci:0000:00:04.0", "no kind of port \"pci\""),
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
