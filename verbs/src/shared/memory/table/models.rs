//! Tests a table that one engine reads while another engine changes it. loom tries the orders of events that the memory
//! model allows, with at most three involuntary thread switches.

use loom::sync::Arc;
use loom::thread;

use super::{MrEntry, MrTable, Refused, Span};
use crate::shared::grace::{Fellow, Fellows, PassLock, PassNumber};
use crate::shared::memory::Access;
use crate::shared::scope::{Scope, Scopes};

const BY: Scopes = Scopes { pd: Scope(1), qp: Scope(10) };
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);

#[derive(Default)]
struct Engine(PassLock);

impl Fellow for Engine {
    fn ring(&self, _qpn: u32) {}

    fn ring_receives(&self) {}

    fn wake(&self) {}

    fn pass_under_way(&self) -> Option<PassNumber> {
        self.0.under_way()
    }

    fn has_ended(&self, pass: PassNumber) -> bool {
        self.0.has_ended(pass)
    }
}

/// One engine invalidates a region and registers a part of it anew, with the same key. In passes of another engine
/// the region is always whole: old, new, or invalid.
#[test]
fn a_slot_that_is_written_anew_is_never_seen_half() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let engines = [(); 2].map(|()| std::sync::Arc::new(Engine::default()));
        let fellows = std::sync::Arc::new(Fellows::default());
        fellows.introduce(engines.iter().map(|engine| {
            let fellow: std::sync::Arc<dyn Fellow> = engine.clone();
            std::sync::Arc::downgrade(&fellow)
        }));
        let table = Arc::new(MrTable::new(1, fellows));
        let base = 0x1000 as *mut u8;
        let entry = MrEntry { base, len: 0x100, pd: BY.pd, access: ALL, virt: 0x1000, ours: false };
        let stag = table.insert(entry).unwrap();
        let reader = {
            let (table, engine) = (table.clone(), engines[1].clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    if !engine.0.try_take(7) {
                        continue;
                    }
                    // The old region counts from 0x1000, the new one from 0.
                    for addr in [0x1000, 0] {
                        let ptr = if addr == 0 { 0x1080 } else { 0x1000 } as *mut u8;
                        let span = table.resolve(stag, BY, Access::REMOTE_READ, addr, 0x40);
                        assert!(span.is_err() || span == Ok(Span { ptr, len: 0x40 }), "{addr:x}: {span:?}");
                    }
                    engine.0.let_go();
                }
            })
        };
        let grace = table.invalidate_local(stag, BY, 0).unwrap();
        let new = ALL | Access::ZERO_BASED;
        match table.register(stag, 0x1080, 0x40, new, BY) {
            Ok(()) => {}
            Err(refused) => assert!(refused == Refused::Later && !grace.is_over()),
        }
        reader.join().unwrap();
    });
}
