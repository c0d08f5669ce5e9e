use super::*;

/// The connections that hold frames are known, so that only these are asked to drop some. The total is known as well.
#[test]
fn holders_are_those_that_hold() {
    let mut held = HeldFrames::new(10);
    let holders = |held: &HeldFrames| {
        let mut all = held.holders();
        all.sort_unstable();
        all
    };
    assert_eq!((held.frames(), holders(&held)), (0, vec![]));
    held.changed(7, 0, 2);
    held.changed(3, 0, 1);
    held.changed(5, 0, 0);
    assert_eq!((held.frames(), holders(&held)), (3, vec![3, 7]));
    held.changed(7, 2, 1);
    held.changed(3, 1, 1);
    assert_eq!((held.frames(), holders(&held)), (2, vec![3, 7]));
    held.changed(3, 1, 0);
    held.changed(5, 0, 0);
    assert_eq!((held.frames(), holders(&held)), (1, vec![7]));
    held.changed(7, 1, 0);
    assert_eq!((held.frames(), holders(&held)), (0, vec![]));
}

/// Of a limit of ten, one connection gets half, and others still find places.
#[test]
fn one_connection_cannot_have_all() {
    let mut held = HeldFrames::new(10);
    let fill = |held: &mut HeldFrames, index| {
        let mut own = 0;
        while held.admits(own) {
            held.changed(index, own, own + 1);
            own += 1;
        }
        own
    };
    assert_eq!([fill(&mut held, 0), fill(&mut held, 1), fill(&mut held, 2)], [5, 3, 1]);
}
