//! `liburnic.so`, which `urnic run` preloads into a program and which the program's children inherit. It has every
//! symbol of libibverbs and librdmacm that programs use. The library behind them, `liburnic_verbs.so`, is loaded at
//! the first call; `engine` chooses between its two builds. A process that calls no symbol thus loads only this small
//! file, which has no constructors.
//!
//! It also shows the device's address to programs that ask for the addresses and interfaces of this host
//! (`interfaces`, `netdevice`); ends connections in good order when a program ends without exit handlers (`leave`);
//! keeps the sockets of DPDK's drivers from becoming rsockets (`sockets`); and finds the functions behind the drop-in
//! libraries (`drop_in`): `libibverbs.so.1` and `librdmacm.so.1`, made by the build script for programs that look
//! these up by name.
//!
//! # Safety
//! Every `extern "C"` function here requires of its caller what the function of that name in the C library,
//! libibverbs or librdmacm requires.

mod drop_in;
mod engine;
mod interfaces;
mod leave;
mod netdevice;
mod sockets;
