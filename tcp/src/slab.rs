//! Things that come and go, named by an index and a generation.

/// A table whose entries keep their index for life. Freed places are used again with a new generation.
pub(crate) struct Slab<T> {
    values: Vec<Option<T>>,
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Slab { values: Vec::new(), generations: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(i) = self.free.pop()
            && let Some(place) = self.values.get_mut(i as usize)
        {
            *place = Some(value);
            return i;
        }
        self.values.push(Some(value));
        self.generations.push(1);
        self.values.len() as u32 - 1
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.values.get_mut(index as usize)?.take()?;
        if let Some(g) = self.generations.get_mut(index as usize) {
            *g = g.wrapping_add(1);
        }
        self.free.push(index);
        Some(value)
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.values.get_mut(index as usize)?.as_mut()
    }

    /// Where something is or was, without looking at it.
    #[inline]
    pub fn place(&self, index: u32) -> Option<&Option<T>> {
        self.values.get(index as usize)
    }

    /// The generation of what is, or will be, at `index`.
    #[inline]
    pub fn generation(&self, index: u32) -> Option<u32> {
        self.generations.get(index as usize).copied()
    }

    /// Places in use or free: every index is below this.
    pub fn places(&self) -> u32 {
        self.values.len() as u32
    }
}
