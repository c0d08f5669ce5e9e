use super::*;

const GOOD: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_GOOD;
const BAD: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_BAD;
const NONE: u64 = sys::RTE_MBUF_F_RX_L4_CKSUM_NONE;
const UNKNOWN: u64 = 0;

/// Returns an IPv4 frame with a correct header checksum and a TCP segment of ten data octets.
fn v4() -> Vec<u8> {
    let mut f = vec![0x5a; 14 + 20 + 20 + 10];
    f[12..34].copy_from_slice(&[
        0x08, 0x00, 0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ]);
    // 4500 + 0032 + 4000 + 4006 + 0a00 + 0001 + 0a00 + 0002 = d93b
    f[24..26].copy_from_slice(&(!0xd93b_u16).to_be_bytes());
    f
}

/// Corrects the header checksum as if the header had 20 octets, whatever length it states.
fn complete(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum = words.sum::<u32>();
    frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}

fn v6() -> Vec<u8> {
    let mut f = vec![0x5a; 14 + 40 + 20 + 10];
    f[12..22].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 30, TCP, 64]);
    f
}

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat()
}

#[test]
fn a_good_word_is_believed_of_whole_segments() {
    let mut nic = Nic::new(c"net_ice");
    for frame in [v4(), v6(), tagged(&v4()), tagged(&v6())] {
        assert!(nic.believes(GOOD, &frame), "{frame:x?}");
    }
    assert_eq!(nic.counts.rx_good, 4);
    // Ethernet's padding does not belong to the packet.
    assert!(nic.believes(GOOD, &[&v4()[..], &[0; 6]].concat()));
    // All of the following frames have a correct header checksum.
    for (what, at, value) in [
        ("a fragment", 20, 0x60),
        ("a later fragment", 21, 1),
        ("UDP", 23, 17),
        ("a packet that is cut short", 17, 51),
        ("a header shorter than any", 14, 0x44),
        ("a header longer than the packet", 17, 19),
        ("something else", 12, 9),
    ] {
        let mut frame = v4();
        frame[at] = value;
        complete(&mut frame);
        assert!(!nic.believes(GOOD, &frame), "{what}");
    }
    let mut frame = v4();
    frame[22] = 63;
    assert!(!nic.believes(GOOD, &frame), "a header damaged in a field that the pseudo-header leaves out");
    complete(&mut frame);
    assert!(nic.believes(GOOD, &frame), "another time to live");
    for (what, at, value) in [("an extension header", 20, 0), ("a fragment", 20, 44), ("cut short", 19, 31)] {
        let mut frame = v6();
        frame[at] = value;
        assert!(!nic.believes(GOOD, &frame), "{what} of IPv6");
    }
    assert!(!nic.believes(GOOD, &[]));
    assert_eq!((nic.counts.rx_good, nic.counts.rx_bad), (6, 0));
}

#[test]
fn other_words_leave_it_to_the_stack() {
    let mut nic = Nic::new(c"net_e1000_em");
    for verdict in [UNKNOWN, BAD, NONE, BAD] {
        assert!(!nic.believes(verdict, &v4()));
    }
    assert_eq!((nic.counts.rx_good, nic.counts.rx_bad), (0, 2));
    let mut nic = Nic::new(c"net_virtio");
    assert!(nic.believes(NONE, &v4()), "it came through memory");
    assert!(!nic.believes(UNKNOWN, &v4()) && !nic.believes(BAD, &v4()));
    assert_eq!((nic.counts.rx_good, nic.counts.rx_bad), (1, 1));
}

/// Returns an mbuf over memory of this test, which no driver sees.
fn segment(data: &mut [u8], off: u16) -> sys::rte_mbuf {
    sys::rte_mbuf {
        buf_addr: data.as_mut_ptr().cast(),
        data_off: off,
        data_len: data.len() as u16 - off,
        ..Default::default()
    }
}

#[test]
fn a_chain_is_gathered_as_far_as_there_is_room() {
    let (mut a, mut b, mut c) = ([9, 1, 2], [3], [9, 9, 4, 5, 6]);
    let (mut first, mut second, mut third) = (segment(&mut a, 1), segment(&mut b, 0), segment(&mut c, 2));
    second.next = &raw mut third;
    first.next = &raw mut second;
    for (room, want) in [(6, &[1, 2, 3, 4, 5, 6][..]), (4, &[1, 2, 3, 4]), (8, &[1, 2, 3, 4, 5, 6, 0, 0])] {
        let mut out = vec![0; room];
        // SAFETY: the segments and their data outlive the call.
        unsafe { gather(NonNull::new(&raw mut first), &mut out) };
        assert_eq!(out, want);
    }
}

/// Only frames with the flag for a TCP checksum count, whatever other flags they have.
#[test]
fn frames_are_counted_by_their_flags() {
    let mut mbufs: [sys::rte_mbuf; 3] = Default::default();
    mbufs[0].ol_flags = sys::RTE_MBUF_F_TX_TCP_CKSUM | sys::RTE_MBUF_F_TX_IPV4;
    mbufs[2].ol_flags = sys::RTE_MBUF_F_TX_TCP_CKSUM | sys::RTE_MBUF_F_TX_IPV6;
    let frames = mbufs.each_mut().map(|m| m as *mut sys::rte_mbuf);
    for (n, left) in [(0, 0), (1, 1), (2, 1), (3, 2)] {
        // SAFETY: `n` live mbufs.
        assert_eq!(unsafe { left_to_nic(frames.as_ptr(), n) }, left);
    }
}

/// A fake driver: the number of frames that it has room for, and the `port` of each frame that it took.
#[derive(Default)]
struct Driver {
    room: u16,
    sent: Vec<u16>,
}

/// Refuses frames with odd numbers. Stops at the first refused frame.
unsafe extern "C" fn prepare(_: *mut std::ffi::c_void, frames: *mut *mut sys::rte_mbuf, n: u16) -> u16 {
    // SAFETY: the test passes `n` live mbufs.
    (0..n).find(|&i| unsafe { (**frames.add(i.into())).port % 2 == 1 }).unwrap_or(n)
}

unsafe extern "C" fn burst(driver: *mut std::ffi::c_void, frames: *mut *mut sys::rte_mbuf, n: u16) -> u16 {
    // SAFETY: the test's driver, and `n` live mbufs.
    unsafe {
        let driver = &mut *driver.cast::<Driver>();
        let taken = n.min(driver.room);
        driver.room -= taken;
        driver.sent.extend((0..taken).map(|i| (**frames.add(i.into())).port));
        taken
    }
}

/// Sends frames numbered `numbers` to a driver with room for `room`. A refused frame is replaced by a frame whose
/// number is a hundred higher, except 7, which has no replacement. Returns how many were taken, what was sent, what is
/// left, and the counters.
fn offered(numbers: &[u16], room: u16) -> (u16, Vec<u16>, Vec<u16>, NicChecksums) {
    let flagged = |port| sys::rte_mbuf { port, ol_flags: sys::RTE_MBUF_F_TX_TCP_CKSUM, ..Default::default() };
    let mut mbufs: Vec<sys::rte_mbuf> = numbers.iter().map(|&n| flagged(n)).collect();
    let mut frames: Vec<*mut sys::rte_mbuf> = mbufs.iter_mut().map(|m| m as *mut _).collect();
    let mut driver = Driver { room, sent: Vec::new() };
    let mut queue = (&raw mut driver).cast::<std::ffi::c_void>();
    let mut ops = sys::rte_eth_fp_ops {
        tx_pkt_burst: Some(burst),
        tx_pkt_prepare: Some(prepare),
        ..Default::default()
    };
    ops.txq.data = &raw mut queue;
    let mut nic = Nic::new(c"net_test");
    // SAFETY: live mbufs, and the driver of this test.
    let taken = unsafe {
        nic.offer((&raw const ops, 0), frames.as_mut_ptr(), numbers.len() as u16, |m| {
            let refused = (*m).port;
            (*m).port += 100;
            (*m).ol_flags = 0;
            (refused != 7).then_some(m)
        })
    };
    // SAFETY: as above.
    let left = frames[usize::from(taken)..].iter().map(|&m| unsafe { (*m).port }).collect();
    (taken, driver.sent, left, nic.counts)
}

#[test]
fn what_the_driver_refuses_goes_without_it_and_in_order() {
    let (taken, sent, left, counts) = offered(&[2, 4, 5, 6, 8], 9);
    assert_eq!((taken, sent, left), (5, vec![2, 4, 105, 6, 8], vec![]));
    assert_eq!((counts.tx_filled, counts.tx_refused, counts.tx_unsent), (4, 1, 0));
    // The driver refuses all frames, the last one included.
    assert_eq!(offered(&[1, 3, 5], 9).1, [101, 103, 105]);
    // If a frame cannot be copied, only that frame is lost.
    let (taken, sent, left, counts) = offered(&[2, 7, 4], 9);
    assert_eq!((taken, sent, left), (3, vec![2, 4], vec![]));
    assert_eq!((counts.tx_filled, counts.tx_refused, counts.tx_unsent), (2, 0, 1));
}

#[test]
fn what_the_driver_has_no_room_for_stays() {
    let (taken, sent, left, counts) = offered(&[2, 4, 6, 5], 2);
    assert_eq!((taken, sent, left, counts.tx_filled), (2, vec![2, 4], vec![6, 5], 2));
    // If the driver has no room for a copy, the copy stays in the place of its frame.
    let (taken, sent, left, counts) = offered(&[2, 5, 6], 1);
    assert_eq!((taken, sent, left), (1, vec![2], vec![105, 6]));
    assert_eq!((counts.tx_filled, counts.tx_refused), (1, 1));
    assert_eq!(offered(&[2, 4], 0).0, 0);
    assert_eq!(offered(&[], 3).0, 0);
}
