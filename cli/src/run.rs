//! `urnic run`: executes a program that uses libibverbs and librdmacm, with our libraries in their place.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::{RunArgs, Way};
use crate::failure::Failure;
#[cfg(not(feature = "dpdk"))]
use crate::places::DPDK;
use crate::places::places;
use crate::settings::Settings;

pub fn run(args: &RunArgs) -> Result<(), Failure> {
    let settings = Settings::of_node(&args.node).into_environment()?;
    let libraries = Libraries::find()?;
    #[cfg(not(feature = "dpdk"))]
    if Settings::of_node(&args.node).load_node()?.port.spec.is_some() {
        libraries.serve_ports()?;
    }
    let libraries = libraries.environment(args.libraries, args.rsockets)?;
    let (program, arguments) = args.program.split_first().expect("the command line has a program");
    if privileged(program) {
        eprintln!(
            "urnic: {} is set-user-ID or set-group-ID, so the dynamic linker loads no libraries of urnic into it: use \
             a copy without these bits",
            program.to_string_lossy()
        );
    }
    let error = Command::new(program).args(arguments).envs(settings).envs(libraries).exec();
    let program = program.to_string_lossy();
    Err(Failure::Failed(match error.kind() {
        ErrorKind::NotFound => format!("{program}: there is no such program; is its package installed?"),
        _ => format!("cannot run {program}: {error}"),
    }))
}

/// The locations of our libraries.
pub struct Libraries {
    /// The library that is preloaded; it loads the others.
    shim: PathBuf,
    /// The folder of the libraries that have rdma-core's names.
    drop_in: PathBuf,
}

impl Libraries {
    /// All library files, relative to their folder.
    const FILES: [&str; 4] =
        ["liburnic.so", "liburnic_verbs.so", "drop-in/libibverbs.so.1", "drop-in/librdmacm.so.1"];

    /// Finds the libraries beside this command, or where packages put libraries.
    pub fn find() -> Result<Self, Failure> {
        let own =
            env::current_exe().map_err(|e| Failure::Failed(format!("cannot find this command: {e}")))?;
        let folders = places(&own);
        let beside = &folders[0];
        let missing = |folder: &Path| Self::FILES.iter().find(|file| !folder.join(file).is_file()).copied();
        let folder = folders.iter().find(|folder| missing(folder).is_none()).ok_or_else(|| {
            let some = folders.iter().find(|folder| folder.join(Self::FILES[0]).is_file());
            let folder = some.unwrap_or(beside);
            Failure::Failed(format!(
                "there is no {} in {}: build the libraries by `cargo build --release -p urnic-abi -p urnic-shim`, or \
                 install them in that folder, or in ../lib/urnic or ../lib relative to it",
                missing(folder).unwrap_or_default(),
                folder.display(),
            ))
        })?;
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.clone());
        // The dynamic linker treats these characters as separators or variables.
        if folder.to_string_lossy().contains([':', ';', ' ', '$']) {
            return Err(Failure::Failed(format!(
                "the dynamic linker takes no libraries from {}: its name must not contain spaces, colons, semicolons or \
                 dollar signs",
                folder.display()
            )));
        }
        Ok(Self { shim: folder.join(Self::FILES[0]), drop_in: folder.join("drop-in") })
    }

    /// Checks that the build of the libraries with DPDK can be loaded; the preloaded library uses that build for ports.
    /// Succeeds if there is no such build in a folder of its own, because the other libraries may then support ports
    /// themselves. If they do not, they report an error.
    #[cfg(not(feature = "dpdk"))]
    fn serve_ports(&self) -> Result<(), Failure> {
        let folder = self.drop_in.with_file_name(DPDK);
        // `loadable` starts the file that it checks, and a library cannot be started. So it checks the `urnic` in the
        // same folder, which needs the same libraries of DPDK.
        match folder.join(Self::FILES[1]).is_file() {
            true => crate::builds::loadable(&folder.join("urnic")),
            false => Ok(()),
        }
    }

    /// Returns the dynamic linker's variables, with our libraries before the present contents of the variables.
    pub fn environment(&self, way: Way, rsockets: bool) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let mut preload = Vec::new();
        // The shim must precede librspreload.so, which would otherwise turn DPDK's sockets into rsockets.
        if way != Way::DropIn || rsockets {
            preload.push(self.shim.clone());
        }
        if rsockets {
            preload.push(rspreload()?);
        }
        let mut variables = Vec::new();
        if !preload.is_empty() {
            variables.push(("LD_PRELOAD", before("LD_PRELOAD", &preload)));
        }
        if way != Way::Preload {
            variables
                .push(("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", std::slice::from_ref(&self.drop_in))));
        }
        Ok(variables)
    }
}

/// Returns a list for the dynamic linker: our libraries, then the variable's present contents.
fn before(variable: &str, ours: &[PathBuf]) -> OsString {
    let mut list = ours.iter().map(|path| path.as_os_str().to_owned()).collect::<Vec<_>>();
    list.extend(env::var_os(variable).filter(|others| !others.is_empty()));
    list.join(OsStr::new(":"))
}

/// Returns librdmacm's library that turns a program's sockets into rsockets.
fn rspreload() -> Result<PathBuf, Failure> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let mut files = folders.iter().map(|folder| Path::new(folder).join("rsocket/librspreload.so"));
    files.find(|file| file.is_file()).ok_or_else(|| {
        Failure::Failed(
            "rsocket/librspreload.so is not installed; it comes with librdmacm (Debian: librdmacm1)"
                .to_owned(),
        )
    })
}

/// Returns whether a program gets privileges from its file. For such a program the dynamic linker ignores the variables
/// of the user.
fn privileged(program: &OsStr) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = match Path::new(program).components().count() {
        1 => env::split_paths(&path).map(|folder| folder.join(program)).collect(),
        _ => vec![PathBuf::from(program)],
    };
    places.retain(|place| place.is_file());
    let mode = places.first().and_then(|file| file.metadata().ok()).map(|file| file.permissions().mode());
    mode.is_some_and(|mode| mode & 0o6000 != 0) && !nix::unistd::geteuid().is_root()
}
