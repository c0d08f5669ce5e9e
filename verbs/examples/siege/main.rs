//! The besieged server and the honest client of `scripts/siege`. Hostile peers are separate programs that share no
//! code with urnic (`scripts/siege.d`).
//!
//! ```text
//! siege serve PORT          echoes every Send; each peer gets memory of its own to write and read, and a hall to read
//! siege visit ADDRESS PORT  keeps one connection, makes short ones beside it one by one, and checks every octet
//! ```
//! Settings come from the environment (`URNIC_PORT`, `URNIC_IP`, ...). Both programs take orders on standard
//! input, one per line, and answer each with a line of JSON:
//!
//! * `status` (serve): the counts of the server.
//! * `dial ADDRESS PORT N` (serve): opens N connections to a peer, and a new one for each that ends or fails.
//! * `hang` (serve): ends the dialled connections, and dials no more.
//! * `mark` (visit): what the client experienced since the last mark.
//!
//! The end of input ends the program.

use std::error::Error;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use urnic::Device;
use urnic_config::{Config, Sources};

mod serve;
mod visit;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Octets of a peer's room, the memory that it may write and read.
const ROOM: usize = 4096;
/// Largest message, in octets.
const MESSAGE: usize = 1024;
/// Octets of the hall, the memory that every peer may read.
const HALL: usize = 16 << 20;

/// Returns the octet at `at` of the hall.
fn hall(at: usize) -> u8 {
    (at.wrapping_mul(7) ^ (at >> 8)) as u8
}

/// Returns the orders from standard input. The channel is closed at the end of the input.
fn orders() -> Receiver<String> {
    let (sender, orders) = channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", port] => {
            let port = port.parse()?;
            serve::run(&Device::open(&Config::load(&Sources::process())?)?, port, &orders())
        }
        ["visit", to, port] => {
            let to = std::net::SocketAddr::new(to.parse()?, port.parse()?);
            visit::run(&Device::open(&Config::load(&Sources::process())?)?, to, &orders())
        }
        _ => Err("usage: siege serve PORT | siege visit ADDRESS PORT".into()),
    }
}
