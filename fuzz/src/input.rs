//! Takes values from the front of a fuzz input; an input that is used up yields zeros.

pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn u8(&mut self) -> u8 {
        match self.0.split_first() {
            Some((b, rest)) => {
                self.0 = rest;
                *b
            }
            None => 0,
        }
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    pub fn u32(&mut self) -> u32 {
        u32::from(self.u16()) << 16 | u32::from(self.u16())
    }

    /// Returns a number whose magnitude is chosen first, so that small and large numbers are equally likely.
    pub fn magnitude(&mut self) -> u32 {
        let bits = self.u8() % 33;
        if bits == 0 { 0 } else { self.u32() >> (32 - bits) }
    }

    /// Takes at most `n` octets.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(n.min(self.0.len()));
        self.0 = tail;
        head
    }
}
