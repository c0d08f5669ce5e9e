//! Things that come and go, named by an index and a generation.

/// A table whose entries keep their index for life. Freed places are used again with a new generation.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    len: usize,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Slab { slots: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The index and generation that the next `insert` will use.
    pub fn vacancy(&self) -> (u32, u32) {
        match self.free.last() {
            Some(&i) => (i, self.slots.get(i as usize).map_or(1, |s| s.generation)),
            None => (self.slots.len() as u32, 1),
        }
    }

    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        match self.free.pop() {
            Some(i) => {
                self.slots[i as usize].value = Some(value);
                i
            }
            None => {
                self.slots.push(Slot { generation: 1, value: Some(value) });
                self.slots.len() as u32 - 1
            }
        }
    }

    pub fn remove(&mut self, index: u32) -> Option<T> {
        let slot = self.slots.get_mut(index as usize)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.len -= 1;
        Some(value)
    }

    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    pub fn generation(&self, index: u32) -> Option<u32> {
        Some(self.slots.get(index as usize)?.generation)
    }

    /// Places in use or free: an index is below this.
    pub fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| Some((i as u32, s.value.as_ref()?)))
    }
}
