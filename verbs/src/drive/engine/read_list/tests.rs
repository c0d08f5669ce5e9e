use super::*;
use crate::shared::memory::MrEntry;
use crate::shared::scope::Scope;
use std::sync::Arc;

const BY: Scopes = Scopes { pd: Scope(1), qp: Scope(10) };

/// Number and offset survive the encoding, even at their limits. Lists of different Reads share no tagged offset.
#[test]
fn tagged_offsets_name_the_read_and_the_octet() {
    let table = MrTable::new(1, Arc::default());
    let entry = MrEntry {
        base: 0x1000 as *mut u8,
        len: 64,
        pd: BY.pd,
        access: Access::LOCAL_WRITE,
        virt: 0x1000,
        ours: false,
    };
    let lkey = table.insert(entry).unwrap();
    let list = [Sge { addr: 0x1000, len: 1, lkey }; 2];
    for number in [0, 1, 0x8000_0000, u32::MAX] {
        let (stag, to) = sink(&table, BY, WrNumber(number), &list).unwrap();
        assert_eq!(stag, table.list());
        for offset in [0, 1, u32::MAX] {
            let at = to.checked_add(offset.into()).expect("a message does not wrap");
            assert_eq!(place(at), (WrNumber(number), offset));
        }
    }
    assert_eq!(sink(&table, BY, WrNumber(7), &list[..1]), Ok((lkey, 0x1000)));
    let itself = Sge { lkey: table.list(), ..list[0] };
    assert_eq!(sink(&table, BY, WrNumber(7), &[itself]), Err(MrFault::InvalidStag));
    assert_eq!(sink(&table, BY, WrNumber(7), &[list[0], itself]), Err(MrFault::InvalidStag));
}
