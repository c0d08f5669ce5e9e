//! Makes the drop-in libraries: files with the names, symbols and symbol versions of rdma-core's libraries, for
//! programs that look these up by name. Each symbol has only a few instructions, which jump to the function that
//! `liburnic.so` finds for it.
//!
//! This module assembles and links them without rustc, because cargo cannot give a library such a name, and cannot
//! give symbols versions with every linker.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that the drop-in libraries jump into.
pub const SHIM: &str = "liburnic.so";

/// The libraries need a folder of their own, beside `liburnic.so`, because the folder is put into `LD_LIBRARY_PATH`.
const FOLDER: &str = "drop-in";

/// The drop-in libraries, each with the library that it needs, as in rdma-core. Each has a list of its symbols, as
/// `nm` prints them: `NAME@@VERSION`, or `NAME@VERSION` for a symbol that only old programs ask for. A word after the
/// symbol defines it:
///
/// * none: the function that `liburnic.so` finds;
/// * `errno`, `minus`, `null`, `nothing`: a function that fails in the way that the word names. Functions of the
///   first ABI (IBVERBS_1.0) fail because its structures differed. Functions for drivers of kernel devices fail
///   because such drivers find no device, and never call them;
/// * `object`: a byte of data.
const LIBRARIES: [(&str, Option<&str>); 2] =
    [("libibverbs.so.1", None), ("librdmacm.so.1", Some("libibverbs.so.1"))];

/// Functions of the C library that the drop-in libraries override, to show the device's address and to end
/// connections.
const INTERPOSED: [&str; 11] = [
    "getifaddrs",
    "freeifaddrs",
    "getaddrinfo",
    "ioctl",
    "if_nametoindex",
    "if_indextoname",
    "if_nameindex",
    "if_freenameindex",
    "_exit",
    "_Exit",
    "daemon",
];

/// Makes the libraries, in the folder of this profile. `out` is PROFILE/build/PACKAGE/out.
pub fn make(out: &Path) {
    let folder = out.ancestors().nth(3).expect("cargo's folders").join(FOLDER);
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let stub = stub(out);
    for (name, needed) in LIBRARIES {
        let list = Path::new("drop-in").join(format!("{name}.txt"));
        let library = folder.join(name);
        println!("cargo:rerun-if-changed={}", list.display());
        println!("cargo:rerun-if-changed={}", library.display());
        let symbols = fs::read_to_string(&list).expect("the list of symbols");
        let symbols: Vec<Symbol> = symbols.lines().map(Symbol::of).collect();
        let source = out.join(format!("{name}.s"));
        fs::write(&source, assembly(&symbols)).expect("OUT_DIR is writable");
        let script = out.join(format!("{name}.map"));
        fs::write(&script, versions(&symbols)).expect("OUT_DIR is writable");
        // The new file gets its final name once it is complete, because programs may be using the old file.
        let fresh = folder.join(format!(".{name}.new"));
        let mut link = linker(name, &fresh);
        link.arg(format!("-Wl,--version-script={}", script.display()));
        // An installed package may have all libraries in one folder, or the drop-in libraries in a subfolder.
        link.arg("-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/..");
        link.arg(&source).arg(&stub).args(needed.map(|needed| folder.join(needed))).arg("-lc");
        run(link);
        fs::rename(&fresh, &library).expect("the target folder is writable");
    }
}

/// Makes a library to link with in place of `liburnic.so`, which is not built yet.
fn stub(out: &Path) -> PathBuf {
    let source = out.join("stub.s");
    let library = out.join(SHIM);
    let text = "    .text\n    .globl urnic_find\n    .type urnic_find, @function\nurnic_find:\n    ud2\n    \
                .section .note.GNU-stack,\"\",@progbits\n";
    fs::write(&source, text).expect("OUT_DIR is writable");
    let mut link = linker(SHIM, &library);
    link.arg(&source);
    run(link);
    library
}

/// Returns a command that links a library.
fn linker(soname: &str, output: &Path) -> Command {
    let mut command = cc::Build::new().opt_level(0).cargo_warnings(false).get_compiler().to_command();
    command.args(["-shared", "-nostdlib", "-Wl,--no-as-needed"]);
    command.arg(format!("-Wl,-soname,{soname}")).arg("-o").arg(output);
    command
}

fn run(mut command: Command) {
    let status = command.status().unwrap_or_else(|e| panic!("a C compiler is needed ({command:?}): {e}"));
    assert!(status.success(), "{command:?} failed");
}

struct Symbol {
    name: String,
    version: String,
    /// Whether programs that are linked today get this symbol.
    current: bool,
    /// The word after the symbol in the list ([`LIBRARIES`]); `None` if the symbol jumps to a function.
    fails: Option<String>,
}

impl Symbol {
    fn of(line: &str) -> Self {
        let mut words = line.split_whitespace();
        let (name, version) = words.next().and_then(|w| w.split_once('@')).expect("NAME@@VERSION");
        Self {
            name: name.to_owned(),
            version: version.trim_start_matches('@').to_owned(),
            current: version.starts_with('@'),
            fails: words.next().map(str::to_owned),
        }
    }

    /// Returns the symbol's name in the assembly, which has no version yet.
    fn label(&self) -> String {
        if self.current { self.name.clone() } else { format!("old_{}", self.name) }
    }
}

fn assembly(symbols: &[Symbol]) -> String {
    let mut text = include_str!("drop_in.s").to_owned();
    let mut names = String::new();
    let mut count = 0;
    // Writing to a string cannot fail.
    let mut forward = |text: &mut String, name: &str| {
        let _ = writeln!(text, "    mov ${count}, %r11d\n    jmp enter");
        let _ = writeln!(names, "    .asciz \"{name}\"");
        count += 1;
    };
    let mut data = String::new();
    for symbol in symbols {
        let (name, label) = (&symbol.name, symbol.label());
        if symbol.fails.as_deref() == Some("object") {
            let _ = writeln!(data, "    .globl {label}\n    .type {label}, @object\n    .size {label}, 1");
            let _ = writeln!(data, "{label}:\n    .zero 1");
            continue;
        }
        let _ = writeln!(text, "    .globl {label}\n    .type {label}, @function\n{label}:");
        match symbol.fails.as_deref() {
            Some(way) => _ = writeln!(text, "    jmp {way}"),
            None => forward(&mut text, name),
        }
        let _ = writeln!(text, "    .size {label}, . - {label}");
        if !symbol.current {
            let _ = writeln!(text, "    .symver {label}, {name}@{}", symbol.version);
        }
    }
    // These symbols have no version, so that they override symbols of any version.
    for name in INTERPOSED {
        let _ = writeln!(text, "    .globl {name}\n    .type {name}, @function\n{name}:");
        forward(&mut text, name);
        let _ = writeln!(text, "    .size {name}, . - {name}");
    }
    let _ = writeln!(text, "    .bss\n    .balign 8\ntable:\n    .zero 8 * {count}\n{data}");
    let _ = writeln!(text, "    .section .rodata\nnames:\n{names}");
    let _ = writeln!(text, "    .section .note.GNU-stack,\"\",@progbits");
    text
}

/// Returns the linker's version script. Each version depends on the previous version, except the private one.
fn versions(symbols: &[Symbol]) -> String {
    let mut order: Vec<&str> = symbols.iter().map(|symbol| symbol.version.as_str()).collect();
    order.dedup();
    let mut text = String::new();
    let mut before = "";
    for version in order {
        let _ = writeln!(text, "{version} {{\n  global:");
        for symbol in symbols.iter().filter(|s| s.version == version && s.current) {
            let _ = writeln!(text, "    {};", symbol.name);
        }
        if before.is_empty() {
            // Old symbols are exported under their versioned names only.
            let _ = writeln!(text, "  local:\n    old_*;");
        }
        let private = version.contains("PRIVATE");
        let _ = writeln!(
            text,
            "}}{}{};",
            if private || before.is_empty() { "" } else { " " },
            if private { "" } else { before }
        );
        before = version;
    }
    text
}
