//! Linker options of the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Once loaded, the library must stay loaded, because its device has threads that run until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Binds the library's calls of functions that it exports to its own definitions. Without this option, the dynamic
    // linker would bind such a call to the first symbol of that name in the process. If a drop-in library is loaded
    // first and has several versions of the name, this is the oldest version, which always fails.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
