//! `urnic run`: becomes a program that uses libibverbs and librdmacm, with our libraries in front of those.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::settings::Settings;

/// What is preloaded, and what that loads.
const LIBRARIES: [&str; 2] = ["liburnic.so", "liburnic_verbs.so"];

pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let variables = Settings::of_node(&args.node).into_environment()?;
    let mut preload = library()?.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, arguments) = args.program.split_first().expect("the command line has a program");
    let error = Command::new(program).args(arguments).envs(variables).env("LD_PRELOAD", preload).exec();
    let program = program.to_string_lossy();
    Err(Failure::Failed(match error.kind() {
        ErrorKind::NotFound => format!("{program}: there is no such program; is its package installed?"),
        _ => format!("cannot run {program}: {error}"),
    }))
}

/// The library to preload: beside this command, or where packages put libraries.
fn library() -> Result<PathBuf, Failure> {
    let own = env::current_exe().map_err(|e| Failure::Failed(format!("cannot find this command: {e}")))?;
    let beside = own.parent().map(PathBuf::from).unwrap_or_default();
    let folders = [beside.clone(), beside.join("../lib/urnic"), beside.join("../lib")];
    let whole = |folder: &&PathBuf| LIBRARIES.iter().all(|library| folder.join(library).is_file());
    let found = folders.iter().find(whole).ok_or_else(|| {
        Failure::Failed(format!(
            "{} are not beside {}: build them by `cargo build --release -p urnic-abi -p urnic-shim`",
            LIBRARIES.join(" and "),
            own.display()
        ))
    })?;
    let path = found.join(LIBRARIES[0]);
    let path = path.canonicalize().unwrap_or(path);
    // The dynamic linker takes these for separators.
    if OsString::from(&path).to_string_lossy().contains([':', ' ']) {
        return Err(Failure::Failed(format!(
            "{}: a path to preload has no spaces and colons",
            path.display()
        )));
    }
    Ok(path)
}
