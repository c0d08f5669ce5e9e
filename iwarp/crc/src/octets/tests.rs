use super::*;

fn cells(octets: &[u8]) -> Vec<Cell<u8>> {
    octets.iter().copied().map(Cell::new).collect()
}

/// Returns a view of own octets and a view of shared ones, with the same content.
fn both<'a>(own: &'a [u8], shared: &'a [Cell<u8>]) -> [Octets<'a>; 2] {
    [own.into(), shared.into()]
}

#[test]
fn only_own_octets_are_a_slice() {
    let (own, shared) = (*b"abcdef", cells(b"abcdef"));
    let [own, shared] = both(&own, &shared);
    assert_eq!(own.own(), Some(&b"abcdef"[..]));
    assert_eq!(own.get(2..4).and_then(Octets::own), Some(&b"cd"[..]));
    assert_eq!(shared.own(), None);
    assert_eq!(shared.get(2..4).and_then(Octets::own), None);
    assert!(shared.get(6..6).is_some_and(|o| o.is_empty() && o.own().is_none()));
}

#[test]
fn no_part_is_out_of_bounds() {
    let shared = cells(b"abcdef");
    #[expect(clippy::reversed_empty_ranges)]
    for view in both(b"abcdef", &shared) {
        for outside in [0..7, 7..7, 3..2, usize::MAX..usize::MAX, 0..usize::MAX, 6..5] {
            assert!(view.get(outside.clone()).is_none(), "{outside:?}");
        }
        for (start, end) in (0..=6).flat_map(|start| (start..=6).map(move |end| (start, end))) {
            let part = view.get(start..end).unwrap();
            let mut copy = Vec::new();
            part.append_to(&mut copy);
            assert_eq!(
                (part.len(), part.is_empty(), &copy[..]),
                (end - start, start == end, &b"abcdef"[start..end])
            );
        }
    }
}

#[test]
fn copies_are_as_long_as_the_shorter_side() {
    let shared = cells(b"abcdef");
    for view in both(b"abcdef", &shared) {
        for room in 0..9 {
            let mut out = vec![b'-'; room];
            let n = view.copy_to(&mut out);
            assert_eq!(n, room.min(6));
            assert_eq!(out[..n], b"abcdef"[..n]);
            assert!(out[n..].iter().all(|o| *o == b'-'));
        }
        let mut grown = b"xyz".to_vec();
        view.append_to(&mut grown);
        assert_eq!(grown, b"xyzabcdef");
    }
}

#[test]
fn every_kind_has_the_crc_of_its_octets() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..200 {
        let octets: Vec<u8> = (0..rng.usize(..5000)).map(|_| rng.u8(..)).collect();
        let shared = cells(&octets);
        let cut = rng.usize(..=octets.len());
        for view in both(&octets, &shared) {
            let (a, b) = (view.get(0..cut).unwrap(), view.get(cut..view.len()).unwrap());
            assert_eq!(b.crc32c(a.crc32c(crate::INIT)), crate::crc32c(crate::INIT, &octets));
            let mut placed = vec![0xA5; octets.len() + 16];
            // SAFETY: `placed` has room for the octets behind its first eight, and is apart from them.
            unsafe { view.place(placed.as_mut_ptr().add(8)) };
            assert_eq!(placed[8..8 + octets.len()], octets[..]);
            assert!(placed[..8].iter().chain(&placed[8 + octets.len()..]).all(|o| *o == 0xA5));
        }
    }
}

#[test]
fn a_view_shows_changes_and_a_copy_does_not() {
    let shared = cells(b"abc");
    let view = Octets::from(&shared[..]);
    let (mut before, mut after) = ([0; 3], [0; 3]);
    view.copy_to(&mut before);
    shared[1].set(b'X');
    view.copy_to(&mut after);
    assert_eq!((&before, &after), (b"abc", b"aXc"));
}

#[test]
fn a_debug_text_shows_no_octets() {
    assert_eq!(format!("{:?}", Octets::from(&b"abc"[..])), "Octets { len: 3, is_shared: false }");
}
