use super::*;

const MIB: usize = 1 << 20;

/// Returns the lines of `/proc/self/smaps` about the mapping that contains `address`.
fn mapping(address: *const u8) -> String {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = String::new();
    let mut within = false;
    for line in maps.lines() {
        if let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-'))
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            within = (start..end).contains(&address.addr());
        }
        if within {
            found += line;
            found += "\n";
        }
    }
    found
}

fn is_huge(block: &dyn Block) -> bool {
    !mapping(block.base()).contains("KernelPageSize:        4 kB")
}

fn free() -> usize {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .map_or(0, |text| text.trim().parse().unwrap())
}

#[test]
fn the_size_of_a_hugepage() {
    assert_eq!(page_size("MemFree: 1 kB\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n"), Some(2 * MIB));
    assert_eq!(page_size("Hugepagesize:    1048576 kB"), Some(1 << 30));
    for none in [
        "",
        "MemFree: 1 kB",
        "Hugepagesize:",
        "Hugepagesize: x kB",
        "Hugepagesize: 2048 MB",
        "Hugepagesize: 0 kB",
    ] {
        assert_eq!(page_size(none), None, "{none:?}");
    }
}

/// Without hugepages, memory is on ordinary pages, unless hugepages are required. With hugepages, large blocks are on
/// hugepages.
#[test]
fn memory_is_there_with_and_without_hugepages() {
    let none = HugepageAllocator { page: None, required: false };
    assert!(!is_huge(&*none.allocate(4 * MIB).unwrap()));
    let auto = HugepageAllocator::new(false).unwrap();
    let block = auto.allocate(3 * MIB).unwrap();
    // SAFETY: this is the last byte of the block.
    unsafe { block.base().add(3 * MIB - 1).write_volatile(7) };
    assert!(!is_huge(&*auto.allocate(4096).unwrap()), "a hugepage for one page is a waste");
    // Others may take the last hugepages meanwhile, so this check is conclusive only if many are free.
    if free() > 64 {
        assert!(is_huge(&*block));
    }
    let Ok(required) = HugepageAllocator::new(true) else { return };
    match required.allocate(4096) {
        Ok(block) => assert!(is_huge(&*block)),
        Err(error) => assert!(error.to_string().contains("nr_hugepages"), "{error}"),
    }
    assert!(matches!(required.allocate(1 << 45), Err(Error::NoMemory(_))));
}
