use super::*;

fn whole(stream: u32, number: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Message { stream, number, len }.fill(0, &mut bytes);
    bytes
}

#[test]
fn pieces_join_to_the_whole() {
    let message = Message { stream: 3, number: 0x1234, len: 1000 };
    let all = whole(3, 0x1234, 1000);
    for cut in [0, 1, 7, 8, 9, 500, 999, 1000] {
        let (mut head, mut tail) = (vec![0; cut], vec![0; 1000 - cut]);
        message.fill(0, &mut head);
        message.fill(cut, &mut tail);
        assert_eq!([head, tail].concat(), all, "cut at {cut}");
    }
}

#[test]
fn every_message_has_its_own_bytes() {
    let base = whole(1, 7, 256);
    for other in [whole(1, 8, 256), whole(2, 7, 256), whole(1, 7 + 256, 256)] {
        let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 16, "{same} of 256 bytes agree");
    }
}

#[test]
fn the_last_byte_tells_neighbours_apart() {
    for number in 0..600 {
        let message = Message { stream: 0, number, len: 5 };
        assert_eq!(whole(0, number, 5)[4], message.last_byte());
        assert_ne!(whole(0, number, 1), whole(0, number + 1, 1));
    }
}
