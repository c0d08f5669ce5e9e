//! Writes one `forward!` for each name in `../symbols.txt`, and makes the drop-in libraries.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

mod drop_in;

fn main() {
    let list = Path::new("../symbols.txt");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed={}", list.display());
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{}", drop_in::SHIM);
    // Binds the library's calls of its exported functions to its own definitions: see the build script of
    // `liburnic_verbs.so`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let names = fs::read_to_string(list).expect("the list of symbols");
    let names: Vec<&str> = names.lines().collect();
    let mut code = String::new();
    for (index, name) in names.iter().enumerate() {
        writeln!(code, "forward!({index}, {name});").expect("a string takes everything");
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("c\"{name}\"")).collect();
    writeln!(code, "const NAMES: [&CStr; {}] = [{}];", names.len(), quoted.join(", "))
        .expect("a string takes everything");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("symbols.rs"), code).expect("OUT_DIR is writable");
    drop_in::make(&out);
}
