use std::time::{Duration, Instant};

use super::{AT_ONCE, Allowance};

#[test]
fn lines_are_rationed_and_what_is_kept_back_is_counted() {
    let mut allowance = Allowance::new();
    let start = Instant::now();
    for _ in 0..AT_ONCE {
        assert_eq!(allowance.take(start), Some(0));
    }
    for _ in 0..5 {
        assert_eq!(allowance.take(start + Duration::from_millis(900)), None);
    }
    assert_eq!(allowance.take(start + Duration::from_secs(1)), Some(5), "one more in a second");
    assert_eq!(allowance.take(start + Duration::from_secs(1)), None);
    let later = start + Duration::from_secs(3600);
    assert_eq!(allowance.take(later), Some(1));
    for _ in 1..AT_ONCE {
        assert_eq!(allowance.take(later), Some(0), "no more than at first, however long nothing came");
    }
    assert_eq!(allowance.take(later), None);
}
