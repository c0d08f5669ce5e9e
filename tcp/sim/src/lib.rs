//! A virtual clock, and the impairment model of all of urnic's tests: loss, duplication, reordering, delay,
//! corruption, rate limit and ECN marking, all driven by one seed.
//!
//! Nothing here does I/O or reads a clock: time is an argument, in nanoseconds since any origin. So the same [`Link`]
//! can simulate a network in virtual time or inject faults into a real port.
//!
//! ```
//! use urnic_sim::{Impairment, Link};
//!
//! let impairment: Impairment = "loss=0.01,delay=50us,jitter=10us,rate=10gbit,seed=7".parse().unwrap();
//! let mut link = Link::new(&impairment);
//! link.push(0, vec![0u8; 64]);
//! while let Some(at) = link.next_arrival() {
//!     let frame = link.pop(at);
//!     assert!(frame.is_some() && at >= 50_000);
//! }
//! ```
#![forbid(unsafe_code)]

mod clock;
mod frame;
mod impairment;
mod link;
mod network;

pub use clock::SimClock;
pub use frame::Frame;
pub use impairment::{Impairment, ParseError};
pub use link::{Link, Statistics};
pub use network::{Delivery, Network};
