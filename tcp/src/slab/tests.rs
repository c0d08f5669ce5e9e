use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An index type for one table only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row(u32);

impl SlabIndex for Row {
    fn from_place(place: u32) -> Self {
        Row(place)
    }

    fn place(self) -> u32 {
        self.0
    }
}

#[test]
fn a_freed_place_is_used_again_under_another_id() {
    let mut slab = Slab::<_, Row>::new();
    let (old, other) = (slab.insert('a'), slab.insert('b'));
    let index = old.index;
    assert_eq!((slab.id(index), slab.find(old)), (Some(old), Some(index)));
    assert_eq!(slab.remove(index), Some('a'));
    assert_eq!((slab.remove(index), slab.get(index)), (None, None));
    assert_eq!((slab.id(index), slab.find(old)), (None, None));
    let new = slab.insert('c');
    assert_eq!((new.index, new.generation), (index, old.generation + 1));
    assert_eq!((slab.find(old), slab.find(new), slab.get(other.index)), (None, Some(index), Some(&'b')));
    assert_eq!((slab.len(), slab.places(), slab.is_empty()), (2, 2, false));
}

/// Zero stands for "no entry" where ids are kept as numbers.
#[test]
fn no_id_is_zero_even_after_all_generations() {
    let mut slab = Slab::<_>::new();
    let index = slab.insert(()).index;
    slab.generations[0] = u32::MAX;
    let last = slab.id(index).unwrap();
    slab.remove(index);
    assert_eq!(slab.find(SlabId { index, generation: 1 }), None, "nothing is there");
    assert_eq!(slab.insert(()), SlabId { index, generation: 1 });
    assert_eq!(slab.find(last), None);
    assert_eq!(slab.find(SlabId::from_bits(0)), None);
}

#[derive(Clone, Debug)]
enum Step {
    Insert,
    /// `Remove` selects one of the entries, `RemoveAny` one of all indices so far.
    Remove(prop::sample::Index),
    RemoveAny(prop::sample::Index),
    Change(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Insert),
        2 => any::<prop::sample::Index>().prop_map(Step::Remove),
        1 => any::<prop::sample::Index>().prop_map(Step::RemoveAny),
        1 => any::<prop::sample::Index>().prop_map(Step::Change),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// The model maps every id so far to its entry, or to `None` once the entry is gone.
    #[test]
    fn as_the_model(steps in steps()) {
        let mut slab = Slab::<u32, Row>::new();
        let mut model = BTreeMap::<SlabId<Row>, Option<u32>>::new();
        let (mut next, mut most) = (0, 0);
        for step in steps {
            let there: Vec<_> = model.iter().filter(|(_, value)| value.is_some()).map(|(id, _)| *id).collect();
            match step {
                Step::Insert => {
                    let id = slab.insert(next);
                    prop_assert_eq!(model.insert(id, Some(next)), None, "ids are never given twice");
                    next += 1;
                    most = most.max(there.len() as u32 + 1);
                }
                Step::Remove(which) if !there.is_empty() => {
                    let id = *which.get(&there);
                    prop_assert_eq!(slab.remove(id.index), model.insert(id, None).expect("an id"));
                }
                Step::RemoveAny(which) if most > 0 => {
                    let index = Row(which.index(most as usize) as u32);
                    let id = there.iter().find(|id| id.index == index);
                    let value = id.and_then(|id| model.insert(*id, None).expect("an id"));
                    prop_assert_eq!(slab.remove(index), value);
                }
                Step::Change(which) if !there.is_empty() => {
                    let id = *which.get(&there);
                    *slab.get_mut(id.index).expect("an entry") += 1000;
                    model.entry(id).and_modify(|value| *value = value.map(|value| value + 1000));
                }
                _ => {}
            }
            for (id, value) in &model {
                prop_assert_eq!(slab.find(*id), value.map(|_| id.index));
                prop_assert_eq!(SlabId::from_bits(id.to_bits()), *id);
                prop_assert!(id.generation > 0);
                if value.is_some() {
                    prop_assert_eq!(slab.get(id.index), value.as_ref());
                    prop_assert_eq!(slab.place(id.index), Some(value));
                    prop_assert_eq!(slab.id(id.index), Some(*id));
                }
            }
            let entries = model.iter().filter_map(|(id, value)| Some((id.index, value.as_ref()?)));
            prop_assert!(slab.iter().eq(entries), "the same entries, by index");
            prop_assert_eq!(slab.len(), slab.iter().count());
            prop_assert_eq!(slab.places(), most, "a free place is taken before there is a new one");
            prop_assert!(slab.get(Row(most)).is_none() && slab.id(Row(most)).is_none());
        }
    }
}

#[test]
fn the_next_id_is_known() {
    let mut slab: Slab<u8> = Slab::new();
    let mut seen = Vec::new();
    for i in 0..100 {
        let next = slab.next_id();
        assert_eq!(slab.insert(i), next);
        seen.push(next);
        if i % 3 == 0 {
            slab.remove(seen[usize::from(i) / 2].index);
        }
    }
}
