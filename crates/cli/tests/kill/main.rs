//! Kills the real programs with SIGKILL under load, again and again, and compares the files afterwards with
//! the operations that were acknowledged.
//!
//! ```text
//!   open ─▶ read all, judge ─▶ several writers ─▶ SIGKILL at a random moment ─▶ detach ─▶ fsck ─▶ open …
//! ```
//!
//! Half of the kills hit `warpfire mount` on a 4+2 pool while threads of this process write through the
//! mount. The other half hit a process that writes through the library to a pool on one image. The events of
//! the writers are kept in this process, which is not killed. SIGKILL does not touch the kernel's caches:
//! this tests the loss of a process, not of power.
//!
//! `scripts/kill-loop --kills 200` is the long run.

mod files;
mod journal;
mod plan;
mod record;
mod rounds;
mod server;

use std::process::ExitCode;

/// Kills without `--kills`: an ordinary run of the tests.
const KILLS_DEFAULT: u64 = 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Other arguments are for the standard test harness, which this program replaces.
    let value = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let number = |name: &str| value(name).map(|text| text.parse::<u64>().expect("a number follows"));
    if words.iter().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    let seed = number("--seed").unwrap_or_else(|| u64::from(std::process::id()));
    if let Some(image) = value("--library") {
        return rounds::write_through_library(image.as_ref(), seed, number("--round").expect("the round"));
    }
    let kills = number("--kills").unwrap_or(KILLS_DEFAULT);
    println!("kill loop: {kills} kills, seed {seed}");
    match rounds::run(seed, kills) {
        Ok(total) => {
            println!("{total}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("FAILED with seed {seed}: {failure}");
            ExitCode::FAILURE
        }
    }
}
