//! How a NIC spreads TCP connections over its queues: by the Toeplitz hash of both addresses and ports (RSS), with
//! our own key and table if the driver takes them. Then the queue of a connection is known before its first frame.
//!
//! The key repeats 16 bits, so that both directions of a connection have the same hash (Woo and Park, "Scalable TCP
//! Session Monitoring with Symmetric Receive-Side Scaling"). Entry `n` of the table leads to queue `n` modulo the
//! number of queues. Key and table are read back from the driver; if they differ from ours or cannot be read, the
//! hash counts as unknown.

use std::ffi::c_int;

use dpdk_sys as sys;

use crate::caps::Rss;

/// The inputs of the hash: both ends of a TCP connection, of either family (`rte_ethdev.h`,
/// `RTE_ETH_RSS_NONFRAG_IPV4_TCP` and `RTE_ETH_RSS_NONFRAG_IPV6_TCP`).
const TCP: u64 = 1 << 4 | 1 << 10;

/// The 16 bits that the key repeats: those of Woo and Park. Ports that differ only in their lowest bit get different
/// queues if the number of queues is a power of two.
const KEY: u16 = 0x6d5a;

/// Octets of the longest key that a driver takes.
const LONGEST_KEY: usize = 64;

/// Entries of one part of the table (RTE_ETH_RETA_GROUP_SIZE).
const PART: usize = 64;

/// The key, repeated to [`LONGEST_KEY`] octets; a driver reads as many as it takes. The key must live while a device is
/// configured, because the configuration points to it.
#[derive(Debug)]
pub(super) struct Key {
    octets: [u8; LONGEST_KEY],
}

impl Key {
    pub(super) fn new() -> Self {
        let [high, low] = KEY.to_be_bytes();
        Self { octets: std::array::from_fn(|n| if n % 2 == 0 { high } else { low }) }
    }

    /// Returns the configuration for a driver with these properties, which points to the key. `None` if the driver
    /// cannot spread TCP connections.
    pub(super) fn request(&mut self, info: &sys::rte_eth_dev_info) -> Option<sys::rte_eth_rss_conf> {
        let types = TCP & info.flow_type_rss_offloads;
        if types == 0 {
            return None;
        }
        let mut request = sys::rte_eth_rss_conf { rss_hf: types, ..Default::default() };
        if (1..=LONGEST_KEY).contains(&info.hash_key_size.into()) {
            request.rss_key = self.octets.as_mut_ptr();
            request.rss_key_len = info.hash_key_size;
        }
        Some(request)
    }
}

/// Sets the table of started device `id`, and reads table and key back. Returns the hash if both are ours, for both
/// families; else `None`.
///
/// # Safety
/// The device is started, has `queues` queues, and was configured with a [`Key`]; `info` is its own.
pub(super) unsafe fn settle(id: u16, info: &sys::rte_eth_dev_info, queues: u16) -> Option<Rss> {
    let (entries, key_len) = (info.reta_size, usize::from(info.hash_key_size));
    if !entries.is_power_of_two() || !(1..=LONGEST_KEY).contains(&key_len) {
        return None;
    }
    let parts = usize::from(entries).div_ceil(PART);
    let mask = if usize::from(entries) < PART { (1 << entries) - 1 } else { u64::MAX };
    let empty = sys::rte_eth_rss_reta_entry64 { mask, reta: [0; PART] };
    let mut wanted = vec![empty; parts];
    for entry in 0..entries {
        wanted[usize::from(entry) / PART].reta[usize::from(entry) % PART] = entry % queues;
    }
    let mut found = vec![empty; parts];
    let mut octets = [0; LONGEST_KEY];
    let mut conf = sys::rte_eth_rss_conf {
        rss_key: octets.as_mut_ptr(),
        rss_key_len: info.hash_key_size,
        ..Default::default()
    };
    let ok = |status: c_int| (status == 0).then_some(());
    // SAFETY: as the caller promises; the tables have as many parts as `entries` needs, and the key has its length.
    unsafe {
        ok(sys::rte_eth_dev_rss_reta_update(id, wanted.as_mut_ptr(), entries))?;
        ok(sys::rte_eth_dev_rss_reta_query(id, found.as_mut_ptr(), entries))?;
        ok(sys::rte_eth_dev_rss_hash_conf_get(id, &raw mut conf))?;
    }
    let ours = Key::new();
    let same_table = wanted.iter().zip(&found).all(|(w, f)| w.reta == f.reta);
    let same_key = octets[..key_len] == ours.octets[..key_len];
    let same = same_table && same_key && conf.rss_hf & TCP == TCP;
    same.then_some(Rss { key: KEY, entries: entries.into() })
}
