//! IPv6 with the kernel as a neighbour: router advertisements from the kernel's address, and duplicate address
//! detection by the kernel and the engine.

use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::child::{self, Child};
use super::netns::{Namespace, Veth};
use super::{KERNEL6, OURS6, exchange, kernel};

/// A network behind the router, and the kernel's address in it.
const BEYOND: &str = "fd0b::2";
/// The prefix that the router offers.
const PREFIX: &str = "fd0a::";
/// The address that the engine forms from the prefix and its Ethernet address, 02:76:fd:09:00:01.
const OFFERED: &str = "fd0a::76:fdff:fe09:1";

/// Advertises a router on `va` twice a second, as a router's daemon does, until `end` is set. Hosts may make addresses
/// of the prefix, which is on the link, and reach everything else through the router.
fn advertise(end: &AtomicBool) {
    let mut message = vec![134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    message.extend(PREFIX.parse::<std::net::Ipv6Addr>().expect("an address").octets());
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6) };
    assert!(fd >= 0, "a raw socket");
    // SAFETY: integers only.
    let mut to: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    to.sin6_family = libc::AF_INET6 as u16;
    to.sin6_addr.s6_addr = "ff02::1".parse::<std::net::Ipv6Addr>().expect("an address").octets();
    // SAFETY: the name ends with a zero, and the option has the stated size.
    unsafe {
        to.sin6_scope_id = libc::if_nametoindex(c"va".as_ptr());
        let hops: libc::c_int = 255;
        let size = mem::size_of_val(&hops) as u32;
        libc::setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, (&raw const hops).cast(), size);
    }
    while !end.load(Ordering::Relaxed) {
        // SAFETY: the buffer and the address have the stated lengths.
        let sent = unsafe {
            let size = mem::size_of_val(&to) as u32;
            libc::sendto(fd, message.as_ptr().cast(), message.len(), 0, (&raw const to).cast(), size)
        };
        // The kernel fills in the checksum. Its own link-local address may not be ready yet.
        let said = io::Error::last_os_error();
        assert!(sent == message.len() as isize || said.raw_os_error() == Some(libc::EADDRNOTAVAIL), "{said}");
        std::thread::sleep(Duration::from_millis(500));
    }
    // SAFETY: the descriptor is ours, and no longer used.
    unsafe { libc::close(fd) };
}

fn set(ns: &Namespace, setting: &str) {
    let status = ns.program("sysctl").args(["-q", "-w", setting]).status();
    assert!(status.expect("sysctl runs").success(), "{setting}");
}

/// RFC 4861 §6.3, RFC 4862 §5.5: the engine makes itself an address of the prefix that a router offers, answers at this
/// address, and reaches hosts behind the router. The kernel is the router.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_kernel_as_a_router() {
    let _alone = child::alone();
    let veth = Veth::new(1500);
    set(&veth.a, "net.ipv6.conf.all.forwarding=1");
    veth.a.ip(&["address", "add", &format!("{PREFIX}1/64"), "dev", "va", "nodad"]);
    veth.a.ip(&["link", "set", "lo", "up"]);
    veth.a.ip(&["address", "add", &format!("{BEYOND}/128"), "dev", "lo"]);
    let end = Arc::new(AtomicBool::new(false));
    let told = end.clone();
    let router = veth.a.run(move || advertise(&told));
    let bytes = 4 << 20;
    let mut engine = Child::start_in(
        &veth.b.file,
        "stack",
        &format!("af_packet:vb autoconf {BEYOND} 1500 {bytes} 0 0"),
        "",
    );
    engine.expect("open");
    let addresses = engine.line();
    assert!(addresses.split(' ').any(|a| a == OFFERED), "{addresses}");
    kernel::ping6(&veth.a, OFFERED.parse().expect("an address"), "va", 20, 1452);
    // The kernel listens behind the router, and answers from there.
    exchange(&veth.a, &mut engine, (OFFERED, BEYOND), bytes);
    engine.finish();
    end.store(true, Ordering::Relaxed);
    router.join().expect("the router");
}

/// RFC 4862 §5.4: the engine does not use an address that the kernel has, and the kernel does not use an address that
/// the engine has.
#[test]
#[ignore = "needs root, for network namespaces"]
fn needs_root_addresses_of_ipv6_are_not_shared_with_a_kernel() {
    let _alone = child::alone();
    let veth = Veth::new(1500);
    let engine =
        || Child::start_in(&veth.b.file, "stack", &format!("af_packet:vb {OURS6} {KERNEL6} 1500 1 0 0"), "");
    let mut ours = engine();
    ours.expect("open");
    veth.a.ip(&["address", "add", &format!("{OURS6}/64"), "dev", "va"]);
    let start = Instant::now();
    loop {
        let shown = veth.a.program("ip").args(["-6", "address", "show", "dev", "va", "dadfailed"]).output();
        if String::from_utf8_lossy(&shown.expect("ip runs").stdout).contains(OURS6) {
            break;
        }
        assert!(start.elapsed() < child::PATIENCE, "the kernel takes the address");
        std::thread::sleep(Duration::from_millis(20));
    }
    ours.finish();
    // Now the kernel takes the address without duplicate address detection.
    veth.a.ip(&["address", "del", &format!("{OURS6}/64"), "dev", "va"]);
    veth.a.ip(&["address", "add", &format!("{OURS6}/64"), "dev", "va", "nodad"]);
    let mut other = engine();
    assert_eq!(other.line(), format!("conflict about {OURS6}"));
    other.finish();
}
