use super::Seq;

#[test]
fn order_is_circular() {
    for base in [0u32, 1, u32::MAX, u32::MAX - 7, 1 << 31] {
        let a = Seq(base);
        for d in [1u32, 2, 100, (1 << 31) - 1] {
            let b = a + d;
            assert!(a.lt(b) && a.le(b) && b.gt(a) && b.ge(a), "{base} + {d}");
            assert!(!b.lt(a) && !b.le(a));
            assert_eq!(b - a, d);
            assert_eq!(b.since(a), d);
            assert_eq!(a.since(b), 0);
            assert_eq!(a.max(b), b);
            assert_eq!(a.min(b), a);
            assert_eq!(b - d, a);
        }
        assert!(a.le(a) && a.ge(a) && !a.lt(a) && !a.gt(a));
    }
}
