use super::*;

/// Returns the bytes that a builder holds, and its error, after a program has set inline payload.
fn given(num: usize, list: *const ibv_data_buf) -> (Vec<u8>, Option<Errno>) {
    let mut builder = Builder::default();
    builder.requests.push(Request { wr_id: 0, op: SendOp::Send, flags: 0, source: Source::Listed(0..0) });
    // SAFETY: the callers lend what they describe, or describe what must not be read.
    unsafe { builder.inline(num, list) };
    (builder.bytes, builder.wrong)
}

/// Inline payload that no queue takes is refused, and not read or copied: the program may have passed a careless
/// length.
#[test]
fn inline_payload_that_is_longer_than_any_queue_takes_is_refused_unread() {
    let mut bytes = [7u8; post::GATHER];
    let addr = bytes.as_mut_ptr().cast::<c_void>();
    let of = |length| ibv_data_buf { addr, length };
    assert_eq!(given(1, &of(post::GATHER)), (bytes.to_vec(), None));
    for length in [post::GATHER + 1, isize::MAX as usize, usize::MAX] {
        assert_eq!(given(1, &of(length)), (vec![], Some(libc::EINVAL)), "{length} bytes");
        let (_, wrong) = given(3, [of(1), of(0), of(length)].as_ptr());
        assert_eq!(wrong, Some(libc::EINVAL), "1 and {length} bytes");
    }
    let (_, wrong) = given(2, [of(post::GATHER), of(1)].as_ptr());
    assert_eq!(wrong, Some(libc::EINVAL), "one byte too many in the second piece");
}

/// Inline payload at null is refused as it is by `ibv_post_send`, rather than sent as an empty message.
#[test]
fn inline_payload_at_null_is_refused() {
    assert_eq!(given(1, ptr::null()), (vec![], Some(libc::EINVAL)));
    assert_eq!(given(1, &ibv_data_buf { addr: ptr::null_mut(), length: 1 }), (vec![], Some(libc::EINVAL)));
    assert_eq!(given(1, &ibv_data_buf { addr: ptr::null_mut(), length: 0 }), (vec![], None), "no bytes");
    assert_eq!(given(0, ptr::null()), (vec![], None), "no pieces");
}
