//! Linker options of the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Once loaded, the library must stay loaded, because its device has threads that run until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Binds the library's own calls of functions that it exports to itself. Otherwise they would go to the first
    // symbol of that name in the process: to a drop-in library, and there to the oldest version of the name, which
    // always fails.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
