use super::*;
use crate::scaling::{Load, Shape};

/// The error blames the traced process, not the other end of a connection.
#[test]
fn a_traced_program_without_a_result_is_named() {
    let task = Task { shape: Shape::Own, load: Load::Write64k, cores: vec![], ways: 1, seconds: 0.0 };
    let error = trace(Path::new("true"), &task, 1).err().map(|error| error.to_string());
    assert_eq!(error.as_deref(), Some("the traced process ended without a result"));
}
