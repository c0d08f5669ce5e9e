//! Forwards the symbols of libibverbs and librdmacm, which this library exports, to the functions behind them: those
//! of the same names in `liburnic_verbs.so`.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the trampolines are written for x86-64");

/// Defines a symbol that tail-calls the function behind it, whatever its arguments are.
macro_rules! forward {
    ($index:literal, $name:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!("mov r11d, {index}", "jmp {enter}", index = const $index, enter = sym enter)
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// The functions; null until the first call.
static TABLE: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMES.len()];

/// Jumps to the function whose index is in r11, with the registers and the stack as its caller left them.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    core::arch::naked_asm!(
        "lea r10, [rip + {table}]",
        "mov r10, [r10 + 8 * r11]",
        "test r10, r10",
        "jz 2f",
        "jmp r10",
        "2:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push r11",
        "mov edi, r11d",
        "call {find}",
        "pop r11",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        table = sym TABLE,
        find = sym find,
    )
}

/// Looks up the function with this index. Called when the program first calls the function.
extern "C" fn find(index: u32) -> *mut c_void {
    let index = index as usize;
    let (Some(slot), Some(name)) = (TABLE.get(index), NAMES.get(index)) else {
        give_up("the program called a function that liburnic.so does not list; install liburnic.so again")
    };
    let function = function(name);
    slot.store(function, Ordering::Release);
    function
}

/// Returns whether `name` is a symbol of libibverbs or librdmacm that is forwarded.
pub fn forwards(name: &CStr) -> bool {
    NAMES.contains(&name)
}

/// Returns the function `name` of the library behind the symbols.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a library that stays loaded, and a NUL-terminated string.
    let function = unsafe { libc::dlsym(library(), name.as_ptr()) };
    if function.is_null() {
        give_up(&format!(
            "liburnic_verbs.so has no {}: liburnic_verbs.so and liburnic.so are of different versions; install both \
             from one build",
            name.to_string_lossy()
        ));
    }
    function
}

/// Returns the handle of the library behind the symbols.
fn library() -> *mut c_void {
    static HANDLE: OnceLock<usize> = OnceLock::new();
    *HANDLE.get_or_init(|| {
        let handle = choose(&beside().unwrap_or_default()).unwrap_or_else(|why| give_up(&why));
        for (slot, name) in [(&BEFORE_EXIT, c"urnic_before_exit"), (&CONTROL_THREAD, c"urnic_control_thread")]
        {
            // SAFETY: a library that stays loaded, and a NUL-terminated string.
            slot.store(unsafe { libc::dlsym(handle, name.as_ptr()) }, Ordering::Release);
        }
        handle as usize
    }) as *mut c_void
}

/// The file name of the library behind the symbols.
const LIBRARY: &str = "liburnic_verbs.so";
/// The folder of the build with DPDK, for installations in which the library beside this one is built without DPDK.
const DPDK: &str = "dpdk";

/// Loads [`LIBRARY`] from the folder `beside`, which also contains this library. If the settings ask for a port that
/// the loaded build lacks, loads the build with DPDK from the subfolder [`DPDK`] and returns that one. The first build
/// can say whether it lacks the port, because it knows the settings, loads on every machine, and starts nothing before
/// it opens a device.
///
/// If the build with DPDK does not load, returns the first build. Opening a device then fails, which programs can
/// handle.
fn choose(beside: &Path) -> Result<*mut c_void, String> {
    let library = load(&beside.join(LIBRARY)).map_err(|why| format!("cannot load {LIBRARY}: {why}"))?;
    // SAFETY: a library that stays loaded, and a NUL-terminated string.
    let needs_dpdk = unsafe { libc::dlsym(library, c"urnic_needs_dpdk".as_ptr()) };
    // SAFETY: the function of that name, which takes no arguments.
    let needs_dpdk = !needs_dpdk.is_null()
        && unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> bool>(needs_dpdk)() };
    let other = beside.join(DPDK).join(LIBRARY);
    if !needs_dpdk || !other.exists() {
        return Ok(library);
    }
    Ok(load(&other).unwrap_or_else(|why| {
        complain(&format!(
            "the settings ask for a port, and the build with DPDK cannot be loaded: {why}; install DPDK's libraries \
             (Debian, Ubuntu: apt install librte-meta-all), or leave the port out to use the kernel's sockets"
        ));
        library
    }))
}

/// Loads a library, or returns the dynamic linker's reason.
fn load(path: &Path) -> Result<*mut c_void, String> {
    let name =
        CString::new(path.as_os_str().as_bytes()).map_err(|_| "its path holds a NUL byte".to_owned())?;
    // SAFETY: a NUL-terminated string; the library's constructors are DPDK's, which only register drivers.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: after a failure, a NUL-terminated string.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        return Err(why.to_string_lossy().into_owned());
    }
    Ok(handle)
}

/// Returns the device's Ethernet address and MTU from the settings. Loads the library, but opens no device.
pub fn link() -> ([u8; 6], c_int) {
    let (mut mac, mut mtu) = ([0; 6], 0);
    // SAFETY: a library that stays loaded, and a NUL-terminated string.
    let function = unsafe { libc::dlsym(library(), c"urnic_link".as_ptr()) };
    if !function.is_null() {
        // SAFETY: the function of that name.
        let ask: extern "C" fn(&mut [u8; 6], &mut c_int) = unsafe { std::mem::transmute(function) };
        ask(&mut mac, &mut mtu);
    }
    (mac, mtu)
}

/// Functions of the library behind the symbols; null until it is loaded.
static BEFORE_EXIT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static CONTROL_THREAD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Tells the library that the process is about to end without running exit handlers.
pub fn before_exit() {
    let function = BEFORE_EXIT.load(Ordering::Acquire);
    if !function.is_null() {
        // SAFETY: the function of that name, which takes no arguments and returns nothing.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(function)() };
    }
}

/// Returns whether the caller is the thread in which urnic runs DPDK's control calls.
pub fn is_control_thread() -> bool {
    let function = CONTROL_THREAD.load(Ordering::Acquire);
    // SAFETY: the function of that name, which takes no arguments.
    !function.is_null() && unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> bool>(function)() }
}

/// Returns the folder that this library was loaded from.
fn beside() -> Option<PathBuf> {
    own_path()?.parent().map(Path::to_path_buf)
}

/// Returns the file that this library was loaded from.
pub fn own_path() -> Option<PathBuf> {
    file_of((&raw const TABLE).cast())
}

/// Returns the file that contains the code or data at an address.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: a structure of pointers; addresses are only compared.
    let info = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address, &mut info) != 0).then_some(info)
    }?;
    // SAFETY: a string of the dynamic linker.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Ends the process after a call that cannot be served, because going on would run another library's code on our
/// objects.
pub fn give_up(why: &str) -> ! {
    complain(why);
    std::process::exit(1);
}

/// Writes an error to standard error. Standard error may be closed, so a failed write is ignored.
pub fn complain(what: &str) {
    let line = format!("urnic: {what}\n");
    // SAFETY: `line.len()` readable bytes.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
