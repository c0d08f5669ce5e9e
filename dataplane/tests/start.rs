//! The start of EAL. It has a process of its own, because EAL starts once in a process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use urnic_dataplane::{Eal, EalConfig, EalError, Hugepages};

/// A thread that cannot be created, here for want of memory for its stack, leaves EAL as it was: a later call starts
/// it.
#[test]
fn a_start_without_a_thread_may_be_repeated() {
    let config = EalConfig { memory_mb: 32, hugepages: Hugepages::Off, ..EalConfig::default() };
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, 1, hard).unwrap();
    let refused = Eal::start(&config);
    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    assert!(matches!(refused, Err(EalError::Thread(_))), "{refused:?}");
    Eal::start(&config).expect("EAL");
}
