//! Octets on their way out, under construction.

/// A buffer that is being filled with what a connection will send.
pub trait Draft {
    /// Octets written so far.
    fn len(&self) -> usize;

    /// Nothing has been written yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Grows the content by `n` octets, to be overwritten; `None` if they do not fit.
    fn append(&mut self, n: usize) -> Option<&mut [u8]>;

    /// Takes back what was appended behind the first `len` octets.
    fn truncate(&mut self, len: usize);
}

/// A record in ordinary memory, of any length.
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
