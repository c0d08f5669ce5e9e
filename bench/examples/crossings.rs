//! Prints how many cache lines move between two cores for each message ([`urnic_bench::crossings`]).
//!
//! ```text
//! crossings [--load LOAD] [--shape own|all] [--turns N] [--lines]
//! ```
//!
//! The program `scaling` must have been built beside this one; `scripts/crossings` builds both.

use std::process::ExitCode;

#[cfg(target_arch = "x86_64")]
mod counting {
    use std::{
        collections::BTreeMap,
        path::{Path, PathBuf},
        process::{Command, ExitCode},
    };

    use clap::Parser;
    use urnic_bench::{
        crossings::{Move, Traced, trace},
        perf::PerfError,
        scaling::{Load, Shape, Task},
    };

    /// Count the cache lines that move between two cores for each message, with a device of two engines.
    ///
    /// Lets the two threads of a program take turns, and traces them instruction by instruction. A line is "fetched"
    /// when a core uses it for the first time after the other core wrote it, and "taken" when a core writes its copy
    /// while the other core has one too. Shape "own": each core has its queue pairs at its own engine, and no line
    /// needs to move. Shape "all": each core has queue pairs at both engines, and the server's completion queue, shared
    /// receive queue and region are shared.
    #[derive(Parser)]
    #[command(name = "scripts/crossings")]
    struct Options {
        /// Only this load: write8, send8, read4k or write64k
        #[arg(long)]
        load: Option<Load>,
        /// Only this shape: own or all
        #[arg(long, value_parser = shape)]
        shape: Option<Shape>,
        /// Turns of each core; write64k takes an eighth as many
        #[arg(long, default_value_t = 8)]
        turns: u32,
        /// Also print the source lines that move cache lines (needs nm and addr2line)
        #[arg(long)]
        lines: bool,
    }

    /// Source lines with less than this number of movements per message are not printed.
    const LEAST: f64 = 0.002;

    fn shape(word: &str) -> Result<Shape, String> {
        serde_json::from_value(word.into()).map_err(|_| format!("`{word}` is neither own nor all"))
    }

    pub(super) fn run() -> Result<ExitCode, PerfError> {
        let options = Options::parse();
        let own = std::env::current_exe()
            .map_err(|source| PerfError::Os { doing: "finding this program", source })?;
        let program = own.with_file_name("scaling");
        println!(
            "{:<14} {:<5} {:>8} {:>13} {:>9} {:>9}   per message, both ends",
            "load", "shape", "messages", "instructions", "fetched", "taken"
        );
        for load in Load::ALL.into_iter().filter(|load| options.load.is_none_or(|of| of == *load)) {
            for shape in [Shape::Own, Shape::All]
                .into_iter()
                .filter(|shape| options.shape.is_none_or(|of| of == *shape))
            {
                let turns = if load == Load::Write64k { options.turns.div_ceil(8) } else { options.turns };
                let task = Task { shape, load, cores: vec![0, 1], ways: 2, seconds: 0.0 };
                let traced = trace(&program, &task, turns)?;
                let per = |count: u64| count as f64 / traced.messages.max(1) as f64;
                let name = if shape == Shape::Own { "own" } else { "all" };
                println!(
                    "{:<14} {name:<5} {:>8} {:>13.0} {:>9.3} {:>9.3}",
                    load.to_string(),
                    traced.messages,
                    per(traced.instructions),
                    per(traced.count(Move::Fetched)),
                    per(traced.count(Move::Taken))
                );
                if options.lines {
                    lines(&program, &traced)?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the source lines at which cache lines move, most movements first.
    fn lines(program: &Path, traced: &Traced) -> Result<(), PerfError> {
        let shift = traced.anchor.wrapping_sub(address_of_turns(program)?);
        let mut rows: BTreeMap<(String, &str), u64> = BTreeMap::new();
        for ((address, kind), count) in &traced.moves {
            let kind = if *kind == Move::Fetched { "fetched" } else { "taken" };
            *rows.entry((place(program, address.wrapping_sub(shift))?, kind)).or_default() += count;
        }
        let mut rows: Vec<_> = rows
            .into_iter()
            .map(|(row, count)| (count as f64 / traced.messages.max(1) as f64, row))
            .collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (count, (place, kind)) in rows.iter().filter(|(count, _)| *count >= LEAST) {
            println!("  {count:>8.3} {kind:<8} {place}");
        }
        Ok(())
    }

    fn output(command: &mut Command) -> Result<String, PerfError> {
        let made = command.output().map_err(|source| PerfError::Os {
            doing: "running nm or addr2line (Debian: binutils)",
            source,
        })?;
        Ok(String::from_utf8_lossy(&made.stdout).into_owned())
    }

    /// Returns the address of `turns` in the program's file.
    fn address_of_turns(program: &Path) -> Result<u64, PerfError> {
        let symbols = output(Command::new("nm").arg("-C").arg(program))?;
        let symbol = symbols.lines().find(|line| line.ends_with(" urnic_bench::scaling::turns::turns"));
        let address = symbol.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
        address
            .ok_or_else(|| PerfError::Failed("the program has no symbol of scaling::turns::turns".to_owned()))
    }

    /// Returns the innermost source line of this repository at an address of the program's file. Returns the
    /// innermost line of all if none is of this repository, and the address if addr2line knows no line.
    fn place(program: &Path, address: u64) -> Result<String, PerfError> {
        let found = output(
            Command::new("addr2line")
                .args(["-f", "-C", "-i", "-e"])
                .arg(program)
                .arg(format!("{address:#x}")),
        )?;
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let root = root.canonicalize().unwrap_or(root);
        let rows: Vec<&str> = found.lines().collect();
        let frames = rows.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        let own = frames.clone().find(|(_, file)| file.starts_with(&*root.to_string_lossy()));
        let Some((function, file)) = own.or_else(|| frames.clone().next()) else {
            return Ok(format!("{address:#x}"));
        };
        let file = file.trim_start_matches(&*root.to_string_lossy()).trim_start_matches('/');
        Ok(format!("{file}  in {}", function.rsplit("::").next().unwrap_or(function)))
    }
}

fn main() -> ExitCode {
    #[cfg(target_arch = "x86_64")]
    return counting::run().unwrap_or_else(|error| {
        eprintln!("crossings: {error}");
        ExitCode::FAILURE
    });
    #[cfg(not(target_arch = "x86_64"))]
    {
        eprintln!("crossings: only x86-64 instructions are decoded");
        ExitCode::FAILURE
    }
}
