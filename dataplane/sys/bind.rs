//! Binds the installed libdpdk: types and functions by bindgen, inline functions through a small C file.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Libraries that hold the symbols of `FUNCTIONS`. Other drivers are plugins that EAL loads by itself.
const LIBRARIES: [&str; 8] = [
    "rte_eal",
    "rte_ethdev",
    "rte_mbuf",
    "rte_mempool",
    "rte_ring",
    "rte_net_ring",
    "rte_net_vhost",
    "rte_vhost",
];

const FUNCTIONS: [&str; 23] = [
    "dpdk_sys_(errno|log_stream|holds|memory_fd)",
    "rte_(dev|eal)_(probe|remove|init|cleanup|get_runtime_dir|hotplug_add|hotplug_remove)",
    "rte_eth_dev_callback_register",
    "rte_eth_dev_(rx_intr_enable|rx_intr_disable|rx_intr_ctl_q_get_fd|configure|start|stop|close|info_get|get_port_by_name|is_valid_port|adjust_nb_rx_tx_desc|set_link_down|set_link_up|rss_reta_update|rss_reta_query|rss_hash_conf_get|socket_id)",
    "rte_eth_(rx|tx)_(queue_setup|burst)",
    "rte_eth_(link_get_nowait|macaddr_get|promiscuous_enable|stats_get|from_rings)",
    "rte_eal_alarm_set",
    "rte_(free|zmalloc_socket|malloc_get_socket_stats)",
    "rte_get_tsc_hz",
    "rte_(eal_iova_mode|memseg_walk)",
    "rte_log_(cur_msg_loglevel|set_global_level)",
    "rte_openlog_stream",
    "rte_mempool_(register_ops|free|avail_count|get_bulk|put_bulk)",
    "rte_pktmbuf_(pool_create_by_ops|attach|free|free_seg)",
    "rte_ring_(create|free|dequeue|dequeue_burst|enqueue_burst)",
    "rte_socket_id",
    "rte_strerror",
    "rte_eth_vhost_get_vid_from_port_id",
    "rte_version",
    "rte_vhost_driver_(register|callback_register|start|unregister)",
    "rte_vhost_get_negotiated_features",
    "rte_vhost_get_vring_num",
    "rte_vhost_(extern_callback_register|get_mem_table|get_vhost_vring|get_vring_base|set_vring_base|vring_call)",
];

/// Generates `bindings.rs`, and links the libraries.
pub fn bind() {
    println!("cargo:rerun-if-changed=wrapper.h");
    println!("cargo:rerun-if-changed=bind.rs");
    let dpdk = pkg_config::Config::new()
        .atleast_version("22.11")
        .cargo_metadata(false)
        .probe("libdpdk")
        .unwrap_or_else(|e| panic!("DPDK 22.11 or newer is needed (Debian: apt install libdpdk-dev): {e}"));
    for path in &dpdk.link_paths {
        println!("cargo:rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo:rustc-link-lib=dylib={library}");
    }

    // All flags are needed, not only the include paths, because the inline functions need the machine flags that DPDK
    // was built with.
    let flags = Command::new("pkg-config").args(["--cflags", "libdpdk"]).output().expect("pkg-config runs");
    let flags = String::from_utf8(flags.stdout).expect("pkg-config prints text");
    let flags: Vec<&str> = flags.split_whitespace().collect();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let inline = out.join("inline.c");
    let mut builder = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(&flags)
        .wrap_static_fns(true)
        .wrap_static_fns_path(&inline)
        .allowlist_type("rte_(eth_conf|eth_dev_info|eth_link|eth_stats|mbuf|mempool|mempool_ops|mbuf_ext_shared_info|malloc_socket_stats)")
        .allowlist_var("RTE_(MAX_ETHPORTS|MAX_NUMA_NODES|PKTMBUF_HEADROOM|LOG_.*)")
        .allowlist_var("rte_eth_fp_ops")
        .allowlist_var("RING_F_.*")
        // These types are both packed and aligned, which Rust cannot express. No code here needs their fields.
        .opaque_type("rte_memseg(_list)?")
        .opaque_type("rte_(arp|gtp|l2tpv2|ecpri|ether|ipv4|ipv6|flow)_.*")
        .derive_default(true)
        .layout_tests(true)
        .generate_comments(false);
    for function in FUNCTIONS {
        builder = builder.allowlist_function(function);
    }
    builder.generate().expect("bindgen").write_to_file(out.join("bindings.rs")).expect("OUT_DIR is writable");

    let mut c = cc::Build::new();
    c.file(&inline)
        .include(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .opt_level(3)
        .warnings(false);
    for flag in flags {
        c.flag(flag);
    }
    c.compile("dpdk_sys_inline");
}
