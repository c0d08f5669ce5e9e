use super::*;

#[test]
fn counters_of_the_same_name_are_added_and_keep_their_order() {
    let of = |counters: &[(&'static str, u64)]| EngineFigures {
        counters: counters.to_vec(),
        ..EngineFigures::default()
    };
    let engines = [of(&[("sent", 2), ("lost", 1)]), of(&[("lost", 3), ("moved", 5)]), of(&[])];
    assert_eq!(EngineFigures::sum(&engines), [("sent", 2), ("lost", 4), ("moved", 5)]);
    assert_eq!(EngineFigures::sum(&[]), []);
}
