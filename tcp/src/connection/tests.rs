use super::{Cold, Connection};
use crate::testing::Plain;
use core::mem::{align_of, offset_of, size_of};

type C = Connection<Plain>;

/// An arriving segment touches two cache lines. The first one decides about it; the second one has the state for
/// ACKs, sending and timers. In-order data and its ACK need nothing else of the connection.
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

/// Memory of an idle connection: both parts, and its entries in the tables.
#[test]
fn an_idle_connection_is_small() {
    let cold = size_of::<Cold<Plain>>();
    println!("cold part: {cold} octets");
    assert!(cold <= 640, "{cold}");
}
