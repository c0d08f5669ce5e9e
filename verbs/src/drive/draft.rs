//! Buffers in which the engine builds the octets that it sends.

/// A buffer that is being filled with octets that a connection will send.
pub trait Draft {
    /// Returns the number of octets written so far.
    fn len(&self) -> usize;

    /// Returns whether nothing has been written yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `n` octets and returns them, so that the caller can overwrite them; `None` if they do not fit.
    fn append(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Shortens the content to its first `len` octets.
    fn truncate(&mut self, len: usize);
}

/// A draft in ordinary memory, of any length.
impl Draft for Vec<u8> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        let at = Vec::len(self);
        self.resize(at + n, 0);
        self.get_mut(at..)
    }

    fn truncate(&mut self, len: usize) {
        Vec::truncate(self, len);
    }
}
