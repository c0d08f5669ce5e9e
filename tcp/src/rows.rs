//! Allocation in rows, so that things of one kind lie side by side in memory.
//!
//! A program that serves thousands of connections in turn touches a few allocations of each. If allocations of one
//! kind are neighbours, the processor foresees the next ones, and needs fewer entries of its TLB. They are not if each
//! connection allocates one of every kind. Most allocators place allocations of one size that are made one after
//! another side by side.
//!
//! ```
//! use urnic_tcp::rows::Rows;
//!
//! let mut rows = Rows::default();
//! let boxes: Vec<Box<u64>> = (0..10).map(|number| Box::write(rows.take(Box::new_uninit), number)).collect();
//! assert_eq!(*boxes[7], 7);
//! ```

/// Hands out allocations of one kind, which are made in rows. The more there are, the longer the rows get.
#[derive(Debug)]
pub struct Rows<P> {
    /// The rest of the last row, in reverse.
    rest: Vec<P>,
    /// Length of the next row.
    next: usize,
}

/// Maximum length of a row.
const LONGEST: usize = 64;

impl<P> Default for Rows<P> {
    fn default() -> Self {
        Rows { rest: Vec::new(), next: 1 }
    }
}

impl<P> Rows<P> {
    /// Returns an allocation. `allocate` makes one of a row; all calls must make the same kind.
    pub fn take(&mut self, allocate: impl Fn() -> P) -> P {
        self.rest.pop().unwrap_or_else(|| {
            let first = allocate();
            self.rest.extend((1..self.next).map(|_| allocate()));
            self.rest.reverse();
            self.next = (2 * self.next).min(LONGEST);
            first
        })
    }
}

#[cfg(test)]
mod tests;
