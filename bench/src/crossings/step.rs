//! The memory accesses of an instruction.

use std::{collections::HashMap, fs::File, os::unix::fs::FileExt};

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register, UsedMemory};
use nix::libc::user_regs_struct;

use crate::perf::PerfError;

/// The maximum length of an instruction, in bytes.
const LONGEST: usize = 15;

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Access {
    pub(super) address: u64,
    /// Bytes.
    pub(super) size: u64,
    /// Whether the access writes, alone or after reading.
    pub(super) writes: bool,
}

/// Decodes the instructions of a process, each once.
pub(super) struct Decoder {
    memory: File,
    known: HashMap<u64, Vec<UsedMemory>>,
}

impl Decoder {
    /// Makes a decoder for the process whose `/proc/PID/mem` is `memory`.
    pub(super) fn new(memory: File) -> Self {
        Self { memory, known: HashMap::new() }
    }

    /// Returns the accesses of the instruction that a thread with these registers executes next. Of an instruction with
    /// a repetition prefix, returns the accesses of one repetition, because stepping stops at each repetition.
    pub(super) fn accesses(&mut self, registers: &user_regs_struct) -> Result<Vec<Access>, PerfError> {
        let used = match self.known.get(&registers.rip) {
            Some(used) => used,
            None => {
                let used = decode(&self.memory, registers.rip)?;
                self.known.entry(registers.rip).or_insert(used)
            }
        };
        Ok(used.iter().filter_map(|used| access(used, registers)).collect())
    }
}

fn decode(memory: &File, rip: u64) -> Result<Vec<UsedMemory>, PerfError> {
    let mut bytes = [0; LONGEST];
    let read = |source| PerfError::Os { doing: "reading the code of the traced process", source };
    let length = memory.read_at(&mut bytes, rip).map_err(read)?;
    let mut instruction = Instruction::default();
    let code = bytes.get(..length).unwrap_or_default();
    iced_x86::Decoder::with_ip(64, code, rip, 0).decode_out(&mut instruction);
    instruction.set_has_rep_prefix(false);
    instruction.set_has_repne_prefix(false);
    Ok(InstructionInfoFactory::new().info(&instruction).used_memory().to_vec())
}

fn access(used: &UsedMemory, registers: &user_regs_struct) -> Option<Access> {
    let writes = match used.access() {
        OpAccess::Read | OpAccess::CondRead => false,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => true,
        OpAccess::None | OpAccess::NoMemAccess => return None,
    };
    let address = used.virtual_address(0, |register, _, _| value(register, registers))?;
    Some(Access { address, size: used.memory_size().size() as u64, writes })
}

/// Returns the value of a register that occurs in addresses; `None` for vector registers.
fn value(register: Register, of: &user_regs_struct) -> Option<u64> {
    let full = match register.full_register() {
        Register::FS => return Some(of.fs_base),
        Register::GS => return Some(of.gs_base),
        Register::CS | Register::DS | Register::ES | Register::SS => return Some(0),
        Register::RAX => of.rax,
        Register::RBX => of.rbx,
        Register::RCX => of.rcx,
        Register::RDX => of.rdx,
        Register::RSI => of.rsi,
        Register::RDI => of.rdi,
        Register::RBP => of.rbp,
        Register::RSP => of.rsp,
        Register::R8 => of.r8,
        Register::R9 => of.r9,
        Register::R10 => of.r10,
        Register::R11 => of.r11,
        Register::R12 => of.r12,
        Register::R13 => of.r13,
        Register::R14 => of.r14,
        Register::R15 => of.r15,
        _ => return None,
    };
    Some(match register.size() {
        8 => full,
        4 => full & 0xffff_ffff,
        2 => full & 0xffff,
        // Only XLAT has a register of one byte in its address: AL.
        _ => full & 0xff,
    })
}
