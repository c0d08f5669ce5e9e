use super::*;
use std::os::unix::net::UnixListener;

/// A socket may be in use by another device of this process, so the refusal names that case besides another process.
#[test]
fn a_socket_of_this_process_is_in_use_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let refused = prepare(&PortSpec::Vhost { path, server: true }).unwrap_err();
    assert!(matches!(refused, PortError::SocketInUse { .. }));
    let said = refused.to_string();
    assert!(said.contains("is in use already") && said.contains("another device"), "{said}");
}
