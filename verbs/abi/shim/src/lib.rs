//! `liburnic.so`, which `urnic run` preloads into a program and which its children inherit. It has every symbol of
//! libibverbs and librdmacm that programs use, and loads the library behind them (`liburnic_verbs.so`, with DPDK) when
//! one is called: processes that never do pay for a small file and nothing else. There are no constructors.
//!
//! It also shows the device's address to programs that ask for the addresses of this host (`interfaces`).

mod engine;
mod interfaces;
