use super::*;
use std::cell::Cell;

/// Takes one allocation. Returns its number, and the number of allocations made so far.
fn take(rows: &mut Rows<usize>, made: &Cell<usize>) -> (usize, usize) {
    let number = rows.take(|| made.replace(made.get() + 1));
    (number, made.get())
}

#[test]
fn allocations_are_handed_out_in_the_order_in_which_they_were_made() {
    let (mut rows, made) = (Rows::default(), Cell::new(0));
    for number in 0..1000 {
        assert_eq!(take(&mut rows, &made).0, number);
    }
}

/// A program that needs few allocations does not pay for many.
#[test]
fn rows_get_longer_up_to_a_limit() {
    let (mut rows, made) = (Rows::default(), Cell::new(0));
    for taken in 1..=1000 {
        let spare = take(&mut rows, &made).1 - taken;
        assert!(spare < taken.min(LONGEST), "{spare} spare beside {taken}");
    }
    assert!(made.get() > 1000, "rows end where they end");
}
