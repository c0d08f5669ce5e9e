use super::{Cold, Connection};
use crate::testing::Plain;
use core::mem::{offset_of, size_of};

/// What an arriving segment touches is two cache lines: the first decides about it, the second sends and times.
#[test]
fn hot_part_is_two_cache_lines() {
    type C = Connection<Plain>;
    assert_eq!(size_of::<C>(), 128);
    assert_eq!(size_of::<Option<C>>(), 128);
    assert_eq!(offset_of!(C, key), 0);
    assert_eq!(offset_of!(C, max_snd_wnd), 64);
}

/// An idle connection's memory: both parts and its entries in the tables.
#[test]
fn an_idle_connection_is_small() {
    let cold = size_of::<Cold<Plain>>();
    println!("cold part: {cold} octets");
    assert!(cold <= 640, "{cold}");
}
