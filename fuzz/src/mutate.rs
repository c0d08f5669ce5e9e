//! A small mutation loop for machines without libFuzzer: deterministic, without coverage.

use fastrand::Rng;
use std::time::{Duration, Instant};

/// Runs `body` over the seeds and their mutations. `URNIC_FUZZ_SECONDS` sets a duration instead of a fixed
/// number of inputs. `URNIC_FUZZ_SEED` sets the first seed of the random numbers. Prints the input on which
/// `body` panics. If `URNIC_FUZZ_INPUT` names a file, such as one that libFuzzer left for a finding, runs only
/// the input in that file.
pub fn short_run(seeds: &[Vec<u8>], body: fn(&[u8])) {
    let number = |name| std::env::var(name).ok().and_then(|s: String| s.parse::<u64>().ok());
    let end = number("URNIC_FUZZ_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    let first = number("URNIC_FUZZ_SEED").unwrap_or(0);
    if let Ok(file) = std::env::var("URNIC_FUZZ_INPUT") {
        return body(&std::fs::read(file).expect("the file can be read"));
    }
    for (i, s) in seeds.iter().enumerate() {
        one(s, body, &format!("corpus entry {i}"));
    }
    for seed in first.. {
        let goes_on = end.map_or(seed - first < 20_000, |end| Instant::now() < end);
        if !goes_on {
            break;
        }
        let mut rng = Rng::with_seed(seed);
        let mut input = rng.choice(seeds).cloned().unwrap_or_default();
        for _ in 0..rng.usize(1..8) {
            mutate(&mut rng, &mut input, seeds);
        }
        one(&input, body, &format!("seed {seed}"));
    }
}

fn one(input: &[u8], body: fn(&[u8]), what: &str) {
    if let Err(panic) = std::panic::catch_unwind(|| body(input)) {
        eprintln!("{what} fails; the input is {input:02x?}");
        std::panic::resume_unwind(panic);
    }
}

fn mutate(rng: &mut Rng, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = rng.usize(..=input.len());
    let span = |rng: &mut Rng, input: &[u8]| at..(at + rng.usize(..64)).min(input.len());
    match rng.u8(..8) {
        0 => {
            if let Some(b) = input.get_mut(at) {
                *b ^= 1 << rng.u8(..8);
            }
        }
        1 => {
            if let Some(b) = input.get_mut(at) {
                *b = *rng.choice([0, 1, 0x7f, 0x80, 0xfe, 0xff].as_slice()).unwrap_or(&0);
            }
        }
        2 => {
            let new: Vec<u8> = (0..rng.usize(1..16)).map(|_| rng.u8(..)).collect();
            input.splice(at..at, new);
        }
        3 => {
            let gone = span(rng, input);
            input.drain(gone);
        }
        4 => {
            let again = input[span(rng, input)].to_vec();
            input.splice(at..at, again);
        }
        5 => input.truncate(at),
        6 => {
            let range = span(rng, input);
            rng.fill(&mut input[range]);
        }
        _ => {
            let other = rng.choice(seeds).cloned().unwrap_or_default();
            let from = rng.usize(..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
    input.truncate(4096);
}
