//! Without the feature `dpdk` this crate is empty, and its build needs nothing of the machine.

#[cfg(feature = "dpdk")]
mod bind;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    bind::bind();
}
