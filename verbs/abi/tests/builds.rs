//! Checks which of two builds `liburnic.so` loads. Stand-ins for the builds print which build they are. Also
//! checks how a real build answers the question on which the choice depends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Builds a library of ours, in the profile of this test, and returns its file.
fn built(package: &str, library: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this test");
    let profile = own.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", package, "--target-dir"]);
    build.arg(profile.parent().expect("the target folder"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    if cfg!(not(feature = "dpdk")) {
        build.arg("--no-default-features");
    }
    assert!(build.status().expect("cargo runs").success(), "{package} is built");
    profile.join(library)
}

/// Compiles C code, and returns the compiled file.
fn compile(folder: &Path, name: &str, code: &str, options: &[&str]) -> PathBuf {
    let source = folder.join("source.c");
    fs::write(&source, code).expect("a file");
    let made = folder.join(name);
    let mut compile = Command::new("cc");
    compile.args(["-Wall", "-Wextra", "-Werror", "-Wl,--no-as-needed", "-o"]).arg(&made).arg(&source);
    let output = compile.current_dir(folder).args(options).output().expect("cc runs");
    assert!(output.status.success(), "{name}: {}", text(&output));
    made
}

/// Returns the code of a library with one function of libibverbs, which prints which build it is.
fn stand_in(name: &str, more: &str) -> String {
    format!(
        "#include <stdbool.h>\n#include <stdio.h>\n#include <stdlib.h>\n{more}\n\
         void *ibv_get_device_list(int *n) {{ (void)n; puts(\"{name}\"); return NULL; }}\n"
    )
}

/// A program that loads a library and calls a function.
const PROGRAM: &str = "#include <dlfcn.h>\n#include <stdbool.h>\n#include <stdio.h>\n#include <string.h>\n\
    int main(int n, char **words) {\n\
      void *library = n == 3 ? dlopen(words[1], RTLD_NOW) : NULL;\n\
      void *function = library ? dlsym(library, words[2]) : NULL;\n\
      if (!function) { puts(dlerror()); return 1; }\n\
      if (!strcmp(words[2], \"urnic_needs_dpdk\")) puts(((bool (*)(void))function)() ? \"yes\" : \"no\");\n\
      else ((void *(*)(int *))function)(NULL);\n\
      return 0;\n\
    }\n";

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the program with `variables` as its only `URNIC_` variables.
fn asks(program: &Path, library: &Path, function: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.arg(library).arg(function).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("URNIC_")) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().expect("the program runs")
}

#[test]
fn the_library_with_dpdk_is_loaded_where_it_is_needed_and_can_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let program = compile(folder, "program", PROGRAM, &["-ldl"]);
    let shim = folder.join("liburnic.so");
    fs::copy(built("urnic-shim", "liburnic.so"), &shim).expect("a copy");
    let asked = |port: &str| asks(&program, &shim, "ibv_get_device_list", &[("TEST_PORT", port)]);
    let says = |port: &str, build: &str| {
        let output = asked(port);
        assert!(
            output.status.success() && text(&output) == format!("{build}\n"),
            "{port}: {}",
            text(&output)
        );
    };
    let library = |name: &str, more: &str, options: &[&str]| {
        compile(folder, name, &stand_in(name, more), &[&["-shared", "-fPIC"], options].concat());
    };

    // A single build, of either kind, as cargo leaves it.
    library("liburnic_verbs.so", "bool urnic_needs_dpdk(void) { return getenv(\"TEST_PORT\")[0]; }", &[]);
    says("ring:x", "liburnic_verbs.so");
    // Both builds.
    fs::create_dir(folder.join("dpdk")).expect("a folder");
    library("dpdk/liburnic_verbs.so", "", &[]);
    says("ring:x", "dpdk/liburnic_verbs.so");
    says("", "liburnic_verbs.so");
    // The second build needs a library that is missing.
    compile(folder, "librte_none.so.23", "", &["-shared", "-Wl,-soname,librte_none.so.23"]);
    library("dpdk/liburnic_verbs.so", "", &["librte_none.so.23"]);
    fs::remove_file(folder.join("librte_none.so.23")).expect("it was there");
    let output = asked("ring:x");
    let said = text(&output);
    assert!(output.status.success() && said.starts_with("liburnic_verbs.so\n"), "{said}");
    for part in ["urnic: ", "librte_none.so.23", "apt install librte-meta-all"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    says("", "liburnic_verbs.so");
    // A first build without `urnic_needs_dpdk` is used as it is.
    library("liburnic_verbs.so", "", &[]);
    says("ring:x", "liburnic_verbs.so");
}

/// The build without ports asks for the other build as soon as the settings ask for a port, wherever the settings
/// come from.
#[test]
fn the_library_knows_whether_the_settings_need_ports() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let program = compile(folder, "program", PROGRAM, &["-ldl"]);
    let library = built("urnic-abi", "liburnic_verbs.so");
    let file = folder.join("urnic.toml");
    fs::write(&file, "[port]\nport = \"ring:x\"\n").expect("a file");
    let file = file.to_str().expect("a name");
    let cases: [(&[(&str, &str)], bool); 6] = [
        (&[], false),
        (&[("URNIC_PORT", "kernel:127.0.0.1")], false),
        (&[("URNIC_PORT", "ring:x"), ("URNIC_IP", "10.0.0.1/24")], true),
        (&[("URNIC_CONFIG", file)], true),
        (&[("URNIC_CONFIG", file), ("URNIC_PORT", "kernel")], false),
        (&[("URNIC_PORT", "nonsense")], false),
    ];
    for (variables, port) in cases {
        let expected = if port && cfg!(not(feature = "dpdk")) { "yes\n" } else { "no\n" };
        let output = asks(&program, &library, "urnic_needs_dpdk", variables);
        assert_eq!(text(&output), expected, "{variables:?}");
    }
}
