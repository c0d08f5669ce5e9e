//! The table of GIDs. Programs remember indices, so an address keeps its index while the device has the address. An
//! address that the device loses and gets again has its old index again, unless another address got it meanwhile.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use crate::ffi::ibv_gid;

/// The address at each index.
#[derive(Default)]
pub struct Gids(Mutex<Vec<Place>>);

#[derive(Clone, Copy)]
struct Place {
    address: IpAddr,
    /// Whether the device has the address now.
    there: bool,
}

impl Gids {
    /// Returns the address at each index, given the device's present addresses; `None`: the index is vacant.
    pub fn now(&self, addresses: impl Iterator<Item = IpAddr>) -> Vec<Option<IpAddr>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter_mut().for_each(|place| place.there = false);
        let mut strangers = Vec::new();
        for address in addresses {
            match places.iter_mut().find(|place| place.address == address) {
                Some(place) => place.there = true,
                None => strangers.push(Place { address, there: true }),
            }
        }
        let mut strangers = strangers.into_iter();
        for vacant in places.iter_mut().filter(|place| !place.there) {
            let Some(stranger) = strangers.next() else { break };
            *vacant = stranger;
        }
        places.extend(strangers);
        places.iter().map(|place| place.there.then_some(place.address)).collect()
    }
}

/// Returns an address as a GID; an IPv4 address becomes an IPv4-mapped IPv6 address.
pub fn gid(address: IpAddr) -> ibv_gid {
    match address {
        IpAddr::V4(ip) => ibv_gid { raw: ip.to_ipv6_mapped().octets() },
        IpAddr::V6(ip) => ibv_gid { raw: ip.octets() },
    }
}

#[cfg(test)]
mod tests;
