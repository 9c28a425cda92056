//! Kills the real thing with SIGKILL under load, again and again, and holds what is there afterwards against what had been
//! acknowledged.
//!
//! ```text
//!   open ─▶ read all, judge ─▶ several writers ─▶ SIGKILL at a random moment ─▶ detach ─▶ fsck ─▶ open …
//! ```
//!
//! Half of the kills hit `warpfire mount` on a 4+2 pool while threads of this process write through the mount, half a process
//! that writes through the library to a pool on one image. What the writers say is kept here, outside what is killed.
//! SIGKILL leaves the kernel's caches alone: this shows that the state of the process can be lost, not power.
//!
//! `scripts/kill-loop --kills 200` is the long run.

mod files;
mod journal;
mod plan;
mod record;
mod rounds;
mod server;

use std::process::ExitCode;

/// Kills when nothing is said: an ordinary run of the tests.
const KILLS_DEFAULT: u64 = 10;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Words that are not ours are those of the test harness that this is not.
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
