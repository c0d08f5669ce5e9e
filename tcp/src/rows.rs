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
//! let boxes: Vec<Box<u64>> = (0..10).map(|number| rows.boxed(number)).collect();
//! assert_eq!(*boxes[7], 7);
//! ```

use std::mem::MaybeUninit;

/// Hands out allocations of one kind, which are made in rows. The more there are, the longer the rows get.
#[derive(Debug)]
pub struct Rows<P> {
    /// The rest of the last row, in reverse.
    rest: Vec<P>,
    /// Length of the next row.
    next: usize,
}

/// Memory for boxes, in rows.
pub type BoxRows<T> = Rows<Box<MaybeUninit<T>>>;

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

impl<T> BoxRows<T> {
    /// Returns a box with `value`.
    pub fn boxed(&mut self, value: T) -> Box<T> {
        Box::write(self.take(Box::new_uninit), value)
    }
}

#[cfg(test)]
mod tests;
