//! How the library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // It stays loaded once it is: its device has threads and runs on until the process ends.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Its own calls of functions that it exports stay within it. Otherwise they would go to the first symbol of that name
    // in the process: that of a drop-in library, and where names have versions to the oldest, which always fails.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
