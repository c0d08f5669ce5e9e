//! Polynomials over GF(2) modulo the CRC32C generator, bit-reflected: bit 31 is the coefficient of x^0. Evaluated
//! only at compile time.

use crate::portable::POLY;

/// x^0.
const ONE: u32 = 1 << 31;

/// Multiplies by x.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 == 1 { POLY } else { 0 }
}

/// Returns the product of two polynomials.
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

/// Returns x^n.
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
