//! Polynomials over GF(2) modulo the CRC32C generator, bit-reflected: bit 31 is the coefficient of x^0. Evaluated by
//! the compiler only.

use crate::portable::POLY;

/// x^0.
const ONE: u32 = 1 << 31;

/// Times x.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 == 1 { POLY } else { 0 }
}

/// The product.
pub(crate) const fn mul(mut a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    while a != 0 {
        if a & ONE != 0 {
            product ^= b;
        }
        a <<= 1;
        b = times_x(b);
    }
    product
}

/// x^n.
pub(crate) const fn x_to(mut n: u32) -> u32 {
    let mut result = ONE;
    let mut square = times_x(ONE);
    while n != 0 {
        if n & 1 == 1 {
            result = mul(result, square);
        }
        square = mul(square, square);
        n >>= 1;
    }
    result
}
