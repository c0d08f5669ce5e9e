//! The bodies of the fuzz targets. The module of a target has `run`, which must not panic for any octets, and `seeds`,
//! some initial inputs. `fuzz_targets/` runs the bodies with libFuzzer. The tests here run them briefly and
//! deterministically. Inputs that once failed are kept in `regressions/TARGET/`; both runs begin with these inputs.
//!
//! A new target `x` needs a module here with `run` and `seeds`, its name in `short_runs!`, `fuzz_targets/x.rs`,
//! and a `[[bin]]` in Cargo.toml.

pub mod config_file;
pub mod corpus;
#[path = "../../iwarp/tests/support/mod.rs"]
mod iwarp_support;

pub mod host;
pub mod input;
pub mod ip_frames;
pub mod iwarp_stream;
pub mod marker_stream;
pub mod mpa_startup;
pub mod mutate;
pub mod tcp_frames;
pub mod tcp_pair;
pub mod terminate;

#[cfg(feature = "libfuzzer")]
pub use libfuzzer_sys;

/// Expands to the contents of a file in `fuzz_targets/`.
#[cfg(feature = "libfuzzer")]
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(
            init: $crate::corpus::write(stringify!($name), &$crate::$name::seeds()),
            |data: &[u8]| $crate::$name::run(data)
        );
    };
}

/// Defines a short run of each target as an ordinary test.
#[cfg(test)]
macro_rules! short_runs {
    ($($target:ident),* $(,)?) => {
        mod short_run {
            $(
                #[test]
                fn $target() {
                    let mut seeds = crate::corpus::regressions(stringify!($target));
                    seeds.extend(crate::$target::seeds());
                    crate::mutate::short_run(&seeds, crate::$target::run);
                }
            )*
        }
    };
}

#[cfg(test)]
short_runs!(
    config_file,
    ip_frames,
    iwarp_stream,
    marker_stream,
    mpa_startup,
    tcp_frames,
    tcp_pair,
    terminate
);
