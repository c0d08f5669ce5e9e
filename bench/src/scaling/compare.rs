//! The process that compares three kinds of measurement: independent processes, and a device in each [`Shape`].
//! It makes the three measurements one after the other, in every round, and starts other processes for each.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde::Serialize;

use super::{Done, Load, Shape, Task};
use crate::perf::PerfError;

/// The measurements to compare, and the number of their repetitions.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The loads of the threads.
    pub loads: Vec<Load>,
    /// The cores, one for each thread or process.
    pub cores: Vec<usize>,
    /// Number of rounds. Each round makes every measurement once.
    pub rounds: usize,
    /// Length of one measurement, in s.
    pub seconds: f64,
}

/// The least share of the independent processes' rate that a device must reach, if no traffic crosses between its
/// engines.
pub const OWN_GOAL: f64 = 0.95;
/// The least share that a device must reach if every thread uses every engine.
pub const ALL_GOAL: f64 = 0.80;

/// The results for one load. Rates are million messages per second of processor time, summed over the threads. They do
/// not depend on time in which other programs had the cores.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The load of the threads.
    pub load: Load,
    /// The smallest share of a core that any thread had, over all measurements.
    pub least_share: f64,
    /// Rates of the independent processes together, by round.
    pub apart: Vec<f64>,
    /// Rates of the device whose threads use only their own engines.
    pub own: Vec<f64>,
    /// Rates of the device whose threads use all engines.
    pub all: Vec<f64>,
    /// Number of frames that engines handed to each other, over all rounds: at devices with threads on their own
    /// engines, and at devices with threads on all engines.
    pub handed_over: [u64; 2],
}

/// The median, minimum and maximum of a list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median; for an even number of values, the lower of the middle two.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

impl Spread {
    /// Returns median, minimum and maximum of the values; NaN if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { median: at(last / 2), least: at(0), most: at(last) }
    }
}

impl Row {
    /// Returns the ratios of a device's rate to that of the independent processes in the same round: first for threads
    /// that use their own engines, then for threads that use all engines.
    pub fn ratios(&self) -> [Spread; 2] {
        [&self.own, &self.all]
            .map(|rates| Spread::of(rates.iter().zip(&self.apart).map(|(rate, apart)| rate / apart)))
    }
}

/// Makes all measurements, round by round. Calls `tell` with the number of every round.
///
/// # Errors
/// [`PerfError`].
pub fn run(plan: &Plan, tell: impl Fn(usize)) -> Result<Vec<Row>, PerfError> {
    let row =
        |&load| Row { load, least_share: 1.0, apart: vec![], own: vec![], all: vec![], handed_over: [0; 2] };
    let mut rows: Vec<Row> = plan.loads.iter().map(row).collect();
    for round in 0..plan.rounds {
        tell(round);
        for row in &mut rows {
            // The order rotates from round to round, so that no kind is always measured first.
            for turn in 0..3 {
                let task = |shape, cores: &[usize]| Task {
                    shape,
                    load: row.load,
                    cores: cores.to_vec(),
                    ways: plan.cores.len(),
                    seconds: plan.seconds,
                };
                let tasks = match (round + turn) % 3 {
                    0 => plan.cores.iter().map(|core| task(Shape::Own, &[*core])).collect(),
                    1 => vec![task(Shape::Own, &plan.cores)],
                    _ => vec![task(Shape::All, &plan.cores)],
                };
                let done = measure(&tasks)?;
                let rate = done.iter().flat_map(|done| &done.mmsg_cpu_s).sum();
                let handed = done.iter().map(|done| done.handed_over).sum::<u64>();
                let shares = done.iter().flat_map(|done| done.mmsg_s.iter().zip(&done.mmsg_cpu_s));
                row.least_share = shares.map(|(all, own)| all / own).fold(row.least_share, f64::min);
                let [own_handed, all_handed] = &mut row.handed_over;
                match (round + turn) % 3 {
                    0 => row.apart.push(rate),
                    1 => (row.own.push(rate), *own_handed += handed).1,
                    _ => (row.all.push(rate), *all_handed += handed).1,
                }
            }
        }
    }
    Ok(rows)
}

/// Runs all tasks at the same time, each in its own process.
fn measure(tasks: &[Task]) -> Result<Vec<Done>, PerfError> {
    let mut workers = tasks.iter().map(Worker::start).collect::<Result<Vec<_>, _>>()?;
    workers.iter_mut().try_for_each(Worker::await_ready)?;
    workers.iter_mut().try_for_each(Worker::begin)?;
    workers.into_iter().map(Worker::finish).collect()
}

struct Worker {
    process: Child,
    says: BufReader<ChildStdout>,
}

fn os(doing: &'static str) -> impl Fn(std::io::Error) -> PerfError {
    move |source| PerfError::Os { doing, source }
}

impl Worker {
    fn start(task: &Task) -> Result<Self, PerfError> {
        let program = env::current_exe().map_err(os("finding this program"))?;
        let task = serde_json::to_string(task).expect("plain data serialises");
        let mut process = Command::new(program)
            .args(["worker", &task])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(os("starting a process"))?;
        let says = process.stdout.take().expect("it is piped");
        Ok(Self { process, says: BufReader::new(says) })
    }

    fn line(&mut self) -> Result<String, PerfError> {
        let mut line = String::new();
        self.says.read_line(&mut line).map_err(os("reading from a process"))?;
        if line.is_empty() {
            return Err(PerfError::Failed("a process of the measurement has failed".to_owned()));
        }
        Ok(line)
    }

    fn await_ready(&mut self) -> Result<(), PerfError> {
        match self.line()?.trim_end() {
            "ready" => Ok(()),
            _ => Err(PerfError::Failed("a process of the measurement is not ready".to_owned())),
        }
    }

    fn begin(&mut self) -> Result<(), PerfError> {
        let stdin = self.process.stdin.as_mut().expect("it is piped");
        stdin.write_all(b"go\n").map_err(os("writing to a process"))
    }

    fn finish(mut self) -> Result<Done, PerfError> {
        let line = self.line()?;
        let no_result = |_| PerfError::Failed("a process of the measurement printed no result".to_owned());
        let done = serde_json::from_str(&line).map_err(no_result)?;
        self.process.wait().map_err(os("waiting for a process"))?;
        Ok(done)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Both calls are harmless if the process has ended already. It still runs only if another process failed.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
