//! Without the feature `dpdk`, this crate is empty, and DPDK need not be installed to build it.

#[cfg(feature = "dpdk")]
mod bind;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    bind::bind();
}
