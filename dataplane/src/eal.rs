//! The environment abstraction layer (EAL): started once per process, from our own settings, in a thread of its own. If
//! the program around us has started EAL already, we use that one.
//!
//! `rte_eal_init` pins the thread that calls it and starts threads that inherit its signal mask, and the control calls
//! of the virtio drivers write to sockets whose peer may be dead. All of this therefore happens on one private thread
//! with every signal blocked, so that the program around us keeps its signals, its affinity and its SIGPIPE
//! disposition.

use std::ffi::{CStr, CString, c_char};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, ThreadId};

use dpdk_sys as sys;
use nix::sys::signal::SigSet;
use nix::unistd::gettid;
use urnic_config::Hugepages;

use crate::affinity;
use crate::cloexec;
use crate::hugepages;
use crate::joined;
use crate::log;

/// Settings of [`Eal::start`].
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// Memory to take at start, in MiB. On hugepages, EAL can grow beyond it while pages are free; on ordinary pages,
    /// EAL never gets more.
    pub memory_mb: u32,
    /// Whether to take hugepages.
    pub hugepages: Hugepages,
    /// The PCI address of the one NIC that EAL may take; `None`: EAL does not scan the PCI bus.
    pub nic: Option<String>,
    /// Further EAL arguments, as DPDK's manual writes them.
    pub extra_args: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self { memory_mb: 128, hugepages: Hugepages::Auto, nic: None, extra_args: Vec::new() }
    }
}

/// Why EAL could not start.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum EalError {
    /// Hugepages are required and there are not enough.
    #[error(
        "hugepages are required: {needed_mb} MiB wanted, but {cause}; as root, raise the number in \
         /proc/sys/vm/nr_hugepages by {pages}, or set memory.hugepages to \"auto\""
    )]
    NoHugepages {
        /// Memory asked for, in MiB.
        needed_mb: u32,
        /// The number of hugepages that the request needs.
        pages: u64,
        /// Why the kernel could not supply them.
        cause: String,
    },
    /// An argument holds a NUL byte.
    #[error("EAL argument {0:?} holds a NUL byte")]
    Argument(String),
    /// The process was forked from a process that has started EAL, and cannot use that EAL.
    #[error(
        "this process was forked after its parent had opened a device, and can neither use that device nor open \
         another: open devices after fork only, or after exec"
    )]
    Forked,
    /// Too few descriptors are free: EAL would abort the process.
    #[error(
        "fewer than {DESCRIPTORS} file descriptors are free, and DPDK needs them to start: raise the limit (`ulimit -n`), or \
         close some"
    )]
    Descriptors,
    /// The program contains its own copy of DPDK's functions.
    #[error(
        "{by} is linked statically with DPDK, so it brings DPDK's functions itself, in place of the shared libraries \
         that urnic was built for; link {by} with the shared libraries, or use the kernel's sockets (--port kernel)"
    )]
    Replaced {
        /// The program or library that contains them.
        by: String,
    },
    /// `rte_eal_init` failed.
    #[error("DPDK did not start: {reason}{}", log::appendix(.log))]
    Init {
        /// The error in words.
        reason: String,
        /// The last errors that DPDK logged.
        log: Vec<String>,
    },
    /// The private thread could not be created.
    #[error("cannot create the thread that runs DPDK's control calls: {0}")]
    Thread(String),
}

/// The memory that EAL runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Hugepages.
    Hugepages,
    /// Ordinary pages.
    Ordinary,
    /// The memory of an EAL that the program around us started.
    Foreign,
}

impl MemoryKind {
    /// Returns the words that stand before "memory" in a message.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hugepages => "hugepage",
            Self::Ordinary => "ordinary",
            Self::Foreign => "the program's DPDK",
        }
    }

    /// Returns what the user can do about too little memory.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Hugepages => "raise memory.mb or reserve more hugepages",
            Self::Ordinary => "raise memory.mb",
            Self::Foreign => "let the program start DPDK with more (EAL's option -m, SPDK's -s)",
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The running EAL. There is one per process; it lives until the process ends, because EAL cannot start twice.
#[derive(Debug)]
pub struct Eal {
    jobs: mpsc::Sender<Job>,
    memory: MemoryKind,
    pid: u32,
    thread: ThreadId,
}

static STARTED: Mutex<Option<Result<Arc<Eal>, EalError>>> = Mutex::new(None);

/// The kernel's id of the private thread; 0 until it exists.
static THREAD: AtomicI32 = AtomicI32::new(0);

/// Returns whether the caller is the thread that runs DPDK's control calls. May be called from a signal handler.
pub fn is_control_thread() -> bool {
    THREAD.load(Ordering::Relaxed) == gettid().as_raw()
}

impl Eal {
    /// Starts EAL, or returns the EAL that already runs in this process: the settings of the first start hold. An EAL
    /// that the program itself started keeps its log and its memory as they are.
    ///
    /// A failure of EAL itself is final for the process, because EAL can be started only once. After a problem that is
    /// found before that, such as missing hugepages or too many threads, the call may be repeated.
    pub fn start(config: &EalConfig) -> Result<Arc<Self>, EalError> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = started.as_ref() {
            let eal = result.clone()?;
            return if eal.is_parents() { Err(EalError::Forked) } else { Ok(eal) };
        }
        if let Some(by) = joined::replaced_by() {
            return Err(EalError::Replaced { by });
        }
        let cores = affinity::free_cores();
        let result = if joined::is_running() {
            Self::launch(MemoryKind::Foreign, cores, || {
                cloexec::close_on_exec();
                Ok(())
            })
        } else {
            let (memory, args) = arguments(config, &cores)?;
            enough_descriptors()?;
            Self::launch(memory, cores, move || init(&args))
        };
        // Without its thread, EAL has not been called.
        if !matches!(result, Err(EalError::Thread(_))) {
            *started = Some(result.clone());
        }
        result
    }

    /// Starts the private thread, which then runs `init`.
    fn launch(
        memory: MemoryKind,
        cores: Vec<usize>,
        init: impl FnOnce() -> Result<(), EalError> + Send + 'static,
    ) -> Result<Arc<Self>, EalError> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (answer, outcome) = mpsc::channel();
        let body = move || {
            THREAD.store(gettid().as_raw(), Ordering::Relaxed);
            // This thread, and all threads that EAL starts from it, must never run the program's signal handlers.
            if let Err(e) = SigSet::all().thread_block() {
                let _ = answer.send(Err(EalError::Thread(e.to_string())));
                return;
            }
            let result = init();
            // EAL has pinned this thread, or the thread has inherited the affinity of the thread that opened the
            // device. Its work is rare and may run on any core.
            affinity::set_current_thread(&cores);
            let alive = result.is_ok();
            if answer.send(result).is_err() || !alive {
                return;
            }
            while let Ok(job) = inbox.recv() {
                job();
            }
        };
        let thread = thread::Builder::new()
            .name("urnic-eal".into())
            .spawn(body)
            .map_err(|e| EalError::Thread(e.to_string()))?;
        let ended = |_| EalError::Init { reason: "its thread has ended".into(), log: log::recent_errors() };
        outcome.recv().map_err(ended)??;
        Ok(Arc::new(Self { jobs, memory, pid: std::process::id(), thread: thread.thread().id() }))
    }

    /// Returns whether this process is a forked child of the one that runs EAL. It has no private thread, so a control
    /// call would wait for ever.
    pub(crate) fn is_parents(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Runs a control call on the private thread and waits for its result.
    ///
    /// # Panics
    /// Resumes a panic of `job`.
    pub fn control<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        // The caller may be the private thread itself: a job that makes a device (see `begin`) makes control calls.
        if thread::current().id() == self.thread {
            return job();
        }
        let (answer, outcome) = mpsc::sync_channel(1);
        let task = move || {
            let _ = answer.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
        };
        let task: Box<dyn FnOnce() + Send + '_> = Box::new(task);
        // SAFETY: only the lifetime is changed. The task ends before this function returns, because `wait` below
        // returns only when the task has been dropped, or has sent its result, which is the last thing it does.
        let task: Job = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Job>(task) };
        assert!(self.jobs.send(task).is_ok(), "the EAL thread lives as long as the process");
        Task(outcome).wait()
    }

    /// Queues a control call for the private thread and returns at once. The caller can ask the returned task for the
    /// result.
    pub(crate) fn begin<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Task<T> {
        let (answer, outcome) = mpsc::sync_channel(1);
        let task: Job = Box::new(move || {
            let _ = answer.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
        });
        assert!(self.jobs.send(task).is_ok(), "the EAL thread lives as long as the process");
        Task(outcome)
    }

    /// Runs a control call on DPDK's interrupt thread, one millisecond from now, and waits for its result. The call
    /// cannot race with the drivers' work on that thread, and runs after all that the drivers have deferred to alarms
    /// so far. Returns `None` if DPDK has no memory for an alarm.
    pub(crate) fn on_interrupt_thread<T: Send + 'static>(
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        const DELAY_US: u64 = 1000;
        extern "C" fn run(alarm: *mut std::ffi::c_void) {
            // SAFETY: the pointer is the box given away below, and an alarm rings once.
            let job = unsafe { Box::from_raw(alarm.cast::<Job>()) };
            job();
        }
        let (answer, outcome) = mpsc::sync_channel(1);
        let job: Box<Job> = Box::new(Box::new(move || {
            let _ = answer.send(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
        }));
        let job = Box::into_raw(job);
        // SAFETY: EAL runs; `run` takes the box, once.
        if unsafe { sys::rte_eal_alarm_set(DELAY_US, Some(run), job.cast()) } != 0 {
            // SAFETY: the alarm is not set, so the box is still ours.
            drop(unsafe { Box::from_raw(job) });
            return None;
        }
        Some(Task(outcome).wait())
    }

    /// Returns the memory that EAL runs on.
    pub fn memory(&self) -> MemoryKind {
        self.memory
    }

    /// Returns the size of EAL's heap and its free part, in bytes: (total, free).
    pub fn heap(&self) -> (usize, usize) {
        let mut total = 0;
        let mut free = 0;
        for socket in 0..sys::RTE_MAX_NUMA_NODES as i32 {
            let mut stats = sys::rte_malloc_socket_stats::default();
            // SAFETY: EAL runs; `stats` is ours.
            if unsafe { sys::rte_malloc_get_socket_stats(socket, &raw mut stats) } == 0 {
                total += stats.heap_totalsz_bytes;
                free += stats.heap_freesz_bytes;
            }
        }
        (total, free)
    }

    /// Returns DPDK's version, as DPDK states it.
    pub fn version() -> &'static str {
        // SAFETY: returns a static string.
        unsafe { CStr::from_ptr(sys::rte_version()) }.to_str().unwrap_or("DPDK")
    }
}

/// A control call that another thread runs.
#[derive(Debug)]
pub(crate) struct Task<T>(mpsc::Receiver<thread::Result<T>>);

impl<T> Task<T> {
    /// Returns the result, once; `None` while the call has not ended.
    ///
    /// # Panics
    /// Resumes a panic of the call.
    pub(crate) fn outcome(&self) -> Option<T> {
        match self.0.try_recv() {
            Ok(Ok(value)) => Some(value),
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => None,
        }
    }

    /// Waits for the call to end and returns its result.
    ///
    /// # Panics
    /// Resumes a panic of the call.
    pub(crate) fn wait(self) -> T {
        match self.0.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => unreachable!("every job answers"),
        }
    }
}

/// Descriptors that must be free; EAL takes about half of them, and panics without them.
const DESCRIPTORS: usize = 16;

/// Opens as many descriptors as EAL may need, and closes them again.
fn enough_descriptors() -> Result<(), EalError> {
    let first = std::fs::File::open("/dev/null").map_err(|_| EalError::Descriptors)?;
    let more = (1..DESCRIPTORS).map(|_| first.try_clone().map_err(|_| EalError::Descriptors));
    more.collect::<Result<Vec<_>, _>>().map(drop)
}

/// Chooses the kind of memory and composes EAL's arguments.
fn arguments(config: &EalConfig, cores: &[usize]) -> Result<(MemoryKind, Vec<CString>), EalError> {
    let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
    let mut args: Vec<String> = ["urnic", "--no-telemetry"].map(String::from).into();
    match &config.nic {
        // EAL knows from the NIC's kernel driver whether to use virtual or physical addresses.
        Some(address) => args.extend(["--allow".into(), address.clone()]),
        None => args.extend(["--no-pci", "--iova-mode=va"].map(String::from)),
    }
    args.extend([format!("--log-level={}", log::eal_level()), "-m".into(), config.memory_mb.to_string()]);
    if !cores.is_empty() {
        // One logical core that may run on any of `cores`, because it only serves control calls.
        args.push(format!("--lcores=0@({})", cores.join(",")));
    }
    let memory = match config.hugepages {
        Hugepages::Off => MemoryKind::Ordinary,
        wish => match hugepages::reservable(config.memory_mb) {
            Ok(()) => MemoryKind::Hugepages,
            Err(cause) if wish == Hugepages::Required => {
                return Err(EalError::NoHugepages {
                    needed_mb: config.memory_mb,
                    pages: hugepages::pages_for(config.memory_mb),
                    cause,
                });
            }
            Err(cause) => {
                tracing::warn!(
                    "no hugepages for {} MiB ({cause}): running on ordinary pages, which is slower; as root, raise \
                     the number in /proc/sys/vm/nr_hugepages by {}",
                    config.memory_mb,
                    hugepages::pages_for(config.memory_mb)
                );
                MemoryKind::Ordinary
            }
        },
    };
    if memory == MemoryKind::Hugepages {
        // One file per segment list, because a vhost-user peer maps at most eight regions.
        args.extend(["--in-memory", "--single-file-segments"].map(String::from));
    } else {
        // The prefix names a runtime directory in which nothing is kept. All processes share it, so that killed
        // processes do not each leave a directory behind.
        args.extend(["--no-huge", "--no-shconf", "--file-prefix=urnic"].map(String::from));
    }
    args.extend(config.extra_args.iter().cloned());
    let args = args.into_iter().map(|a| CString::new(a.clone()).map_err(|_| EalError::Argument(a)));
    Ok((memory, args.collect::<Result<_, _>>()?))
}

/// Calls `rte_eal_init`.
fn init(args: &[CString]) -> Result<(), EalError> {
    log::capture();
    cloexec::close_on_exec();
    // EAL may keep pointers to its arguments, and permutes the vector: both are leaked.
    let argv: Vec<*mut c_char> =
        args.iter().map(|a| a.clone().into_raw()).chain([std::ptr::null_mut()]).collect();
    let argv = Box::leak(argv.into_boxed_slice());
    // SAFETY: argv holds args.len() NUL-terminated strings and a null, all of which live for ever.
    let status = unsafe { sys::rte_eal_init(args.len() as i32, argv.as_mut_ptr()) };
    if status >= 0 {
        // EAL creates a runtime directory even if it keeps nothing in it. An empty one is removed here.
        // SAFETY: EAL runs; the string is static.
        let dir = unsafe { CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
        if let Ok(dir) = dir.to_str() {
            let _ = std::fs::remove_dir(dir);
        }
        return Ok(());
    }
    Err(EalError::Init { reason: strerror(errno()), log: log::recent_errors() })
}

/// Returns the calling thread's `rte_errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::dpdk_sys_errno() }
}

/// Returns the description of an error number of either sign.
pub(crate) fn strerror(errno: i32) -> String {
    // SAFETY: returns a per-thread buffer, which is copied at once.
    unsafe { CStr::from_ptr(sys::rte_strerror(errno.abs())) }.to_string_lossy().into_owned()
}
