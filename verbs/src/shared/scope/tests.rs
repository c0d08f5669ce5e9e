use super::*;

/// The numbers wrap, but no two scopes in use have one number, and none has that of nobody.
#[test]
fn numbers_in_use_are_not_given_again() {
    let used = UsedScopes::default();
    let old = [used.take(), used.take(), used.take()];
    assert_eq!(old, [Scope(0), Scope(1), Scope(2)]);
    used.give_back(old[1]);
    used.go_on_at(u32::MAX - 1);
    assert_eq!([used.take(), used.take(), used.take()], [Scope(u32::MAX - 1), Scope(1), Scope(3)]);
}

/// A number that was given back rests until all others have been given.
#[test]
fn numbers_rest() {
    let used = UsedScopes::default();
    used.give_back(used.take());
    assert_eq!(used.take(), Scope(1));
    used.go_on_at(0);
    assert_eq!(used.take(), Scope(0));
}
