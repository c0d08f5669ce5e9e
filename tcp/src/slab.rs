//! A table whose entries keep their index for life.
//!
//! An entry is named by its index, which is small and dense, or by a [`SlabId`], which also distinguishes it from
//! later entries at the same index. Use an index where the entry is known to exist, and an id in whatever may outlive
//! the entry: timers, queues, and names given to users.
//!
//! ```
//! use urnic_tcp::slab::{Slab, SlabId};
//!
//! let mut slab = Slab::<&str>::new();
//! let first = slab.insert("first");
//! assert_eq!(slab.find(first), Some(first.index));
//! slab.remove(first.index);
//! let second = slab.insert("second");
//! assert_eq!(second.index, first.index);
//! assert_eq!((slab.find(first), slab.get(second.index)), (None, Some(&"second")));
//! assert_eq!(SlabId::<u32>::from_bits(second.to_bits()), second);
//! ```

/// An index into a [`Slab`]. If each table has its own index type, an index of one table cannot be used in another.
pub trait SlabIndex: Copy {
    /// Returns the index of place number `place`.
    fn from_place(place: u32) -> Self;

    /// Returns the number of the place that this index names.
    fn place(self) -> u32;
}

impl SlabIndex for u32 {
    #[inline]
    fn from_place(place: u32) -> Self {
        place
    }

    #[inline]
    fn place(self) -> u32 {
        self
    }
}

/// Id of one entry of a [`Slab`]. It names no other entry until 2^32 - 1 entries have come and gone at its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlabId<I = u32> {
    /// Index of the entry.
    pub index: I,
    /// Number of the entry among those at this index, from 1; never zero.
    pub generation: u32,
}

impl<I: SlabIndex> SlabId<I> {
    /// Returns the id as one number, which is never zero.
    #[inline]
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index.place())
    }

    /// Returns the id from which [`to_bits`](Self::to_bits) made `bits`. Other numbers name no entry.
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        SlabId { index: I::from_place(bits as u32), generation: (bits >> 32) as u32 }
    }
}

/// A table whose entries keep their index for life. Freed places are reused with a new generation, the last one freed
/// first.
#[derive(Debug)]
pub struct Slab<T, I = u32> {
    /// Values and generations are separate, because a generation next to an aligned value would cost padding.
    values: Vec<Option<T>>,
    generations: Vec<u32>,
    free: Vec<I>,
}

impl<T, I> Default for Slab<T, I> {
    fn default() -> Self {
        Slab { values: Vec::new(), generations: Vec::new(), free: Vec::new() }
    }
}

impl<T, I: SlabIndex> Slab<T, I> {
    /// Returns an empty table that has not allocated memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry and returns its id.
    pub fn insert(&mut self, value: T) -> SlabId<I> {
        if let Some(index) = self.free.pop()
            && let Some(place) = self.values.get_mut(index.place() as usize)
            && let Some(&generation) = self.generations.get(index.place() as usize)
        {
            *place = Some(value);
            return SlabId { index, generation };
        }
        let index = I::from_place(self.values.len() as u32);
        self.values.push(Some(value));
        self.generations.push(1);
        SlabId { index, generation: 1 }
    }

    /// Returns the id that the next entry will have.
    pub fn next_id(&self) -> SlabId<I> {
        let next = self.free.last().and_then(|&index| {
            let generation = *self.generations.get(index.place() as usize)?;
            Some(SlabId { index, generation })
        });
        next.unwrap_or(SlabId { index: I::from_place(self.values.len() as u32), generation: 1 })
    }

    /// Removes and returns an entry; `None` if there is none. Its id is no longer valid.
    pub fn remove(&mut self, index: I) -> Option<T> {
        let value = self.values.get_mut(index.place() as usize)?.take()?;
        if let Some(generation) = self.generations.get_mut(index.place() as usize) {
            *generation = generation.wrapping_add(1).max(1);
        }
        self.free.push(index);
        Some(value)
    }

    /// Returns the entry at `index`; `None` if there is none.
    #[inline]
    pub fn get(&self, index: I) -> Option<&T> {
        self.values.get(index.place() as usize)?.as_ref()
    }

    /// Returns the entry at `index` for changes; `None` if there is none.
    #[inline]
    pub fn get_mut(&mut self, index: I) -> Option<&mut T> {
        self.values.get_mut(index.place() as usize)?.as_mut()
    }

    /// Returns the place at `index`, occupied or free, without reading it.
    #[inline]
    pub fn place(&self, index: I) -> Option<&Option<T>> {
        self.values.get(index.place() as usize)
    }

    /// Returns the id of the entry at `index`; `None` if there is none.
    #[inline]
    pub fn id(&self, index: I) -> Option<SlabId<I>> {
        self.get(index)?;
        let generation = *self.generations.get(index.place() as usize)?;
        Some(SlabId { index, generation })
    }

    /// Returns the index of the entry that `id` names; `None` if it is gone.
    #[inline]
    pub fn find(&self, id: SlabId<I>) -> Option<I> {
        let is_there = self.generations.get(id.index.place() as usize) == Some(&id.generation);
        (is_there && self.get(id.index).is_some()).then_some(id.index)
    }

    /// Returns the number of places, in use or free: every index is below it.
    pub fn places(&self) -> u32 {
        self.values.len() as u32
    }

    /// Returns the entries in the order of their indices.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let entry = |(place, value): (usize, _)| Some((I::from_place(place as u32), Option::as_ref(value)?));
        self.values.iter().enumerate().filter_map(entry)
    }
}

#[cfg(test)]
mod tests;
