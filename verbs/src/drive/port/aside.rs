//! Payload that has been put aside: it waits for its acknowledgement in ordinary memory, so that its send buffers are
//! free for other connections.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of octets of a port that are put aside at present.
#[derive(Clone, Debug, Default)]
pub(crate) struct Put(Arc<AtomicUsize>);

impl Put {
    #[inline]
    pub(crate) fn octets(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Octets that have been put aside. The port counts them until they are dropped.
#[derive(Debug)]
pub(crate) struct Aside {
    octets: Box<[u8]>,
    put: Put,
}

impl Aside {
    pub(crate) fn new(octets: Vec<u8>, put: &Put) -> Self {
        put.0.fetch_add(octets.len(), Ordering::Relaxed);
        Self { octets: octets.into(), put: put.clone() }
    }
}

impl Deref for Aside {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.octets
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.put.0.fetch_sub(self.octets.len(), Ordering::Relaxed);
    }
}
