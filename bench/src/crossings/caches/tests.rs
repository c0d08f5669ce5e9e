use super::{Caches, Move};

const READ: bool = false;
const WRITE: bool = true;

fn moves(accesses: &[(usize, u64, u64, bool)]) -> Vec<Option<Move>> {
    let mut caches = Caches::default();
    accesses
        .iter()
        .map(|&(core, address, size, writes)| caches.access(core, address, size, writes).next())
        .collect()
}

#[test]
fn lines_that_are_only_read_do_not_move() {
    assert_eq!(moves(&[(0, 0, 8, READ), (1, 0, 8, READ), (0, 8, 8, READ)]), [None; 3]);
}

#[test]
fn what_one_core_writes_another_fetches() {
    let told = moves(&[(0, 0, 8, WRITE), (1, 56, 8, READ), (1, 0, 8, READ), (0, 0, 8, READ)]);
    assert_eq!(told, [None, Some(Move::Fetched), None, None]);
}

#[test]
fn a_write_takes_the_copies_of_others() {
    let told =
        moves(&[(0, 0, 8, WRITE), (1, 0, 8, READ), (1, 0, 8, WRITE), (0, 0, 8, READ), (0, 0, 8, WRITE)]);
    assert_eq!(told, [None, Some(Move::Fetched), Some(Move::Taken), Some(Move::Fetched), Some(Move::Taken)]);
}

#[test]
fn an_access_may_touch_several_lines() {
    let mut caches = Caches::default();
    assert_eq!(caches.access(0, 60, 8, WRITE).count(), 0);
    assert_eq!(caches.access(1, 0, 192, READ).collect::<Vec<_>>(), [Move::Fetched; 2]);
    assert_eq!(caches.access(1, u64::MAX - 3, 64, READ).count(), 0);
}
