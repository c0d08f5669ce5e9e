use nix::sys::socket::getsockname;
use nix::unistd::read;

use super::*;

/// The index of an interface that does not exist. A name can be reserved without an interface, and no port uses names
/// with this index.
const NOWHERE: i32 = i32::MAX;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn taken(result: Result<Held, HoldError>) -> String {
    match result {
        Err(HoldError::Taken(holder)) => holder,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_is_held_once_per_interface_and_vlan_until_it_is_let_go() {
    for ip in ["10.1.2.3", "fd00::1"].map(address) {
        let held = Held::hold(NOWHERE, None, ip).expect("it is free");
        assert_eq!(taken(Held::hold(NOWHERE, None, ip)), "this process");
        let _vlan = Held::hold(NOWHERE, Some(7), ip).expect("another network");
        let _other = Held::hold(NOWHERE - 1, None, ip).expect("another interface");
        let _ip = Held::hold(NOWHERE, None, address("10.1.2.4")).expect("another address");
        drop(held);
        Held::hold(NOWHERE, None, ip).expect("it is free again");
    }
}

/// More refusals than the backlog holds: the kernel still reports the holder's process id once they are drained.
#[test]
fn a_thousand_refusals_all_name_the_holder() {
    let ip = address("10.1.2.5");
    let held = Held::hold(NOWHERE, None, ip).expect("it is free");
    for _ in 0..20 {
        for _ in 0..VISITORS {
            assert_eq!(taken(Held::hold(NOWHERE, None, ip)), "this process");
        }
        held.drain();
    }
}

/// A process that connects as fast as it is removed does not keep the thread that removes it.
#[test]
fn one_call_removes_no_more_visitors_than_the_backlog() {
    let held = Held::hold(NOWHERE, None, address("10.1.2.7")).expect("it is free");
    let name: UnixAddr = getsockname(held.holder.fd()).expect("a name");
    // The kernel keeps one connection more than the backlog.
    let visitors: Vec<OwnedFd> = (0..=VISITORS).map(|_| stream().expect("a socket")).collect();
    for visitor in &visitors {
        connect(visitor.as_raw_fd(), &name).expect("room in the backlog");
    }
    let waiting = || {
        let waits = |visitor: &&OwnedFd| read(visitor, &mut [0]) == Err(Errno::EAGAIN);
        visitors.iter().filter(waits).count()
    };
    assert_eq!(waiting(), visitors.len());
    held.drain();
    assert_eq!(waiting(), 1);
    held.drain();
    assert_eq!(waiting(), 0);
}

/// A forked child does not keep the addresses of its parent reserved.
#[test]
fn a_forked_child_lets_go() {
    let ip = address("10.1.2.6");
    let held = Held::hold(NOWHERE, None, ip).expect("it is free");
    let mut pipe = [0; 2];
    // SAFETY: the kernel fills in two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child calls nothing but `close`, `read` and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0u8;
        // SAFETY: one byte of ours; the child ends here.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    assert!(child > 0, "a child");
    drop(held);
    // The child holds the socket until the kernel first lets the child run.
    let start = std::time::Instant::now();
    let again = loop {
        match Held::hold(NOWHERE, None, ip) {
            Ok(held) => break held,
            Err(e) => assert!(start.elapsed().as_secs() < 30, "the child holds it: {e:?}"),
        }
        std::thread::yield_now();
    };
    drop(again);
    // SAFETY: our own descriptors and our own child.
    unsafe {
        libc::close(pipe[1]);
        libc::close(pipe[0]);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}
