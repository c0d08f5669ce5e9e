//! Devices on the kernel's sockets, in real time, with failing peers and hosts, and exceeded limits. Each test has its
//! own process, because descriptors, processor time and memory belong to the process.

#[path = "../convert/ends.rs"]
#[allow(dead_code)] // every test binary uses a part
mod ends;
mod limits;
mod phases;
mod process;
mod stalls;
