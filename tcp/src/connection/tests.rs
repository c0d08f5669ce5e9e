use super::{Cold, Connection};
use crate::testing::Plain;
use core::mem::{align_of, offset_of, size_of};

type C = Connection<Plain>;

/// An arriving segment touches two cache lines. The first line has the fields that decide about the segment; the second
/// line has the state for ACKs, sending and timers. In-order data and its ACK need nothing else of the connection.
#[test]
fn hot_part_is_two_cache_lines() {
    assert_eq!((size_of::<C>(), align_of::<C>()), (128, 64));
    assert_eq!(size_of::<Option<C>>(), 128);
    let first = [
        offset_of!(C, key),
        offset_of!(C, tag),
        offset_of!(C, state),
        offset_of!(C, flags),
        offset_of!(C, snd_wscale),
        offset_of!(C, rcv_wscale),
        offset_of!(C, rcv_nxt),
        offset_of!(C, rcv_wnd),
        offset_of!(C, last_ack_sent),
        offset_of!(C, ts_recent),
        offset_of!(C, ts_offset),
        offset_of!(C, snd_una),
        offset_of!(C, snd_nxt),
        offset_of!(C, snd_wnd),
        offset_of!(C, snd_wl1),
        offset_of!(C, snd_wl2),
        offset_of!(C, generation),
    ];
    assert!(first.iter().all(|at| *at < 64), "{first:?}");
    assert_eq!(offset_of!(C, generation) + size_of::<u32>(), 64, "the first line is full");
    let second = [
        offset_of!(C, max_snd_wnd),
        offset_of!(C, mss),
        offset_of!(C, dup_acks),
        offset_of!(C, recovery),
        offset_of!(C, ect),
        offset_of!(C, echo),
        offset_of!(C, reduced),
        offset_of!(C, neighbour),
        offset_of!(C, probes),
        offset_of!(C, waits_for_neighbour),
        offset_of!(C, reports),
        offset_of!(C, timed),
        offset_of!(C, ts_recent_at),
        offset_of!(C, rtx_at),
        offset_of!(C, armed),
        offset_of!(C, heard),
        offset_of!(C, received),
        offset_of!(C, cold),
    ];
    assert!(second.iter().all(|at| (64..128).contains(at)), "{second:?}");
}

/// A lone segment of new data and its ACK touch these seven cache lines of the cold part: one for each purpose.
#[test]
fn a_lone_segment_touches_seven_cache_lines_of_the_cold_part() {
    type D = Cold<Plain>;
    assert_eq!(align_of::<D>(), 64);
    let line = |at: usize| at / 64;
    let first =
        [offset_of!(D, queue), offset_of!(D, sample_at), offset_of!(D, recover), offset_of!(D, exact_echo)];
    assert!(first.iter().all(|at| line(*at) == 0), "{first:?}");
    assert_eq!((line(offset_of!(D, scoreboard)), line(offset_of!(D, last_sent))), (1, 1));
    assert_eq!((offset_of!(D, rtt), size_of::<crate::rtt::RttEstimator>()), (2 * 64, 64));
    assert_eq!((line(offset_of!(D, rto_at)), line(offset_of!(D, delivered))), (3, 3));
    assert_eq!(offset_of!(D, congestion), 4 * 64);
    assert_eq!((line(offset_of!(D, round)), line(offset_of!(D, rate))), (6, 6));
}

/// Limits the size of the cold part, which idle connections have as well.
#[test]
fn an_idle_connection_is_small() {
    let cold = size_of::<Cold<Plain>>();
    println!("cold part: {cold} octets");
    assert!(cold <= 640, "{cold}");
}
