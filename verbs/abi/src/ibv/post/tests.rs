use super::*;

/// A list that is longer than any queue takes is refused, aligned or not, and its elements are not read: the program
/// may have passed a careless number, with fewer elements behind it.
#[test]
fn a_list_that_is_longer_than_any_queue_takes_is_refused_unread() {
    let list = [const { ibv_sge { addr: 0, len: 0, lkey: 0 } }; MAX_SGE];
    let unaligned = list.as_ptr().cast::<u8>().wrapping_add(1).cast::<ibv_sge>();
    let mut room = [const { MaybeUninit::uninit() }; _];
    for list in [list.as_ptr(), unaligned] {
        for num in [MAX_SGE as c_int + 1, c_int::MAX] {
            // SAFETY: a list that is refused is not read.
            assert_eq!(unsafe { sges(list, num, &mut room) }.err(), Some(libc::EINVAL), "{num} elements");
        }
    }
    // SAFETY: the list has this length.
    assert_eq!(unsafe { sges(list.as_ptr(), MAX_SGE as c_int, &mut room) }.map(<[Sge]>::len), Ok(MAX_SGE));
}
