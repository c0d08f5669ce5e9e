//! Devices on the kernel's sockets, and peers, hosts and limits that fail them: real sockets, real time. Each test has a process
//! of its own, as descriptors, processor time and memory are the process's.

#[path = "../convert/ends.rs"]
#[allow(dead_code)] // every test binary uses a part
mod ends;
mod limits;
mod phases;
mod process;
mod stalls;
