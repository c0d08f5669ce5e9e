use super::*;

fn port(text: &str) -> PortSpec {
    text.parse().expect("a port")
}

/// Returns two nodes of four cores each, as of two processors with hyper-threads.
fn two_nodes() -> Machine {
    Machine { nodes: [(0, vec![0, 1, 4, 5]), (1, vec![2, 3, 6, 7])].into() }
}

#[test]
fn cores_of_another_node_are_told_of() {
    let nic = port("pci:0000:81:00.0");
    let warning = |cores: &[usize]| two_nodes().warning(&nic, Some(1), cores);
    assert_eq!(warning(&[2, 7]), None);
    assert_eq!(
        warning(&[2, 4]).as_deref(),
        Some(
            "pci:0000:81:00.0: the NIC is at NUMA node 1, and core 4 is not: its engine reaches every frame across nodes, \
             which is slower; give cores of that node (2,3,6,7) in engine.cores"
        )
    );
    assert!(warning(&[0, 2, 5]).unwrap().contains("cores 0,5 are not: their engines reach"));
}

#[test]
fn nothing_is_far_where_nothing_is_known() {
    let nic = port("pci:0000:81:00.0");
    assert_eq!(two_nodes().warning(&nic, None, &[0, 2]), None);
    assert_eq!(two_nodes().warning(&nic, Some(2), &[0, 2]), None);
    assert_eq!(Machine::default().warning(&nic, Some(0), &[0]), None);
    assert_eq!(two_nodes().warning(&nic, Some(0), &[]), None);
}

#[test]
fn engines_without_a_core_run_near_the_port() {
    assert_eq!(two_nodes().near(Some(1), &[0, 1, 2, 3]), [2, 3]);
    // A process that may use no core of the node.
    assert_eq!(two_nodes().near(Some(1), &[0, 1]), [0, 1]);
    assert_eq!(two_nodes().near(None, &[0, 1, 2]), [0, 1, 2]);
}

#[test]
fn linux_describes_the_machine() {
    let sys = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = sys.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("devices/system/node/node0/cpulist", "0-1,4-5\n");
    write("devices/system/node/node1/cpulist", "2-3,6,7\n");
    write("devices/system/node/online", "0-1\n");
    for (device, node) in [
        ("bus/pci/devices/0000:81:00.0", "1\n"),
        ("bus/pci/devices/0000:01:00.0", "-1\n"),
        ("bus/pci/devices/0000:02:00.0", "9\n"),
        ("class/net/eth0/device", "0\n"),
    ] {
        write(&format!("{device}/numa_node"), node);
    }
    let machine = Machine::described_at(sys.path());
    assert_eq!(machine, two_nodes());
    for (text, node) in [
        ("pci:0000:81:00.0", Some(1)),
        ("pci:0000:01:00.0", None),
        ("pci:0000:02:00.0", None),
        ("pci:0000:03:00.0", None),
        ("af_packet:eth0", Some(0)),
        ("af_xdp:eth0", Some(0)),
        ("af_packet:veth0", None),
        ("memif:/tmp/m.sock", None),
    ] {
        assert_eq!(machine.node_of_at(sys.path(), &port(text)), node, "{text}");
    }
    // A machine with one node: all cores are near.
    let one = Machine { nodes: [(1, vec![0, 1])].into() };
    assert_eq!(one.node_of_at(sys.path(), &port("pci:0000:81:00.0")), None);
}

#[test]
fn lists_of_cores() {
    for (list, cores) in [("0\n", vec![0]), ("0-2,5", vec![0, 1, 2, 5]), ("\n", vec![]), ("x,3-", vec![])] {
        assert_eq!(cores_in(list), cores, "{list:?}");
    }
}
