//! Replaces functions that a loaded object calls: overwrites the object's entries in the tables through which the
//! dynamic linker binds calls (ELF's global offset tables).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;

use libc::{Elf64_Addr, Elf64_Phdr, Elf64_Sym, Elf64_Xword};

/// An entry of an object's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: Elf64_Addr,
}

/// A place that the dynamic linker fills in.
#[repr(C)]
struct Relocation {
    offset: Elf64_Addr,
    info: Elf64_Xword,
    addend: i64,
}

const DT_NULL: i64 = 0;
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;
/// Relocation types of a table entry for a call, and for an address.
const R_X86_64_JUMP_SLOT: u64 = 7;
const R_X86_64_GLOB_DAT: u64 = 6;

/// Replaces the functions that an object calls and does not define itself. `substitute` gets the name of each such
/// function and returns the function to call in its place; `None` leaves the calls as they are.
///
/// # Safety
/// The object is loaded and stays loaded; `substitute` returns functions of the same signature, which stay valid for
/// ever.
pub(crate) unsafe fn bind(info: &libc::dl_phdr_info, substitute: impl Fn(&CStr) -> Option<*const c_void>) {
    // SAFETY: the tables of a loaded object, as ELF lays them out; the dynamic linker has turned the addresses in its
    // dynamic section into memory addresses.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
        let segment = |kind| headers.iter().find(|header: &&Elf64_Phdr| header.p_type == kind);
        let Some(dynamic) = segment(libc::PT_DYNAMIC) else { return };
        let entries = (info.dlpi_addr + dynamic.p_vaddr) as *const Dynamic;
        let value = |tag| {
            let mut entry = entries;
            while (*entry).tag != DT_NULL && (*entry).tag != tag {
                entry = entry.add(1);
            }
            ((*entry).tag == tag).then_some((*entry).value)
        };
        // The kernel's object (vDSO) has a read-only dynamic section, whose addresses were not relocated.
        let address = |tag| value(tag).map(|at| if at < info.dlpi_addr { at + info.dlpi_addr } else { at });
        let (Some(symbols), Some(strings)) = (address(DT_SYMTAB), address(DT_STRTAB)) else { return };
        let mut opened = None;
        for (table, size) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let (Some(table), Some(size)) = (address(table), value(size)) else { continue };
            let places = size as usize / mem::size_of::<Relocation>();
            for place in std::slice::from_raw_parts(table as *const Relocation, places) {
                if !matches!(place.info & 0xffff_ffff, R_X86_64_JUMP_SLOT | R_X86_64_GLOB_DAT) {
                    continue;
                }
                let symbol = &*(symbols as *const Elf64_Sym).add((place.info >> 32) as usize);
                let name = CStr::from_ptr((strings as *const c_char).add(symbol.st_name as usize));
                // Only undefined symbols: functions that the object itself defines are left alone.
                if symbol.st_shndx == 0
                    && let Some(ours) = substitute(name)
                {
                    if opened.is_none() {
                        opened = Opened::of(info.dlpi_addr, segment(libc::PT_GNU_RELRO));
                    }
                    if opened.is_none() {
                        return;
                    }
                    ((info.dlpi_addr + place.offset) as *mut *const c_void).write_volatile(ours);
                }
            }
        }
    }
}

/// The part of an object that the dynamic linker made read-only after relocation, writable while this value lives.
struct Opened {
    start: usize,
    len: usize,
}

impl Opened {
    /// Makes `part` of the object at `base` writable; `None` if the system does not allow that. Without a
    /// `part`, nothing need change.
    fn of(base: Elf64_Addr, part: Option<&Elf64_Phdr>) -> Option<Self> {
        // SAFETY: returns a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let (start, end) = part.map_or((0, 0), |part| {
            let start = (base + part.p_vaddr) as usize;
            (start & !(page - 1), (start + part.p_memsz as usize) & !(page - 1))
        });
        let this = Self { start, len: end.saturating_sub(start) };
        this.protect(libc::PROT_READ | libc::PROT_WRITE).then_some(this)
    }

    fn protect(&self, rights: c_int) -> bool {
        // SAFETY: pages of the object's data, which stays readable in any case.
        self.len == 0 || unsafe { libc::mprotect(self.start as *mut c_void, self.len, rights) } == 0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.protect(libc::PROT_READ);
    }
}
