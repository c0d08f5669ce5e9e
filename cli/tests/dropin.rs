//! The drop-in libraries: their symbols, and programs that run with them and without preloading.

mod stock;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use stock::{Node, alone, pair, perftest, text, urnic};

/// The libraries, and the prefixes of their symbol versions.
const LIBRARIES: [(&str, &str); 2] = [("libibverbs.so.1", "IBVERBS_"), ("librdmacm.so.1", "RDMACM_")];

/// Symbols that override the C library's functions.
const INTERPOSED: [&str; 11] = [
    "getifaddrs",
    "freeifaddrs",
    "getaddrinfo",
    "ioctl",
    "if_nametoindex",
    "if_indextoname",
    "if_nameindex",
    "if_freenameindex",
    "_exit",
    "_Exit",
    "daemon",
];

fn drop_in(library: &str) -> PathBuf {
    urnic().parent().expect("a folder").join("drop-in").join(library)
}

fn installed(library: &str) -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    folders.iter().map(|folder| Path::new(folder).join(library)).find(|path| path.exists())
}

/// Returns the output of a command about a library.
fn shown(command: &[&str], library: &Path) -> String {
    let output = Command::new(command[0]).args(&command[1..]).arg(library).output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// Returns symbols with their kinds and versions: `T ibv_open_device@@IBVERBS_1.1`.
fn symbols(library: &Path) -> BTreeSet<String> {
    let lines = shown(&["nm", "-D", "--defined-only", "--with-symbol-versions"], library);
    let symbol = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        // Version nodes are symbols too, of kind A.
        (kind != "A").then(|| format!("{kind} {name}"))
    };
    lines.lines().filter_map(symbol).collect()
}

/// Returns the versions that a library defines.
fn versions(library: &Path) -> BTreeSet<String> {
    let lines = shown(&["readelf", "-VW"], library);
    let defined = lines.lines().skip_while(|line| !line.starts_with("Version definition"));
    let defined = defined.take_while(|line| !line.starts_with("Version needs"));
    let names = defined.filter(|line| line.contains("Rev:") && !line.contains("BASE"));
    names.filter_map(|line| line.split("Name: ").nth(1)).map(|name| name.trim().to_owned()).collect()
}

/// The libraries have every symbol at its version, no others, the right names, and no unexpected dependencies.
#[test]
fn the_libraries_are_those_of_rdma_core() {
    for (library, prefix) in LIBRARIES {
        let ours = drop_in(library);
        let list = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../verbs/abi/shim/drop-in")
            .join(format!("{library}.txt"));
        let list = std::fs::read_to_string(list).expect("the list of symbols");
        let listed: BTreeSet<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let exported = symbols(&ours);
        let mut names: BTreeSet<&str> =
            exported.iter().filter_map(|symbol| symbol.split_whitespace().nth(1)).collect();
        for name in INTERPOSED {
            assert!(names.remove(name), "{library} has no {name}");
        }
        assert_eq!(names, listed, "{library}");
        assert!(versions(&ours).iter().all(|version| version.starts_with(prefix)));
        let dynamic = shown(&["readelf", "-dW"], &ours);
        assert!(dynamic.contains(&format!("soname: [{library}]")), "{dynamic}");
        let needed = |line: &str| line.contains("(NEEDED)");
        let ours_or_c = ["[liburnic.so]", "[libc.so.6]", "[libibverbs.so.1]"];
        for line in dynamic.lines().filter(|line| needed(line)) {
            assert!(ours_or_c.iter().any(|name| line.contains(name)), "{library}: {line}");
        }
    }
}

/// Returns whether rdma-core added a version after release 44.
fn newer(version: &str) -> bool {
    let (library, number) = version.rsplit_once("_1.").unwrap_or_default();
    let number: u32 = number.parse().unwrap_or_default();
    match library {
        "IBVERBS" => number > 14,
        "RDMACM" => number > 3,
        _ => false,
    }
}

#[test]
fn versions_go_up_to_those_of_rdma_core_65() {
    for (library, newest) in [("libibverbs.so.1", "IBVERBS_1.18"), ("librdmacm.so.1", "RDMACM_1.5")] {
        assert!(versions(&drop_in(library)).contains(newest), "{library} has no {newest}");
    }
}

/// With rdma-core 44 installed, our libraries must have all its symbols, and may have newer ones. With another release,
/// more than 60 symbols must be the same.
#[test]
#[ignore = "needs the libraries that the package ibverbs-utils brings"]
fn needs_ibv_devinfo_the_installed_libraries_have_the_same_symbols() {
    for (library, _) in LIBRARIES {
        let Some(theirs) = installed(library) else { panic!("{library} is not installed") };
        let (ours, real) = (symbols(&drop_in(library)), symbols(&theirs));
        let file = theirs.canonicalize().expect("a file");
        if file.to_string_lossy().contains(".44.") {
            let ours: BTreeSet<String> = ours
                .into_iter()
                .filter(|s| !INTERPOSED.iter().any(|name| s.ends_with(&format!(" {name}"))))
                .filter(|s| !s.rsplit_once('@').is_some_and(|(_, version)| newer(version)))
                .collect();
            assert_eq!(ours, real, "{library}");
            let mut known = versions(&drop_in(library));
            known.retain(|version| !newer(version));
            assert_eq!(known, versions(&theirs), "{library}");
        } else {
            let common = ours.intersection(&real).count();
            assert!(common > 60, "{library}: {common} symbols in common with {}", file.display());
        }
    }
}

/// Returns the two ends of a link in a folder.
fn link(folder: &Path) -> (Node, Node) {
    let node = |ip: &str, kind| {
        let port = format!("{kind}:{}/link.sock", folder.display());
        Node { ip: ip.into(), port, ..Node::default() }
    };
    (node("10.4.2.1", "virtio_user"), node("10.4.2.2", "vhost"))
}

/// Runs a program at both ends, in each way of loading.
fn each_way(run: impl Fn(&str, &Node, &Node)) {
    let _alone = alone();
    for way in ["--libraries drop-in --", "--libraries preload --"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (left, right) = link(folder.path());
        run(way, &left, &right);
    }
}

/// Only the libraries that were asked for are loaded, and programs that do not use the engine do not load it.
#[test]
#[ignore = "needs the package ibverbs-utils"]
fn needs_ibv_devinfo_shows_the_device_either_way() {
    each_way(|way, node, _| {
        let shown = node.succeeds(&format!("{way} ibv_devinfo -v"));
        for expected in ["urnic0", "iWARP (1)", "PORT_ACTIVE"] {
            assert!(shown.contains(expected), "{way}: {shown}");
        }
        let maps = node.succeeds(&format!("{way} cat /proc/self/maps"));
        assert_eq!(maps.contains("liburnic.so"), way.contains("preload"), "{maps}");
        assert!(!maps.contains("liburnic_verbs.so"), "{maps}");
    });
}

#[test]
#[ignore = "needs the package rdmacm-utils"]
fn needs_rping_either_way() {
    each_way(|way, left, right| {
        let (server, client) = pair(
            left,
            right,
            &format!("{way} rping -s -v -V -C 10"),
            &format!("{way} rping -c -v -V -C 10 -a {}", left.ip),
        );
        for (who, text) in [("server", server), ("client", client)] {
            assert_eq!(text.matches("rdma-ping-").count(), 10, "{way} {who}: {text}");
        }
    });
}

#[test]
#[ignore = "needs the package perftest"]
fn needs_ib_write_lat_with_the_drop_in_libraries() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (left, right) = link(folder.path());
    perftest(&left, &right, "--libraries drop-in -- ib_send_lat -R -n 20");
}

/// Programs that load libraries by name and look up versioned symbols find the device, in each way of loading that
/// has versions.
#[test]
#[ignore = "needs the package python3-pyverbs, for its Python"]
fn needs_pyverbs_programs_that_look_for_versions() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let (node, _) = link(folder.path());
    let script = folder.path().join("dlvsym.py");
    std::fs::write(&script, DLVSYM).expect("a file");
    let program = format!("/usr/bin/python3 {}", script.display());
    for way in ["", "--libraries drop-in -- "] {
        let shown = node.succeeds(&format!("{way}{program}"));
        assert_eq!(shown.trim(), "urnic0 urnic0 rsocket: True", "{way}");
    }
}

/// Loads verbs at run time, by name and version of each symbol. GPU libraries do this because they cannot know whether
/// the machine has RDMA.
const DLVSYM: &str = r#"
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1", mode=ctypes.RTLD_LOCAL)
libc = ctypes.CDLL(None)
libc.dlvsym.restype = ctypes.c_void_p
libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]

def versioned(name, version, result):
    address = libc.dlvsym(verbs._handle, name, version)
    assert address, name
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p)(address)

get_list = versioned(b"ibv_get_device_list", b"IBVERBS_1.1", ctypes.c_void_p)
get_name = versioned(b"ibv_get_device_name", b"IBVERBS_1.1", ctypes.c_char_p)
count = ctypes.c_int()
devices = get_list(ctypes.addressof(count))
assert count.value == 1, count.value
device = ctypes.cast(devices, ctypes.POINTER(ctypes.c_void_p))[0]
first = get_name(device).decode()

# The oldest version of the interface lists no devices.
old = versioned(b"ibv_get_device_list", b"IBVERBS_1.0", ctypes.c_void_p)
assert old(None) is None

cm = ctypes.CDLL("librdmacm.so.1", mode=ctypes.RTLD_LOCAL)
cm.rdma_get_devices.restype = ctypes.POINTER(ctypes.c_void_p)
context = cm.rdma_get_devices(ctypes.byref(count))[0]
device = ctypes.cast(context, ctypes.POINTER(ctypes.c_void_p))[0]
second = get_name(device).decode()

# The code of rsockets comes from the system's librdmacm, and calls our rdma_*.
socket = cm.rsocket(2, 1, 0)
print(first, second, "rsocket:", socket >= 0)
"#;
