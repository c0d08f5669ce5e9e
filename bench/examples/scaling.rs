//! Compares a device of several engines with as many independent processes of one engine each, on the same cores.
//!
//! ```text
//! scaling [--rounds N] [--seconds S] [--cores 0,1] [--load write8,send8,read4k,write64k] [--json]
//! scaling turns TASK N
//! ```
//!
//! The second form lets each thread of a task (JSON) take N turns, for `scripts/crossings`.

use std::process::ExitCode;

use serde::Serialize;
use urnic_bench::{
    perf::PerfError,
    scaling::{
        Load, Task,
        compare::{self, ALL_GOAL, OWN_GOAL, Plan, Row, Spread},
        turns, worker,
    },
};

const USAGE: &str =
    "usage: scaling [--rounds N] [--seconds S] [--cores 0,1] [--load write8,send8,read4k,write64k] [--json]";

/// If a thread got less than this share of its core, the machine was not idle.
const LEAST_SHARE: f64 = 0.95;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("worker") => work(arguments.get(1)),
        Some("turns") => turns(arguments.get(1), arguments.get(2)),
        _ => parse(&arguments).and_then(|(plan, json)| report(&plan, json)),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("scaling: {error}");
        ExitCode::from(if error.is_usage() { 2 } else { 1 })
    })
}

fn usage() -> PerfError {
    PerfError::Usage(USAGE.to_owned())
}

/// Runs one process of a measurement.
fn work(task: Option<&String>) -> Result<ExitCode, PerfError> {
    let done = worker::run(&task_of(task)?)?;
    println!("{}", serde_json::to_string(&done).expect("plain data serialises"));
    Ok(ExitCode::SUCCESS)
}

/// Lets the threads of a task take turns, and prints the number of messages.
fn turns(task: Option<&String>, number: Option<&String>) -> Result<ExitCode, PerfError> {
    let number = number.and_then(|number| number.parse().ok()).ok_or_else(usage)?;
    println!("{}", turns::turns(&task_of(task)?, number)?);
    Ok(ExitCode::SUCCESS)
}

fn task_of(task: Option<&String>) -> Result<Task, PerfError> {
    task.and_then(|task| serde_json::from_str(task).ok()).ok_or_else(usage)
}

fn parse(arguments: &[String]) -> Result<(Plan, bool), PerfError> {
    let mut plan = Plan { loads: Load::ALL.to_vec(), cores: vec![0, 1], rounds: 5, seconds: 1.0 };
    let mut json = false;
    let mut rest = arguments.iter();
    while let Some(option) = rest.next() {
        let mut value = || rest.next().ok_or_else(usage);
        match option.as_str() {
            "--json" => json = true,
            "--rounds" => plan.rounds = value()?.parse().map_err(|_| usage())?,
            "--seconds" => plan.seconds = value()?.parse().map_err(|_| usage())?,
            "--cores" => plan.cores = list(value()?, |core| core.parse().ok())?,
            "--load" => plan.loads = list(value()?, |load| load.parse().ok())?,
            _ => return Err(usage()),
        }
    }
    if plan.rounds == 0 || plan.seconds <= 0.0 || plan.seconds > 3600.0 {
        return Err(usage());
    }
    Ok((plan, json))
}

fn list<T>(words: &str, parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, PerfError> {
    words.split(',').map(|word| parse(word).ok_or_else(usage)).collect()
}

/// The result for one load with `--json`.
#[derive(Serialize)]
struct Verdict<'a> {
    #[serde(flatten)]
    row: &'a Row,
    own_ratio: Spread,
    all_ratio: Spread,
    passed: [bool; 2],
}

fn report(plan: &Plan, json: bool) -> Result<ExitCode, PerfError> {
    let rows = compare::run(plan, |round| eprintln!("round {} of {}", round + 1, plan.rounds))?;
    let verdict = |row| {
        let [own_ratio, all_ratio] = Row::ratios(row);
        let passed = [own_ratio.median >= OWN_GOAL, all_ratio.median >= ALL_GOAL];
        Verdict { row, own_ratio, all_ratio, passed }
    };
    let verdicts: Vec<_> = rows.iter().map(verdict).collect();
    if json {
        println!("{}", serde_json::to_string(&verdicts).expect("plain data serialises"));
    } else {
        let n = plan.cores.len();
        println!(
            "{n} engines on {n} cores against {n} processes of one engine each; million messages per second of processor time, medians of {}",
            plan.rounds
        );
        println!(
            "{:<14} {:<14} {:>10} {:>10} {:>22} {:>8}  frames handed over",
            "load", "queue pairs at", "processes", "device", "ratio (least..most)", ""
        );
        for Verdict { row, own_ratio, all_ratio, passed } in &verdicts {
            let shapes = [
                ("own engine", &row.own, own_ratio, OWN_GOAL),
                ("all engines", &row.all, all_ratio, ALL_GOAL),
            ];
            for (((name, rates, ratio, goal), passed), handed) in
                shapes.into_iter().zip(passed).zip(row.handed_over)
            {
                let median = |rates: &[f64]| Spread::of(rates.iter().copied()).median;
                let Spread { median: middle, least, most } = ratio;
                let load = row.load.to_string();
                let told = format!("{middle:.3} ({least:.2}..{most:.2})");
                let verdict = if *passed { "pass" } else { "FAIL" };
                println!(
                    "{load:<14} {name:<14} {:>10.3} {:>10.3} {told:>22} {verdict:>4} >= {goal:.2}  {handed}",
                    median(&row.apart),
                    median(rates)
                );
            }
        }
    }
    let share = rows.iter().map(|row| row.least_share).fold(1.0, f64::min);
    if share < LEAST_SHARE {
        eprintln!(
            "other programs had up to {:.0} % of a core: repeat this on an idle machine",
            100.0 * (1.0 - share)
        );
    }
    let passed = verdicts.iter().all(|verdict| verdict.passed == [true; 2]);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
