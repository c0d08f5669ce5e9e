//! Devices on the kernel's sockets, with peers, hosts and limits that fail them: real sockets, real time. Each test
//! has a process of its own, because descriptors, processor time and memory belong to the process.

#[path = "../convert/ends.rs"]
#[allow(dead_code)] // every test binary uses a part
mod ends;
mod limits;
mod phases;
mod process;
mod stalls;
