//! Finds a connection by its addresses: an open-addressed table with a keyed hash.
//!
//! A stack has one IPv4 address, so remote address, remote port and local port fit into one word. For IPv6, a number
//! stands for both addresses ([`crate::paths`]). The keys of the hash are secret, because peers choose addresses and
//! ports and must not be able to fill one bucket.

/// Remote address, remote port and local port, packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(pub u64);

impl Key {
    #[inline]
    pub fn new(remote_ip: u32, remote_port: u16, local_port: u16) -> Self {
        Key(u64::from(remote_ip) << 32 | u64::from(remote_port) << 16 | u64::from(local_port))
    }

    /// Makes an IPv6 key. `path` is the number of the two addresses.
    #[inline]
    pub fn v6(path: u32, remote_port: u16, local_port: u16) -> Self {
        Key::new(path, remote_port, local_port)
    }

    /// Returns whether `remote_ip` is the number of two IPv6 addresses. These numbers lie in `0.0.0.0/8`, where no
    /// host is.
    #[inline]
    pub fn is_v6(self) -> bool {
        self.0 >> 56 == 0
    }

    /// Returns the remote IPv4 address or the number of two IPv6 addresses. `Net::remote` resolves both.
    #[inline]
    pub fn remote_ip(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub fn remote_port(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline]
    pub fn local_port(self) -> u16 {
        self.0 as u16
    }
}

/// A key of a table.
pub(crate) trait Hashed: Copy + PartialEq {
    /// A filler for vacant entries.
    const NONE: Self;

    /// Returns the key as one word. For longer keys, returns a hash that depends on both secrets.
    fn word(self, k0: u64, k1: u64) -> u64;
}

impl Hashed for Key {
    const NONE: Self = Key(0);

    #[inline]
    fn word(self, _: u64, _: u64) -> u64 {
        self.0
    }
}

const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry<K> {
    key: K,
    value: u32,
}

/// A map from a key to a `u32` (never `u32::MAX`) with linear probing. It is at most half full.
pub(crate) struct Table<K = Key> {
    entries: Box<[Entry<K>]>,
    len: usize,
    k0: u64,
    k1: u64,
}

impl<K: Hashed> Table<K> {
    pub fn new(k0: u64, k1: u64) -> Self {
        Table { entries: vacant(64), len: 0, k0, k1: k1 | 1 }
    }

    #[inline]
    fn bucket(&self, key: K) -> usize {
        let wide = u128::from(key.word(self.k0, self.k1) ^ self.k0) * u128::from(self.k1);
        let folded = (wide as u64) ^ ((wide >> 64) as u64);
        let wide = u128::from(folded ^ self.k1) * u128::from(self.k0 | 1);
        ((wide as u64) ^ ((wide >> 64) as u64)) as usize & (self.entries.len() - 1)
    }

    #[inline]
    fn next(&self, i: usize) -> usize {
        (i + 1) & (self.entries.len() - 1)
    }

    /// Returns the index of `key`, or of the vacant entry where it would go.
    #[inline]
    fn find(&self, key: K) -> usize {
        let mut i = self.bucket(key);
        loop {
            let e = &self.entries[i];
            if e.value == EMPTY || e.key == key {
                return i;
            }
            i = self.next(i);
        }
    }

    /// Returns the entry where the search for `key` begins, without reading it, for prefetching.
    #[inline]
    pub fn place(&self, key: K) -> &impl Sized {
        &self.entries[self.bucket(key)]
    }

    #[inline]
    pub fn get(&self, key: K) -> Option<u32> {
        let v = self.entries[self.find(key)].value;
        (v != EMPTY).then_some(v)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds or replaces the value of `key`.
    pub fn insert(&mut self, key: K, value: u32) {
        debug_assert_ne!(value, EMPTY);
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        let i = self.find(key);
        self.len += usize::from(self.entries[i].value == EMPTY);
        self.entries[i] = Entry { key, value };
    }

    /// Removes `key` and returns its value; `None` if it had none. Entries behind it move up where the gap would
    /// otherwise end a lookup before it reaches them.
    pub fn remove(&mut self, key: K) -> Option<u32> {
        let mut hole = self.find(key);
        let value = self.entries[hole].value;
        if value == EMPTY {
            return None;
        }
        let mask = self.entries.len() - 1;
        let mut i = self.next(hole);
        while self.entries[i].value != EMPTY {
            let home = self.bucket(self.entries[i].key);
            if i.wrapping_sub(home) & mask >= i.wrapping_sub(hole) & mask {
                self.entries[hole] = self.entries[i];
                hole = i;
            }
            i = self.next(i);
        }
        self.entries[hole].value = EMPTY;
        self.len -= 1;
        Some(value)
    }

    fn grow(&mut self) {
        let bigger = vacant(self.entries.len() * 2);
        let old = core::mem::replace(&mut self.entries, bigger);
        for e in old.iter().filter(|e| e.value != EMPTY) {
            let i = self.find(e.key);
            self.entries[i] = *e;
        }
    }
}

fn vacant<K: Hashed>(n: usize) -> Box<[Entry<K>]> {
    vec![Entry { key: K::NONE, value: EMPTY }; n].into_boxed_slice()
}

#[cfg(test)]
mod tests;
