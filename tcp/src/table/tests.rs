use super::{Key, Table};
use std::collections::HashMap;

#[test]
fn keys_pack_and_unpack() {
    let k = Key::new(0x0a00_0001, 4791, 7471);
    assert_eq!((k.remote_ip(), k.remote_port()), (0x0a00_0001, 4791));
    assert_eq!(k.local_port(), 7471);
}

#[test]
fn agrees_with_a_map() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut t = Table::new(rng.u64(..), rng.u64(..));
    let mut m = HashMap::new();
    for step in 0..200_000u32 {
        let key = Key::new(rng.u32(0..4), rng.u16(0..500), rng.u16(0..4));
        match rng.u8(0..3) {
            0 => {
                t.insert(key, step);
                m.insert(key, step);
            }
            1 => assert_eq!(t.remove(key), m.remove(&key)),
            _ => assert_eq!(t.get(key), m.get(&key).copied()),
        }
    }
    for (k, v) in m {
        assert_eq!(t.remove(k), Some(v));
    }
    assert_eq!(t.len, 0);
}
