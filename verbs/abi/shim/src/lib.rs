//! `liburnic.so`, which `urnic run` preloads into a program and which its children inherit. It has every symbol of
//! libibverbs and librdmacm that programs use, and loads the library behind them (`liburnic_verbs.so`: `engine` chooses
//! between two builds) when one is called: processes that never do pay for a small file and nothing else. There are no constructors.
//!
//! It also shows the device's address to programs that ask for the addresses and interfaces of this host (`interfaces`,
//! `netdevice`), ends connections
//! in good order when a program ends without exit handlers (`leave`), keeps sockets of DPDK's drivers from becoming rsockets
//! (`sockets`), and finds the functions behind the drop-in libraries (`drop_in`): `libibverbs.so.1` and `librdmacm.so.1` for programs that look for
//! these by name, which the build script makes.
//!
//! # Safety
//! Every `extern "C"` function here asks of its caller what the function of the C library or of libibverbs with that name
//! does.

mod drop_in;
mod engine;
mod interfaces;
mod leave;
mod netdevice;
mod sockets;
